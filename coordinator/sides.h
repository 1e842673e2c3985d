// SPDX-License-Identifier: Apache-2.0
//
// The verdict on a collective that two ranks call differently. Runs inside coordinator_step.

#ifndef COORDINATOR_SIDES_H
#define COORDINATOR_SIDES_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct up_fail;
struct up_heartbeat;
struct worker;

// A member reports how it calls a collective that another rank calls differently.
void sides_report(struct coordinator *core, struct worker *worker, const struct up_fail *fail);
// Called after a heartbeat was stored: looks for an overdue collective that has another signature
// on another rank. last: the heartbeat before it.
void sides_heartbeat(struct coordinator *core, const struct worker *worker,
                     const struct up_heartbeat *last);
// If a report waits for the other side: makes the verdict from this report alone, of its step or of
// `step`, whichever is earlier, and returns true. Otherwise returns false.
bool sides_tell(struct coordinator *core, struct job *job, uint64_t step);
void sides_tick(struct coordinator *core, struct job *job);
uint64_t sides_deadline(const struct job *job); // When sides_tick is due; UINT64_MAX: never.

#endif
