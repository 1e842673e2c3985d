// SPDX-License-Identifier: Apache-2.0
//
// Walks through every interleaving of a small world (world.h), depth first. Each reachable state is
// visited once, and its invariants are checked. A state in which no event is possible must be an
// end that the protocol allows. States are compared by a hash of 128 bits: the probability that two
// of some millions of states collide is below 2^-80.

#ifndef TESTS_SIM_EXPLORE_H
#define TESTS_SIM_EXPLORE_H

#include "tests/sim/world.h"

enum {
    EXPLORE_OUTCOMES = 8, // Different outcomes that are kept.
    EXPLORE_OUTCOME_BYTES = 1024
};

// How much the outcome of a world may depend on timing.
enum explore_rule {
    EXPLORE_SAME, // All ends have the same results, or all fail in the same step.
    EXPLORE_RESULTS, // Results may differ; but all ends succeed, or all fail in the same step.
    EXPLORE_ANY, // Success may differ, too: a disaster may come early or late.
};

struct explore_found {
    uint64_t states;
    uint64_t events;
    uint64_t ends; // States in which no event is possible any more.
    uint32_t depth; // Events on the longest way.
    uint32_t bytes; // Size of the largest state.
    bool complete; // True if all states were visited within the limit.
    uint32_t outcomes; // Number of different outcomes.
    char outcome[EXPLORE_OUTCOMES][EXPLORE_OUTCOME_BYTES]; // The first of these outcomes.
    char fault[2 * WORLD_TEXT]; // Text of the fault; empty: none was found.
    uint32_t steps; // Number of events in `way`.
    const struct world_event *way; // The way to the fault. Valid until the next exploration.
};

// Returns false if there is a fault; found->fault and found->way describe it. limit: the number of
// states after which the exploration gives up.
bool explore(struct world *world, const struct world_config *config, enum explore_rule rule,
             uint64_t limit, struct explore_found *found);
// After a fault: looks for a shortest way to a fault, and gives up after `limit` states.
void explore_shorten(struct world *world, const struct world_config *config, uint64_t limit,
                     struct explore_found *found);
// Prints the configuration, and each event of found->way with its effects.
void explore_print(struct world *world, const struct world_config *config,
                   const struct explore_found *found);
void explore_describe(const struct world_config *config, char *text, size_t bytes);
void explore_free(void); // Frees the state that is kept between explorations.

#endif
