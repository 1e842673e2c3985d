// SPDX-License-Identifier: Apache-2.0
//
// A part of a collective that is repeated (redo.c): the elements that it consists of, their memory,
// and their units. Engine thread.

#ifndef WORKER_TRANSPORT_REDO_PART_H
#define WORKER_TRANSPORT_REDO_PART_H

#include "protos/redo.h"
#include "worker/transport/flow/collective.h"

#include <stdbool.h>
#include <stdint.h>

struct redo_part {
    struct collective collective;
    bool tally;
    bool sums; // True if it sums up elements of the whole collective.
    bool launched;
    bool settled; // True once it is done.
    // The elements of the whole collective that it consists of, ascending.
    uint32_t span_count;
    struct redo_run *spans;
    struct extent *extents;
    struct collective_replica *replicas;
    struct extent *replica_extents;
    uint64_t *unit_ends;
    uint32_t *units; // By unit of the part: the unit of the whole collective.
    uint64_t *used;
    struct extent tally_extent;
    uint64_t weight; // The memory of a tally.
};

// These return false if there is no memory.

// Adds elements of the whole collective. They lie behind those that the part has.
bool redo_part_add(struct redo_part *part, uint64_t first, uint64_t end);
// The same for the elements of used units alone.
bool redo_part_add_used(struct redo_part *part, const struct collective *outer, uint64_t first,
                        uint64_t end);
// Sets the extents. gives: one rank gives its outputs of the whole collective; own: it is this
// rank, whose replicas all have them.
bool redo_part_lay(struct redo_part *part, const struct collective *outer, bool gives, bool own);
// Takes the inputs from a part: it contributes zeros.
void redo_part_empty(struct redo_part *part);
// Sets the units of a part that sums up.
bool redo_part_divide(struct redo_part *part, const struct collective *outer);
// Makes an allreduce out of a part in which one rank gives: one unit, which that rank alone uses. A
// sum of one integer is the same bits. gives: true on that rank.
bool redo_part_give(struct redo_part *part, bool gives);

#endif
