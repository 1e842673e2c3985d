// SPDX-License-Identifier: Apache-2.0
//
// Which rank has which leaves (config.virtual_ranks). Pure.
//
// Leaves are dealt for a step, at the end of the step before. When ranks are removed in the middle
// of a step, their leaves are missing in it, and the other ranks keep theirs: a rank may have made
// some of its leaves already. For the next step all leaves are dealt anew, to the ranks that are
// left. So a rank's own leaves change only when a step settles, while its trainer is in step_end or
// between two steps of a session.
//
// All ranks have the same deal. The decision on a death says which step was the last that any
// member has settled. A member that is one step behind deals as it would have done at the end of
// that step, in the world of that step, and then removes the ranks.

#ifndef WORKER_SESSION_DEAL_H
#define WORKER_SESSION_DEAL_H

#include "protos/limits.h"
#include "worker/kernels/tree.h"

#include <stdint.h>

struct leaf_deal {
    uint64_t step; // The step for which the leaves are dealt; 0: the first one.
    uint32_t leaves;
    uint32_t count; // Ranks of the world.
    struct tree_block ranks[LOCKSTEP_MAX_LEAVES]; // [count]: the leaves of each rank.
};

// The first world of the session. ranks is at most leaves.
void deal_begin(struct leaf_deal *deal, uint32_t leaves, uint32_t ranks);
// The step has settled in the present world.
void deal_settled(struct leaf_deal *deal, uint64_t step);
// The ranks in `removed` are lost in the step after `settled`, which is the last one that any
// member has settled. Survivors keep their order.
void deal_lost(struct leaf_deal *deal, uint64_t settled, const uint64_t *removed);
// The most rooms that the leaves of a rank need, in this world or any smaller one: for its blocks,
// and one for a leaf.
uint32_t deal_rooms(const struct leaf_deal *deal);

#endif
