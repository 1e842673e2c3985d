// SPDX-License-Identifier: Apache-2.0
//
// `lockstep run` with trainers that use the library: one of three is killed, or the launcher is
// interrupted. It ends within two seconds with a failure, says why, and leaves no process. This
// program is also the trainer that it starts; each forks a child that would live for a minute.

#include "base/clock.h"
#include "tests/fault/process_world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 3
#define VICTIM 1
#define END_MS slow_ms(2000)

// ---- The trainer --------------------------------------------------------------------------------

static float value;
static float gradient;

static void check(int status)
{
    if (status >= 0)
        return;
    fprintf(stderr, "%s\n", lockstep_error_text());
    exit(9);
}

static void declare(lockstep_session *session, lockstep_module **module)
{
    const struct lockstep_parameter parameter = {
        .name = "w", .dtype = LOCKSTEP_FLOAT32, .data = &value, .gradient = &gradient};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    config.name = "model";
    config.parameters = &parameter;
    config.parameter_count = 1;
    check(lockstep_module_register(session, &config, module));
}

static void step(lockstep_session *session, lockstep_module *module)
{
    lockstep_call *call;
    check(lockstep_step_begin(session, NULL, NULL));
    check(lockstep_call_begin(module, &call));
    check(lockstep_grad_ready(module, call, 0, NULL, NULL));
    check(lockstep_call_end(call));
    check(lockstep_step_end(session, NULL));
}

// Trains for ever. Prints its rank after its second step.
static int train(void)
{
    lockstep_session *session;
    lockstep_module *module;
    uint32_t rank;
    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, NULL));
    declare(session, &module);
    check(lockstep_start(session));
    if (fork() == 0) {
        pause_us(60 * 1000000);
        _exit(0);
    }
    for (uint64_t steps = 1;; steps++) {
        step(session, module);
        if (steps == 2) {
            printf("rank %u is process %d\n", rank, (int)getpid());
            fflush(stdout);
        }
    }
}

// ---- The launcher -------------------------------------------------------------------------------

struct launcher {
    pid_t pid;
    FILE *output; // stdout and stderr of all processes.
    char said[65536];
    int workers[WORKERS];
    char mark[64];
};

static struct launcher launcher;

static void launcher_exec(int output)
{
    static char path[8192];
    char self[4096] = "";
    const char *folder = getenv("LOCKSTEP_TEST_BIN");
    snprintf(path, sizeof(path), "%s/lockstep", folder ? folder : "build/bin");
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
        _exit(126);
    setenv("LOCKSTEP_TEST_MARK", launcher.mark, 1);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execl(path, path, "run", "-n", "3", "--no-prefix", "--grace", "60s", "--", self, "--train",
          (char *)NULL); // No trainer is stopped before it has printed why it ends.
    _exit(127);
}

static void launcher_say(const char *line)
{
    const size_t used = strlen(launcher.said);
    snprintf(launcher.said + used, sizeof(launcher.said) - used, "%s", line);
}

// Returns when all workers train.
static void launcher_start(void)
{
    char line[4096];
    int ends[2];
    memset(&launcher, 0, sizeof(launcher));
    snprintf(launcher.mark, sizeof(launcher.mark), "%d-%llu", (int)getpid(),
             (unsigned long long)clock_now_us());
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fflush(NULL);
    launcher.pid = fork();
    assert_true(launcher.pid >= 0);
    if (launcher.pid == 0)
        launcher_exec(ends[1]);
    close(ends[1]);
    launcher.output = fdopen(ends[0], "r");
    for (int found = 0; found < WORKERS;) {
        unsigned rank;
        int pid;
        if (!fgets(line, sizeof(line), launcher.output))
            fail_msg("the launcher ended:\n%s", launcher.said);
        launcher_say(line);
        if (sscanf(line, "rank %u is process %d", &rank, &pid) == 2 && rank < WORKERS) {
            launcher.workers[rank] = pid;
            found++;
        }
    }
}

// Reads the output to its end, which comes when no process has it open any more.
static int launcher_end(uint64_t since_us)
{
    char line[4096];
    int status;
    while (fgets(line, sizeof(line), launcher.output))
        launcher_say(line);
    assert_int_equal(waitpid(launcher.pid, &status, 0), launcher.pid);
    launcher.pid = 0;
    fclose(launcher.output);
    const uint64_t took_us = clock_now_us() - since_us;
    printf("ended after %.1f ms:\n%s", (double)took_us / 1000, launcher.said);
    assert_true(took_us < END_MS * 1000);
    return status;
}

// Processes that carry this run's mark in their environment.
static bool is_marked(const char *pid)
{
    static char environment[65536];
    char path[300];
    char wanted[128];
    snprintf(path, sizeof(path), "/proc/%s/environ", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd < 0 ? -1 : read(fd, environment, sizeof(environment));
    if (fd >= 0)
        close(fd);
    snprintf(wanted, sizeof(wanted), "LOCKSTEP_TEST_MARK=%s", launcher.mark);
    return size > 0 && memmem(environment, (size_t)size, wanted, strlen(wanted));
}

static void expect_nothing_left(void)
{
    DIR *proc = opendir("/proc");
    assert_non_null(proc);
    for (struct dirent *entry = readdir(proc); entry; entry = readdir(proc)) {
        if (isdigit((unsigned char)entry->d_name[0]) && is_marked(entry->d_name))
            fail_msg("process %s is left", entry->d_name);
    }
    closedir(proc);
}

static void expect_said(const char *text)
{
    if (!strstr(launcher.said, text))
        fail_msg("'%s' was not said, but:\n%s", text, launcher.said);
}

static int teardown(void **state)
{
    (void)state;
    if (launcher.pid > 0 && kill(launcher.pid, SIGKILL) == 0)
        waitpid(launcher.pid, NULL, 0);
    launcher.pid = 0;
    return 0;
}

// ---- The tests ----------------------------------------------------------------------------------

// Condition: one of three ranks is killed. Decision: the others say who was lost, the run has the
// status of the killed one within two seconds, and no process is left, not even a forked one.
static void a_killed_rank_ends_the_run(void **state)
{
    (void)state;
    launcher_start();
    const uint64_t killed_us = clock_now_us();
    assert_int_equal(kill(launcher.workers[VICTIM], SIGKILL), 0);
    const int status = launcher_end(killed_us);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + SIGKILL);
    expect_said("rank 1 on host ");
    expect_said("rank 1 was killed by signal 9 (SIGKILL)");
    expect_said("2 other ranks ended with status 9");
    expect_nothing_left();
}

// Condition: SIGINT on the launcher. Decision: the same, with the status of an interrupted program.
static void an_interrupted_run_ends(void **state)
{
    (void)state;
    launcher_start();
    const uint64_t killed_us = clock_now_us();
    assert_int_equal(kill(launcher.pid, SIGINT), 0);
    const int status = launcher_end(killed_us);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + SIGINT);
    expect_nothing_left();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_killed_rank_ends_the_run, teardown),
        cmocka_unit_test_teardown(an_interrupted_run_ends, teardown),
    };
    if (argc == 2 && strcmp(argv[1], "--train") == 0)
        return train();
    // A shell starts background jobs with SIGINT ignored, and their child processes inherit that.
    signal(SIGINT, SIG_DFL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
