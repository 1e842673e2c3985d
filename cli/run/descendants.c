// SPDX-License-Identifier: Apache-2.0
//
// Kills all children of this process and their orphans; descendants.h has the contract. The kernel
// has no call for this, so /proc is read until no child is left.

#include "cli/run/descendants.h"

#include "base/clock.h"
#include "cli/common/cli.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KILL_TIMEOUT_MS 5000
#define REFUSED_MS 1000 // How long children are waited for that kill refuses.

// Returns the parent of a process, or 0. The name in /proc/PID/stat may contain any character, also
// parentheses.
static pid_t parent_of(const char *pid)
{
    char path[64];
    char bytes[512];
    int parent = 0;
    snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, bytes, sizeof(bytes) - 1);
    close(fd);
    if (size <= 0)
        return 0;
    bytes[size] = '\0';
    const char *name_end = strrchr(bytes, ')');
    if (!name_end || sscanf(name_end + 1, " %*c %d", &parent) != 1)
        return 0;
    return parent;
}

// Sends SIGKILL to all children. Notes one that gets it, else one that kill refuses.
static void kill_children(struct descendants_left *left)
{
    DIR *proc = opendir("/proc");
    *left = (struct descendants_left){0};
    if (!proc)
        return;
    for (struct dirent *entry = readdir(proc); entry; entry = readdir(proc)) {
        if (!isdigit((unsigned char)entry->d_name[0]) || parent_of(entry->d_name) != getpid())
            continue;
        const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        const int error = kill(pid, SIGKILL) < 0 ? errno : 0;
        if (error == 0 || left->pid == 0)
            *left = (struct descendants_left){pid, error};
    }
    closedir(proc);
}

// Waits for the next SIGCHLD, which is blocked, or for some milliseconds.
static void wait_for_child(void)
{
    sigset_t child;
    struct timespec wait = {.tv_nsec = 5 * 1000 * 1000};
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigtimedwait(&child, NULL, &wait);
}

bool descendants_kill(struct descendants_left *left)
{
    const uint64_t began = clock_now_ms();
    *left = (struct descendants_left){0};
    for (;;) {
        pid_t pid = 0;
        do {
            pid = waitpid(-1, NULL, WNOHANG);
        } while (pid > 0);
        if (pid < 0 && errno == ECHILD)
            return true;
        if (clock_now_ms() - began > (left->error == EPERM ? REFUSED_MS : KILL_TIMEOUT_MS))
            return false;
        kill_children(left);
        wait_for_child();
    }
}

void descendants_say(const struct descendants_left *left, const char *command)
{
    cli_say(command, "process %d, which a worker has left, could not be killed: %s", (int)left->pid,
            left->error ? strerror(left->error) : "it is stuck in the kernel");
}
