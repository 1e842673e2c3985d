// SPDX-License-Identifier: Apache-2.0
//
// The coordinator is killed, or asked to go, while real workers train: steady training does not
// need it. Functions that do need it (forming a world, starting and learning) end with a named
// error.

#include "tests/fault/process_world.h"

#include "base/clock.h"
#include "tests/support/bounds.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MORE_STEPS (test_slow() > 1 ? 20u : 50u)

static struct coordinator_process coordinator;
static struct world world;

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

static void begin(uint32_t size, const struct script *every, const char *const *arguments)
{
    struct script scripts[WORLD_MAX];
    for (uint32_t rank = 0; rank < size; rank++)
        scripts[rank] = *every;
    coordinator_start(&coordinator, arguments);
    world_start(&world, &coordinator, "job", size, scripts);
}

// Compares the states at the end. The trainers themselves check the result of each step.
static void expect_good_end(uint32_t size, uint64_t least_steps)
{
    struct report done[WORLD_MAX];
    for (uint32_t rank = 0; rank < size; rank++) {
        world_expect(&world, rank, REPORT_DONE, &done[rank]);
        assert_int_equal(done[rank].value, done[0].value);
        assert_true(done[rank].settled >= least_steps);
    }
    world_join(&world);
}

static void train_on(uint32_t size, uint64_t from)
{
    for (uint32_t rank = 0; rank < size; rank++)
        world_expect_step(&world, rank, from + MORE_STEPS);
    world_stop(&world);
    expect_good_end(size, from + MORE_STEPS);
}

// ---- Steady training ----------------------------------------------------------------------------

// Condition: the coordinator is killed in steady state. Decision: 50 more steps, right results,
// equal states, and lockstep_close returns.
static void training_survives_its_death(void **state)
{
    (void)state;
    const struct script script = {.report_every = 5};
    begin(3, &script, NULL);
    for (uint32_t rank = 0; rank < 3; rank++)
        world_expect_step(&world, rank, 10);
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    train_on(3, 15);
}

// Condition: SIGTERM, and its workers do not leave. Decision: it ends after its bound, training
// goes on.
static void training_survives_a_drain(void **state)
{
    (void)state;
    const struct script script = {.report_every = 5};
    const char *const arguments[] = {"--drain-ms=200", NULL};
    begin(3, &script, arguments);
    for (uint32_t rank = 0; rank < 3; rank++)
        world_expect_step(&world, rank, 10);
    coordinator_stop(&coordinator);
    train_on(3, 15);
}

// Condition: the coordinator is dead, then a worker dies. Decision: the others learn it from the
// data plane. Only its neighbours know its name for sure, so the world is one of neighbours.
static void a_worker_dies_after_it(void **state)
{
    (void)state;
    const struct script script = {.report_every = 5};
    struct report report;
    begin(3, &script, NULL);
    for (uint32_t rank = 0; rank < 3; rank++)
        world_expect_step(&world, rank, 10);
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    world_expect_step(&world, 0, 20);
    const uint64_t killed_us = world_kill(&world, 2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        world_expect(&world, rank, REPORT_FAILED, &report);
        assert_int_equal(report.status, LOCKSTEP_E_PEER_LOST);
        assert_int_equal(report.elements_torn, 0);
        assert_true(report.at_us - killed_us < LOST_MS * 1000);
    }
    world_join(&world);
}

// Condition: the coordinator is dead, and a worker waits for a call that another worker does not
// make. Decision: the wait fails after its timeout, since no coordinator can end it earlier;
// without a timeout it would last for ever. Earlier steps succeed.
static void a_wait_without_it_has_a_bound(void **state)
{
    (void)state;
    const uint64_t bound_ms = slow_ms(600); // Longer than any step before.
    char said[64];
    struct script scripts[2] = {
        {.report_every = 1, .waits = true, .halt_timeout_ms = (uint32_t)bound_ms},
        {.waits = true,
         .place = PLACE_STEADY,
         .place_step = 12,
         .hold = HOLD_READ,
         .report_every = 1}};
    struct report report;
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 2, scripts);
    for (uint32_t rank = 0; rank < 2; rank++)
        world_expect_step(&world, rank, 5);
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    world_expect(&world, 1, REPORT_PLACE, NULL);
    const uint64_t held_us = clock_now_us();
    world_expect(&world, 0, REPORT_FAILED, &report);
    printf("rank 0: %s in %s after %.1f ms: %s\n", lockstep_status_name(report.status), report.call,
           (double)(report.at_us - held_us) / 1000, report.text);
    assert_string_equal(report.call, "call_wait");
    assert_int_equal(report.status, LOCKSTEP_E_UNREACHABLE);
    assert_int_equal(report.settled, 11);
    assert_int_equal(report.elements_torn, 0);
    snprintf(said, sizeof(said), "%llu ms (halt_timeout_ms)", (unsigned long long)bound_ms);
    assert_non_null(strstr(report.text, said));
    assert_true(report.at_us - held_us < (bound_ms + LOST_MS) * 1000);
    world_release(&world, 1);
    world_expect(&world, 1, REPORT_FAILED, &report);
    assert_int_equal(report.status, LOCKSTEP_E_PEER_LOST);
    world_join(&world);
}

