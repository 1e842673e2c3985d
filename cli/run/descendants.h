// SPDX-License-Identifier: Apache-2.0
//
// The end of everything that a process has started. Launcher, and supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_DESCENDANTS_H
#define LOCKSTEP_CLI_RUN_DESCENDANTS_H

#include <stdbool.h>

// Kills every child of this process, and what they leave behind to it as a subreaper, until there
// is none. SIGCHLD is blocked. False when something could not be killed within some seconds.
bool descendants_kill(void);

#endif
