// SPDX-License-Identifier: Apache-2.0
// Bounded first-in first-out queue of equal items, allocated once. The queue does not grow: a push
// into a full queue returns false, and the caller decides what to do. Not synchronized.
#ifndef LOCKSTEP_BASE_RING_BUFFER_H
#define LOCKSTEP_BASE_RING_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

// For pointers, item_size is sizeof(void *).
struct ring_buffer {
    // set at init, then constant
    unsigned char *items;
    size_t item_size;
    size_t capacity;
    // owner's thread, or guarded by the owner's mutex
    size_t first;
    size_t count;
};

// Returns false if there is no memory or a size is 0. ring_buffer_fini may be called in both cases.
bool ring_buffer_init(struct ring_buffer *ring, size_t capacity, size_t item_size);
void ring_buffer_fini(struct ring_buffer *ring);

// Copies an item to the end. Returns false if the queue is full.
bool ring_buffer_push(struct ring_buffer *ring, const void *item);

// Copies the oldest item to item, which may be NULL, and removes it. Returns false if the queue is
// empty.
bool ring_buffer_pop(struct ring_buffer *ring, void *item);

// Returns the item at this index, where 0 is the oldest, or NULL if there is none. Borrowed until
// the next pop or clear.
void *ring_buffer_at(const struct ring_buffer *ring, size_t index);

void ring_buffer_clear(struct ring_buffer *ring);

static inline size_t ring_buffer_count(const struct ring_buffer *ring)
{
    return ring->count;
}

static inline bool ring_buffer_full(const struct ring_buffer *ring)
{
    return ring->count == ring->capacity;
}

#endif
