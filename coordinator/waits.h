// SPDX-License-Identifier: Apache-2.0
//
// The ranks that are blocked in a planned step. Runs inside coordinator_step.

#ifndef COORDINATOR_WAITS_H
#define COORDINATOR_WAITS_H

struct coordinator;
struct job;
struct up_blocked;
struct worker;

// A member reports its waits.
void waits_blocked(struct coordinator *core, struct worker *worker,
                   const struct up_blocked *blocked);
// Makes HALT_ORDER. knot_find has found a knot; `last` is the rank whose report closed it.
void waits_halt(struct coordinator *core, struct job *job, const struct worker *last);

#endif
