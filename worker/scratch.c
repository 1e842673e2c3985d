// SPDX-License-Identifier: Apache-2.0
//
// Pools of equal blocks; see scratch.h. Runs on its owner's thread.

#include "worker/scratch.h"

#include <assert.h>
#include <stdlib.h>

#define SCRATCH_ALIGN 64 // A cache line, and the widest vector.

// In front of every block. The bytes follow at the next multiple of SCRATCH_ALIGN.
struct scratch_block {
    _Alignas(SCRATCH_ALIGN) struct scratch_block *all;
    struct scratch_block *free;
};

static_assert(sizeof(struct scratch_block) == SCRATCH_ALIGN, "blocks are aligned behind it");

void scratch_init(struct scratch *scratch, size_t block_bytes)
{
    assert(block_bytes > 0);
    const size_t rounded = (block_bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
    *scratch = (struct scratch){.block_bytes = rounded};
}

void scratch_fini(struct scratch *scratch)
{
    struct scratch_block *next = NULL;
    for (struct scratch_block *block = scratch->all; block; block = next) {
        next = block->all;
        free(block);
    }
    *scratch = (struct scratch){.block_bytes = scratch->block_bytes};
}

static struct scratch_block *scratch_grow(struct scratch *scratch)
{
    struct scratch_block *block =
        aligned_alloc(SCRATCH_ALIGN, sizeof(struct scratch_block) + scratch->block_bytes);
    if (!block)
        return NULL;
    block->all = scratch->all;
    scratch->all = block;
    scratch->blocks++;
    return block;
}

void *scratch_get(struct scratch *scratch)
{
    struct scratch_block *block = scratch->free;
    if (block)
        scratch->free = block->free;
    else
        block = scratch_grow(scratch);
    if (!block)
        return NULL;
    scratch->used++;
    return block + 1;
}

void scratch_put(struct scratch *scratch, void *bytes)
{
    struct scratch_block *block = (struct scratch_block *)bytes - 1;
    assert(scratch->used > 0);
    block->free = scratch->free;
    scratch->free = block;
    scratch->used--;
}

void scratch_reset(struct scratch *scratch)
{
    scratch->free = NULL;
    for (struct scratch_block *block = scratch->all; block; block = block->all) {
        block->free = scratch->free;
        scratch->free = block;
    }
    scratch->used = 0;
}
