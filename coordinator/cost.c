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
// Where hosts have several ranks, and larger payloads go on two levels, what counts is what crosses
// the link of a host, which its ranks share; that depends on where the ranks live:
//
//   doubling   l a + (what its rounds send there) b + l m d
//   halving    2 l a + (what its rounds send there) b + (p - 1) / p m c
//   two levels (4 (h - 1) + 2) a + 2 (h - 1) / h m b        h: hosts
//
// All are lines in m. Doubling starts lowest and rises fastest, the ring the other way round: so
// there is at most one crossing of each pair.

#include "coordinator/cost.h"

#include "protos/topology.h"

#include <stdbool.h>

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

// The sizes up to which doubling, and above that halving, takes less time than what comes last.
static void cost_thresholds(struct cost doubling, struct cost halving, struct cost last,
                            struct tuning *tuning)
{
    const uint64_t to_last = cost_crossing(doubling, last);
    const uint64_t to_halving = cost_crossing(doubling, halving);
    const uint64_t halving_to_last = cost_crossing(halving, last);
    tuning->doubling_bytes = to_last;
    if (halving_to_last <= to_halving)
        return;
    tuning->doubling_bytes = to_halving;
    tuning->halving_bytes = halving_to_last;
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
    cost_thresholds(doubling, halving, ring, tuning);
}

// ---- two levels ---------------------------------------------------------------------------------

static double cost_most(const double *sent, uint32_t hosts)
{
    double most = 0;
    for (uint32_t i = 0; i < hosts; i++)
        most = sent[i] > most ? sent[i] : most;
    return most;
}

struct cost_placement cost_place(const uint32_t *host_of, uint32_t world, uint32_t hosts)
{
    double doubling[LOCKSTEP_MAX_WORLD] = {0};
    double halving[LOCKSTEP_MAX_WORLD] = {0};
    const uint32_t core = topology_core(world);
    for (uint32_t rank = 0; rank < core; rank++) {
        double share =
            1; // Share of the payload: a half on its way there, and a half on its way back.
        for (uint32_t bit = 1; bit < core; bit *= 2) {
            const bool crosses = host_of[rank] != host_of[rank ^ bit];
            doubling[host_of[rank]] += crosses ? 1 : 0;
            halving[host_of[rank]] += crosses ? share : 0;
            share /= 2;
        }
    }
    for (uint32_t rank = core; rank < world; rank++) {
        const uint32_t hands[] = {host_of[rank], host_of[rank - core]};
        for (uint32_t i = 0; hands[0] != hands[1] && i < 2; i++) {
            doubling[hands[i]] += 1;
            halving[hands[i]] += 1;
        }
    }
    return (struct cost_placement){.hosts = hosts,
                                   .doubling = cost_most(doubling, hosts),
                                   .halving = cost_most(halving, hosts)};
}

// One order on all hosts takes a message round them in each direction, and the rings twice as many;
// two more for what is handed over inside of hosts.
static struct cost cost_two_levels(uint32_t hosts, double latency, double byte)
{
    return (struct cost){.fixed = (4.0 * (hosts - 1) + 2) * latency,
                         .each = 2.0 * (hosts - 1) / hosts * byte};
}

// Bytes sent inside of hosts are free beside those that cross the hosts' links, which ranks share.
void cost_tuning_two_levels(uint32_t world, const struct cost_placement *placement,
                            struct tuning *tuning)
{
    tuning->doubling_bytes = 0;
    tuning->halving_bytes = 0;
    if (world < 2 || tuning->latency_ns == 0 || tuning->bytes_per_s == 0)
        return;
    const double latency = (double)tuning->latency_ns;
    const double byte = 1e9 / (double)tuning->bytes_per_s;
    // Beside a link that takes no time what is left is what a rank adds and copies.
    struct cost doubling = cost_of(ALGORITHM_DOUBLING, world, latency, 0);
    struct cost halving = cost_of(ALGORITHM_HALVING, world, latency, 0);
    doubling.each += placement->doubling * byte;
    halving.each += placement->halving * byte;
    cost_thresholds(doubling, halving, cost_two_levels(placement->hosts, latency, byte), tuning);
}
