// SPDX-License-Identifier: Apache-2.0
//
// Rows: the memory of one rank's inputs and outputs as a list of runs of memory, each inside one
// region (worker/memory/regions.h). A rank writes its list to the board. Mates read it once, check
// it, and then look up elements in their own copy. Lists of different ranks may be cut differently,
// and their rows may be at any addresses. This file does not depend on the runs of the board.
// Engine thread.

#ifndef WORKER_TRANSPORT_HOST_ROWS_H
#define WORKER_TRANSPORT_HOST_ROWS_H

#include "worker/memory/regions.h"
#include "worker/transport/host/board.h"

// A run of memory. Its first element is the `end` of the row before it in the list.
struct row {
    uint8_t *memory;
    uint64_t end; // The first element of the collective after this row.
};

struct rows {
    // Number of rows. 0: some of the memory is in no region that all mates have mapped.
    uint32_t count;
    uint32_t block; // With several rows: the row block of the seat; else BOARD_NONE.
    struct row only; // With one row: that row.
    const struct row *list; // With several rows: [count].
};

// Collects the rows of a collective's extents, at most `most`, into `said` for the mates and `own`
// for this rank. Returns their number. Returns 0 if there are too many rows, or if some memory is
// not reduced in place, not in a region that all mates have mapped, or not aligned.
uint32_t rows_collect(struct regions *regions, const struct extent *extents, uint32_t extent_count,
                      uint32_t element_bytes, uint32_t most, struct board_row *said,
                      struct row *own);

// Reads the list `said`[count] of the mate in seat `local`; count is above 0. False: some row is
// not in memory that is mapped here, or the rows do not have `elements` elements.
bool rows_read(const struct regions *regions, uint32_t local, const struct board_row *said,
               uint32_t count, uint64_t elements, uint32_t element_bytes, struct row *rows);

// As rows_at, for several rows.
uint8_t *rows_search(const struct rows *rows, uint64_t element, uint32_t element_bytes,
                     uint64_t *left);

// Returns the address of an element, and in *left how many contiguous elements begin there. Inline,
// because it is called for every block, and a block takes only a quarter of a microsecond.
static inline uint8_t *rows_at(const struct rows *rows, uint64_t element, uint32_t element_bytes,
                               uint64_t *left)
{
    if (rows->count > 1)
        return rows_search(rows, element, element_bytes, left);
    *left = rows->only.end - element;
    return rows->only.memory + element * element_bytes;
}

#endif
