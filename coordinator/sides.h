// SPDX-License-Identifier: Apache-2.0
//
// Both sides of a collective that differs between ranks. Runs inside coordinator_step.

#ifndef COORDINATOR_SIDES_H
#define COORDINATOR_SIDES_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct up_fail;
struct up_heartbeat;
struct worker;

// A member says how it calls a collective that another rank calls differently.
void sides_report(struct coordinator *core, struct worker *worker, const struct up_fail *fail);
// A heartbeat may name an overdue collective whose signature another rank has not. last: the
// heartbeat before it.
void sides_heartbeat(struct coordinator *core, const struct worker *worker,
                     const struct up_heartbeat *last);
// Tells everybody what is known, if a report waits for the other side, for this step at the latest.
// False: none waits.
bool sides_tell(struct coordinator *core, struct job *job, uint64_t step);
void sides_tick(struct coordinator *core, struct job *job);
uint64_t sides_deadline(const struct job *job); // UINT64_MAX: never.

#endif
