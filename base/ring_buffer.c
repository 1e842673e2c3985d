// SPDX-License-Identifier: Apache-2.0
// Bounded queue over one array. Not synchronized.
#include "base/ring_buffer.h"

#include <stdlib.h>
#include <string.h>

bool ring_buffer_init(struct ring_buffer *ring, size_t capacity, size_t item_size)
{
    *ring = (struct ring_buffer){.item_size = item_size};
    size_t bytes = 0;
    if (__builtin_mul_overflow(capacity, item_size, &bytes) || bytes == 0)
        return false;
    ring->items = calloc(1, bytes);
    if (!ring->items)
        return false;
    ring->capacity = capacity;
    return true;
}

void ring_buffer_fini(struct ring_buffer *ring)
{
    free(ring->items);
    *ring = (struct ring_buffer){0};
}

void *ring_buffer_at(const struct ring_buffer *ring, size_t index)
{
    if (index >= ring->count)
        return NULL;
    // first and index are below capacity, so one subtraction brings their sum below capacity again.
    size_t place = ring->first + index;
    if (place >= ring->capacity)
        place -= ring->capacity;
    return ring->items + place * ring->item_size;
}

bool ring_buffer_push(struct ring_buffer *ring, const void *item)
{
    if (ring_buffer_full(ring))
        return false;
    ring->count++;
    memcpy(ring_buffer_at(ring, ring->count - 1), item, ring->item_size);
    return true;
}

bool ring_buffer_pop(struct ring_buffer *ring, void *item)
{
    const void *oldest = ring_buffer_at(ring, 0);
    if (!oldest)
        return false;
    if (item)
        memcpy(item, oldest, ring->item_size);
    ring->first = ring->first + 1 == ring->capacity ? 0 : ring->first + 1;
    ring->count--;
    return true;
}

void ring_buffer_clear(struct ring_buffer *ring)
{
    ring->first = 0;
    ring->count = 0;
}
