// SPDX-License-Identifier: Apache-2.0
//
// One worker as its heartbeats show it. Runs inside coordinator_step, and in views.

#ifndef COORDINATOR_BEAT_H
#define COORDINATOR_BEAT_H

#include "coordinator/stall.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct up_heartbeat;
struct worker;

// A heartbeat of a member comes, and is not stored yet; it is stored, and before it `last` was.
void beat_heard(struct coordinator *core, struct worker *worker);
void beat_stored(struct coordinator *core, struct worker *worker, const struct up_heartbeat *last);
bool beat_known(const struct worker *worker); // True if it has said where it is.
// A member that is not heard of for longer than this is frozen.
uint64_t beat_silence_ms(const struct coordinator *core);
bool beat_frozen(const struct coordinator *core, const struct worker *worker, uint64_t now_ms);
bool beat_stopped(const struct coordinator *core, const struct worker *worker, uint64_t now_ms);
bool beat_silent(const struct coordinator *core, const struct worker *worker); // One of both.
struct beat_steps beat_steps(const struct coordinator *core, const struct job *job,
                             const struct worker *worker);
// Whether nothing has moved, in two heartbeats, on a link that its heartbeat names.
bool beat_link_stands(const struct job *job, const struct worker *worker, uint32_t index);
// How long its trainer has been where it was as of its last heartbeat.
uint64_t beat_age(const struct worker *worker);
// The same, as of now_ms.
uint64_t beat_age_now(const struct worker *worker, uint64_t now_ms);

#endif
