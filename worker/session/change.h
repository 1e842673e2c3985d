// SPDX-License-Identifier: Apache-2.0
//
// What lockstep_world_change tells: how the world of a session has changed since the trainer last
// learned of it. Changes that the trainer has not seen apart count as one, from the world before
// the first of them to the world after the last.

#ifndef WORKER_SESSION_CHANGE_H
#define WORKER_SESSION_CHANGE_H

#include "protos/limits.h"

#include <stdint.h>

struct world_change {
    uint64_t number; // Changes so far.
    uint64_t seen; // The number when the trainer last began a step.
    uint64_t step; // The step that the ranks finished, or were about to begin.
    // `step` of the last change that removed ranks. A change that only makes links anew removes
    // none.
    uint64_t lost_step;
    uint32_t rank_before; // This rank's number in the world before, and that world's size.
    uint32_t size_before;
    uint64_t removed[LOCKSTEP_RANK_WORDS]; // Set of ranks of the world before.
    char text[LOCKSTEP_TEXT_BYTES]; // Why the last of them was removed.
};

// The number that a rank of a world of `size` has when ranks are removed; for a rank that is itself
// removed, that of the next rank that is left, and behind the last one of the first one.
uint32_t change_place(uint32_t rank, uint32_t size, const uint64_t *removed);
// How many ranks of a world of `size` are left.
uint32_t change_left(uint32_t size, const uint64_t *removed);
// The world of `size` ranks, in which this rank is `rank`, loses the set `removed`.
void change_add(struct world_change *change, uint32_t rank, uint32_t size, const uint64_t *removed);

#endif
