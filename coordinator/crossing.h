// SPDX-License-Identifier: Apache-2.0
//
// Finds ranks that wait in different functions forever. Runs inside coordinator_step.

#ifndef COORDINATOR_CROSSING_H
#define COORDINATOR_CROSSING_H

#include <stdint.h>

struct await;
struct coordinator;
struct job;
struct worker;

// Called after a member's heartbeat was stored. last: the await of the heartbeat before it.
void crossing_heartbeat(struct coordinator *core, struct worker *worker, const struct await *last);
// The worker is no party any more: its stream comes back, or it leaves.
void crossing_forget(struct job *job, struct worker *worker);
void crossing_tick(struct coordinator *core, struct job *job);
uint64_t crossing_deadline(const struct job *job); // When crossing_tick is due; UINT64_MAX: never.
void crossing_reset(struct job *job); // Called before a new generation gathers.

#endif
