// SPDX-License-Identifier: Apache-2.0
//
// One rank's run of a program of calls: which operations its threads may do next, which threads
// wait, and where the parts of the rank are. It models the trainer and the stash of a session,
// without gradient memory and without time.

#ifndef TESTS_SIM_SIM_CALLS_RUN_H
#define TESTS_SIM_SIM_CALLS_RUN_H

#include "tests/sim/sim_calls.h"

struct calls_run {
    const struct calls *calls;
    uint32_t rank;
    uint32_t step;
    uint32_t position[CALLS_THREADS];
    // True while the thread is in a wait: the operation before its position.
    bool waits[CALLS_THREADS];
    // Parts made in this step and not deferred.
    struct parts made[CALLS_MODULES][CALLS_NUMBERS][CALLS_BUCKETS];
    struct parts stash[CALLS_MODULES][CALLS_BUCKETS];
};

void calls_run_begin(struct calls_run *run, const struct calls *calls, uint32_t rank);
void calls_run_step(struct calls_run *run, uint32_t step);

// Returns the next operation of a thread, and advances the thread. NULL: the thread has finished
// the step, or is in a wait.
const struct calls_op *calls_run_next(struct calls_run *run, uint32_t thread);
bool calls_run_can(const struct calls_run *run, uint32_t thread);
// True if all threads have finished the step.
bool calls_run_over(const struct calls_run *run);

// Call it before a bucket is reported ready: it adds the deferred parts to the contribution.
void calls_run_ready(struct calls_run *run, const struct slot_id *slot);
// Moves the bucket's contribution to the stash.
void calls_run_deferred(struct calls_run *run, const struct slot_id *slot);
// Ends the wait of the first thread that waits for the call. False: no thread waits for it.
bool calls_run_released(struct calls_run *run, const struct call_id *call);

#endif
