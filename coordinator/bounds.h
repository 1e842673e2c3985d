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
// A heartbeat says how long its worker usually is where it is.
void bounds_learn(struct bounds *bounds, const struct worker *worker, uint64_t now_ms);
// How long this worker may be where it is.
void bounds_of(const struct coordinator *core, const struct job *job, const struct worker *worker,
               struct stall_bound *bound);
// No trainer is in the way: how long nothing may move.
uint64_t bounds_of_links(const struct coordinator *core, const struct job *job);

#endif
