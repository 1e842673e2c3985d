// SPDX-License-Identifier: Apache-2.0
//
// One rank's way through a program of calls: which operations its threads may do next, which of
// them wait, and what becomes of the parts that it makes. It does what the trainer and the stash of
// a session do, without memory and without time.

#ifndef TESTS_SIM_SIM_CALLS_RUN_H
#define TESTS_SIM_SIM_CALLS_RUN_H

#include "tests/sim/sim_calls.h"

struct calls_run {
    const struct calls *calls;
    uint32_t rank;
    uint32_t step;
    uint32_t position[CALLS_THREADS];
    bool waits[CALLS_THREADS]; // In a wait; its operation is the one before its position.
    struct parts made[CALLS_MODULES][CALLS_NUMBERS][CALLS_BUCKETS]; // In this step, not deferred.
    struct parts stash[CALLS_MODULES][CALLS_BUCKETS];
};

void calls_run_begin(struct calls_run *run, const struct calls *calls, uint32_t rank);
void calls_run_step(struct calls_run *run, uint32_t step);

// The next operation of a thread, which is then done, or NULL: it is through or in a wait.
const struct calls_op *calls_run_next(struct calls_run *run, uint32_t thread);
bool calls_run_can(const struct calls_run *run, uint32_t thread);
// All threads are through.
bool calls_run_over(const struct calls_run *run);

// Before a bucket is reported ready: the deferred part travels with it.
void calls_run_ready(struct calls_run *run, const struct slot_id *slot);
// The bucket's contribution counts later.
void calls_run_deferred(struct calls_run *run, const struct slot_id *slot);
// The first thread that waits for the call goes on. False: none does.
bool calls_run_released(struct calls_run *run, const struct call_id *call);

#endif
