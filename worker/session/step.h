// SPDX-License-Identifier: Apache-2.0
//
// The step of a session, as worker/api/step.c keeps it.

#ifndef WORKER_SESSION_STEP_H
#define WORKER_SESSION_STEP_H

#include "protos/limits.h"
#include "worker/order/payloads.h"

#include <lockstep/lockstep.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// The part of a step header that is for people: the phase's name with its NUL, and one bit for
// every parameter of the session that is trained in the step.
struct step_note {
    uint64_t step;
    uint32_t count; // Bytes in use.
    uint8_t bytes[LOCKSTEP_NOTE_BYTES];
};

// Times of the step under way, in clock_now_us; 0: not yet.
struct step_times {
    uint64_t begin; // trainer
    _Atomic(uint64_t) first_ready; // The last one is in struct progress.
    uint64_t end; // Guarded by the session's mutex.

    // driver, read by the trainer after the step settled
    uint64_t first_sent;
    uint64_t last_received;
    uint32_t in_flight; // Buckets on their way.
    uint64_t in_flight_since; // The time since which there is one.
    uint64_t in_flight_us; // The span in which there was one.
    uint64_t overlap_us; // The part of that span before `end`.
};

struct step {
    // trainer; the driver reads them while a step is open or lockstep_start has not been answered
    uint64_t number; // Counts all steps of a window.
    uint64_t weight;
    bool is_open;
    bool accumulating; // True if the open step is not the last of its window.
    bool window_open; // True if the next step belongs to the window of the one before.
    bool ending; // True while the open step is in its end: see lockstep_step_wait.
    bool exhausted; // True if this rank has said that it has no data any more.
    bool finished; // True if all ranks know that there is no next step.
    bool learning; // True if the open step is a learning one.
    char phase[LOCKSTEP_NAME_BYTES];
    struct step_times times;
    // trainer
    uint64_t openings; // The last step whose open wave this rank has joined.
    struct lockstep_report report;

    // guarded by the session's mutex
    uint64_t opened; // The step whose open wave is complete.
    uint64_t settled; // The last settled step.
    struct open_wave opening; // What this rank says in the open wave, then what all ranks say.
    struct commit_wave contribution; // Filled at step_end, taken by the driver at the commit.
    struct commit_wave outcome; // The commit wave of the last settled step.
};

// Counts of a session, for the report of a step. atomic
struct tallies {
    atomic_uint control_messages;
    atomic_uint buckets_travelled;
    atomic_uint zero_filled; // Gradients.
    atomic_uint put_off; // Buckets.
    _Atomic(uint64_t) runs;
    _Atomic(uint64_t) weight_total;
};

#endif