// ---- Where it is needed -------------------------------------------------------------------------

// Kills the coordinator, then expects E_UNREACHABLE from all ranks but `except`.
static void expect_unreachable(uint32_t size, uint32_t except)
{
    struct report report;
    const uint64_t killed_us = clock_now_us();
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    for (uint32_t rank = 0; rank < size; rank++) {
        if (rank == except)
            continue;
        world_expect(&world, rank, REPORT_FAILED, &report);
        printf("rank %u: %s in %s after %.1f ms: %s\n", rank, lockstep_status_name(report.status),
               report.call, (double)(report.at_us - killed_us) / 1000, report.text);
        if (report.status != LOCKSTEP_E_UNREACHABLE)
            fail_msg("rank %u: %s: %s", rank, lockstep_status_name(report.status), report.text);
        assert_int_equal(report.elements_torn, 0);
        assert_true(report.at_us - killed_us < LOST_MS * 1000);
    }
}

// Holds the last of three ranks at this place, and lets the other two go on. The other two are then
// in lockstep_open, lockstep_start or the learning step, or about to enter it.
static void hold_last(enum stand_place place)
{
    struct script scripts[3] = {{.starts_after = 2},
                                {.starts_after = 2},
                                {.starts_after = 2, .place = place, .hold = HOLD_READ}};
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 3, scripts);
    world_expect(&world, 2, REPORT_PLACE, NULL);
}

static void release_last(void)
{
    struct report report;
    world_release(&world, 2);
    world_expect(&world, 2, REPORT_FAILED, &report);
    printf("rank 2: %s in %s: %s\n", lockstep_status_name(report.status), report.call, report.text);
    assert_true(report.status == LOCKSTEP_E_UNREACHABLE || report.status == LOCKSTEP_E_PEER_LOST);
    world_join(&world);
}

// Condition: two of three workers have joined, or are joining. Decision: E_UNREACHABLE.
static void forming_ends_with_it(void **state)
{
    (void)state;
    struct script scripts[3] = {
        {.open_timeout_ms = 1000}, {.open_timeout_ms = 1000}, {.absent = true}};
    struct report report;
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 3, scripts);
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    const uint64_t killed_us = clock_now_us();
    for (uint32_t rank = 0; rank < 2; rank++) {
        world_expect(&world, rank, REPORT_FAILED, &report);
        assert_string_equal(report.call, "open");
        assert_int_equal(report.status, LOCKSTEP_E_UNREACHABLE);
        assert_true(report.at_us - killed_us < (slow_ms(1000) + LOST_MS) * 1000);
    }
    world_join(&world);
}

// Condition: it is killed while two of three workers are at a place that needs it, and does not
// come back. Decision: E_UNREACHABLE after LOCKSTEP_AWAY_TIMEOUT_MS.
static void needed_and_gone(enum stand_place place)
{
    setenv("LOCKSTEP_AWAY_TIMEOUT_MS", "100", 1);
    hold_last(place);
    unsetenv("LOCKSTEP_AWAY_TIMEOUT_MS");
    expect_unreachable(3, 2);
    release_last();
}

// Condition: the same, and it comes back. Decision: all ranks go on.
static void needed_and_back(enum stand_place place)
{
    hold_last(place);
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    coordinator_start(&coordinator, NULL);
    world_release(&world, 2);
    world_stop(&world);
    for (uint32_t rank = 0; rank < 3; rank++)
        world_expect(&world, rank, REPORT_DONE, NULL);
    world_join(&world);
    coordinator_stop(&coordinator);
}

static void starting_waits_for_it(void **state)
{
    (void)state;
    needed_and_gone(PLACE_START);
    needed_and_back(PLACE_START);
}

static void starting_again_waits_for_it(void **state)
{
    (void)state;
    needed_and_gone(PLACE_START_AGAIN);
    needed_and_back(PLACE_START_AGAIN);
}

// Condition: it is killed in steady state, after a second start. Decision: as after the first one.
static void training_survives_it_after_a_second_start(void **state)
{
    (void)state;
    const struct script script = {.report_every = 5, .starts_after = 7};
    begin(3, &script, NULL);
    for (uint32_t rank = 0; rank < 3; rank++)
        world_expect_step(&world, rank, 15);
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    train_on(3, 20);
}

static void learning_waits_for_it(void **state)
{
    (void)state;
    needed_and_gone(PLACE_LEARNING);
    needed_and_back(PLACE_LEARNING);
}

