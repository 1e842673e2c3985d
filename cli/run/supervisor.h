// SPDX-License-Identifier: Apache-2.0
//
// The process that runs a whole job. run.c explains the processes.

#ifndef LOCKSTEP_CLI_RUN_SUPERVISOR_H
#define LOCKSTEP_CLI_RUN_SUPERVISOR_H

struct run_options;

// Runs the whole job in the calling process, a new child of the launcher. Returns the exit status.
// control_fd receives a byte for each signal to forward. Its end means that the launcher has ended.
int supervisor_run(const struct run_options *options, int control_fd);

#endif
