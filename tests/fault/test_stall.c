// SPDX-License-Identifier: Apache-2.0
//
// Workers that stand still, in every way in which they can: what `lockstep stalls` says of each has
// to name the right ranks, with host, process, place and function, and nobody else; and it has to
// end when they go on. Real processes on one coordinator whose floor for stalls is low. The
// trainers do not help with marks.
//
// What `lockstep stalls` said of each is appended to the file LOCKSTEP_STALL_KEEP, for
// docs/stalls.md.

#include "tests/fault/process_world.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// More than two seconds of steps: no verdict is made in the first two heartbeats of a generation.
// The step before it is an odd one, after which there is nothing more that ranks do together.
#define REST_MS 50
#define STEP 46

#define FLOOR_MS slow_ms(500)
#define LATE_MS slow_ms(2000) // From the bound to the verdict.
#define FROZEN_MS slow_ms(3000) // From SIGSTOP to the verdict.
#define LIFTED_MS slow_ms(2000) // From progress to its end.

static struct coordinator_process coordinator;
static struct world world;

// ---- Asking -------------------------------------------------------------------------------------

// Whether what the tool says now is what stall_check.py is given.
static bool stalls_are(const char *wanted, const char *errors)
{
    const char *folder = getenv("LOCKSTEP_BIN");
    char command[1024];
    snprintf(command, sizeof(command),
             "{ '%s/lockstep' stalls --http 127.0.0.1:%u --json; } >'%s.json' 2>'%s'; "
             "tests/fault/stall_check.py '%s.json' %s >>'%s' 2>&1",
             folder != NULL ? folder : "build/bin", coordinator.http_port, errors, errors, errors,
             wanted, errors);
    return system(command) == 0;
}

static void keep_stalls(const char *wanted)
{
    const char *folder = getenv("LOCKSTEP_BIN");
    const char *file = getenv("LOCKSTEP_STALL_KEEP");
    char command[1024];
    if (file == NULL || file[0] == '\0' || wanted[0] == '\0')
        return;
    snprintf(command, sizeof(command),
             "{ echo '# %s'; '%s/lockstep' stalls --http 127.0.0.1:%u; } >>'%s'", wanted,
             folder != NULL ? folder : "build/bin", coordinator.http_port, file);
    (void)!system(command);
}

static void print_file(const char *name)
{
    char line[4096];
    FILE *file = fopen(name, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        printf("%s", line);
    if (file != NULL)
        (void)fclose(file);
}

// Waits until it is so; fails at the bound, with what was said last.
static void expect_stalls(const char *wanted, uint64_t ms)
{
    const uint64_t end_ms = clock_now_ms() + ms;
    char errors[] = "/tmp/test_stall.XXXXXX";
    char json[sizeof(errors) + 5];
    const int fd = mkstemp(errors);
    assert_true(fd >= 0);
    close(fd);
    snprintf(json, sizeof(json), "%s.json", errors);
    bool right = stalls_are(wanted, errors);
    while (!right && clock_now_ms() < end_ms)
        right = stalls_are(wanted, errors);
    if (right)
        keep_stalls(wanted);
    else
        print_file(errors);
    unlink(errors);
    unlink(json);
    if (!right)
        fail_msg("not within %llu ms: %s", (unsigned long long)ms, wanted);
}

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

// Everything goes on to a good end: a stall is something to look at, not a failure.
static void end(void)
{
    struct report done[WORLD_MAX];
    world_stop(&world);
    for (uint32_t rank = 0; rank < world.size; rank++)
        world_expect(&world, rank, REPORT_DONE, &done[rank]);
    for (uint32_t rank = 1; rank < world.size; rank++)
        assert_int_equal(done[rank].value, done[0].value);
    world_join(&world);
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
    expect_stalls(culprit, WAIT_MS);
    world_release(&world, 1);
    expect_stalls("", LIFTED_MS);
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
        {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_SPIN},
        {.place = PLACE_NOWHERE},
        {.place = PLACE_IN_CALL, .place_step = STEP + 1, .hold = HOLD_READ},
    };
    begin(scripts, 3, "auto");
    world_expect(&world, 0, REPORT_PLACE, NULL);
    world_expect(&world, 2, REPORT_PLACE, NULL);
    expect_stalls("0:outside:hold_spin 2:in_call:hold_read", WAIT_MS);
    world_release(&world, 0);
    world_release(&world, 2);
    expect_stalls("", LIFTED_MS);
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
    expect_stalls("1:stopped,frozen", FROZEN_MS);
    world_signal(&world, 1, SIGCONT);
    expect_stalls("", LIFTED_MS);
    end();
}

// Condition: the first step is slow, and later a rank evaluates and has said so. Decision: both are
// longer than the floor, and neither is an alarm.
static void what_is_expected_is_no_stall(void **state)
{
    (void)state;
    const uint64_t expected_ms = slow_ms(1500);
    struct script scripts[] = {
        {.place = PLACE_LEARNING, .hold = HOLD_SPIN},
        {.place = PLACE_OPTIMIZER, .place_step = STEP, .hold = HOLD_SLEEP, .pause_ms = expected_ms},
        {.place = PLACE_NOWHERE},
    };
    begin(scripts, 3, "auto");
    world_expect(&world, 0, REPORT_PLACE, NULL);
    pause_us(slow_ms(1500) * 1000);
    world_release(&world, 0);
    world_expect(&world, 1, REPORT_PLACE, NULL);
    pause_us(expected_ms * 1000);
    expect_stalls("never", 0);
    world_release(&world, 1);
    end();
}

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

// A sanitizer's own functions stand between a trainer's and those of the C library, and it keeps
// functions apart that are one otherwise. The parts of this have tests that run under one.
static void not_under_a_sanitizer(void **state)
{
    (void)state;
    print_message("under a sanitizer another function is on top of the stack\n");
    skip();
}

int main(void)
{
    const char *sanitizer = getenv("LOCKSTEP_SANITIZER");
    const struct CMUnitTest none[] = {cmocka_unit_test(not_under_a_sanitizer)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(outside_in_read, teardown),
        cmocka_unit_test_teardown(outside_spinning, teardown),
        cmocka_unit_test_teardown(outside_asleep, teardown),
        cmocka_unit_test_teardown(in_a_call, teardown),
        cmocka_unit_test_teardown(two_culprits, teardown),
        cmocka_unit_test_teardown(stopped_and_continued, teardown),
        cmocka_unit_test_teardown(what_is_expected_is_no_stall, teardown),
    };
    if (sanitizer != NULL && sanitizer[0] != '\0')
        return cmocka_run_group_tests(none, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
