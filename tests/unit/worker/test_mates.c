// SPDX-License-Identifier: Apache-2.0
//
// Processes held by a descriptor, and the list of a rank's mates: who is proven to be gone, and who
// is not.

#include "worker/support/process.h"
#include "worker/transport/flow/mates.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "protos/types.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t begin(void)
{
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)prctl(PR_SET_NAME, "a) b (c"); // As hard to read as a name can be.
        for (;;)
            (void)pause();
    }
    return pid;
}

static void await_end(int process)
{
    struct pollfd look = {.fd = process, .events = POLLIN};
    assert_int_equal(poll(&look, 1, 10000), 1);
}

static void reap(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

// Stopped is not gone. Killed is gone, before and after its parent has waited for it.
static void test_only_a_process_that_ended_is_gone(void **state)
{
    (void)state;
    const pid_t pid = begin();
    const int process = process_open((uint32_t)pid, process_started((uint32_t)pid));
    assert_true(process >= 0);
    assert_false(process_is_gone(process));
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_false(process_is_gone(process));
    assert_int_equal(kill(pid, SIGKILL), 0);
    await_end(process);
    assert_true(process_is_gone(process));
    reap(pid);
    assert_true(process_is_gone(process));
    (void)close(process);
}

static void test_another_process_is_not_taken(void **state)
{
    (void)state;
    const pid_t pid = begin();
    assert_int_equal(process_open((uint32_t)pid, process_started((uint32_t)pid) + 1), -1);
    assert_int_equal(process_open((uint32_t)pid, 0), -1);
    assert_int_equal(process_open(0, 1), -1);
    assert_int_equal(process_open(1u << 30, 1), -1);
    assert_false(process_is_gone(-1));
    assert_int_equal(kill(pid, SIGKILL), 0);
    reap(pid);
}

// Two containers of a host: the same pid and the same clock tick.
static void test_a_process_of_another_namespace_is_not_taken(void **state)
{
    const uint64_t here = process_started_at(1000);
    uint64_t there = 0;
    int status;
    int ends[2];
    (void)state;
    assert_int_equal(process_started_at(0), 0);
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWPID) != 0)
            _exit(77);
        const pid_t inside = fork();
        if (inside == 0) {
            there = process_started_at(1000);
            _exit(write(ends[1], &there, sizeof(there)) == sizeof(there) ? 0 : 1);
        }
        _exit(inside > 0 && waitpid(inside, &status, 0) == inside && status == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        print_message("no namespace of pids may be made here\n");
        skip();
    }
    assert_int_equal(status, 0);
    assert_int_equal(read(ends[0], &there, sizeof(there)), sizeof(there));
    assert_true(there != here);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void test_a_generation_takes_over_what_the_last_one_knew(void **state)
{
    struct locality locality = {.mate_count = 4, .mates = {2, 3, 5, 9}, .local = 1};
    struct mates mates;
    int dropped[LOCKSTEP_MAX_MATES];
    pid_t pids[4];
    (void)state;
    memset(&mates, 0, sizeof(mates));
    for (uint32_t i = 0; i < 4; i++) {
        pids[i] = i == 1 ? getpid() : begin();
        locality.mate_pids[i] = (uint32_t)pids[i];
        locality.mate_started[i] = process_started((uint32_t)pids[i]);
    }
    locality.mate_started[2]++; // In another namespace its pid is that of another process.
    assert_int_equal(mates_form(&mates, &locality, dropped), 0);
    assert_int_equal(mates.count, 3);
    assert_int_equal(mates_of_rank(&mates, 5)->process, -1);
    assert_null(mates_of_rank(&mates, 3));
    const int process = mates_of_rank(&mates, 9)->process;
    kill(pids[0], SIGKILL);
    kill(pids[2], SIGKILL);
    kill(pids[3], SIGKILL);
    await_end(process);
    for (uint32_t i = 0; i < 4; i++)
        if (i != 1)
            reap(pids[i]);
    assert_true(mates_is_gone(&mates, 2));
    assert_true(mates_is_gone(&mates, 9));
    assert_false(mates_is_gone(&mates, 5));
    mates_of_rank(&mates, 9)->gone = true;
    // Rank 9 is rank 1 now. Its pid could not be opened any more.
    locality =
        (struct locality){.mate_count = 2,
                          .mates = {0, 1},
                          .local = 0,
                          .mate_pids = {locality.mate_pids[1], locality.mate_pids[3]},
                          .mate_started = {locality.mate_started[1], locality.mate_started[3]}};
    const int first = mates_of_rank(&mates, 2)->process;
    assert_int_equal(mates_form(&mates, &locality, dropped), 1);
    assert_int_equal(dropped[0], first);
    assert_int_equal(mates.count, 1);
    assert_int_equal(mates.untold, 1);
    assert_int_equal(mates_of_rank(&mates, 1)->process, process);
    assert_true(mates_is_gone(&mates, 1));
    (void)close(first);
    (void)close(process);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_a_process_that_ended_is_gone),
        cmocka_unit_test(test_another_process_is_not_taken),
        cmocka_unit_test(test_a_process_of_another_namespace_is_not_taken),
        cmocka_unit_test(test_a_generation_takes_over_what_the_last_one_knew),
    };
    return cmocka_run_group_tests_name("mates", tests, NULL, NULL);
}
