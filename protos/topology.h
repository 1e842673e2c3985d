// SPDX-License-Identifier: Apache-2.0
//
// Which pairs of ranks have a link on the data plane. The coordinator, which sends the addresses of
// peers, and the worker, which connects to them, must use the same rule. Pure functions of rank and
// world size.
//
// Ring: rank r sends to r + 1 and receives from r - 1, modulo n.
//
// Recursive doubling, for waves. Let p be the largest power of two not above n. The n - p ranks
// from p on are extras: in the first round extra e sends its value to rank e - p, in the last round
// it receives the result from that rank. The ranks below p exchange with rank XOR 2^k in round k. A
// wave takes log2 p rounds, and two more when n is not a power of two.

#ifndef PROTOS_TOPOLOGY_H
#define PROTOS_TOPOLOGY_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

static inline uint32_t topology_successor(uint32_t rank, uint32_t world)
{
    return (rank + 1) % world;
}

static inline uint32_t topology_predecessor(uint32_t rank, uint32_t world)
{
    return (rank + world - 1) % world;
}

// Returns the largest power of two that is not above world. world is at least 1.
static inline uint32_t topology_core(uint32_t world)
{
    uint32_t core = 1;
    while (core <= world / 2)
        core *= 2;
    return core;
}

static inline uint32_t topology_add(uint32_t *ranks, uint32_t count, uint32_t self, uint32_t rank)
{
    uint32_t at = 0;
    if (rank == self)
        return count;
    while (at < count && ranks[at] < rank)
        at++;
    if (at < count && ranks[at] == rank)
        return count;
    for (uint32_t i = count; i > at; i--)
        ranks[i] = ranks[i - 1];
    ranks[at] = rank;
    return count + 1;
}

// Writes the ranks that `rank` has links to, sorted and without itself, and returns their number.
// Links are symmetric: if a is a neighbour of b, then b is a neighbour of a.
static inline uint32_t topology_neighbours(uint32_t rank, uint32_t world,
                                           uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS])
{
    uint32_t count = 0;
    const uint32_t core = topology_core(world);
    count = topology_add(ranks, count, rank, topology_successor(rank, world));
    count = topology_add(ranks, count, rank, topology_predecessor(rank, world));
    if (rank >= core)
        return topology_add(ranks, count, rank, rank - core);
    if (rank + core < world)
        count = topology_add(ranks, count, rank, rank + core);
    for (uint32_t bit = 1; bit < core; bit *= 2)
        count = topology_add(ranks, count, rank, rank ^ bit);
    return count;
}

#endif
