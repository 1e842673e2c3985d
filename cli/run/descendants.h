// SPDX-License-Identifier: Apache-2.0
//
// Kills all processes that a process has started. Launcher, and supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_DESCENDANTS_H
#define LOCKSTEP_CLI_RUN_DESCENDANTS_H

#include <stdbool.h>

// Kills every child of this process. Orphans of a killed child become children of this process,
// which is a subreaper, and are killed too, until no child is left. SIGCHLD must be blocked.
// Returns false if a process could not be killed within some seconds.
bool descendants_kill(void);

#endif
