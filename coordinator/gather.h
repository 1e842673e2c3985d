// SPDX-License-Identifier: Apache-2.0
//
// The beginning of a generation: a job is created, or gathers its workers again. Runs inside
// coordinator_step.

#ifndef COORDINATOR_GATHER_H
#define COORDINATOR_GATHER_H

struct coordinator;
struct job;

struct job *gather_create(struct coordinator *core, const char *name); // NULL: full.

// A finished or halted job gathers again; its members are out.
void gather_again(struct coordinator *core, struct job *job);

#endif
