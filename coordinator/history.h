// SPDX-License-Identifier: Apache-2.0
//
// A job over its whole run, in a bounded number of slots, and the functions of history.c that other
// files call. A slot covers one sample of the step times at first. When all slots are in use, two
// neighbours become one, and every later slot covers twice as many samples.

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
    uint64_t at_ms; // The end of its last sample.
    float span_ms;
    float steps; // That a rank finished, on average.
    float exposed_us; // One rank's, on average, as hidden_us.
    float hidden_us;
    float bytes; // That all ranks sent.
    uint32_t known; // Bits: the metrics that some rank said.
    float metrics[LOCKSTEP_JOB_METRICS]; // The mean over the ranks, then over the samples.
};

struct history {
    uint32_t count;
    uint32_t samples_each; // That a full slot covers: a power of two.
    uint32_t samples_last; // That the last slot covers.
    uint32_t metric_count;
    char names[LOCKSTEP_JOB_METRICS][LOCKSTEP_METRIC_NAME_BYTES];
    struct history_slot slots[LOCKSTEP_HISTORY_SLOTS];
};

void history_init(struct history *history);
// Adds one sample, and the numbers that marks of the job's ranks say now. Takes the sample's
// `metrics` and `known` from the marks.
void history_add(struct coordinator *core, struct job *job, struct history_slot *sample);
// False: there is no such slot. The oldest has index 0.
bool coordinator_history_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                              uint64_t now_ms, struct history_view *view);

#endif
