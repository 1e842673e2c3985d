// SPDX-License-Identifier: Apache-2.0
//
// Predicts the time of an allreduce between hosts for each algorithm, and so the payloads up to
// which each algorithm is the fastest: docs/internals/data-plane.md, "Doubling and halving". The
// model has three numbers: a link takes `latency` for a few bytes, each further byte takes
// 1 / bandwidth, and adding a byte takes a constant time. Pure functions, any thread.

#ifndef COORDINATOR_COST_H
#define COORDINATOR_COST_H

#include "protos/types.h"

// A larger payload never uses doubling or halving: a ring has the lowest cost per byte, because it
// sends sums while it still receives other bytes.
#define COST_MOST_BYTES ((uint64_t)4 * 1024 * 1024)

// Returns the predicted nanoseconds of an allreduce of `bytes`. algorithm is ALGORITHM_RING,
// ALGORITHM_DOUBLING or ALGORITHM_HALVING; world is at least 1 and bytes_per_s above 0.
double cost_ns(enum plan_algorithm algorithm, uint32_t world, uint64_t latency_ns,
               uint64_t bytes_per_s, uint64_t bytes);

// Sets the measured latency and bandwidth, and the two thresholds that follow from them, in
// *tuning. A threshold is 0 if its algorithm is never the fastest; both are 0 if latency or
// bandwidth was not measured (0). The other fields of *tuning do not change.
void cost_tuning(uint32_t world, uint64_t latency_ns, uint64_t bytes_per_s, struct tuning *tuning);

// How much of an allreduce crosses the links between hosts. This depends on which ranks are on
// which hosts.
struct cost_placement {
    uint32_t hosts;
    // Bytes that the busiest host sends to other hosts, as a multiple of the payload, with
    // recursive doubling and with recursive halving.
    double doubling;
    double halving;
};

// Computes the placement of a world. host_of: by rank, the index of its host. hosts: the number of
// hosts, at most LOCKSTEP_MAX_WORLD.
struct cost_placement cost_place(const uint32_t *host_of, uint32_t world, uint32_t hosts);

// Called after cost_tuning if larger payloads travel by ALGORITHM_TWO_LEVEL (protos/tuning.h):
// computes both thresholds again, by comparison with that algorithm instead of the ring.
void cost_tuning_two_levels(uint32_t world, const struct cost_placement *placement,
                            struct tuning *tuning);

#endif
