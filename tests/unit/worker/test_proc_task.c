// SPDX-License-Identifier: Apache-2.0
//
// The kernel's texts about a thread, read from made-up directories, with everything that a kernel,
// a sandbox or the end of the thread can do to the texts, and once from the real directory.

#include "worker/stacks/proc_task.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TID 4711
#define SIGNAL_40 (UINT64_C(1) << 39)

static char directory[64]; // Directory of tasks; the texts of TID are below it.

static const char *const files[] = {"stat", "syscall", "comm", "wchan", "status"};

static int set_up(void **state)
{
    char task[96];
    (void)state;
    strcpy(directory, "/tmp/lockstep-test-XXXXXX");
    if (!mkdtemp(directory))
        return -1;
    snprintf(task, sizeof(task), "%s/%d", directory, TID);
    return mkdir(task, 0700);
}

static int tear_down(void **state)
{
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%d/%s", directory, TID, files[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/%d", directory, TID);
    rmdir(path);
    return rmdir(directory);
}

static void write_text(const char *file, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%d/%s", directory, TID, file);
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    fputs(text, to);
    assert_int_equal(fclose(to), 0);
}

static struct stack_thread read_task(struct proc_signals *signals)
{
    struct stack_thread thread;
    memset(&thread, 0x55, sizeof(thread));
    assert_true(proc_task_read(directory, TID, &thread, signals));
    assert_int_equal(thread.tid, TID);
    return thread;
}

static void test_sleeps_in_state_d(void **state)
{
    struct proc_signals signals;
    (void)state;
    write_text("stat", "4711 (trainer) D 1 4711 4711 0 -1 4194304 131 0 0 0\n");
    write_text("syscall",
               "0 0x3 0x7ffe10fe4bb0 0x1000 0x0 0x0 0x0 0x7ffe10fe4b98 0x7f058eca6503\n");
    write_text("comm", "trainer\n");
    write_text("wchan", "folio_wait_bit_common");
    write_text("status", "Name:\ttrainer\nSigQ:\t3/96365\nSigPnd:\t0000000000000200\n"
                         "ShdPnd:\t0000000000000001\nSigBlk:\t0000008000010000\n"
                         "SigIgn:\t0000000000000006\n");
    const struct stack_thread thread = read_task(&signals);
    assert_int_equal(thread.state, 'D');
    assert_int_equal(thread.syscall, 0);
    assert_string_equal(thread.name, "trainer");
    assert_string_equal(thread.wchan, "folio_wait_bit_common");
    assert_int_equal(signals.blocked, SIGNAL_40 | 0x10000);
    assert_int_equal(signals.pending, 0x200);
}

static void test_runs(void **state)
{
    struct proc_signals signals;
    (void)state;
    write_text("stat", "4711 (a) R 1\n");
    write_text("syscall", "running\n");
    write_text("wchan", "0");
    const struct stack_thread thread = read_task(&signals);
    assert_int_equal(thread.state, 'R');
    assert_int_equal(thread.syscall, -1);
    assert_string_equal(thread.wchan, "");
}

static void test_name_with_brackets(void **state)
{
    struct proc_signals signals;
    (void)state;
    write_text("stat", "4711 (a) R 1 (b) S 1 4711\n");
    write_text("comm", "a) R 1 (b\n");
    const struct stack_thread thread = read_task(&signals);
    assert_int_equal(thread.state, 'S');
    assert_string_equal(thread.name, "a) R 1 (b");
}

// No file of a thread has to be there, or to say anything.
static void test_missing_texts(void **state)
{
    struct proc_signals signals;
    (void)state;
    for (int empty = 0; empty < 2; empty++) {
        const struct stack_thread thread = read_task(&signals);
        assert_int_equal(thread.state, 0);
        assert_int_equal(thread.syscall, -2);
        assert_string_equal(thread.name, "");
        assert_string_equal(thread.wchan, "");
        assert_int_equal(signals.blocked, 0);
        assert_int_equal(signals.pending, 0);
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
            write_text(files[i], "");
    }
}

static void test_odd_texts(void **state)
{
    static const struct {
        const char *text;
        int32_t syscall;
    } odd[] = {
        {"-1 0x7ffe 0x7f05\n", -2}, // It sleeps in a page fault.
        {"202", 202},
        {"202x 0x1\n", -2},
        {"99999999999999999999 0x1\n", -2},
        {"3000000000 0x1\n", -2},
        {" 7 0x1\n", -2},
        {"run", -2},
    };
    static const char *const stats[] = {")", ") ", "4711 (a)\tS", "(a) ) 1", "4711"};
    char long_text[8192];
    struct proc_signals signals;
    (void)state;
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        write_text("syscall", odd[i].text);
        assert_int_equal(read_task(&signals).syscall, odd[i].syscall);
    }
    for (size_t i = 0; i < sizeof(stats) / sizeof(stats[0]); i++) {
        write_text("stat", stats[i]);
        assert_int_equal(read_task(&signals).state, 0);
    }
    memset(long_text, 'w', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        write_text(files[i], long_text);
    const struct stack_thread thread = read_task(&signals);
    assert_int_equal(strlen(thread.name), sizeof(thread.name) - 1);
    assert_int_equal(strlen(thread.wchan), sizeof(thread.wchan) - 1);
    assert_int_equal(thread.state, 0);
}

