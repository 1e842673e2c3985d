// SPDX-License-Identifier: Apache-2.0
//
// The speed of a job, and its stragglers. Runs inside coordinator_step.

#ifndef COORDINATOR_RATES_H
#define COORDINATOR_RATES_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct rate_view;
struct rates;

bool coordinator_rate_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                           uint64_t now_ms, struct rate_view *view);
void rates_reset(struct rates *rates);
// A generation begins, in which this coordinator knows what each member has counted: after
// rates_reset.
void rates_begin(struct coordinator *core, struct job *job);
void rates_tick(struct coordinator *core, struct job *job);
// The generation ends. The history gets what its members have counted since the last sample.
void rates_end(struct coordinator *core, struct job *job);
// A member has sent a heartbeat after a verdict: the history gets what it had counted before.
void rates_late(struct coordinator *core, struct job *job);

#endif
