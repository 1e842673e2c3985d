// SPDX-License-Identifier: Apache-2.0
//
// Assigns ranks and forms a generation. Runs inside coordinator_step.

#ifndef COORDINATOR_ROSTER_H
#define COORDINATOR_ROSTER_H

struct coordinator;
struct job;

// Makes the job's gathering workers the members of a new generation.
void roster_form(struct coordinator *core, struct job *job);

#endif
