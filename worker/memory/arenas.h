// SPDX-License-Identifier: Apache-2.0
//
// Small blocks of whole pages in memory that mates (ranks of the same host) can reach. Several
// blocks share one region, because a region costs a descriptor and a mapping in every mate, and
// descriptors and mappings are scarce. An arena is such a shared region. A new arena is as large as
// all earlier arenas together, so the unused memory is at most the requested memory plus the first
// arena. Trainer's thread.

#ifndef WORKER_MEMORY_ARENAS_H
#define WORKER_MEMORY_ARENAS_H

#include "worker/memory/regions.h"

#define ARENA_BLOCK_BYTES (1024 * 1024) // A larger block gets its own region.
#define ARENA_FIRST_BYTES (256 * 1024)
#define ARENA_MOST_BYTES (16 * 1024 * 1024)

struct arena;

struct arenas {
    struct regions *regions; // Borrowed.
    struct arena *first; // The newest arena.
    size_t bytes; // Size of all arenas together.
};

// Forgets all arenas. Their memory is freed with the regions.
void arenas_fini(struct arenas *arenas);

// Gives zeroed whole pages for 1 to ARENA_BLOCK_BYTES bytes. Returns 0, or a negative errno as
// regions_make does.
int arenas_get(struct arenas *arenas, size_t bytes, void **memory);
// Takes back the memory that arenas_get gave for `bytes` bytes. Returns false if the memory is in
// no arena. An arena without blocks in use is freed.
bool arenas_put(struct arenas *arenas, void *memory, size_t bytes);

#endif
