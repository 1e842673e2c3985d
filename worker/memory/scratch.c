// SPDX-License-Identifier: Apache-2.0
//
// Pools of equal blocks; see scratch.h. Runs on its owner's thread.

#include "worker/memory/scratch.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#define SCRATCH_ALIGN 64 // Size of a cache line, and of the widest vector.

// A free block. The block's own memory holds the link to the next free block.
struct scratch_block {
    struct scratch_block *next;
};

// The header of a slab; the blocks follow it.
struct scratch_slab {
    _Alignas(SCRATCH_ALIGN) struct scratch_slab *next;
    size_t count;
    size_t taken; // Number of blocks, the first ones, that were handed out at least once.
};

static_assert(sizeof(struct scratch_slab) % SCRATCH_ALIGN == 0, "blocks are aligned behind it");

void scratch_init(struct scratch *scratch, size_t block_bytes)
{
    assert(block_bytes > 0);
    const size_t rounded = (block_bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    *scratch = (struct scratch){.block_bytes = rounded};
}

void scratch_fini(struct scratch *scratch)
{
    struct scratch_slab *next = NULL;
    for (struct scratch_slab *slab = scratch->slabs; slab; slab = next) {
        next = slab->next;
        free(slab);
    }
    *scratch = (struct scratch){.block_bytes = scratch->block_bytes};
}

static void scratch_grow(struct scratch *scratch)
{
    size_t count = SCRATCH_SLAB_BYTES / scratch->block_bytes;
    if (count == 0)
        count = 1;
    struct scratch_slab *slab =
        aligned_alloc(SCRATCH_ALIGN, sizeof(struct scratch_slab) + count * scratch->block_bytes);
    if (!slab)
        return;
    slab->next = scratch->slabs;
    slab->count = count;
    slab->taken = 0;
    scratch->slabs = slab;
    scratch->fresh = slab;
    scratch->slab_count++;
    scratch->blocks += count;
}

void scratch_reserve(struct scratch *scratch, uint64_t blocks)
{
    uint64_t before = 0;
    do {
        before = scratch->blocks;
        if (before < blocks)
            scratch_grow(scratch);
    } while (scratch->blocks > before);
}

// Returns a block that was never handed out; NULL if there is no memory.
static void *scratch_take_fresh(struct scratch *scratch)
{
    while (scratch->fresh && scratch->fresh->taken == scratch->fresh->count)
        scratch->fresh = scratch->fresh->next;
    if (!scratch->fresh)
        scratch_grow(scratch);
    struct scratch_slab *slab = scratch->fresh;
    return slab ? (uint8_t *)(slab + 1) + slab->taken++ * scratch->block_bytes : NULL;
}

void *scratch_get(struct scratch *scratch)
{
    struct scratch_block *block = scratch->free;
    if (block)
        scratch->free = block->next;
    else
        block = scratch_take_fresh(scratch);
    scratch->used += block ? 1 : 0;
    return block;
}

void scratch_put(struct scratch *scratch, void *bytes)
{
    assert(scratch->used > 0);
    struct scratch_block *block = bytes;
    block->next = scratch->free;
    scratch->free = block;
    scratch->used--;
}

void scratch_reset(struct scratch *scratch)
{
    for (struct scratch_slab *slab = scratch->slabs; slab; slab = slab->next)
        slab->taken = 0;
    scratch->free = NULL;
    scratch->fresh = scratch->slabs;
    scratch->used = 0;
}
