// SPDX-License-Identifier: Apache-2.0
//
// Whether native hooks (bindings/python/lockstep/torch/hooks.cpp) are built or can be built for the
// PyTorch of one interpreter. The package knows: its build.py answers in three lines, which are the
// status, the value and the meaning. PyTorch itself is not imported, because that takes seconds.
// A machine without Python, PyTorch or the package is fine. Main thread.

#include "cli/doctor/pytorch.h"

#include "cli/doctor/doctor.h"

#include "base/clock.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ANSWER_WAIT_MS 20000
#define ANSWER_BYTES (LOCKSTEP_TEXT_BYTES + DOCTOR_WORD_BYTES + 16)

static const char question[] =
    "import importlib.util as u, os, runpy, sys\n"
    "torch, package = u.find_spec('torch'), u.find_spec('lockstep')\n"
    "if not torch or not torch.origin:\n"
    "    print('ok', 'none', sys.executable + ' has no PyTorch; --python PATH names another one',\n"
    "          sep='\\n')\n"
    "elif not package or not package.origin:\n"
    "    print('ok', 'none', sys.executable + ' has PyTorch and not the package lockstep, which '\n"
    "          'its trainers import: pip install lockstep, or set PYTHONPATH', sep='\\n')\n"
    "else:\n"
    "    path = os.path.join(os.path.dirname(package.origin), 'torch', 'build.py')\n"
    "    runpy.run_path(path)['answer_doctor']()\n";

// Starts the interpreter in a process group of its own. *fd becomes the end at which its output can
// be read. Returns 0 or an errno value.
static int start(const char *python, pid_t *pid, int *fd)
{
    char *const argv[] = {(char *)python, "-c", (char *)question, NULL};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return errno;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int failure = posix_spawnp(pid, python, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failure == 0)
        *fd = ends[0];
    else
        close(ends[0]);
    return failure;
}

// Reads to the end of the output, or until the time is over. Returns false then.
static bool read_answer(int fd, char *answer, size_t capacity)
{
    const uint64_t end_ms = clock_now_ms() + ANSWER_WAIT_MS;
    size_t size = 0;
    for (;;) {
        const uint64_t now_ms = clock_now_ms();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        const int wait_ms = now_ms < end_ms ? (int)(end_ms - now_ms) : 0;
        if (poll(&ready, 1, wait_ms) == 0)
            return false;
        const ssize_t got = read(fd, answer + size, capacity - 1 - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0 || size + (size_t)got == capacity - 1) {
            answer[size] = '\0';
            return true;
        }
        size += (size_t)got;
    }
}

// Returns the next line, and moves *at behind it. Returns "" at the end.
static const char *next_line(char **at)
{
    char *line = *at;
    const size_t size = strcspn(line, "\n");
    *at = line + size + (line[size] == '\n');
    line[size] = '\0';
    return line;
}

static void judge(struct doctor_finding *finding, const char *python, char *answer)
{
    char *at = answer;
    const char *status = next_line(&at);
    const char *word = next_line(&at);
    const char *meaning = next_line(&at);
    if (!meaning[0]) {
        doctor_judge(finding, DOCTOR_WARNING,
                     "%s gave no answer about PyTorch: run %s -m lockstep.torch.build to see why",
                     python, python);
        return;
    }
    (void)text_copy(finding->word, sizeof(finding->word), word);
    doctor_judge(finding,
                 strcmp(status, "ok") == 0        ? DOCTOR_OK
                 : strcmp(status, "missing") == 0 ? DOCTOR_MISSING
                                                  : DOCTOR_WARNING,
                 "%s", meaning);
}

void doctor_pytorch(struct doctor_report *report, const char *python)
{
    struct doctor_finding *finding = doctor_add(report, "pytorch_hooks");
    const char *name = python ? python : "python3";
    char answer[ANSWER_BYTES];
    pid_t pid = -1;
    int fd = -1;
    const int failure = start(name, &pid, &fd);
    if (failure == ENOENT && !python) {
        (void)text_copy(finding->word, sizeof(finding->word), "none");
        doctor_judge(finding, DOCTOR_OK, "there is no python3; --python PATH names another one");
        return;
    }
    if (failure != 0) {
        doctor_judge(finding, DOCTOR_WARNING, "%s cannot be started: %s", name, strerror(failure));
        return;
    }
    const bool answered = read_answer(fd, answer, sizeof(answer));
    close(fd);
    if (!answered)
        (void)kill(-pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    if (answered)
        judge(finding, name, answer);
    else
        doctor_judge(finding, DOCTOR_WARNING, "%s did not answer within %d s", name,
                     ANSWER_WAIT_MS / 1000);
}
