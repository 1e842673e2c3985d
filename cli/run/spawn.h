// SPDX-License-Identifier: Apache-2.0
//
// Starts one child process, and finds its program. Called while the process has one thread.

#ifndef LOCKSTEP_CLI_RUN_SPAWN_H
#define LOCKSTEP_CLI_RUN_SPAWN_H

#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

struct spawn_variable {
    const char *name;
    const char *value; // NULL: the variable is removed for the child.
};

struct spawn {
    const char *program; // A path.
    char *const *argv;
    const struct spawn_variable *variables;
    unsigned variable_count;
    int input, output, error; // Descriptors that become 0, 1 and 2; negative: inherited.
    int failure_fd; // Receives one int, the errno value, if the program cannot be started.
    const sigset_t *signals;
};

// Raises this process's limit of descriptors to the maximum. Its children get the limit of before.
void spawn_raise_file_limit(void);

// Starts a process in its own process group. The process is killed when this one ends. Returns its
// pid, or -1.
pid_t spawn(const struct spawn *request);

// Finds a program as execvp would. Returns 0, or an errno value: ENOENT, EACCES, EISDIR.
int spawn_find(const char *name, char *path, size_t capacity);

// Finds the daemon in the directory of this executable, or in PATH.
int spawn_find_coordinator(char *path, size_t capacity);

#endif
