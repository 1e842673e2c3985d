// SPDX-License-Identifier: Apache-2.0
//
// Assigns ranks and forms a generation. Runs inside coordinator_step.

#ifndef COORDINATOR_ROSTER_H
#define COORDINATOR_ROSTER_H

#include <stdint.h>

struct coordinator;
struct job;
struct up_reach;
struct worker;

// Makes the job's gathering workers the members of a new generation.
// Forms the next generation of the members that the job's ballot keeps, in the order of their
// ranks.
void roster_reform(struct coordinator *core, struct job *job);
void roster_form(struct coordinator *core, struct job *job);
// All members of a rebuilt job have said who they are: finds their hosts.
void roster_restored(struct coordinator *core, struct job *job);
// Answers a member that asks for the addresses of other members.
void roster_reach(struct coordinator *core, struct worker *worker, const struct up_reach *reach);
// A member that was unseen has come: members that asked for its address get it.
void roster_seen(struct coordinator *core, struct job *job, uint32_t rank);

#endif
