// SPDX-License-Identifier: Apache-2.0
//
// Pools of equal blocks of memory: partial sums in flight, frame descriptors, collectives. The
// block given back last is handed out next, because it is still in the cache. An empty pool grows
// by a slab, and never shrinks before its end, so the step path allocates nothing once the largest
// backlog has been seen. Not synchronized: one thread at a time.

#ifndef WORKER_MEMORY_SCRATCH_H
#define WORKER_MEMORY_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#define SCRATCH_SLAB_BYTES (64 * 1024) // Small blocks are allocated together, about so many bytes.

struct scratch_slab;
struct scratch_block;

struct scratch {
    // set at init, then constant
    size_t block_bytes;
    // owner's thread
    struct scratch_slab *slabs;
    struct scratch_block *free; // Free blocks, the one given back last first.
    uint64_t slab_count; // Calls to the allocator.
    uint64_t blocks; // Blocks of the pool.
    uint64_t used; // Blocks that are handed out.
};

// Allocates nothing. block_bytes is at least 1.
void scratch_init(struct scratch *scratch, size_t block_bytes);
// Grows to at least so many blocks, as far as there is memory. Blocks that were never used cost
// address space and a page or less.
void scratch_reserve(struct scratch *scratch, uint64_t blocks);
// Frees every block, also blocks that are handed out.
void scratch_fini(struct scratch *scratch);

// A block of block_bytes, aligned to a cache line, with undefined contents; NULL if there is no
// memory.
void *scratch_get(struct scratch *scratch);
// Gives back what scratch_get returned.
void scratch_put(struct scratch *scratch, void *bytes);
// Takes back every block that is handed out. No holder may use its block any more.
void scratch_reset(struct scratch *scratch);

#endif
