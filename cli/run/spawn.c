// SPDX-License-Identifier: Apache-2.0
//
// Starts one child: finds its program, and sets what it inherits. The child leads a process group,
// so that a signal also reaches the child's own children. The kernel kills the child when its
// parent dies.

#include "cli/run/spawn.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int can_execute(const char *path)
{
    struct stat info;
    if (stat(path, &info) < 0)
        return errno == ENOTDIR ? ENOENT : errno;
    if (S_ISDIR(info.st_mode))
        return EISDIR;
    return access(path, X_OK) == 0 ? 0 : EACCES;
}

int spawn_find(const char *name, char *path, size_t capacity)
{
    int result = ENOENT;
    if (strchr(name, '/')) {
        snprintf(path, capacity, "%s", name);
        return can_execute(path);
    }
    const char *list = getenv("PATH");
    if (!list || !name[0])
        return ENOENT;
    for (;;) {
        size_t size = strcspn(list, ":");
        snprintf(path, capacity, "%.*s%s%s", (int)size, list, size ? "/" : "./", name);
        int found = can_execute(path);
        if (found == 0)
            return 0;
        if (found == EACCES)
            result = EACCES;
        if (list[size] == '\0')
            return result;
        list += size + 1;
    }
}

int spawn_find_coordinator(char *path, size_t capacity)
{
    static const char name[] = "lockstep-coordinator";
    char own[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", own, sizeof(own) - 1);
    if (size > 0) {
        own[size] = '\0';
        char *slash = strrchr(own, '/');
        if (slash) {
            snprintf(path, capacity, "%.*s/%s", (int)(slash - own), own, name);
            if (can_execute(path) == 0)
                return 0;
        }
    }
    return spawn_find(name, path, capacity);
}

// The limit before spawn_raise_file_limit; zero: it was not changed.
static struct rlimit file_limit_before;

void spawn_raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
        return;
    file_limit_before = limit;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void redirect(int fd, int number)
{
    if (fd >= 0 && fd != number && dup2(fd, number) < 0)
        _exit(126);
}

// Runs in the child. Executes the program, or calls _exit.
static void become(const struct spawn *request, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126); // The parent died before prctl took effect.
    setpgid(0, 0);
    redirect(request->input, STDIN_FILENO);
    redirect(request->output, STDOUT_FILENO);
    redirect(request->error, STDERR_FILENO);
    for (unsigned i = 0; i < request->variable_count; i++) {
        const struct spawn_variable *variable = &request->variables[i];
        if (variable->value)
            setenv(variable->name, variable->value, 1);
        else
            unsetenv(variable->name);
    }
    if (file_limit_before.rlim_max)
        setrlimit(RLIMIT_NOFILE, &file_limit_before);
    sigprocmask(SIG_SETMASK, request->signals, NULL);
    // execvp would give a file that is no program to /bin/sh, for example a damaged program or one
    // of another machine.
    execv(request->program, request->argv);
    int failure = errno;
    if (request->failure_fd >= 0) {
        ssize_t ignored = write(request->failure_fd, &failure, sizeof(failure));
        (void)ignored;
    }
    _exit(failure == ENOENT ? 127 : 126);
}

pid_t spawn(const struct spawn *request)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become(request, parent);
    if (pid > 0)
        setpgid(pid, pid); // Parent and child both call setpgid, so the order does not matter.
    return pid;
}
