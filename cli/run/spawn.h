// SPDX-License-Identifier: Apache-2.0
//
// Starting one child process, and finding its program. Called while the process has one thread.

#ifndef LOCKSTEP_CLI_RUN_SPAWN_H
#define LOCKSTEP_CLI_RUN_SPAWN_H

#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

struct spawn_variable {
    const char *name;
    const char *value; // NULL: the child has no such variable.
};

struct spawn {
    const char *program; // A path.
    char *const *argv;
    const struct spawn_variable *variables;
    unsigned variable_count;
    int input, output, error; // Descriptors that become 0, 1 and 2; negative: inherited.
    int failure_fd; // Receives one int, errno, when the program cannot be started.
    const sigset_t *signals;
};

// Lets this process have as many descriptors as it may; its children get the limit of before.
void spawn_raise_file_limit(void);

// Starts a process in a group of its own that dies with this one. Returns its pid, or -1.
pid_t spawn(const struct spawn *request);

// Finds a program as execvp would. Returns 0, or an errno value: ENOENT, EACCES, EISDIR.
int spawn_find(const char *name, char *path, size_t capacity);

// Finds the daemon beside this executable, or in PATH. Returns as spawn_find does.
int spawn_find_coordinator(char *path, size_t capacity);

#endif
