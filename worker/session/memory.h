// SPDX-License-Identifier: Apache-2.0
//
// The memory that a session gives to its trainer. worker/api/memory.c manages it.

#ifndef WORKER_SESSION_MEMORY_H
#define WORKER_SESSION_MEMORY_H

#include "worker/memory/arenas.h"
#include "worker/memory/regions.h"

#include <stddef.h>
#include <stdint.h>

// One block of memory given by lockstep_alloc.
struct memory_block {
    struct memory_block *next;
    void *memory;
    size_t bytes;
};

// trainer
struct given_memory {
    struct regions *regions; // Shared memory. Set at open. NULL: blocks are private pages.
    struct arenas arenas; // Allocates small blocks within the regions.
    struct memory_block *blocks; // List of all blocks. Owned.
    uint32_t count; // Blocks in the list.
};

#endif
