// SPDX-License-Identifier: Apache-2.0
//
// Job-wide counters: their state, and the functions of counters.c. worker/api/counter.c has the
// public functions.

#ifndef WORKER_SESSION_COUNTERS_H
#define WORKER_SESSION_COUNTERS_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct commit_wave;
struct up_heartbeat;
struct lockstep_session;

struct counter {
    uint64_t hash; // Hash of the counter's name; 0: this entry and all after it are free.
    bool settled; // True if a settled step has added to it: then every rank knows it.
    int64_t total; // The sum over all ranks, as of the last settled step.
    int64_t pending; // What this rank has added since the last step_end.
    // The name. A long one is cut, and ends with "~" and digits of the hash. Empty: this rank has
    // not used the name, or it is no valid UTF-8.
    char name[LOCKSTEP_METRIC_NAME_BYTES];
};

// LOCKSTEP_MAX_COUNTERS that are settled, and as many that only this rank has used so far.
#define COUNTER_ENTRIES (2 * LOCKSTEP_MAX_COUNTERS)

// guarded by the session's mutex
struct counters {
    struct counter table[COUNTER_ENTRIES];
    uint32_t
        settled; // Entries that are settled, at most LOCKSTEP_MAX_COUNTERS; equal on all ranks.
};

// Finds the counter whose name has this hash. NULL: there is none.
struct counter *counter_find_locked(struct lockstep_session *session, uint64_t hash);
// Creates it. NULL: this rank knows LOCKSTEP_MAX_COUNTERS counters already.
struct counter *counter_create_locked(struct lockstep_session *session, uint64_t hash);
// Notes the name of a counter, for heartbeats.
void counter_note_name(struct counter *counter, const char *name);
// Fills in the counters whose names this rank knows. Caller holds the session's mutex.
void counter_tell(const struct lockstep_session *session, struct up_heartbeat *beat);
// Moves what this rank added in the step into its part of the commit wave. Trainer, at step_end.
void counter_contribute(struct lockstep_session *session, struct commit_wave *wave);
// Forgets what this rank added since the last step_end. Caller holds the session's mutex.
void counter_drop_locked(struct lockstep_session *session);
// Adds the sums of a settled step to the totals. Caller holds the session's mutex.
void counter_apply(struct lockstep_session *session, const struct commit_wave *result);
// True if counters of the last settled step are too many; the same on all ranks. Trainer, after
// counter_apply.
bool counter_is_many(struct lockstep_session *session, const struct commit_wave *result);

#endif
