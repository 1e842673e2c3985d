// SPDX-License-Identifier: Apache-2.0
//
// The algorithm of a collective: the one rule that all ranks of a generation follow,
// and that the coordinator looks into before it agrees to a wish. Pure functions of what has been
// agreed: the tuning, the shape of the world, the payload. Two ranks never choose differently.
//
// The rule. A world of one computes. All ranks on one host that share its memory: SHARED, whatever
// the size. Else, by size: DOUBLING for the smallest, HALVING above that; larger payloads
// TWO_LEVEL where some host has several ranks that share its memory, else RING. A broadcast goes
// through shared memory or along the ring. A wish (LOCKSTEP_ALGORITHM) takes the place of the rule
// for reductions.

#ifndef PROTOS_TUNING_H
#define PROTOS_TUNING_H

#include "protos/types.h"

#include <stddef.h>

// The algorithms that are built. Each is switched on here alone.
#define TUNING_HAS_PAIR 1 // DOUBLING and HALVING.
#define TUNING_HAS_SHARED 1
#define TUNING_HAS_TWO_LEVEL 1

// How the ranks of a host fill the slots of their board (worker/transport/host/fill.c).
enum slot_fill {
    FILL_MEASURED = 0, // As it is faster; found out now and then.
    FILL_CACHED = 1,
    FILL_PAST = 2, // Past the caches.
};

// The part of a world that decides the algorithm.
struct tuning_world {
    uint32_t world_size;
    uint32_t hosts; // 0, or as many as ranks: none shares a host with another.
};

static inline bool tuning_one_host(const struct tuning *tuning, const struct tuning_world *world)
{
    return tuning->shares && world->hosts == 1;
}

// Ranks share hosts, but not all of them one.
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

// The wish for two levels is one for the best that memory gives: where there is one level only, it
// is the algorithm of that one.
static inline enum plan_algorithm tuning_wished(const struct tuning *tuning,
                                                const struct tuning_world *world)
{
    if (tuning->wish != ALGORITHM_TWO_LEVEL || tuning_two_levels(tuning, world))
        return (enum plan_algorithm)tuning->wish;
    return tuning_one_host(tuning, world) ? ALGORITHM_SHARED : ALGORITHM_RING;
}

// How `bytes` of payload travel. Never ALGORITHM_BY_SIZE.
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
        [ALGORITHM_BY_SIZE] = true,
    };
    return built[algorithm];
}

// Why a wish cannot be had in such a world, for a sentence: "LOCKSTEP_ALGORITHM=shared cannot be
// had: ...". NULL: it can.
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

// As LOCKSTEP_ALGORITHM and the docs call it.
static inline const char *tuning_name(uint32_t algorithm)
{
    static const char *const names[] = {"ring",   "doubling",  "halving",
                                        "shared", "two_level", "auto"};
    static_assert(sizeof(names) / sizeof(names[0]) == ALGORITHM_BY_SIZE + 1, "a name for each");
    return algorithm <= ALGORITHM_BY_SIZE ? names[algorithm] : "unknown";
}

#endif
