// SPDX-License-Identifier: Apache-2.0
//
// The trace of a process that was killed at a random instant: `lockstep trace` reads it, its step
// is the one that the process was in, and at most the events that were just being written are
// missing. LOCKSTEP_TEST_FAULT_ROUNDS says how often.

#include "base/clock.h"

#include <lockstep/lockstep.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <glob.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 25
#define WRITERS 2 // Threads of the trainer that write events.
#define STEP_MARKS 200 // In a step; with those of the next, its begin is still in the ring.
#define ANSWER_BYTES (1024 * 1024)

static char directory[] = "/tmp/lockstep-test-XXXXXX";
static _Atomic(uint64_t) *shared_step; // The step that the process says it is in.
static char answer[ANSWER_BYTES];

// ---- The process that is killed ----------------------------------------------------------------

static void *mark_for_ever(void *argument)
{
    uint64_t step = 0;
    for (uint32_t marks = 0;; marks++) {
        const uint64_t now = atomic_load(shared_step);
        marks = now == step ? marks : 0;
        step = now;
        if (marks < STEP_MARKS)
            (void)lockstep_mark(argument, "saving the second half of a checkpoint");
        else
            usleep(50);
    }
    return NULL;
}

// Steps without end, and a second thread that writes marks nearly all the time.
static void train(void)
{
    static float value[4];
    static float gradient[4];
    static const int64_t shape[] = {4};
    const struct lockstep_parameter parameter = {.name = "p",
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 1,
                                                 .shape = shape,
                                                 .data = value,
                                                 .gradient = gradient};
    struct lockstep_module_config module = LOCKSTEP_MODULE_INIT;
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    lockstep_module *made;
    lockstep_call *call;
    pthread_t other;
    config.trace_dir = directory;
    module.name = "net";
    module.parameters = &parameter;
    module.parameter_count = 1;
    if (lockstep_open(&config, &session) < 0 ||
        lockstep_module_register(session, &module, &made) < 0 || lockstep_start(session) < 0 ||
        pthread_create(&other, NULL, mark_for_ever, session) != 0)
        _exit(1);
    for (uint64_t step = 1;; step++) {
        atomic_store(shared_step, step);
        if (lockstep_step_begin(session, NULL, NULL) < 0 || lockstep_call_begin(made, &call) < 0 ||
            lockstep_grad_ready(made, call, 0, NULL, NULL) < 0 || lockstep_call_end(call) < 0 ||
            lockstep_step_end(session, NULL) < 0)
            _exit(1);
    }
}

static void train_and_kill(uint32_t after_us)
{
    int status = 0;
    atomic_store(shared_step, 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        train();
    // Then the begin of the first one is written, however long the process is held up in the next.
    while (atomic_load(shared_step) < 2 && waitpid(pid, &status, WNOHANG) == 0)
        usleep(100);
    usleep(after_us);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
}

// ---- Reading -----------------------------------------------------------------------------------

static void run_trace(const char *path, const char *option)
{
    const char *bin = getenv("LOCKSTEP_TEST_BIN");
    char command[512];
    snprintf(command, sizeof(command), "%s/lockstep trace %s %s", !bin ? "build/bin" : bin, option,
             path);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    const size_t size = fread(answer, 1, sizeof(answer) - 1, output);
    answer[size] = '\0';
    assert_int_equal(pclose(output), 0);
}

static uint64_t number_of(const char *key)
{
    const char *at = strstr(answer, key);
    if (!at)
        fail_msg("%s is missing in: %.200s", key, answer);
    return strtoull(at + strlen(key), NULL, 10);
}

static void expect_trace(const char *path)
{
    const uint64_t step = atomic_load(shared_step);
    run_trace(path, "--json");
    assert_in_range(number_of("\"step\":"), step - 1, step);
    assert_true(number_of("\"torn\":") <= WRITERS);
    assert_non_null(strstr(answer, "\"closed\":false"));
    assert_non_null(strstr(answer, "\"kind\":\"step_begin\""));
    assert_non_null(strstr(answer, ",\"status\":0,"));
    assert_true(strstr(answer, "\"mark\":\"saving the second half of a checkpoint\"") ||
                strstr(answer, "\"mark\":\"\""));
    run_trace(path, "--perfetto --last 10");
    assert_non_null(strstr(answer, "\"traceEvents\""));
    run_trace(path, "--last 3");
    assert_non_null(strstr(answer, "not closed"));
}

static void test_killed_at_a_random_instant(void **state)
{
    const char *wanted = getenv("LOCKSTEP_TEST_FAULT_ROUNDS");
    const uint32_t rounds = wanted ? (uint32_t)atoi(wanted) : ROUNDS;
    char pattern[64];
    uint64_t seed = clock_now_ns();
    (void)state;
    print_message("seed %" PRIu64 "\n", seed);
    snprintf(pattern, sizeof(pattern), "%s/*.trace", directory);
    for (uint32_t i = 0; i < rounds; i++) {
        glob_t found;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        train_and_kill((uint32_t)(seed >> 33) % 20000);
        assert_int_equal(glob(pattern, 0, NULL, &found), 0);
        assert_int_equal(found.gl_pathc, 1);
        expect_trace(found.gl_pathv[0]);
        assert_int_equal(unlink(found.gl_pathv[0]), 0);
        globfree(&found);
    }
}

// A file that is no trace is refused in one sentence, whatever it is.
static void test_what_is_no_trace(void **state)
{
    static const char *const files[] = {"/dev/null", "/proc/self/status", "/tmp", "/nonexistent"};
    const char *bin = getenv("LOCKSTEP_TEST_BIN");
    char command[512];
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(command, sizeof(command), "%s/lockstep trace %s 2>&1", !bin ? "build/bin" : bin,
                 files[i]);
        FILE *output = popen(command, "r");
        assert_non_null(output);
        assert_non_null(fgets(answer, sizeof(answer), output));
        assert_non_null(strstr(answer, "lockstep trace: "));
        assert_null(fgets(answer, sizeof(answer), output));
        assert_int_equal(WEXITSTATUS(pclose(output)), 1);
    }
}

static int set_up(void **state)
{
    (void)state;
    shared_step =
        mmap(NULL, sizeof(*shared_step), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared_step == MAP_FAILED || !mkdtemp(directory) ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_at_a_random_instant),
        cmocka_unit_test(test_what_is_no_trace),
    };
    return cmocka_run_group_tests_name("trace_killed", tests, set_up, tear_down);
}
