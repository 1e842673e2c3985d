// SPDX-License-Identifier: Apache-2.0
//
// The jobs that `lockstep run` has started on this machine, by this user: a file for each in a
// directory that only the user can enter. A job is added to $XDG_RUNTIME_DIR/lockstep, or to
// /tmp/lockstep-UID if the first cannot be used; both are read, because the variable can differ
// between two shells. The file has the job's name and the address of its page, which holds the
// token. The process that added the file keeps it locked, so a file without a lock belongs to a
// process that has ended. Main thread.

#ifndef LOCKSTEP_CLI_COMMON_REGISTRY_H
#define LOCKSTEP_CLI_COMMON_REGISTRY_H

#include "protos/limits.h"

#define REGISTRY_ADDRESS_BYTES (LOCKSTEP_ADDRESS_BYTES + 128)
#define REGISTRY_MAX 64 // Largest number of jobs that are read.

struct registry_job {
    char name[LOCKSTEP_JOB_NAME_BYTES];
    char address[REGISTRY_ADDRESS_BYTES]; // "http://127.0.0.1:40123/?token=..."
};

// Adds this process's job. A process has one at a time. Returns a descriptor that holds the lock,
// or -1 with errno; then the other commands need the address from the user.
int registry_add(const char *name, const char *address);

// Removes this process's job and closes the descriptor. -1: nothing was added.
void registry_remove(int fd);

// Copies the running jobs in any order. name: only the jobs with this name; "": all. Returns their
// number.
unsigned registry_list(const char *name, struct registry_job jobs[REGISTRY_MAX]);

#endif
