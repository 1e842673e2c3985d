// SPDX-License-Identifier: Apache-2.0
//
// Ranks that wait in different functions. Runs inside coordinator_step.

#ifndef COORDINATOR_CROSSING_H
#define COORDINATOR_CROSSING_H

#include <stdint.h>

struct await;
struct coordinator;
struct job;
struct worker;

// A member's heartbeat was stored; `last` is what the one before it said.
void crossing_heartbeat(struct coordinator *core, struct worker *worker, const struct await *last);
void crossing_tick(struct coordinator *core, struct job *job);
uint64_t crossing_deadline(const struct job *job); // UINT64_MAX: never.
void crossing_reset(struct job *job); // A new generation.

#endif
