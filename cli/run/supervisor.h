// SPDX-License-Identifier: Apache-2.0
//
// The functions of supervisor.c that other files call.

#ifndef CLI_RUN_SUPERVISOR_H
#define CLI_RUN_SUPERVISOR_H

#include <stdbool.h>

struct run_options;

// Runs the whole job in the calling process, a fresh child of the launcher, and returns its exit
// status. control_fd carries a byte for each signal to forward; its end is the launcher's death.
int supervise(const struct run_options *options, int control_fd);
// Kills every child of this process, and what they leave behind to it as a subreaper, until there
// is none. Signals are blocked. False when something could not be killed within some seconds.
bool kill_descendants(void);

#endif
