// SPDX-License-Identifier: Apache-2.0
//
// Pools of memory blocks of equal size: for partial sums in flight, frame descriptors and
// collectives. A pool hands out the block that was given back last, because that block is still in
// the cache. An empty pool grows by a slab, and never shrinks, so the step path stops allocating
// once the largest backlog has occurred. Not synchronized: one thread at a time.

#ifndef WORKER_MEMORY_SCRATCH_H
#define WORKER_MEMORY_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

// Small blocks are allocated together, in slabs of about this many bytes.
#define SCRATCH_SLAB_BYTES (64 * 1024)

struct scratch_slab;
struct scratch_block;

struct scratch {
    // set at init, then constant
    size_t block_bytes;
    // owner's thread
    struct scratch_slab *slabs;
    struct scratch_block *free; // List of blocks that came back; the last one is first.
    struct scratch_slab *fresh; // The slabs from here on may have blocks that were never used.
    uint64_t slab_count; // Number of slabs, which is the number of allocations.
    uint64_t blocks; // Number of blocks of the pool, free or not.
    uint64_t used; // Number of blocks that are handed out.
};

// Allocates nothing. block_bytes is at least 1.
void scratch_init(struct scratch *scratch, size_t block_bytes);
// Makes the pool grow to at least `blocks` blocks, if there is memory. A block that was never used
// costs address space only.
void scratch_reserve(struct scratch *scratch, uint64_t blocks);
// Frees every block, also blocks that are handed out.
void scratch_fini(struct scratch *scratch);

// Returns a block of block_bytes bytes, aligned to a cache line, with undefined contents; NULL if
// there is no memory.
void *scratch_get(struct scratch *scratch);
// Gives back a block that scratch_get has returned.
void scratch_put(struct scratch *scratch, void *bytes);
// Takes back every block that is handed out. No holder may use its block afterwards.
void scratch_reset(struct scratch *scratch);

#endif
