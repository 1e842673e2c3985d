// SPDX-License-Identifier: Apache-2.0
//
// Metrics of the job: their state, and the functions of metrics.c. worker/api/metric.c has the
// public functions.

#ifndef WORKER_SESSION_METRICS_H
#define WORKER_SESSION_METRICS_H

#include "worker/order/order.h"

struct lockstep_session;

// guarded by the session's mutex
struct metrics {
    struct metric_list pending; // What this rank has added since the last step_end.
    // Results of the last settled step in which some rank added to the metric. Equal on all ranks.
    struct metric_list settled;
};

// What is wrong with the metrics of a settled step; the same on all ranks.
struct metrics_fault {
    bool many; // The job has more than LOCKSTEP_MAX_METRICS metrics.
    const struct metric_part *name; // Two ranks use this name for different kinds; NULL: none do.
    uint32_t kinds[2]; // These are the kinds. enum metric_kind
};

// "sum", "mean", "minimum" or "maximum".
const char *metrics_kind_name(uint32_t kind);
// The value that a metric shows.
double metrics_value(const struct metric_part *part);
// Adds a value. Returns 0, or a status with its text. Caller holds the session's mutex.
int metrics_add_locked(struct lockstep_session *session, const char *name, enum metric_kind kind,
                       double value);
// Fills in the last results of all metrics. Caller holds the session's mutex.
void metrics_tell(const struct lockstep_session *session, struct up_heartbeat *beat);
// Moves what this rank added in the step into its part of the commit wave. Trainer, at step_end.
void metrics_contribute(struct lockstep_session *session, struct commit_wave *wave);
// Forgets what this rank added since the last step_end. Caller holds the session's mutex.
void metrics_drop_locked(struct lockstep_session *session);
// Takes over the results of a settled step. Caller holds the session's mutex.
void metrics_apply(struct lockstep_session *session, const struct commit_wave *result);
// Returns the first fault in the metrics of the last settled step. `result` is borrowed by the
// fault. Trainer, after metrics_apply.
struct metrics_fault metrics_find_fault(struct lockstep_session *session,
                                        const struct commit_wave *result);

#endif
