// SPDX-License-Identifier: Apache-2.0
//
// Creates jobs, and lets a job gather workers again after a generation has ended. Runs inside
// coordinator_step.

#ifndef COORDINATOR_GATHERING_H
#define COORDINATOR_GATHERING_H

struct coordinator;
struct job;

// Returns a new job, or NULL if the table of jobs is full.
struct job *gathering_create(struct coordinator *core, const char *name);

// Makes a finished or halted job gather workers again, as the latest job. The connected members of
// its last generation get STAGE_OUT.
void gathering_again(struct coordinator *core, struct job *job);

#endif
