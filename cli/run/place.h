// SPDX-License-Identifier: Apache-2.0
//
// The environment variables that tell a worker of `lockstep run` its place, and the line that tells
// people where the job is. Supervisor's thread.

#ifndef LOCKSTEP_CLI_RUN_PLACE_H
#define LOCKSTEP_CLI_RUN_PLACE_H

#include "cli/run/daemon.h"
#include "cli/run/run.h"
#include "cli/run/spawn.h"

#define PLACE_VARIABLES 8

// The values of the variables as text. The caller keeps them until the child is started.
struct place_text {
    char coordinator[LOCKSTEP_COORDINATOR_BYTES];
    char dashboard[DAEMON_DASHBOARD_BYTES];
    char world_size[RUN_CODE_BYTES];
    char rank[RUN_CODE_BYTES];
    char timeout[RUN_CODE_BYTES];
};

// Fills in text and variables. Returns the number of variables.
unsigned place_variables(const struct run_options *options, const struct daemon *daemon,
                         uint32_t rank, struct place_text *text,
                         struct spawn_variable variables[PLACE_VARIABLES]);

// Writes the coordinator's address for workers.
void place_coordinator(const struct run_options *options, const struct daemon *daemon,
                       char *address, size_t capacity);

// Prints one line on stderr: the job, and the address of its dashboard.
void place_announce(const struct run_options *options, const struct daemon *daemon);

#endif
