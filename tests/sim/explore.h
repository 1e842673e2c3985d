// SPDX-License-Identifier: Apache-2.0
//
// Walks through every interleaving of a small world (world.h), depth first: each state that can be
// reached is visited once, and each has its invariants looked at. A state in which nothing can
// happen must be an end that the protocol has. States are told apart by a hash of 128 bits: that
// two of some millions have the same one is less likely than 2^-80.

#ifndef TESTS_SIM_EXPLORE_H
#define TESTS_SIM_EXPLORE_H

#include "tests/sim/world.h"

enum {
    EXPLORE_OUTCOMES = 8, // Different ones that are kept.
    EXPLORE_OUTCOME_BYTES = 1024
};

// Differences between the ends of a world that are allowed.
enum explore_rule {
    EXPLORE_SAME, // In nothing; of an error only in which of several is named.
    EXPLORE_RESULTS, // In results: all succeed, or all fail in the same step.
    EXPLORE_ANY, // Also in whether they succeed, for a disaster comes early or late.
};

struct explore_found {
    uint64_t states;
    uint64_t events;
    uint64_t ends; // States in which nothing can happen any more.
    uint32_t depth; // Length of the longest way.
    uint32_t bytes; // Size of the largest state.
    bool complete; // Within the limit.
    uint32_t outcomes; // Number of different outcomes.
    char outcome[EXPLORE_OUTCOMES][EXPLORE_OUTCOME_BYTES]; // The first of these outcomes.
    char fault[2 * WORLD_TEXT]; // Empty: none.
    uint32_t steps; // Events on the way to it, which is kept until the next exploration.
    const struct world_event *way;
};

// False: found->fault says why, and *found has a way to it. limit: of states, then it gives up.
bool explore(struct world *world, const struct world_config *config, enum explore_rule rule,
             uint64_t limit, struct explore_found *found);
// After a fault: looks for the shortest way to one, as long as that takes less than `limit` states.
void explore_shorten(struct world *world, const struct world_config *config, uint64_t limit,
                     struct explore_found *found);
// Prints the configuration, and what happens on the way, event by event.
void explore_print(struct world *world, const struct world_config *config,
                   const struct explore_found *found);
void explore_describe(const struct world_config *config, char *text, size_t bytes);
void explore_free(void); // Frees the state that is kept between explorations.

#endif
