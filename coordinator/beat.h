// SPDX-License-Identifier: Apache-2.0
//
// The state of one worker, from its heartbeats. Runs inside coordinator_step, and in views.

#ifndef COORDINATOR_BEAT_H
#define COORDINATOR_BEAT_H

#include "coordinator/stall.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct up_heartbeat;
struct worker;

// A heartbeat of a member arrived; worker->heartbeat still has the one before it.
void beat_heard(struct coordinator *core, struct worker *worker);
// The heartbeat was stored in worker->heartbeat. last: the heartbeat before it.
void beat_stored(struct coordinator *core, struct worker *worker, const struct up_heartbeat *last);
bool beat_known(const struct worker *worker); // True if the worker has reported its place.
// Returns the time without a heartbeat after which a worker counts as frozen.
uint64_t beat_silence_ms(const struct coordinator *core);
bool beat_frozen(const struct coordinator *core, const struct worker *worker, uint64_t now_ms);
// True if a mate reports that the worker's process is stopped.
bool beat_stopped(const struct coordinator *core, const struct worker *worker, uint64_t now_ms);
// True if the worker is frozen or stopped.
bool beat_silent(const struct coordinator *core, const struct worker *worker);
// Returns the steps that the worker, which is silent, may be in.
struct beat_steps beat_steps(const struct coordinator *core, const struct job *job,
                             const struct worker *worker);
// True if link `index` of the worker's last heartbeat received nothing between its last two
// heartbeats.
bool beat_link_stands(const struct job *job, const struct worker *worker, uint32_t index);
// Returns how long the trainer had been in its place when it sent its last heartbeat.
uint64_t beat_age(const struct worker *worker);
// Returns how long the trainer has been in its place at now_ms.
uint64_t beat_age_now(const struct worker *worker, uint64_t now_ms);

#endif
