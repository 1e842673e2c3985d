// SPDX-License-Identifier: Apache-2.0
//
// Pools of equal blocks; see scratch.h. Runs on its owner's thread.

#include "worker/memory/scratch.h"

#include <assert.h>
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

static void scratch_rest(struct scratch *scratch, void *bytes)
{
    struct scratch_block *block = bytes;
    block->next = scratch->free;
    scratch->free = block;
}

// Makes all blocks of a slab free; the first block is handed out first.
static void scratch_rest_slab(struct scratch *scratch, struct scratch_slab *slab)
{
    uint8_t *first = (uint8_t *)(slab + 1);
    for (size_t i = slab->count; i > 0; i--)
        scratch_rest(scratch, first + (i - 1) * scratch->block_bytes);
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
    scratch->slabs = slab;
    scratch->slab_count++;
    scratch->blocks += count;
    scratch_rest_slab(scratch, slab);
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

void *scratch_get(struct scratch *scratch)
{
    if (!scratch->free)
        scratch_grow(scratch);
    struct scratch_block *block = scratch->free;
    if (!block)
        return NULL;
    scratch->free = block->next;
    scratch->used++;
    return block;
}

void scratch_put(struct scratch *scratch, void *bytes)
{
    assert(scratch->used > 0);
    scratch_rest(scratch, bytes);
    scratch->used--;
}

void scratch_reset(struct scratch *scratch)
{
    scratch->free = NULL;
    for (struct scratch_slab *slab = scratch->slabs; slab; slab = slab->next)
        scratch_rest_slab(scratch, slab);
    scratch->used = 0;
}