// Whole, or not at all.
static void test_call(void **state)
{
    static const char *const odd[] = {"running",
                                      "-1 0x7ffe 0x7f05",
                                      "35 0x1",
                                      "35 0x1 0x2 0x3 0x4 0x5 0x6 0x7",
                                      "35 0x1 0x2 0x3 x",
                                      "35 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8 0x9",
                                      "35 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x11111111111111111",
                                      ""};
    struct proc_signals signals;
    (void)state;
    write_text("syscall", "35 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffe10fe4b98 0x7f058eca6503\n");
    read_task(&signals);
    assert_int_equal(signals.call.number, 35);
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(signals.call.arguments[i], i + 1);
    assert_int_equal(signals.call.stack, 0x7ffe10fe4b98);
    assert_int_equal(signals.call.code, 0x7f058eca6503);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        write_text("syscall", odd[i]);
        read_task(&signals);
        assert_true(signals.call.number == UINT64_MAX);
        assert_int_equal(signals.call.code, i == 1 ? 0x7f05 : 0);
        assert_int_equal(signals.call.stack, i == 1 ? 0x7ffe : 0);
    }
}

static void test_switches(void **state)
{
    struct proc_signals signals;
    (void)state;
    write_text("status", "Name:\ta\nvoluntary_ctxt_switches:\t40\n"
                         "nonvoluntary_ctxt_switches:\t7\n");
    read_task(&signals);
    assert_int_equal(signals.switches, 47);
}

static void test_list(void **state)
{
    uint32_t tids[2];
    (void)state;
    assert_int_equal(proc_task_list(directory, tids, 2), 1);
    assert_int_equal(tids[0], TID);
    assert_int_equal(proc_task_list(directory, tids, 0), 0);
    assert_int_equal(proc_task_list("/nowhere", tids, 2), 0);
    assert_true(proc_task_list(PROC_TASK_DIRECTORY, tids, 2) > 0);
    assert_int_equal(tids[0], gettid());
}

static void test_no_such_thread(void **state)
{
    struct stack_thread thread;
    struct proc_signals signals;
    (void)state;
    assert_false(proc_task_read(directory, TID + 1, &thread, &signals));
    assert_int_equal(thread.tid, TID + 1);
    assert_int_equal(thread.syscall, -2);
    assert_false(proc_task_read("/nowhere", TID, &thread, &signals));
}

// ---- The real one ------------------------------------------------------------------------------

struct sleeper {
    int ready[2];
    int wait[2];
    uint32_t tid;
};

static void *sleep_in_read(void *argument)
{
    struct sleeper *sleeper = argument;
    sigset_t set;
    char byte = 0;
    sigemptyset(&set);
    sigaddset(&set, 40);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_setname_np(pthread_self(), "sleeper");
    sleeper->tid = (uint32_t)gettid();
    assert(write(sleeper->ready[1], &byte, 1) == 1);
    while (read(sleeper->wait[0], &byte, 1) < 0)
        ;
    return NULL;
}

static void test_a_thread_of_this_process(void **state)
{
    struct sleeper sleeper;
    struct stack_thread thread = {0};
    struct proc_signals signals;
    pthread_t id;
    char byte = 0;
    (void)state;
    assert_int_equal(pipe(sleeper.ready) | pipe(sleeper.wait), 0);
    assert_int_equal(pthread_create(&id, NULL, sleep_in_read, &sleeper), 0);
    assert_int_equal(read(sleeper.ready[0], &byte, 1), 1);
    while (thread.state != 'S' || thread.syscall < 0)
        assert_true(proc_task_read(PROC_TASK_DIRECTORY, sleeper.tid, &thread, &signals));
    assert_int_equal(thread.syscall, SYS_read);
    assert_string_equal(thread.name, "sleeper");
    assert_int_equal(signals.blocked & SIGNAL_40, SIGNAL_40);
    assert_int_equal(write(sleeper.wait[1], &byte, 1), 1);
    pthread_join(id, NULL);
    for (int i = 0; i < 2; i++) {
        close(sleeper.ready[i]);
        close(sleeper.wait[i]);
    }
}

int main(void)
{
#define WITH_FILES(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_FILES(test_sleeps_in_state_d),  WITH_FILES(test_runs),
        WITH_FILES(test_name_with_brackets), WITH_FILES(test_missing_texts),
        WITH_FILES(test_odd_texts),          WITH_FILES(test_call),
        WITH_FILES(test_switches),           WITH_FILES(test_list),
        WITH_FILES(test_no_such_thread),     cmocka_unit_test(test_a_thread_of_this_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
