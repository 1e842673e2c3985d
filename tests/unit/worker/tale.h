// SPDX-License-Identifier: Apache-2.0
//
// The order core of one rank, and the readable trace that tests assert: facts go in, actions come
// out. Modules are letters: "B1.2" is bucket 2 of the second call of module 1, "B" its first bucket
// in its first call. Single-threaded. (Stories are told of coordinators:
// tests/unit/coordinator/story.h.)
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

// Rank 0 of such a world; free() ends it.
struct tale *tale_begin(uint32_t world);
struct tale *tale_begin_with(uint32_t world, const struct order_options *options);

// Asserts that exactly this happened since the last time.
void tale_expect(struct tale *tale, const char *expected);
void tale_forget(struct tale *tale);

struct slot_id tale_slot(const char *word);
struct call_id tale_call(const char *word);

// A plan of the phase, in force at once; it closes the open learning step.
void tale_plan(struct tale *tale, const char *slots);
void tale_plan_of(struct tale *tale, uint64_t phase, const char *slots);
// One that comes while the job runs, for the place of plan `replaces`.
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
