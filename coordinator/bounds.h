// SPDX-License-Identifier: Apache-2.0
//
// The time that a rank may stay in a place. Runs inside coordinator_step.

#ifndef COORDINATOR_BOUNDS_H
#define COORDINATOR_BOUNDS_H

#include <stdint.h>

struct bounds;
struct coordinator;
struct job;
struct stall_bound;
struct worker;

void bounds_reset(struct bounds *bounds);
// Learns from the worker's last heartbeat how long workers usually stay in this place.
void bounds_learn(struct bounds *bounds, const struct worker *worker, uint64_t now_ms);
// Computes how long this worker may stay in its present place.
void bounds_of(const struct coordinator *core, const struct job *job, const struct worker *worker,
               struct stall_bound *bound);
// Returns the time without traffic and progress after which a job whose ranks all wait is stalled.
uint64_t bounds_of_links(const struct coordinator *core, const struct job *job);

#endif
