// SPDX-License-Identifier: Apache-2.0
//
// Makes the pieces and tiles of a collective's row. Pure; any thread.

#include "worker/transport/device/table.h"

#include "worker/kernels/kernels.h"

#include <assert.h>

// The rest of an extent that is not cut into pieces yet.
struct rest {
    const char *in;
    char *out;
    uint64_t elements;
};

static struct device_piece piece_of(const struct rest *rest, uint64_t first, uint32_t unit)
{
    return (struct device_piece){.in = rest->in, .out = rest->out, .first = first, .unit = unit};
}

static void rest_skip(struct rest *rest, uint64_t elements, size_t element_bytes)
{
    rest->elements -= elements;
    if (rest->in)
        rest->in += elements * element_bytes;
    if (rest->out)
        rest->out += elements * element_bytes;
}

// Number of elements from `first` to the end of its unit. Moves *unit on to that unit.
static uint64_t unit_rest(const struct collective *collective, uint64_t first, uint32_t *unit)
{
    while (collective->unit_ends[*unit] <= first)
        (*unit)++;
    assert(*unit < collective->unit_count);
    return collective->unit_ends[*unit] - first;
}

uint32_t device_pieces(const struct collective *collective, struct device_piece *pieces)
{
    const size_t element_bytes = dtype_size(collective->dtype);
    uint64_t first = 0;
    uint32_t count = 0;
    uint32_t unit = collective->unit_count > 0 ? 0 : DEVICE_NO_UNIT;
    for (uint32_t e = 0; e < collective->extent_count; e++) {
        const struct extent *extent = &collective->extents[e];
        struct rest rest = {extent->in, extent->out, extent->elements};
        while (rest.elements > 0) {
            uint64_t run = rest.elements;
            if (collective->unit_count > 0) {
                const uint64_t inside = unit_rest(collective, first, &unit);
                run = inside < run ? inside : run;
            }
            pieces[count++] = piece_of(&rest, first, unit);
            rest_skip(&rest, run, element_bytes);
            first += run;
        }
    }
    assert(first == collective->elements);
    pieces[count] = (struct device_piece){.first = first, .unit = DEVICE_NO_UNIT};
    return count;
}

void device_piece_tiles(const struct device_piece *pieces, uint32_t count, uint32_t *tiles)
{
    const uint64_t tile_count = device_tiles(pieces[count].first);
    uint32_t piece = 0;
    for (uint64_t t = 0; t < tile_count; t++) {
        while (pieces[piece + 1].first <= t * DEVICE_TILE_ELEMENTS)
            piece++;
        tiles[t] = piece;
    }
}
