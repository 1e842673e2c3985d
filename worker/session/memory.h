// SPDX-License-Identifier: Apache-2.0
//
// The memory that a session gives to its trainer, as worker/api/memory.c keeps it.

#ifndef WORKER_SESSION_MEMORY_H
#define WORKER_SESSION_MEMORY_H

#include "worker/memory/arenas.h"
#include "worker/memory/regions.h"

#include <stddef.h>
#include <stdint.h>

// Memory given by lockstep_alloc.
struct memory_block {
    struct memory_block *next;
    void *memory;
    size_t bytes;
};

// trainer
struct given_memory {
    struct regions *regions; // Set at open. NULL: memory comes from private pages.
    struct arenas arenas; // Small blocks out of the regions.
    struct memory_block *blocks;
    uint32_t count; // Blocks.
};

#endif
