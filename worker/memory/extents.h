// SPDX-License-Identifier: Apache-2.0
//
// A collective's user memory: many runs of elements, seen as one row of bytes. Finds a position,
// walks from it, and makes vectors for system calls. It copies, and reads only what it is told to;
// it knows no ranks and no frames. Pure. Engine thread.

#ifndef WORKER_MEMORY_EXTENTS_H
#define WORKER_MEMORY_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

struct iovec;

#define EXTENT_SAMPLES 64

// A run of elements in user memory. in == NULL contributes virtual zeros; out == NULL drops the
// result. Usually both are the same pointer. Any alignment that the dtype allows.
struct extent {
    const void *in;
    void *out;
    uint64_t elements;
};

// An index over the extents, of fixed size: the element at which every stride-th one begins.
struct extent_map {
    const struct extent *extents; // Borrowed.
    uint32_t count;
    uint32_t element_bytes;
    uint32_t stride;
    uint32_t samples;
    uint64_t first[EXTENT_SAMPLES];
};

// A position: a byte of an extent. Past the last byte of an extent is the next one that has any.
struct extent_cursor {
    const struct extent *extent;
    uint64_t offset; // Bytes from the beginning of the extent.
    uint32_t element_bytes;
};

enum extent_side {
    EXTENT_IN,
    EXTENT_OUT,
};

// Returns the sum of the elements.
uint64_t extent_map_init(struct extent_map *map, const struct extent *extents, uint32_t count,
                         uint32_t element_bytes);
// The position of an element below the sum.
struct extent_cursor extent_seek(const struct extent_map *map, uint64_t element);

// The longest run of contiguous memory from the cursor, at most `most` bytes. Returns its bytes and
// sets *memory, to NULL where the pointer of that side is NULL. The cursor moves behind it.
uint64_t extent_run(struct extent_cursor *cursor, enum extent_side side, uint64_t most,
                    uint8_t **memory);
void extent_skip(struct extent_cursor *cursor, uint64_t bytes);

// Whether all of the next `bytes` have memory on that side.
bool extent_backed(struct extent_cursor cursor, enum extent_side side, uint64_t bytes);

// Vectors for the next `bytes`, or as many as `most` vectors can name. Inputs that are NULL are
// named by zeros. Returns the number of vectors, and in *covered the bytes that they name.
int extent_vectors(struct extent_cursor cursor, enum extent_side side, uint64_t bytes,
                   struct iovec *vectors, int most, uint64_t *covered);

// Copies to the outputs and moves behind them; where there is none the bytes are dropped.
void extent_store(struct extent_cursor *cursor, const void *from, uint64_t bytes);

// Zeros, for inputs that are virtual.
#define EXTENT_ZERO_BYTES (64 * 1024)
extern const uint8_t extent_zeros[EXTENT_ZERO_BYTES];

#endif
