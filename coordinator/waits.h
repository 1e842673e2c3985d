// SPDX-License-Identifier: Apache-2.0
//
// The ranks that are blocked in a planned step. Runs inside coordinator_step.

#ifndef COORDINATOR_WAITS_H
#define COORDINATOR_WAITS_H

struct coordinator;
struct job;
struct up_blocked;
struct worker;

void waits_blocked(struct coordinator *core, struct worker *worker,
                   const struct up_blocked *blocked);
// `last` has closed the knot that was found: everybody is told.
void waits_halt(struct coordinator *core, struct job *job, const struct worker *last);

#endif
