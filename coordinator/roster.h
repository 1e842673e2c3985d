// SPDX-License-Identifier: Apache-2.0
//
// The functions of roster.c that other files call.

#ifndef COORDINATOR_ROSTER_H
#define COORDINATOR_ROSTER_H

struct coordinator;
struct job;

// The job's gatherers become a generation, or are turned away.
void roster_form(struct coordinator *core, struct job *job);

#endif
