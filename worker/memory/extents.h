// SPDX-License-Identifier: Apache-2.0
//
// The user memory of a collective: many runs of elements, seen as one row of bytes. The functions
// find a position, walk from a position, make vectors for system calls, and copy. This file knows
// no ranks and no frames. Pure. Engine thread.

#ifndef WORKER_MEMORY_EXTENTS_H
#define WORKER_MEMORY_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

struct iovec;

#define EXTENT_SAMPLES 64

// A run of elements in user memory. If in is NULL, the run contributes zeros; if out is NULL, the
// result is dropped. Usually in and out are the same pointer. Both are aligned for the dtype.
struct extent {
    const void *in;
    void *out;
    uint64_t elements;
};

// An index of fixed size over the extents: first[k] is the element at which extent k * stride
// begins.
struct extent_map {
    const struct extent *extents; // Borrowed.
    uint32_t count;
    uint32_t element_bytes;
    uint32_t stride;
    uint32_t samples;
    uint64_t first[EXTENT_SAMPLES];
};

// A position: a byte of an extent. The position after the last byte of an extent is in the next
// extent that has any bytes.
struct extent_cursor {
    const struct extent *extent;
    uint64_t offset; // Bytes from the beginning of the extent.
    uint32_t element_bytes;
};

enum extent_side {
    EXTENT_IN,
    EXTENT_OUT,
};

// Fills in the map. Returns the number of elements of all extents together.
uint64_t extent_map_init(struct extent_map *map, const struct extent *extents, uint32_t count,
                         uint32_t element_bytes);
// Returns the position of an element, which must be below the number of elements.
struct extent_cursor extent_seek(const struct extent_map *map, uint64_t element);

// Finds the longest run of contiguous memory from the cursor, of at most `most` bytes. Returns the
// size of the run in bytes and sets *memory to its address; NULL if the extent has no memory on
// that side. The cursor moves to the end of the run.
uint64_t extent_run(struct extent_cursor *cursor, enum extent_side side, uint64_t most,
                    uint8_t **memory);
void extent_skip(struct extent_cursor *cursor, uint64_t bytes);

// True if all of the next `bytes` bytes have memory on that side.
bool extent_backed(struct extent_cursor cursor, enum extent_side side, uint64_t bytes);

// Makes vectors for the next `bytes` bytes, or for as many bytes as `most` vectors can cover. For
// inputs that are NULL the vectors point to zeros. Returns the number of vectors, and in *covered
// the number of bytes that they cover.
int extent_vectors(struct extent_cursor cursor, enum extent_side side, uint64_t bytes,
                   struct iovec *vectors, int most, uint64_t *covered);

// Copies `bytes` bytes to the outputs, and moves the cursor by as many bytes. Bytes for a run
// without output are dropped.
void extent_store(struct extent_cursor *cursor, const void *from, uint64_t bytes);

// The zeros that stand for inputs that are NULL.
#define EXTENT_ZERO_BYTES (64 * 1024)
extern const uint8_t extent_zeros[EXTENT_ZERO_BYTES];

#endif
