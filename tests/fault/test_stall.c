// SPDX-License-Identifier: Apache-2.0
//
// Workers that stand still, in every way in which they can: what `lockstep stalls` says of each has
// to name the right ranks, with host, process, place and function, and nobody else; and it has to
// end when they go on. Real processes on one coordinator whose floor for stalls is low. The
// trainers do not help with marks.

#include "tests/fault/process_world.h"
#include "tests/fault/stall_ask.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// More than two seconds of steps: no verdict is made in the first two heartbeats of a generation.
// The step before it is an odd one, after which there is nothing more that ranks do together.
#define REST_MS 50
#define STEP 46

#define FLOOR_MS slow_ms(500)
#define LATE_MS slow_ms(4000) // From the bound to the verdict.
#define FROZEN_MS slow_ms(3000) // From SIGSTOP to the verdict.
#define LIFTED_MS slow_ms(2000) // From progress to its end.

static struct coordinator_process coordinator;
static struct world world;

// ---- Worlds -------------------------------------------------------------------------------------

// transport: LOCKSTEP_TRANSPORT
static void begin(struct script *scripts, uint32_t size, const char *transport)
{
    char floor_ms[48];
    snprintf(floor_ms, sizeof(floor_ms), "--stall-floor-ms=%llu", (unsigned long long)FLOOR_MS);
    const char *const arguments[] = {"--http=127.0.0.1:0", floor_ms, NULL};
    for (uint32_t rank = 0; rank < size; rank++)
        scripts[rank].way.transport = transport;
    for (uint32_t rank = 0; rank < size; rank++)
        scripts[rank].rest_ms = REST_MS;
    coordinator_start(&coordinator, arguments);
    world_start(&world, &coordinator, "job", size, scripts);
}

// Checks that all ranks finish successfully: a stall is no failure.
static void end(void)
{
    world_stop(&world);
    world_expect_done(&world);
    coordinator_stop(&coordinator);
}

// Rank 1 stands still at a place, is found, goes on, and the alarm ends.
static void stands_still(uint32_t size, const char *transport, const struct script *script,
                         const char *wanted)
{
    struct script scripts[WORLD_MAX] = {{.place = PLACE_NOWHERE}};
    char culprit[256];
    scripts[1] = *script;
    begin(scripts, size, transport);
    world_expect(&world, 1, REPORT_PLACE, NULL);
    snprintf(culprit, sizeof(culprit), "%s:pid=%d:late=%llu", wanted, (int)world.workers[1].pid,
             (unsigned long long)LATE_MS);
    stall_expect(&coordinator, culprit, WAIT_MS);
    world_release(&world, 1);
    stall_expect(&coordinator, "", LIFTED_MS);
    end();
}

// ---- Tests --------------------------------------------------------------------------------------

// Condition: rank 1 is in its own code, in a system call. Decision: it is the culprit, and the
// function of the trainer is named, not that of the C library.
static void outside_in_read(void **state)
{
    (void)state;
    const struct script script = {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_READ};
    stands_still(3, "auto", &script, "1:outside:step_end:hold_read");
}

static void outside_spinning(void **state)
{
    (void)state;
    const struct script script = {.place = PLACE_STEADY, .place_step = STEP, .hold = HOLD_SPIN};
    stands_still(2, "tcp", &script, "1:outside:hold_spin");
}

static void outside_asleep(void **state)
{
    (void)state;
    const struct script script = {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_SLEEP};
    stands_still(3, "tcp", &script, "1:outside:hold_sleep");
}

// Condition: rank 1 hangs while it loads a library, and holds the loader's lock. Decision: its
// heartbeats and its stacks come as ever.
static void outside_loading(void **state)
{
    (void)state;
    const struct script script = {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_LOAD};
    stands_still(3, "auto", &script, "1:outside:step_end:hold_load");
}

// Condition: rank 1 is between two gradients of a call. Decision: those that are missing are named.
static void in_a_call(void **state)
{
    (void)state;
    const struct script script = {
        .place = PLACE_IN_CALL, .place_step = STEP, .place_gradients = 5, .hold = HOLD_SLEEP};
    stands_still(2, "auto", &script, "1:in_call:model:hold_sleep:missing=a,b,c");
}

