// SPDX-License-Identifier: Apache-2.0
//
// The step of a session. worker/api/step.c opens and ends it.

#ifndef WORKER_SESSION_STEP_H
#define WORKER_SESSION_STEP_H

#include "protos/limits.h"
#include "worker/kernels/tree.h"
#include "worker/order/payloads.h"
#include "worker/session/change.h"
#include "worker/session/metrics.h"

#include <lockstep/lockstep.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// The part of a step header that only error texts need: the phase's name with its NUL, and one bit
// for every parameter of the session, set if the parameter is trained in the step.
struct step_note {
    uint64_t step;
    uint32_t count; // Bytes of `bytes` in use.
    uint8_t bytes[LOCKSTEP_NOTE_BYTES];
};

#define STEP_USED_UNKNOWN UINT64_MAX

// Times of the open step, by clock_now_us; 0: it has not happened yet.
struct step_times {
    uint64_t begin; // trainer
    uint64_t begin_used; // trainer. By clock_process_us, or STEP_USED_UNKNOWN.
    _Atomic(uint64_t) first_ready; // The first report of a gradient; struct progress has the last.
    uint64_t end; // When the trainer ended the step. Guarded by the session's mutex.

    // driver, read by the trainer after the step settled
    uint64_t first_sent; // The first byte of a bucket was sent.
    uint64_t last_received; // The last byte of a bucket was received.
    uint32_t in_flight; // Buckets in flight.
    uint64_t in_flight_since; // When in_flight last rose above 0.
    uint64_t in_flight_us; // For how long in_flight was above 0, in total.
    uint64_t overlap_us; // The part of in_flight_us before `end`.
};

struct step {
    // trainer; the driver reads them while a step is open or lockstep_start has not been answered
    uint64_t number; // Number of the open or last step, from 1. Steps of one window share a number.
    uint64_t weight; // This rank's weight in the mean.
    uint32_t leaf; // Leaves of the open window that have ended: worker/session/module/leaves.h.
    uint64_t leaf_weight; // Their weight.
    struct tree_block leaves; // This rank's leaves in the open window.
    bool is_open;
    bool accumulating; // True if the open step is not the last of its window.
    bool window_open; // True if the next step belongs to the same window as the last step.
    bool ending; // True while the trainer is ending the open step: see lockstep_step_wait.
    bool exhausted; // True if this rank has declared that it has no more data.
    bool keeps_weight; // True if this rank is exhausted, and its weight counts in the open step.
    bool skips; // True if the next step leaves out a number: see uneven_skip.
    lockstep_uneven uneven; // The rule in force: config.uneven, or that of lockstep_uneven_set.
    bool finished; // True if all ranks know that there is no next step.
    bool learning; // True if the open step is a learning one.
    char phase[LOCKSTEP_NAME_BYTES];
    struct step_times times;
    // trainer
    uint64_t openings; // Number of the last step whose open wave this rank has joined.
    struct lockstep_report report;

    // guarded by the session's mutex
    uint64_t opened; // Number of the last step whose open wave is complete.
    uint64_t settled; // Number of the last settled step.
    struct open_wave opening; // This rank's part of the open wave; then its result.
    uint32_t opening_size; // Number of ranks that have joined the wave of that result.
    struct commit_wave contribution; // This rank's part of the commit wave. Filled at step_end.
    struct commit_wave outcome; // The result of the last commit wave.
    // True inside a step that only accumulates, about which the driver gets no command. Modules do
    // not come or go meanwhile.
    bool accumulates;
    struct world_change change;
    struct metrics metrics;
};

// Counts of the open step, for its report. atomic
struct tallies {
    atomic_uint control_messages; // Messages to and from the coordinator.
    atomic_uint buckets_travelled; // Buckets that were launched.
    atomic_uint zero_filled; // Launched buckets that this rank contributed as zeros.
    atomic_uint put_off; // Buckets that were deferred.
    _Atomic(uint64_t) runs; // Extents of the launched buckets.
    _Atomic(uint64_t) weight_total; // The sum of all ranks' weights in the last bucket.
    atomic_uint weight_place; // The place of that bucket (tallies_weigh); 0: no bucket is done.
};

// A bucket of the open step is done. The report has the weight of the last bucket of the step's
// order that is not a group's; if there is none, that of the last one of a group. The order is
// agreed, and buckets need not end in it: after a death, and if modules have different callers,
// their weights differ. driver
static inline void tallies_weigh(struct tallies *tallies, uint32_t slot, bool of_group,
                                 uint64_t weight)
{
    const uint32_t place = slot + 1 + (of_group ? 0 : LOCKSTEP_MAX_SLOTS);
    if (place < atomic_load_explicit(&tallies->weight_place, memory_order_relaxed))
        return;
    atomic_store_explicit(&tallies->weight_place, place, memory_order_relaxed);
    atomic_store_explicit(&tallies->weight_total, weight, memory_order_relaxed);
}

#endif
