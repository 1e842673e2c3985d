// SPDX-License-Identifier: Apache-2.0
//
// Job-wide counters, as counters.c keeps them; worker/api/counter.c has the public functions.

#ifndef WORKER_SESSION_COUNTERS_H
#define WORKER_SESSION_COUNTERS_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct commit_wave;
struct lockstep_session;

struct counter {
    uint64_t hash; // 0: free.
    int64_t total; // At the last settled step.
    int64_t pending; // Added here since step_end.
};

// guarded by the session's mutex
struct counters {
    struct counter table[LOCKSTEP_MAX_COUNTERS];
    bool overflow;
};

// The counter with this hash of its name. NULL: there is none, and `create` is false or the table
// is full.
struct counter *counter_find_locked(struct lockstep_session *session, uint64_t hash, bool create);
// Moves what was added in the step into the wave. Trainer, at step_end.
void counter_contribute(struct lockstep_session *session, struct commit_wave *wave);
// Adds the sums of a settled step to the totals.
void counter_apply(struct lockstep_session *session, const struct commit_wave *result);

#endif
