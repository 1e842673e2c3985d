// SPDX-License-Identifier: Apache-2.0
//
// Workers whose trainers have done all they can, and whose devices have not: `lockstep stalls`
// names the parameter and the stream, on the rank whose stream it is, and no other rank, wherever
// the others wait. The stall ends when the stream goes on. Real processes with fake devices
// (tests/fake_gpu), on one coordinator whose floor for stalls is low.

#include "tests/fault/process_world.h"
#include "tests/fault/stall_ask.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

// More than two seconds of steps: no verdict is made in the first two heartbeats of a generation.
#define REST_MS 50
#define STEP 46

#define FLOOR_MS slow_ms(500)
#define LIFTED_MS slow_ms(2500) // From progress to its end.

static struct coordinator_process coordinator;
static struct world world;

static void begin(uint32_t size, uint32_t first_device, bool by_stream, bool closes)
{
    struct script scripts[WORLD_MAX] = {{.place = PLACE_NOWHERE}};
    char floor_ms[48];
    snprintf(floor_ms, sizeof(floor_ms), "--stall-floor-ms=%llu", (unsigned long long)FLOOR_MS);
    const char *const arguments[] = {"--http=127.0.0.1:0", floor_ms, NULL};
    for (uint32_t rank = 0; rank < size; rank++) {
        scripts[rank].rest_ms = REST_MS;
        scripts[rank].by_stream = by_stream;
        scripts[rank].ending = closes ? ENDING_AT_ONCE : ENDING_CLOSE;
        scripts[rank].last_step = closes ? STEP - 1 : 0;
        scripts[rank].way = (struct way){.transport = "tcp", .device = rank >= first_device};
    }
    scripts[1].place = PLACE_IN_CALL;
    scripts[1].place_step = STEP;
    scripts[1].place_gradients = 5;
    scripts[1].hold = HOLD_STREAM;
    coordinator_start(&coordinator, arguments);
    world_start(&world, &coordinator, "job", size, scripts);
}

static void end(void)
{
    world_stop(&world);
    world_expect_done(&world);
    coordinator_stop(&coordinator);
}

// The stream of rank 1 stands still after five of eight gradients, which it makes; the others are
// reported, and behind it.
static void stands_still(uint32_t size, uint32_t first_device, bool by_stream)
{
    char culprit[256];
    begin(size, first_device, by_stream, false);
    world_expect(&world, 1, REPORT_PLACE, NULL);
    snprintf(culprit, sizeof(culprit),
             "\"1:device:step_end:pid=%d:says=waits for the gradient of 'c' on stream 0x"
             ":says=which its device has not finished for:says=; 1 rank waits for it.\"",
             (int)world.workers[1].pid);
    stall_expect(&coordinator, culprit, WAIT_MS);
    world_release(&world, 1);
    stall_expect(&coordinator, "", LIFTED_MS);
    end();
}

// Condition: the bucket goes by the host, and a rank without a device waits for it. Decision: the
// rank whose stream stands still is the culprit, and no link.
static void staged(void **state)
{
    (void)state;
    stands_still(2, 1, false);
}

// Condition: both have a device, NCCL has the input of one, and both trainers are outside the
// library, where they wait for their streams. Decision: the same, and the other one waits for it.
static void between_devices(void **state)
{
    (void)state;
    stands_still(2, 0, true);
}

// Condition: both trainers close after a step that a stream of rank 1 has not made. Decision: it is
// named, and the function that waits for it.
static void in_close(void **state)
{
    char culprit[256];
    (void)state;
    begin(2, 0, true, true);
    world_expect(&world, 1, REPORT_PLACE, NULL);
    snprintf(
        culprit, sizeof(culprit),
        "\"1:device:close:pid=%d:says=waits in lockstep_close for the gradient of 'c' on stream "
        "0x:says=which its device has not finished for\"",
        (int)world.workers[1].pid);
    stall_expect(&coordinator, culprit, WAIT_MS);
    world_release(&world, 1);
    world_expect_done(&world);
    coordinator_stop(&coordinator);
}

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(staged, teardown),
        cmocka_unit_test_teardown(between_devices, teardown),
        cmocka_unit_test_teardown(in_close, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
