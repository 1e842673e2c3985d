// SPDX-License-Identifier: Apache-2.0
//
// Adds up changes of the world: change.h.

#include "worker/session/change.h"

#include "base/bits.h"

#include <stdbool.h>
#include <string.h>

uint32_t change_place(uint32_t rank, uint32_t size, const uint64_t *removed)
{
    uint32_t place = 0;
    uint32_t left = 0;
    for (uint32_t before = 0; before < size; before++) {
        left += !bits_has(removed, before);
        place += before < rank && !bits_has(removed, before);
    }
    return place < left ? place : 0;
}

uint32_t change_left(uint32_t size, const uint64_t *removed)
{
    uint32_t left = 0;
    for (uint32_t rank = 0; rank < size; rank++)
        left += !bits_has(removed, rank);
    return left;
}

// Survivors keep their order. So the rank r of the present world is the r-th rank of the world
// before that was not removed.
void change_add(struct world_change *change, uint32_t rank, uint32_t size, const uint64_t *removed)
{
    uint32_t present = 0;
    if (change->number == change->seen) {
        change->rank_before = rank;
        change->size_before = size;
        memset(change->removed, 0, sizeof(change->removed));
    }
    for (uint32_t before = 0; before < change->size_before; before++) {
        if (bits_has(change->removed, before))
            continue;
        if (bits_has(removed, present))
            bits_add(change->removed, before);
        present++;
    }
    change->number++;
}