// Condition: two ranks stand still for different reasons. Decision: both are named, and why.
static void two_culprits(void **state)
{
    (void)state;
    struct script scripts[] = {
        {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_SLEEP},
        {.place = PLACE_NOWHERE},
        {.place = PLACE_IN_CALL, .place_step = STEP + 1, .hold = HOLD_READ},
    };
    begin(scripts, 3, "auto");
    world_expect(&world, 0, REPORT_PLACE, NULL);
    world_expect(&world, 2, REPORT_PLACE, NULL);
    stall_expect(&coordinator, "0:outside:hold_sleep 2:in_call:hold_read", WAIT_MS);
    world_release(&world, 0);
    world_release(&world, 2);
    stall_expect(&coordinator, "", LIFTED_MS);
    end();
}

// Condition: a process is stopped, and continued. Decision: it is named within three seconds, as
// stopped where a mate can see it, and nothing is left of that when it goes on.
static void stopped_and_continued(void **state)
{
    (void)state;
    struct script scripts[3] = {{.place = PLACE_NOWHERE}};
    for (uint32_t rank = 0; rank < 3; rank++)
        scripts[rank].report_every = 5;
    begin(scripts, 3, "auto");
    world_expect_step(&world, 1, STEP);
    world_signal(&world, 1, SIGSTOP);
    stall_expect(&coordinator, "1:stopped,frozen", FROZEN_MS);
    world_signal(&world, 1, SIGCONT);
    stall_expect(&coordinator, "", LIFTED_MS);
    end();
}

// Condition: the first step is slow, and later a rank evaluates and has said so. Decision: both are
// longer than the floor, and neither is an alarm.
static void what_is_expected_is_no_stall(void **state)
{
    (void)state;
    const uint64_t expected_ms = slow_ms(1500);
    struct script scripts[] = {
        {.place = PLACE_LEARNING, .hold = HOLD_SLEEP},
        {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_SLEEP, .pause_ms = expected_ms},
        {.place = PLACE_NOWHERE},
    };
    begin(scripts, 3, "auto");
    world_expect(&world, 0, REPORT_PLACE, NULL);
    pause_us(slow_ms(1500) * 1000);
    world_release(&world, 0);
    world_expect(&world, 1, REPORT_PLACE, NULL);
    pause_us(expected_ms * 1000);
    stall_expect(&coordinator, "never", 0);
    world_release(&world, 1);
    end();
}

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

// ThreadSanitizer keeps signals back until a thread calls it: a stuck thread never says where it
// is.
static void not_under_a_sanitizer(void **state)
{
    (void)state;
    print_message("ThreadSanitizer keeps signals back, so no function is named\n");
    skip();
}

int main(void)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    const struct CMUnitTest none[] = {cmocka_unit_test(not_under_a_sanitizer)};
    const struct CMUnitTest some[] = {
        // All times are longer there.
        cmocka_unit_test_teardown(two_culprits, teardown),
        cmocka_unit_test_teardown(stopped_and_continued, teardown),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(outside_in_read, teardown),
        cmocka_unit_test_teardown(outside_spinning, teardown),
        cmocka_unit_test_teardown(outside_asleep, teardown),
        cmocka_unit_test_teardown(outside_loading, teardown),
        cmocka_unit_test_teardown(in_a_call, teardown),
        cmocka_unit_test_teardown(two_culprits, teardown),
        cmocka_unit_test_teardown(stopped_and_continued, teardown),
        cmocka_unit_test_teardown(what_is_expected_is_no_stall, teardown),
    };
    if (!sanitizer || sanitizer[0] == '\0')
        return cmocka_run_group_tests(tests, NULL, NULL);
    if (strcmp(sanitizer, "thread") == 0)
        return cmocka_run_group_tests(none, NULL, NULL);
    return cmocka_run_group_tests(some, NULL, NULL);
}
