// SPDX-License-Identifier: Apache-2.0
//
// User memory as one row of bytes; see extents.h. Engine thread.

#include "worker/memory/extents.h"

#include <assert.h>
#include <string.h>
#include <sys/uio.h>

_Alignas(64) const uint8_t extent_zeros[EXTENT_ZERO_BYTES];

uint64_t extent_map_init(struct extent_map *map, const struct extent *extents, uint32_t count,
                         uint32_t element_bytes)
{
    map->extents = extents;
    map->count = count;
    map->element_bytes = element_bytes;
    map->stride = count / EXTENT_SAMPLES + 1;
    map->samples = 0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i % map->stride == 0)
            map->first[map->samples++] = sum;
        sum += extents[i].elements;
    }
    return sum;
}

struct extent_cursor extent_seek(const struct extent_map *map, uint64_t element)
{
    uint32_t low = 0;
    uint32_t high = map->samples;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (map->first[middle] <= element)
            low = middle;
        else
            high = middle;
    }
    const struct extent *extent = map->extents + (size_t)low * map->stride;
    uint64_t left = element - map->first[low];
    while (left >= extent->elements) {
        left -= extent->elements;
        extent++;
        assert(extent < map->extents + map->count);
    }
    return (struct extent_cursor){extent, left * map->element_bytes, map->element_bytes};
}

// Sets *memory to the address at the cursor. Returns the bytes left in the cursor's extent, at
// least 1.
static uint64_t extent_here(struct extent_cursor *cursor, enum extent_side side, uint8_t **memory)
{
    while (cursor->offset == cursor->extent->elements * cursor->element_bytes) {
        cursor->extent++;
        cursor->offset = 0;
    }
    uint8_t *base = side == EXTENT_IN ? (uint8_t *)(uintptr_t)cursor->extent->in
                                      : (uint8_t *)cursor->extent->out;
    *memory = base ? base + cursor->offset : NULL;
    return cursor->extent->elements * cursor->element_bytes - cursor->offset;
}

uint64_t extent_run(struct extent_cursor *cursor, enum extent_side side, uint64_t most,
                    uint8_t **memory)
{
    uint64_t bytes = extent_here(cursor, side, memory);
    if (bytes > most)
        bytes = most;
    cursor->offset += bytes;
    return bytes;
}

void extent_skip(struct extent_cursor *cursor, uint64_t bytes)
{
    uint8_t *memory = NULL;
    while (bytes > 0)
        bytes -= extent_run(cursor, EXTENT_IN, bytes, &memory);
}

bool extent_backed(struct extent_cursor cursor, enum extent_side side, uint64_t bytes)
{
    uint8_t *memory = NULL;
    while (bytes > 0) {
        bytes -= extent_run(&cursor, side, bytes, &memory);
        if (!memory)
            return false;
    }
    return true;
}

int extent_vectors(struct extent_cursor cursor, enum extent_side side, uint64_t bytes,
                   struct iovec *vectors, int most, uint64_t *covered)
{
    int count = 0;
    *covered = 0;
    while (bytes > 0 && count < most) {
        struct extent_cursor before = cursor;
        uint8_t *memory = NULL;
        uint64_t run = extent_run(&cursor, side, bytes, &memory);
        if (!memory) {
            assert(side == EXTENT_IN);
            memory = (uint8_t *)(uintptr_t)extent_zeros;
            run = run < EXTENT_ZERO_BYTES ? run : EXTENT_ZERO_BYTES;
            cursor = before;
            extent_skip(&cursor, run);
        }
        vectors[count++] = (struct iovec){.iov_base = memory, .iov_len = run};
        bytes -= run;
        *covered += run;
    }
    return count;
}

void extent_store(struct extent_cursor *cursor, const void *from, uint64_t bytes)
{
    const uint8_t *at = from;
    while (bytes > 0) {
        uint8_t *memory = NULL;
        const uint64_t run = extent_run(cursor, EXTENT_OUT, bytes, &memory);
        if (memory)
            memcpy(memory, at, run);
        at += run;
        bytes -= run;
    }
}
