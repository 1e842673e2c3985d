// SPDX-License-Identifier: Apache-2.0
//
// Kills all processes that a process has started. Launcher, and supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_DESCENDANTS_H
#define LOCKSTEP_CLI_RUN_DESCENDANTS_H

#include <stdbool.h>
#include <sys/types.h>

// A process that could not be killed.
struct descendants_left {
    pid_t pid; // 0: unknown.
    int error; // errno of kill; 0: the signal was sent, and the process goes on.
};

// Kills every child of this process. Orphans of a killed child become children of this process,
// which is a subreaper, and are killed too, until no child is left. SIGCHLD must be blocked.
// Returns false if a process could not be killed within some seconds, and names it in *left. A
// process of another user cannot be killed at all: it is waited for no longer than a second, once
// no other is left.
bool descendants_kill(struct descendants_left *left);

// Says on stderr which process could not be killed, and why.
void descendants_say(const struct descendants_left *left, const char *command);

#endif
