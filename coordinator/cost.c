// SPDX-License-Identifier: Apache-2.0
//
// The cost of allreduces; see cost.h. Pure, any thread.
//
// Let n be the world's size, p the largest power of two not above it, l its logarithm, and m the
// payload. With latency a, b for a byte on the link and c for a byte that is added while the link
// has nothing to do:
//
//   ring       2 (n - 1) a + 2 (n - 1) / n m b
//   doubling   l (a + m b + m d)        d: a byte that every rank adds and copies
//   halving    2 l a + (p - 1) / p m (2 b + c)
//
// and where n is no power of two, doubling and halving both have two more messages of all of the
// payload, 2 (a + m b) + m c. The additions of a ring are hidden: it is cut into stripes, and while
// one is added another one is on its way. An exchange sends in both directions at once, as a ring
// does.
//
// All are lines in m. Doubling starts lowest and rises fastest, the ring the other way round: so
// there is at most one crossing of each pair.

#include "coordinator/cost.h"

#include "protos/topology.h"

// For a byte that arrives and is added, out of the second cache: 80 GB/s. Measured thresholds on
// one host (4 ranks: halving is ahead of the ring up to 2 MiB) follow from it.
#define COST_SUM_NS 0.0125
// The same in doubling, where all ranks add everything, in scratch, and copy it out: between two
// ranks it was ahead of the ring up to 64 KiB, and took 0.2 ns longer for each byte of 1 MiB.
#define COST_DOUBLED_NS 0.1

// Nanoseconds: fixed + each * bytes.
struct cost {
    double fixed;
    double each;
};

static uint32_t cost_log2(uint32_t power)
{
    uint32_t log = 0;
    while (power >>= 1)
        log++;
    return log;
}

static struct cost cost_of(enum plan_algorithm algorithm, uint32_t world, double latency,
                           double byte)
{
    const uint32_t core = topology_core(world);
    const double rounds = cost_log2(core);
    const double part = (double)(core - 1) / core;
    struct cost cost = {.fixed = 0, .each = 0};
    if (algorithm == ALGORITHM_RING)
        return (struct cost){.fixed = 2.0 * (world - 1) * latency,
                             .each = 2.0 * (world - 1) / world * byte};
    if (algorithm == ALGORITHM_DOUBLING)
        cost = (struct cost){.fixed = rounds * latency, .each = rounds * (byte + COST_DOUBLED_NS)};
    else
        cost =
            (struct cost){.fixed = 2 * rounds * latency, .each = part * (2 * byte + COST_SUM_NS)};
    if (core != world) {
        cost.fixed += 2 * latency;
        cost.each += 2 * byte + COST_SUM_NS;
    }
    return cost;
}

double cost_ns(enum plan_algorithm algorithm, uint32_t world, uint64_t latency_ns,
               uint64_t bytes_per_s, uint64_t bytes)
{
    const struct cost cost =
        cost_of(algorithm, world, (double)latency_ns, 1e9 / (double)bytes_per_s);
    return cost.fixed + cost.each * (double)bytes;
}

// The largest payload up to which `early` takes less time than `late`.
static uint64_t cost_crossing(struct cost early, struct cost late)
{
    const double ahead = late.fixed - early.fixed;
    const double loses = early.each - late.each;
    if (ahead <= 0)
        return 0;
    if (ahead >= loses * (double)COST_MOST_BYTES)
        return COST_MOST_BYTES;
    return (uint64_t)(ahead / loses);
}

void cost_tuning(uint32_t world, uint64_t latency_ns, uint64_t bytes_per_s, struct tuning *tuning)
{
    tuning->latency_ns = latency_ns;
    tuning->bytes_per_s = bytes_per_s;
    tuning->doubling_bytes = 0;
    tuning->halving_bytes = 0;
    if (world < 2 || latency_ns == 0 || bytes_per_s == 0)
        return;
    const double byte = 1e9 / (double)bytes_per_s;
    const struct cost ring = cost_of(ALGORITHM_RING, world, (double)latency_ns, byte);
    const struct cost doubling = cost_of(ALGORITHM_DOUBLING, world, (double)latency_ns, byte);
    const struct cost halving = cost_of(ALGORITHM_HALVING, world, (double)latency_ns, byte);
    const uint64_t to_ring = cost_crossing(doubling, ring);
    const uint64_t to_halving = cost_crossing(doubling, halving);
    const uint64_t halving_to_ring = cost_crossing(halving, ring);
    tuning->doubling_bytes = to_ring;
    if (halving_to_ring <= to_halving)
        return;
    tuning->doubling_bytes = to_halving;
    tuning->halving_bytes = halving_to_ring;
}
