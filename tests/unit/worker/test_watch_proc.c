// SPDX-License-Identifier: Apache-2.0
//
// What /proc tells about processes, read from made-up directories, with what a kernel or a
// container can do to the texts, and once from the real one.

#include "worker/support/process.h"
#include "worker/watch/proc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

// The directories above a file, and the file.
static void write_text(const char *file, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", root, file);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    fputs(text, to);
    assert_int_equal(fclose(to), 0);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/lockstep-test-XXXXXX");
    return !mkdtemp(root) ? -1 : 0;
}

static int tear_down(void **state)
{
    char command[96];
    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

#define BETWEEN "1 4711 4711 0 -1 4194304 131 0 0 0 1 2 3 4 20 0 5 0 " // Fields 4 to 21.

static void test_a_process(void **state)
{
    struct watch_process process;
    (void)state;
    write_text("4711/stat", "4711 (trainer) T " BETWEEN "987654 1000 200\n");
    assert_true(watch_proc_process(root, "4711", &process));
    assert_int_equal(process.state, 'T');
    assert_int_equal(process.started, 987654);
}

// Condition: the main thread has ended and another one is stopped. Decision: the process is
// stopped.
static void test_a_process_without_main_thread(void **state)
{
    struct watch_process process;
    (void)state;
    write_text("4711/stat", "4711 (trainer) Z " BETWEEN "987654 1000 200\n");
    write_text("4711/task/4711/stat", "4711 (trainer) Z " BETWEEN "987654 1000 200\n");
    assert_true(watch_proc_process(root, "4711", &process));
    assert_int_equal(process.state, 'Z');
    write_text("4711/task/4712/stat", "4712 (loader) T " BETWEEN "987655 1000 200\n");
    assert_true(watch_proc_process(root, "4711", &process));
    assert_int_equal(process.state, 'T');
    assert_int_equal(process.started, 987654);
}

static void test_a_name_with_brackets(void **state)
{
    struct watch_process process;
    (void)state;
    write_text("4711/stat", "4711 (a) S 1 (b) Z " BETWEEN "5 1000 200\n");
    assert_true(watch_proc_process(root, "4711", &process));
    assert_int_equal(process.state, 'Z');
    assert_int_equal(process.started, 5);
}

static void test_texts_that_are_none(void **state)
{
    static const char *const texts[] = {"",
                                        "4711",
                                        "4711 (a",
                                        "4711 (a) S",
                                        "4711 (a) S 1 2 3",
                                        "4711 (a) 7 " BETWEEN "5 6",
                                        "4711 (a) S " BETWEEN "x 6"};
    struct watch_process process;
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        write_text("4711/stat", texts[i]);
        assert_false(watch_proc_process(root, "4711", &process));
    }
    assert_false(watch_proc_process(root, "4712", &process));
}

static void test_a_debugger(void **state)
{
    (void)state;
    assert_int_equal(watch_proc_tracer(root, "self"), 0);
    write_text("self/status", "Name:\ta\nState:\tR (running)\nTracerPid:\t0\nUid:\t0\n");
    assert_int_equal(watch_proc_tracer(root, "self"), 0);
    write_text("self/status", "Name:\tTracerPid: 7\nTracerPid:\t4712\nUid:\t0\n");
    assert_int_equal(watch_proc_tracer(root, "self"), 4712);
    write_text("4711/status", "State:\tt (tracing stop)\nTracerPid:\t88\n"); // A mate.
    assert_int_equal(watch_proc_tracer(root, "4711"), 88);
}

static void test_a_control_group(void **state)
{
    (void)state;
    assert_int_equal(watch_proc_throttled(root, root), 0);
    write_text("self/cgroup", "0::/pod/trainer\n");
    write_text("pod/trainer/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 3\n");
    assert_int_equal(watch_proc_throttled(root, root), 3);
}

static void test_a_control_group_of_version_1(void **state)
{
    (void)state;
    write_text("self/cgroup", "12:cpuset:/x\n4:cpu,cpuacct:/a\n1:name=systemd:/a\n0::/\n");
    write_text("cpu/a/cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_time 1\n");
    assert_int_equal(watch_proc_throttled(root, root), 4);
}

// In a container the path is the host's; its own group is at the root.
static void test_a_control_group_seen_from_inside(void **state)
{
    (void)state;
    write_text("self/cgroup", "0::/kubepods/pod7/container\n");
    write_text("cpu.stat", "nr_throttled 6\n");
    assert_int_equal(watch_proc_throttled(root, root), 6);
}

static void test_this_process(void **state)
{
    struct watch_process process;
    (void)state;
    assert_true(watch_proc_process(WATCH_PROC_DIRECTORY, "self", &process));
    assert_int_equal(process.state, 'R');
    assert_true(process.started > 0);
    assert_int_equal(process_started((uint32_t)getpid()), process_started_at(process.started));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_process),
        TEST(a_process_without_main_thread),
        TEST(a_name_with_brackets),
        TEST(texts_that_are_none),
        TEST(a_debugger),
        TEST(a_control_group),
        TEST(a_control_group_of_version_1),
        TEST(a_control_group_seen_from_inside),
        TEST(this_process),
    };
    return cmocka_run_group_tests_name("watch_proc", tests, NULL, NULL);
}
