// SPDX-License-Identifier: Apache-2.0
//
// The supervisor of a job whose workers are on the hosts of --hosts. run.c explains the processes.

#ifndef LOCKSTEP_CLI_RUN_HOSTS_H
#define LOCKSTEP_CLI_RUN_HOSTS_H

struct run_options;

// Runs the whole job in the calling process, a new child of the launcher. Returns the exit status.
// control_fd is as in supervisor_run.
int hosts_run(const struct run_options *options, int control_fd);

#endif
