// SPDX-License-Identifier: Apache-2.0
//
// The rank that was lost first; see losses.h. Pure.

#include "worker/session/losses.h"

void losses_add(struct losses *losses, const struct farewell *farewell)
{
    for (uint32_t i = 0; i < losses->count; i++) {
        if (losses->of[i].rank == farewell->rank)
            return;
    }
    if (losses->count < LOCKSTEP_LOSSES)
        losses->of[losses->count++] = *farewell;
}

// True if `rank` has told of the loss of another rank.
static bool losses_witnessed(const struct losses *losses, uint32_t rank)
{
    for (uint32_t i = 0; i < losses->count; i++) {
        if (losses->of[i].witness == rank && losses->of[i].rank != rank)
            return true;
    }
    return false;
}

// The order in which losses are named, lowest first: 0 for a possible cause, 1 for a rank that told
// of another loss, 2 for `own`.
static uint32_t losses_order(const struct losses *losses, const struct farewell *loss, uint32_t own)
{
    if (loss->rank == own)
        return 2;
    return losses_witnessed(losses, loss->rank) ? 1 : 0;
}

const struct farewell *losses_first(const struct losses *losses, uint32_t own)
{
    const struct farewell *first = NULL;
    uint32_t first_order = 0;
    for (uint32_t i = 0; i < losses->count; i++) {
        const struct farewell *loss = &losses->of[i];
        const uint32_t order = losses_order(losses, loss, own);
        if (first && (order > first_order || (order == first_order && loss->rank > first->rank)))
            continue;
        first = loss;
        first_order = order;
    }
    return first;
}

uint64_t losses_word_step(const struct farewell *loss, uint64_t present)
{
    return loss->step != 0 ? loss->step : present;
}

bool losses_change(const struct down_halt *known, const struct down_halt *seen,
                   struct down_halt *now)
{
    struct down_halt halt = known ? *known : *seen;
    if (known && seen->step >= known->step)
        return false;
    halt.step = seen->step;
    *now = halt;
    return true;
}
