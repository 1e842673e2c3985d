// SPDX-License-Identifier: Apache-2.0
//
// The order core of one rank, and a readable trace of its actions, which tests assert. Modules are
// letters: "B1.2" is bucket 2 of the second call of module 1, and "B" is the first bucket of its
// first call. Single-threaded. tests/unit/coordinator/story.h does the same for the coordinator.
//
//     tale_plan(tale, "A B");
//     tale_step(tale, 1);
//     tale_made(tale, "B");
//     tale_wait(tale, "B");
//     tale_expect(tale, "header 1; launch 1; blocked B0 needs 1 lacks 0=A0; ");

#ifndef TESTS_UNIT_WORKER_TALE_H
#define TESTS_UNIT_WORKER_TALE_H

#include "worker/order/order.h"

#define PHASE 77u
#define OTHER_PHASE 78u
#define PLAN_HASH 4711u // Hash of plan 1; the hash of plan n is greater by n - 1.

struct tale {
    struct order order;
    // Buckets of each module; 1 unless the test says otherwise.
    uint32_t buckets[LOCKSTEP_MAX_MODULES];
    char trace[4096];
};

// Returns the tale of rank 0 of a world of this size. The caller frees it by free().
struct tale *tale_begin(uint32_t world);
struct tale *tale_begin_with(uint32_t world, const struct order_options *options);

// Asserts that the trace since the last assertion is exactly this text.
void tale_expect(struct tale *tale, const char *expected);
void tale_forget(struct tale *tale);

struct slot_id tale_slot(const char *word);
struct call_id tale_call(const char *word);

// A plan of PHASE arrives and is in force at once. It closes the open learning step.
void tale_plan(struct tale *tale, const char *slots);
void tale_plan_of(struct tale *tale, uint64_t phase, const char *slots);
// A plan arrives while the job runs, and takes the place of plan `replaces`.
void tale_newer_plan(struct tale *tale, uint64_t replaces, const char *slots);

// The step begins, in PHASE.
void tale_step(struct tale *tale, uint64_t step);
// The header of the predecessor, which holds the same plans and has started as often.
void tale_header(struct tale *tale, uint64_t step, uint64_t phase);
// Buckets of a call are ready.
void tale_made(struct tale *tale, const char *slots);
void tale_wait(struct tale *tale, const char *call);
// The slot at that position is final.
void tale_final(struct tale *tale, uint32_t index);
// The close wave, with the calls outside the plan of all ranks; every rank holds all plans.
void tale_close(struct tale *tale, const char *extras);

#endif
