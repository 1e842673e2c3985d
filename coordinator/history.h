// SPDX-License-Identifier: Apache-2.0
//
// Step times and metrics over a job's whole run, in a bounded number of slots. At first a slot
// covers one sample of the step times. When all slots are in use, each two neighbours are merged
// into one, and every later slot covers twice as many samples.

#ifndef COORDINATOR_HISTORY_H
#define COORDINATOR_HISTORY_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct history_view;
struct job;

// Sums over the samples that a slot covers.
struct history_slot {
    uint64_t at_ms; // When the last sample ended.
    float span_ms; // Time that the slot covers.
    float steps; // Steps that a rank finished, on average.
    float exposed_us; // Time of one rank, on average; the meaning is that of struct rate_view.
    float hidden_us; // As exposed_us.
    float bytes; // Bytes that all ranks sent.
    uint32_t known; // Bit i: some rank reported metric i.
    float metrics[LOCKSTEP_JOB_METRICS]; // The mean over the ranks, then over the samples.
};

struct history {
    uint32_t count;
    uint32_t samples_each; // Samples that a full slot covers: a power of two.
    uint32_t samples_last; // Samples that the last slot covers so far.
    uint32_t metric_count;
    char names[LOCKSTEP_JOB_METRICS][LOCKSTEP_METRIC_NAME_BYTES];
    struct history_slot slots[LOCKSTEP_HISTORY_SLOTS];
};

void history_init(struct history *history);
// Adds one sample. Fills the sample's `metrics` and `known` from the last heartbeats of the job's
// ranks; the caller fills the other fields.
void history_add(struct coordinator *core, struct job *job, struct history_slot *sample);
// Adds what ranks reported after the end of the last sample to the slot that has this sample; the
// slot covers no more time. The metrics are those of the last heartbeats, as in history_add.
void history_amend(struct coordinator *core, struct job *job, struct history_slot *more);
// Fills *view. Index 0 is the oldest slot. Returns false if there is no such slot.
bool coordinator_history_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                              uint64_t now_ms, struct history_view *view);

#endif
