// SPDX-License-Identifier: Apache-2.0
//
// The cost of an allreduce between hosts by each algorithm, and the payloads up to which each of
// them is the fastest: docs/internals/data-plane.md, "Doubling and halving". A model of three
// numbers: a link takes `latency` for a few bytes and one byte more takes 1 / bandwidth; adding a
// byte takes a constant time. Pure functions, any thread.

#ifndef COORDINATOR_COST_H
#define COORDINATOR_COST_H

#include "protos/types.h"

// No payload above this goes by doubling or halving: a ring starts to send what it has added while
// it still receives, and its cost per byte is the least.
#define COST_MOST_BYTES ((uint64_t)4 * 1024 * 1024)

// Predicted nanoseconds. ALGORITHM_RING, ALGORITHM_DOUBLING or ALGORITHM_HALVING; world is at least
// 1 and bytes_per_s above 0.
double cost_ns(enum plan_algorithm algorithm, uint32_t world, uint64_t latency_ns,
               uint64_t bytes_per_s, uint64_t bytes);

// Sets what was measured, and the thresholds that follow from it, in *tuning. A threshold is 0
// where its algorithm never wins, and both are where nothing was measured (0). `shares` stays as it
// is.
void cost_tuning(uint32_t world, uint64_t latency_ns, uint64_t bytes_per_s, struct tuning *tuning);

// Where the ranks of a world live, as far as it decides what crosses the links of hosts: what the
// host that sends most sends to others, in shares of the payload.
struct cost_placement {
    uint32_t hosts;
    double doubling;
    double halving;
};

// host_of: of each rank its host, a number below `hosts`, which is at most LOCKSTEP_MAX_WORLD.
struct cost_placement cost_place(const uint32_t *host_of, uint32_t world, uint32_t hosts);

// After cost_tuning, where larger payloads travel on two levels (protos/tuning.h): the thresholds
// anew, up to which that is not faster.
void cost_tuning_two_levels(uint32_t world, const struct cost_placement *placement,
                            struct tuning *tuning);

#endif
