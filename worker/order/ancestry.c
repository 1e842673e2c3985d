// SPDX-License-Identifier: Apache-2.0
//
// The generations that a worker reports; see ancestry.h. Pure.

#include "worker/order/ancestry.h"

#include "base/bits.h"

#include <string.h>

void ancestry_begin(struct ancestry *ancestry, struct generation_id first, uint32_t world_size)
{
    memset(ancestry, 0, sizeof(*ancestry));
    ancestry->founder = first;
    ancestry->count = 1;
    ancestry->chain[0].id = first;
    for (uint32_t rank = 0; rank < world_size; rank++)
        bits_add(ancestry->chain[0].members, rank);
}

void ancestry_establish(struct ancestry *ancestry)
{
    ancestry->chain[0] = ancestry->chain[ancestry->count - 1];
    ancestry->count = 1;
}

void ancestry_removed(const struct ancestry *ancestry, const struct down_decision *decision,
                      uint64_t removed[LOCKSTEP_RANK_WORDS])
{
    const struct lineage *before = &ancestry->chain[ancestry->count - 1];
    const struct lineage *next = &decision->chain[decision->chain_count - 1];
    uint32_t rank = 0;
    memset(removed, 0, LOCKSTEP_RANK_WORDS * sizeof(removed[0]));
    for (uint32_t member = 0; member < LOCKSTEP_MAX_WORLD; member++) {
        if (!bits_has(before->members, member))
            continue;
        if (!bits_has(next->members, member))
            bits_add(removed, rank);
        rank++;
    }
}

void ancestry_decided(struct ancestry *ancestry, const struct down_decision *decision)
{
    ancestry->count = decision->chain_count;
    memcpy(ancestry->chain, decision->chain, sizeof(ancestry->chain));
    memcpy(ancestry->dead, decision->dead, sizeof(ancestry->dead));
}

void ancestry_describe(const struct ancestry *ancestry, struct up_resume *resume)
{
    resume->founder = ancestry->founder;
    resume->chain_count = ancestry->count;
    memcpy(resume->chain, ancestry->chain, sizeof(resume->chain));
    memcpy(resume->dead, ancestry->dead, sizeof(resume->dead));
}
