// SPDX-License-Identifier: Apache-2.0
//
// How the algorithm of a collective is chosen. All ranks of a generation use this rule, and the
// coordinator uses it to check a wish. A wish is the algorithm that users request by
// LOCKSTEP_ALGORITHM. Pure functions of values that all ranks have agreed on: the tuning, the shape
// of the world, the payload. Therefore all ranks choose the same algorithm.
//
// The rule. A world of one rank sends nothing. If all ranks are on one host and share memory:
// SHARED for every size. Otherwise by size: DOUBLING for the smallest payloads, HALVING for larger
// ones, and above that TWO_LEVEL if some host has several ranks that share memory, else RING. A
// broadcast uses SHARED if it is chosen, else RING. For reductions a wish replaces the rule.

#ifndef PROTOS_TUNING_H
#define PROTOS_TUNING_H

#include "protos/types.h"

#include <stddef.h>

// 1 for the algorithms that this version has, 0 for others.
#define TUNING_HAS_PAIR 1 // DOUBLING and HALVING.
#define TUNING_HAS_SHARED 1
#define TUNING_HAS_TWO_LEVEL 1
#define TUNING_HAS_DIRECT 1

// How the ranks of a host write to the slots of their shared memory, the board
// (worker/transport/host/fill.c).
enum slot_fill {
    FILL_MEASURED = 0, // The faster of the two ways below; measured from time to time.
    FILL_CACHED = 1, // Through the CPU caches.
    FILL_PAST = 2, // Bypasses the CPU caches.
};

// The part of a world that decides the algorithm.
struct tuning_world {
    uint32_t world_size;
    uint32_t hosts; // 0, or equal to world_size: no two ranks share a host.
};

static inline bool tuning_one_host(const struct tuning *tuning, const struct tuning_world *world)
{
    return tuning->shares && world->hosts == 1;
}

// True if some ranks share a host, but not all ranks share one.
static inline bool tuning_two_levels(const struct tuning *tuning, const struct tuning_world *world)
{
    return tuning->shares && world->hosts > 1 && world->hosts < world->world_size;
}

static inline enum plan_algorithm tuning_by_size(const struct tuning *tuning,
                                                 const struct tuning_world *world, uint64_t bytes)
{
    if (TUNING_HAS_SHARED && tuning_one_host(tuning, world))
        return ALGORITHM_SHARED;
    if (TUNING_HAS_PAIR && bytes <= tuning->doubling_bytes)
        return ALGORITHM_DOUBLING;
    if (TUNING_HAS_PAIR && bytes <= tuning->halving_bytes)
        return ALGORITHM_HALVING;
    if (TUNING_HAS_TWO_LEVEL && tuning_two_levels(tuning, world))
        return ALGORITHM_TWO_LEVEL;
    return ALGORITHM_RING;
}

// Returns the algorithm that a wish means in this world. In a world with one level only, the wish
// for ALGORITHM_TWO_LEVEL means the algorithm of that level: SHARED on one host, else RING.
static inline enum plan_algorithm tuning_wished(const struct tuning *tuning,
                                                const struct tuning_world *world)
{
    if (tuning->wish != ALGORITHM_TWO_LEVEL || tuning_two_levels(tuning, world))
        return (enum plan_algorithm)tuning->wish;
    return tuning_one_host(tuning, world) ? ALGORITHM_SHARED : ALGORITHM_RING;
}

// Returns the algorithm for `bytes` of payload, never ALGORITHM_BY_SIZE.
static inline enum plan_algorithm tuning_choose(const struct tuning *tuning,
                                                const struct tuning_world *world, bool broadcast,
                                                uint64_t bytes)
{
    if (world->world_size == 1)
        return ALGORITHM_RING;
    enum plan_algorithm chosen = tuning_by_size(tuning, world, bytes);
    if (tuning->wish != ALGORITHM_BY_SIZE)
        chosen = tuning_wished(tuning, world);
    if (broadcast && chosen != ALGORITHM_SHARED)
        return ALGORITHM_RING;
    return chosen;
}

static inline bool tuning_is_built(uint32_t algorithm)
{
    static const bool built[] = {
        [ALGORITHM_RING] = true,
        [ALGORITHM_DOUBLING] = TUNING_HAS_PAIR,
        [ALGORITHM_HALVING] = TUNING_HAS_PAIR,
        [ALGORITHM_SHARED] = TUNING_HAS_SHARED,
        [ALGORITHM_TWO_LEVEL] = TUNING_HAS_TWO_LEVEL,
        [ALGORITHM_DIRECT] = TUNING_HAS_DIRECT,
        [ALGORITHM_BY_SIZE] = true,
    };
    return built[algorithm];
}

// Returns NULL if this world can run the wished algorithm. Otherwise returns the reason, for the
// sentence "LOCKSTEP_ALGORITHM=shared cannot be had: ...".
static inline const char *tuning_refusal(const struct tuning *tuning,
                                         const struct tuning_world *world)
{
    const bool memory = tuning->wish == ALGORITHM_SHARED || tuning->wish == ALGORITHM_TWO_LEVEL;
    if (!tuning_is_built(tuning->wish))
        return "this version does not have it yet";
    if (world->world_size == 1 || !memory)
        return NULL;
    if (tuning->wish == ALGORITHM_SHARED && world->hosts != 1)
        return "the ranks do not all share one memory: it holds the ranks of one host, 16 at most";
    return tuning->shares ? NULL : "the ranks of a host share no memory";
}

// Returns the algorithm's name as in LOCKSTEP_ALGORITHM and the docs.
static inline const char *tuning_name(uint32_t algorithm)
{
    static const char *const names[] = {"ring",      "doubling", "halving", "shared",
                                        "two_level", "direct",   "auto"};
    static_assert(sizeof(names) / sizeof(names[0]) == ALGORITHM_BY_SIZE + 1, "a name for each");
    return algorithm <= ALGORITHM_BY_SIZE ? names[algorithm] : "unknown";
}

#endif
