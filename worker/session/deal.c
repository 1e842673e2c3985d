// SPDX-License-Identifier: Apache-2.0
//
// Deals leaves to ranks: deal.h. Pure.

#include "worker/session/deal.h"

#include "base/bits.h"

#include <assert.h>
#include <string.h>

static void deal_again(struct leaf_deal *deal)
{
    for (uint32_t rank = 0; rank < deal->count; rank++)
        deal->ranks[rank] = tree_dealt(deal->leaves, deal->count, rank);
}

void deal_begin(struct leaf_deal *deal, uint32_t leaves, uint32_t ranks)
{
    assert(ranks > 0 && ranks <= leaves && leaves <= LOCKSTEP_MAX_LEAVES);
    *deal = (struct leaf_deal){.leaves = leaves, .count = ranks};
    deal_again(deal);
}

void deal_settled(struct leaf_deal *deal, uint64_t step)
{
    if (step + 1 <= deal->step)
        return; // A decision has said so already.
    deal->step = step + 1;
    deal_again(deal);
}

void deal_lost(struct leaf_deal *deal, uint64_t settled, const uint64_t *removed)
{
    uint32_t kept = 0;
    deal_settled(deal, settled);
    for (uint32_t rank = 0; rank < deal->count; rank++)
        if (!bits_has(removed, rank))
            deal->ranks[kept++] = deal->ranks[rank];
    deal->count = kept;
}

static uint32_t deal_rooms_of(struct tree_block run)
{
    struct tree_stack stack = {.count = 0};
    uint32_t most = 0;
    for (uint32_t leaf = run.first; leaf < run.end; leaf++) {
        (void)tree_push(&stack, (struct tree_block){leaf, leaf + 1});
        most = stack.count > most ? stack.count : most;
    }
    return most;
}

uint32_t deal_rooms(const struct leaf_deal *deal)
{
    uint32_t most = 0;
    for (uint32_t count = 1; count <= deal->count; count++) {
        for (uint32_t rank = 0; rank < count; rank++) {
            const uint32_t rooms = deal_rooms_of(tree_dealt(deal->leaves, count, rank));
            most = rooms > most ? rooms : most;
        }
    }
    return most;
}
