// SPDX-License-Identifier: Apache-2.0
//
// The jobs that `lockstep run` has started on this machine, by this user: a file for each in a
// directory that only the user can enter, $XDG_RUNTIME_DIR/lockstep or /tmp/lockstep-UID. The file
// has the job's name and the address of its page, which holds the token. The process that added it
// keeps it locked, so that a file whose process was killed is known to be old. Any thread.

#ifndef LOCKSTEP_CLI_COMMON_REGISTRY_H
#define LOCKSTEP_CLI_COMMON_REGISTRY_H

#include "protos/limits.h"

#define REGISTRY_ADDRESS_BYTES (LOCKSTEP_ADDRESS_BYTES + 128)
#define REGISTRY_MAX 64 // Jobs that are looked at.

struct registry_job {
    char name[LOCKSTEP_JOB_NAME_BYTES];
    char address[REGISTRY_ADDRESS_BYTES]; // "http://127.0.0.1:40123/?token=..."
};

// Adds a job of this process, in place of an earlier one. Returns a descriptor that holds the lock,
// or -1 with errno: then commands need the address.
int registry_add(const char *name, const char *address);

// Removes the job of this process; the descriptor is taken. -1: nothing was added.
void registry_remove(int fd);

// Copies the running jobs, in no order; of one name alone unless it is "". Returns their number.
unsigned registry_list(const char *name, struct registry_job jobs[REGISTRY_MAX]);

#endif