// Condition: it is killed when a part of the order of the first step is decided, and comes back;
// with `dies` rank 1 is killed with it. Decision: all that live go on.
static void partly_learned(bool survives, bool dies)
{
    struct script scripts[3];
    for (uint32_t rank = 0; rank < 3; rank++)
        scripts[rank] = (struct script){.starts_after = dies ? 0 : 2, .survives = survives};
    scripts[2].place = PLACE_IN_CALL;
    scripts[2].place_step = 1;
    scripts[2].place_gradients = 4;
    scripts[2].hold = HOLD_READ;
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 3, scripts);
    world_expect(&world, 2, REPORT_PLACE, NULL);
    pause_us(100000); // The first gradients of all ranks are granted.
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    if (dies)
        world_kill(&world, 1);
    coordinator_start(&coordinator, NULL);
    world_release(&world, 2);
    world_stop(&world);
    for (uint32_t rank = 0; rank < 3; rank++)
        if (rank != 1 || !dies)
            world_expect(&world, rank, REPORT_DONE, NULL);
    world_join(&world);
    coordinator_stop(&coordinator);
}

static void a_step_that_is_partly_learned_goes_on(void **state)
{
    (void)state;
    partly_learned(false, false);
    partly_learned(true, false);
    partly_learned(true, true);
}

// ---- A plan that one survivor has --------------------------------------------------------------

// Takes what the process has not read yet of what the coordinator has sent: it is lost, as if the
// coordinator had died before. Returns the number of bytes.
static size_t lose_messages(pid_t pid)
{
    const int process = (int)syscall(SYS_pidfd_open, pid, 0);
    size_t lost = 0;
    assert_true(process >= 0);
    for (int number = 0; number < 256; number++) {
        struct sockaddr_in6 from = {0}; // gRPC's sockets are of IPv6.
        socklen_t size = sizeof(from);
        char bytes[4096];
        const int fd = (int)syscall(SYS_pidfd_getfd, process, number, 0);
        const bool is_it = fd >= 0 && getpeername(fd, (struct sockaddr *)&from, &size) == 0 &&
                           ntohs(from.sin6_port) == coordinator.port;
        for (ssize_t got = 1; is_it && got > 0; lost += got > 0 ? (size_t)got : 0)
            got = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (fd >= 0)
            close(fd);
    }
    close(process);
    return lost;
}

// Condition: the coordinator has told rank 2 the plan of the first step, and dies with rank 0,
// before rank 1 hears of it. Rank 1 is the first rank then, and proposes other layouts than rank 0
// did. Decision: rank 2 learns the step again, and both go on.
static void a_plan_that_one_survivor_has(void **state)
{
    (void)state;
    struct script scripts[3];
    for (uint32_t rank = 0; rank < 3; rank++)
        scripts[rank] = (struct script){.survives = true, .forwards = rank == 1};
    scripts[0].place = PLACE_IN_CALL;
    scripts[0].place_gradients = 4;
    scripts[0].hold = HOLD_READ;
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 3, scripts);
    world_expect(&world, 0, REPORT_PLACE, NULL);
    pause_us(slow_ms(100) * 1000); // The others have ended the step.
    world_signal(&world, 1, SIGSTOP);
    world_release(&world, 0);
    for (uint64_t ms = 0; lose_messages(world.workers[1].pid) == 0; ms++) {
        assert_true(ms < WAIT_MS);
        pause_us(1000);
    }
    pause_us(slow_ms(300) * 1000); // Rank 2 has the plan.
    (void)lose_messages(world.workers[1].pid);
    coordinator_signal(&coordinator, SIGKILL);
    world_kill(&world, 0);
    (void)lose_messages(world.workers[1].pid);
    world_signal(&world, 1, SIGCONT);
    coordinator_wait(&coordinator);
    coordinator_start(&coordinator, NULL);
    world_stop(&world);
    for (uint32_t rank = 1; rank < 3; rank++)
        world_expect(&world, rank, REPORT_DONE, NULL);
    world_join(&world);
    coordinator_stop(&coordinator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(training_survives_its_death, teardown),
        cmocka_unit_test_teardown(training_survives_a_drain, teardown),
        cmocka_unit_test_teardown(a_worker_dies_after_it, teardown),
        cmocka_unit_test_teardown(a_wait_without_it_has_a_bound, teardown),
        cmocka_unit_test_teardown(forming_ends_with_it, teardown),
        cmocka_unit_test_teardown(starting_waits_for_it, teardown),
        cmocka_unit_test_teardown(starting_again_waits_for_it, teardown),
        cmocka_unit_test_teardown(training_survives_it_after_a_second_start, teardown),
        cmocka_unit_test_teardown(learning_waits_for_it, teardown),
        cmocka_unit_test_teardown(a_step_that_is_partly_learned_goes_on, teardown),
        cmocka_unit_test_teardown(a_plan_that_one_survivor_has, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
