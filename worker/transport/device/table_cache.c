// SPDX-License-Identifier: Apache-2.0
//
// The tables of pieces and tiles that kernels walk over (worker/device/kernels.h), for each
// collective that is launched again and again: made from its extents, compared with the tables on
// the device, and copied only if they differ. The driver's thread. table.h makes the tables.
//
// The key of a collective is the address of its array of extents, which the caller keeps in every
// step. If two keys collide, the new one replaces an entry that is not in use.

#include "worker/transport/device/table_cache.h"

#include "worker/device/memory.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/table.h"

#include <stdlib.h>
#include <string.h>

static size_t table_cache_bytes(uint32_t pieces, uint64_t elements)
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

// Frees an entry. Its pinned block is from the first device, and all devices can read it.
static void table_cache_free(struct devices *devices, struct cached_table *cached)
{
    if (cached->host)
        device_give(devices->device, cached->host);
    if (cached->table)
        device_give(cached->device, cached->table);
    *cached = (struct cached_table){.key = NULL};
}

// Returns the entry of this key, else a free one, else one that no flow uses. NULL: all eight
// possible entries are in use.
static struct cached_table *table_cache_find(struct devices *devices, const void *key)
{
    const uint64_t mixed = (uint64_t)(uintptr_t)key * 0x9e3779b97f4a7c15u;
    struct cached_table *place = NULL;
    for (uint32_t i = 0; i < 8; i++) {
        struct cached_table *cached = &devices->cached_tables[((mixed >> 40) + i) % CACHED_TABLES];
        if (cached->key == key && cached->holders == 0)
            return cached;
        if (cached->holders == 0 && (!place || (place->key && !cached->key)))
            place = cached;
    }
    if (place && place->key)
        table_cache_free(devices, place);
    return place;
}

// Fills the host copy of a table.
static void cut_fill(struct cached_table *cached, const struct device_piece *pieces, uint32_t count,
                     uint64_t elements)
{
    struct device_piece *kept = (struct device_piece *)(void *)cached->host->host;
    uint32_t *tiles = (uint32_t *)(void *)(kept + count + 1);
    memcpy(kept, pieces, (count + (size_t)1) * sizeof(*kept));
    device_piece_tiles(pieces, count, tiles);
    cached->count = count;
    cached->elements = elements;
    cached->bytes = table_cache_bytes(count, elements);
    cached->stale = true;
}

// Takes memory for a table of `bytes`, on the host and on its device. False: not free now.
static bool table_cache_take(struct devices *devices, struct cached_table *cached,
                             struct device *device, size_t bytes)
{
    if (cached->key && cached->device == device && cached->host->bytes >= bytes &&
        cached->table->bytes >= bytes)
        return true;
    table_cache_free(devices, cached);
    cached->device = device;
    if (devices_take(devices, devices->device, &cached->host, MEMORY_PINNED, bytes) &&
        devices_take(devices, device, &cached->table, MEMORY_SCRATCH, bytes))
        return true;
    table_cache_free(devices, cached);
    return false;
}

struct cached_table *table_cache_hold(struct devices *devices, struct device *device,
                                      const struct collective *collective)
{
    const void *key = collective->extents;
    if (cut_room(devices, device_pieces_most(collective) + 1) < 0)
        return NULL;
    const uint32_t count = device_pieces(collective, devices->pieces);
    struct cached_table *cached = table_cache_find(devices, key);
    if (!cached) {
        device_fail(devices->device, "too many collectives are in flight");
        return NULL;
    }
    if (!table_cache_take(devices, cached, device, table_cache_bytes(count, collective->elements)))
        return NULL;
    cached->key = key;
    const bool same = cached->count == count && cached->elements == collective->elements &&
                      memcmp(cached->host->host, devices->pieces,
                             (count + (size_t)1) * sizeof(*devices->pieces)) == 0;
    if (!same || cached->count == 0)
        cut_fill(cached, devices->pieces, count, collective->elements);
    cached->holders++;
    return cached;
}

const struct device_piece *table_cache_pieces(const struct cached_table *cached)
{
    return (const struct device_piece *)(const void *)cached->host->host;
}

int table_cache_row(struct cached_table *cached, enum device_stream stream, struct device_row *row)
{
    const uint64_t pieces = cached->table->address;
    const uint64_t tiles = pieces + (cached->count + (uint64_t)1) * sizeof(struct device_piece);
    if (cached->stale &&
        device_transfer(cached->device, stream, pieces, cached->host->address, cached->bytes) < 0)
        return -1;
    cached->stale = false;
    *row = (struct device_row){.pieces = (const struct device_piece *)(uintptr_t)pieces,
                               .tiles = (const uint32_t *)(uintptr_t)tiles,
                               .elements = cached->elements,
                               .count = cached->count};
    return 0;
}

void table_cache_release(struct cached_table **cached)
{
    if (*cached)
        (*cached)->holders--;
    *cached = NULL;
}

int table_cache_reserve(struct devices *devices, struct device *device, uint32_t pieces,
                        uint64_t elements, uint32_t count)
{
    const size_t bytes = table_cache_bytes(pieces, elements);
    if (cut_room(devices, pieces + 1) < 0 ||
        device_reserve(devices->device, MEMORY_PINNED, bytes, count) < 0)
        return -1;
    return device_reserve(device, MEMORY_SCRATCH, bytes, count);
}

void table_cache_fini(struct devices *devices)
{
    for (uint32_t i = 0; i < CACHED_TABLES; i++) {
        if (devices->cached_tables[i].holders == 0)
            table_cache_free(devices, &devices->cached_tables[i]);
    }
    free(devices->pieces);
    devices->pieces = NULL;
    devices->piece_room = 0;
}
