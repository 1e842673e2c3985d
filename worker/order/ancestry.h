// SPDX-License-Identifier: Apache-2.0
//
// The generations that a worker reports to coordinators (rule M3 of docs/internals/membership.md):
// from the last one that every member is known to have started, to its own. A member is named by
// its rank in the job's first generation. Pure.

#ifndef WORKER_ORDER_ANCESTRY_H
#define WORKER_ORDER_ANCESTRY_H

#include <stdbool.h>

#include "protos/types.h"

struct ancestry {
    struct generation_id founder; // The job's first generation.
    uint32_t count;
    struct lineage chain[LOCKSTEP_CHAIN]; // The last one is the worker's.
    uint64_t dead[LOCKSTEP_RANK_WORDS]; // Members that a decision said are proven dead.
};

// The first generation has formed.
void ancestry_begin(struct ancestry *ancestry, struct generation_id first, uint32_t world_size);
// Every member of the worker's generation has started it.
void ancestry_establish(struct ancestry *ancestry);
// Fills the set of ranks of the worker's generation that are no members of the one that is decided.
// That decision may end a newer generation than the worker's.
void ancestry_removed(const struct ancestry *ancestry, const struct down_decision *decision,
                      uint64_t removed[LOCKSTEP_RANK_WORDS]);
// The worker starts the generation of a decision.
void ancestry_decided(struct ancestry *ancestry, const struct down_decision *decision);
void ancestry_describe(const struct ancestry *ancestry, struct up_resume *resume);

#endif
