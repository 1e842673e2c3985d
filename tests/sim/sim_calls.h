// SPDX-License-Identifier: Apache-2.0
//
// Random programs whose trainers wait for calls, and the required outcome of each step. The outcome
// is computed as a fixpoint over the actions of the ranks, without messages and time. Pure.
//
// A step of a rank is a list of operations for each thread of its trainer: a bucket of a call
// becomes ready, a call ends, a call is waited for. The plan of a step (or the order in which it
// was learned) depends on timing, so it is read from the run. Everything else follows from it.
//
// A *part* is the contribution of one rank to one bucket in one call of one step. In a step that
// succeeds, every part is in the result of one slot, or it is deferred: then it is in its rank's
// stash, and is added to this rank's next contribution to that bucket.

#ifndef TESTS_SIM_SIM_CALLS_H
#define TESTS_SIM_SIM_CALLS_H

#include "worker/order/order.h"

#include <stdbool.h>
#include <stdint.h>

enum calls_limit {
    CALLS_WORLD = 4,
    CALLS_STEPS = 8,
    CALLS_MODULES = 3,
    CALLS_NUMBERS = 4, // Calls of one module in one step.
    CALLS_BUCKETS = 2,
    CALLS_THREADS = 2,
    CALLS_PHASES = 2,
    CALLS_SLOTS = CALLS_MODULES * CALLS_NUMBERS * CALLS_BUCKETS,
    CALLS_OPS = CALLS_MODULES * CALLS_NUMBERS * (CALLS_BUCKETS + 2)
};

enum calls_kind {
    CALLS_BEGIN, // The call is open.
    CALLS_READY, // One bucket of the call is ready.
    CALLS_END, // The call ends, after all its buckets.
    CALLS_WAIT, // Wait for a call that has ended.
};

struct calls_op {
    enum calls_kind kind;
    struct slot_id slot; // Its bucket matters for CALLS_READY.
};

struct calls_thread {
    uint32_t count;
    struct calls_op ops[CALLS_OPS];
};

struct calls_step {
    uint32_t phase;
    struct calls_thread threads[CALLS_THREADS];
};

struct calls {
    uint32_t world;
    uint32_t steps;
    uint32_t modules;
    uint32_t threads;
    uint32_t buckets[CALLS_MODULES];
    struct order_options options; // Options of all ranks, but for `strict`.
    uint32_t strict; // Set of ranks whose data plane pairs by position.
    struct calls_step at[CALLS_WORLD][CALLS_STEPS + 1]; // By rank and step, from step 1.
};

// A set of parts of one bucket of one module.
struct parts {
    uint64_t words[3];
};

static_assert(CALLS_WORLD * (CALLS_STEPS + 1) * CALLS_NUMBERS <= 192, "all parts of a bucket fit");

struct calls_slot {
    struct slot_id id;
    struct parts parts; // The parts in its result.
};

// Facts about a step that are known before it runs, or that only its run shows.
struct calls_known {
    bool learning;
    uint32_t slot_count; // Slots of the plan, or the learned slots in the order of their grants.
    struct slot_id slots[CALLS_SLOTS];
};

struct calls_outcome {
    uint32_t verdicts; // Set of enum halt_kind, as bits; 0: the step settles on every rank.
    bool hangs; // True if ranks wait for each other, but some rank has a thread that can run.
    uint32_t slot_count; // The slots of the plan, then the slots that extend it.
    struct calls_slot slots[CALLS_SLOTS];
};

// Deferred contributions, by rank, module and bucket.
struct calls_stash {
    struct parts at[CALLS_WORLD][CALLS_MODULES][CALLS_BUCKETS];
};

void calls_draw(struct calls *calls, uint64_t seed);

// True if some rank waits for a call in this step.
bool calls_wait(const struct calls *calls, uint32_t step);

// Adds the part that a rank makes of a bucket in call `number` of a step.
void parts_add(struct parts *parts, uint32_t rank, uint64_t step, uint32_t number);
void parts_join(struct parts *into, const struct parts *from);
bool parts_equal(const struct parts *a, const struct parts *b);

// Computes the required outcome of a step. stash: the stash before the step; if the step settles,
// it becomes the stash after the step.
void calls_expect(const struct calls *calls, uint32_t step, const struct calls_known *known,
                  struct calls_stash *stash, struct calls_outcome *outcome);

#endif
