// SPDX-License-Identifier: Apache-2.0
//
// Rows: the memory of one rank's inputs and outputs as a list of runs, each of them inside of one
// region (worker/memory/regions.h). A rank says its own list on the board; mates read it there,
// once, check it, and from then on look up elements in what they have made of it. Lists of
// different ranks are cut differently and lie in any order. They know no runs of the board and no
// ranks. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_ROWS_H
#define WORKER_TRANSPORT_HOST_ROWS_H

#include "worker/memory/regions.h"
#include "worker/transport/host/board.h"

// A run of memory. It begins where the one before it in the list ends.
struct row {
    uint8_t *memory;
    uint64_t end; // The element of the collective behind it.
};

struct rows {
    uint32_t count; // 0: some of the memory is in no region that all mates have.
    uint32_t block; // A block of its seat, if there are several rows; else BOARD_NONE.
    struct row only; // The one, where there is one.
    const struct row *list; // [count], where there are several.
};

// Collects the rows of a collective's extents, at most `most`: `said` is for mates, `own` for this
// rank. Their count; 0: they are too many, or not all of the memory is reduced in place, lies in
// regions that all mates have, and is aligned for its elements.
uint32_t rows_collect(struct regions *regions, const struct extent *extents, uint32_t extent_count,
                      uint32_t element_bytes, uint32_t most, struct board_row *said,
                      struct row *own);

// Reads what mate `local` has said, [count], count above 0, of a collective of so many elements.
// False: that is no memory that is mapped here, or not so many elements.
bool rows_read(const struct regions *regions, uint32_t local, const struct board_row *said,
               uint32_t count, uint64_t elements, uint32_t element_bytes, struct row *rows);

// Of several rows.
uint8_t *rows_search(const struct rows *rows, uint64_t element, uint32_t element_bytes,
                     uint64_t *left);

// Where an element lies, and in *left how many follow it side by side, itself included. Inline: it
// is asked for every block, which takes no longer than a quarter of a microsecond.
static inline uint8_t *rows_at(const struct rows *rows, uint64_t element, uint32_t element_bytes,
                               uint64_t *left)
{
    if (rows->count > 1)
        return rows_search(rows, element, element_bytes, left);
    *left = rows->only.end - element;
    return rows->only.memory + element * element_bytes;
}

#endif
