// SPDX-License-Identifier: Apache-2.0
//
// The ranks of workers, and the birth of a generation. Runs inside coordinator_step.

#ifndef COORDINATOR_ROSTER_H
#define COORDINATOR_ROSTER_H

struct coordinator;
struct job;

// The job's gatherers become a generation, or are turned away.
void roster_form(struct coordinator *core, struct job *job);

#endif
