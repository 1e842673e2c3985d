// SPDX-License-Identifier: Apache-2.0
//
// The predicted time of an allreduce; see cost.h. Pure, any thread.
//
// Let n be the world size, p the largest power of two not above n, l the logarithm of p to base 2,
// and m the bytes of the payload. Let a be the latency, b the time of a byte on the link, and c the
// time to add a byte while the link is idle:
//
//   ring       2 (n - 1) a + 2 (n - 1) / n m b
//   doubling   l (a + m b + m d)        d: time to add a byte and copy it, on every rank
//   halving    2 l a + (p - 1) / p m (2 b + c)
//
// If n is not a power of two, doubling and halving both have two more messages of the whole
// payload: 2 (a + m b) + m c. The additions of a ring take no extra time: the payload is cut into
// stripes, and one stripe is added while another one travels. An exchange of doubling or halving
// sends in both directions at once, as a ring does.
//
// If hosts have several ranks and larger payloads travel on two levels, the bytes that cross the
// link of a host count, because its ranks share that link. Their number depends on which ranks are
// on which hosts:
//
//   doubling   l a + (bytes that its rounds send between hosts) b + l m d
//   halving    2 l a + (bytes that its rounds send between hosts) b + (p - 1) / p m c
//   two levels (4 (h - 1) + 2) a + 2 (h - 1) / h m b        h: number of hosts
//
// All are linear functions of m. Doubling has the lowest fixed cost and the highest cost per byte,
// the ring has the highest fixed cost and the lowest cost per byte. So each two lines cross at most
// once.

#include "coordinator/cost.h"

#include "protos/topology.h"

#include <stdbool.h>

// Nanoseconds to add a received byte that is in the L2 cache: 80 GB/s. The thresholds that follow
// from it agree with measurements on one host (4 ranks: halving is faster than the ring up to
// 2 MiB).
#define COST_SUM_NS 0.0125
// Nanoseconds to add a byte in doubling, where every rank adds the whole payload in scratch memory
// and copies the result. Measured between two ranks: doubling was faster than the ring up to 64
// KiB, and at 1 MiB took 0.2 ns more for each byte.
#define COST_DOUBLED_NS 0.1

// The time of an allreduce in nanoseconds: fixed + each * bytes.
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

// Returns the largest payload up to which `early` takes less time than `late`.
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

// Sets the sizes up to which doubling, and above that halving, takes less time than `last`, the
// algorithm of the largest payloads.
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
        // Share of the payload that the rank sends in this round of halving and in the same round
        // of the doubling that follows: one half in the first round, sent twice.
        double share = 1;
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

// The latencies: the hosts agree on the order by messages around all hosts, there and back:
// 2 (h - 1). The rings take as many messages again, and the exchanges inside hosts take two more.
static struct cost cost_two_levels(uint32_t hosts, double latency, double byte)
{
    return (struct cost){.fixed = (4.0 * (hosts - 1) + 2) * latency,
                         .each = 2.0 * (hosts - 1) / hosts * byte};
}

// Bytes that are sent inside a host cost nothing here: only the links between hosts count.
void cost_tuning_two_levels(uint32_t world, const struct cost_placement *placement,
                            struct tuning *tuning)
{
    tuning->doubling_bytes = 0;
    tuning->halving_bytes = 0;
    if (world < 2 || tuning->latency_ns == 0 || tuning->bytes_per_s == 0)
        return;
    const double latency = (double)tuning->latency_ns;
    const double byte = 1e9 / (double)tuning->bytes_per_s;
    // With a byte time of 0 the cost per byte is only the time to add and copy.
    struct cost doubling = cost_of(ALGORITHM_DOUBLING, world, latency, 0);
    struct cost halving = cost_of(ALGORITHM_HALVING, world, latency, 0);
    doubling.each += placement->doubling * byte;
    halving.each += placement->halving * byte;
    cost_thresholds(doubling, halving, cost_two_levels(placement->hosts, latency, byte), tuning);
}
