// SPDX-License-Identifier: Apache-2.0
//
// Lists of rows of memory in regions; see rows.h. Engine thread.

#include "worker/transport/host/rows.h"

#include <assert.h>

// ---- this rank's --------------------------------------------------------------------------------

// A list of rows while it is being collected.
struct collection {
    uint32_t most;
    uint32_t count;
    struct board_row *said;
    struct row *own;
    uint64_t elements;
};

// Adds a run in one region, or extends the last row if the run continues it. False: too many rows.
static bool collection_add(struct collection *collection, const struct board_row *row,
                           uint8_t *memory, uint32_t element_bytes)
{
    struct board_row *said =
        collection->count > 0 ? &collection->said[collection->count - 1] : NULL;
    collection->elements += row->elements;
    const bool goes_on = said && said->region == row->region &&
                         said->offset + said->elements * element_bytes == row->offset;
    if (goes_on) {
        said->elements += row->elements;
        collection->own[collection->count - 1].end = collection->elements;
        return true;
    }
    if (collection->count == collection->most)
        return false;
    collection->said[collection->count] = *row;
    collection->own[collection->count++] = (struct row){memory, collection->elements};
    return true;
}

// Adds an extent. It may cross from one region to the next if their addresses are contiguous.
static bool collection_add_extent(struct collection *collection, struct regions *regions,
                                  const struct extent *extent, uint32_t element_bytes)
{
    uint8_t *memory = extent->out;
    uint64_t left = extent->elements * element_bytes;
    // Unaligned elements could be torn: a mate could read or write half of one.
    if (extent->in != extent->out || !memory || (uintptr_t)memory % element_bytes != 0)
        return false;
    while (left > 0) {
        struct board_row row;
        const uint64_t bytes = regions_find(regions, memory, left, &row.region, &row.offset);
        if (bytes == 0)
            return false;
        row.elements = bytes / element_bytes;
        if (!collection_add(collection, &row, memory, element_bytes))
            return false;
        memory += bytes;
        left -= bytes;
    }
    return true;
}

uint32_t rows_collect(struct regions *regions, const struct extent *extents, uint32_t extent_count,
                      uint32_t element_bytes, uint32_t most, struct board_row *said,
                      struct row *own)
{
    struct collection collection = {.most = most, .said = said, .own = own};
    for (uint32_t i = 0; i < extent_count; i++) {
        if (extents[i].elements > 0 &&
            !collection_add_extent(&collection, regions, &extents[i], element_bytes))
            return 0;
    }
    return collection.count;
}

// ---- those of mates -----------------------------------------------------------------------------

bool rows_read(const struct regions *regions, uint32_t local, const struct board_row *said,
               uint32_t count, uint64_t elements, uint32_t element_bytes, struct row *rows)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        // Read once into a copy, which is checked and used.
        const volatile struct board_row *from = &said[i];
        const struct board_row row = {from->offset, from->elements, from->region};
        if (row.elements == 0 || row.elements > elements - end)
            return false;
        uint8_t *memory =
            regions_of(regions, local, row.region, row.offset, row.elements * element_bytes);
        if (!memory || (uintptr_t)memory % element_bytes != 0)
            return false;
        end += row.elements;
        rows[i] = (struct row){memory, end};
    }
    return end == elements;
}

// ---- looking up ---------------------------------------------------------------------------------

uint8_t *rows_search(const struct rows *rows, uint64_t element, uint32_t element_bytes,
                     uint64_t *left)
{
    uint32_t low = 0;
    uint32_t high = rows->count - 1;
    const struct row *list = rows->list;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (list[middle].end <= element)
            low = middle + 1;
        else
            high = middle;
    }
    const uint64_t begin = low == 0 ? 0 : list[low - 1].end;
    assert(begin <= element && element < list[low].end);
    *left = list[low].end - element;
    return list[low].memory + (element - begin) * element_bytes;
}
