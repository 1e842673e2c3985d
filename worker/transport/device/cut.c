// SPDX-License-Identifier: Apache-2.0
//
// The tables of pieces and tiles that kernels walk over (worker/device/kernels.h), for each
// collective that is launched again and again: made of its extents, compared with what the device
// has, and copied only when that differs. The driver's thread. What they are is table.h's.
//
// A collective is known by its array of extents, which is the caller's and the same in every step.
// The place of another one that is not in use is taken when two meet.

#include "worker/transport/device/cut.h"

#include "worker/device/memory.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/table.h"

#include <stdlib.h>
#include <string.h>

static size_t cut_bytes(uint32_t pieces, uint64_t elements)
{
    return (pieces + (size_t)1) * sizeof(struct device_piece) +
           (size_t)device_tiles(elements) * sizeof(uint32_t);
}

static int cut_room(struct devices *devices, uint32_t pieces)
{
    if (pieces <= devices->piece_room)
        return 0;
    struct device_piece *more = realloc(devices->pieces, pieces * sizeof(*more));
    if (!more) {
        device_fail(devices->device, "out of memory here");
        return -1;
    }
    memset(more, 0, pieces * sizeof(*more));
    devices->pieces = more;
    devices->piece_room = pieces;
    return 0;
}

// What the host fills is pinned by the first device, and reached by all.
static void cut_free(struct devices *devices, struct device_cut *cut)
{
    if (cut->host)
        device_give(devices->device, cut->host);
    if (cut->table)
        device_give(cut->device, cut->table);
    *cut = (struct device_cut){.key = NULL};
}

// Its own place, a free one, or that of one that nobody uses. NULL: all near ones are in use.
static struct device_cut *cut_find(struct devices *devices, const void *key)
{
    const uint64_t mixed = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15u;
    struct device_cut *place = NULL;
    for (uint32_t i = 0; i < 8; i++) {
        struct device_cut *cut = &devices->cuts[((mixed >> 40) + i) % DEVICE_CUTS];
        if (cut->key == key && cut->holders == 0)
            return cut;
        if (cut->holders == 0 && (!place || (place->key && !cut->key)))
            place = cut;
    }
    if (place && place->key)
        cut_free(devices, place);
    return place;
}

// Fills the host's side of a table.
static void cut_fill(struct device_cut *cut, const struct device_piece *pieces, uint32_t count,
                     uint64_t elements)
{
    struct device_piece *kept = (struct device_piece *)(void *)cut->host->host;
    uint32_t *tiles = (uint32_t *)(void *)(kept + count + 1);
    memcpy(kept, pieces, (count + (size_t)1) * sizeof(*kept));
    device_piece_tiles(pieces, count, tiles);
    cut->count = count;
    cut->elements = elements;
    cut->bytes = cut_bytes(count, elements);
    cut->stale = true;
}

// Memory for a table of so many bytes, on its device.
static bool cut_take(struct devices *devices, struct device_cut *cut, struct device *device,
                     size_t bytes)
{
    if (cut->key && cut->device == device && cut->host->bytes >= bytes &&
        cut->table->bytes >= bytes)
        return true;
    cut_free(devices, cut);
    cut->device = device;
    if (devices_take(devices, devices->device, &cut->host, MEMORY_PINNED, bytes) &&
        devices_take(devices, device, &cut->table, MEMORY_SCRATCH, bytes))
        return true;
    cut_free(devices, cut);
    return false;
}

struct device_cut *device_cut_hold(struct devices *devices, struct device *device,
                                   const struct collective *collective)
{
    const void *key = collective->extents;
    if (cut_room(devices, device_pieces_most(collective) + 1) < 0)
        return NULL;
    const uint32_t count = device_pieces(collective, devices->pieces);
    struct device_cut *cut = cut_find(devices, key);
    if (!cut) {
        device_fail(devices->device, "too many collectives are in flight");
        return NULL;
    }
    if (!cut_take(devices, cut, device, cut_bytes(count, collective->elements)))
        return NULL;
    cut->key = key;
    const bool same = cut->count == count && cut->elements == collective->elements &&
                      memcmp(cut->host->host, devices->pieces,
                             (count + (size_t)1) * sizeof(*devices->pieces)) == 0;
    if (!same || cut->count == 0)
        cut_fill(cut, devices->pieces, count, collective->elements);
    cut->holders++;
    return cut;
}

const struct device_piece *device_cut_pieces(const struct device_cut *cut)
{
    return (const struct device_piece *)(const void *)cut->host->host;
}

int device_cut_row(struct device_cut *cut, enum device_stream stream, struct device_row *row)
{
    const uint64_t pieces = cut->table->address;
    const uint64_t tiles = pieces + (cut->count + (uint64_t)1) * sizeof(struct device_piece);
    if (cut->stale &&
        device_transfer(cut->device, stream, pieces, cut->host->address, cut->bytes) < 0)
        return -1;
    cut->stale = false;
    *row = (struct device_row){.pieces = (const struct device_piece *)(uintptr_t)pieces,
                               .tiles = (const uint32_t *)(uintptr_t)tiles,
                               .elements = cut->elements,
                               .count = cut->count};
    return 0;
}

void device_cut_release(struct device_cut **cut)
{
    if (*cut)
        (*cut)->holders--;
    *cut = NULL;
}

int device_cut_reserve(struct devices *devices, struct device *device, uint32_t pieces,
                       uint64_t elements, uint32_t count)
{
    const size_t bytes = cut_bytes(pieces, elements);
    if (cut_room(devices, pieces + 1) < 0 ||
        device_reserve(devices->device, MEMORY_PINNED, bytes, count) < 0)
        return -1;
    return device_reserve(device, MEMORY_SCRATCH, bytes, count);
}

void device_cut_fini(struct devices *devices)
{
    for (uint32_t i = 0; i < DEVICE_CUTS; i++) {
        if (devices->cuts[i].holders == 0)
            cut_free(devices, &devices->cuts[i]);
    }
    free(devices->pieces);
    devices->pieces = NULL;
    devices->piece_room = 0;
}
