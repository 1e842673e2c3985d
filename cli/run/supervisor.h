// SPDX-License-Identifier: Apache-2.0
//
// The process that runs a whole job. run.c has the essay on the processes.

#ifndef LOCKSTEP_CLI_RUN_SUPERVISOR_H
#define LOCKSTEP_CLI_RUN_SUPERVISOR_H

struct run_options;

// Runs the whole job in the calling process, a fresh child of the launcher, and returns its exit
// status. control_fd carries a byte for each signal to forward; its end is the launcher's death.
int supervisor_run(const struct run_options *options, int control_fd);

#endif
