// SPDX-License-Identifier: Apache-2.0
//
// Small blocks of memory that mates can reach, each of whole pages: carved out of regions, because
// a region of its own costs each a descriptor and a mapping in every mate, and there are not many
// of those. An arena is one such region. They grow as more is asked for: the next one is as large
// as all before it together, so what is allocated and not asked for is never more than what was
// asked for and the first. Trainer's thread.

#ifndef WORKER_MEMORY_ARENAS_H
#define WORKER_MEMORY_ARENAS_H

#include "worker/memory/regions.h"

#define ARENA_BLOCK_BYTES (1024 * 1024) // Larger blocks have a region of their own.
#define ARENA_FIRST_BYTES (256 * 1024)
#define ARENA_MOST_BYTES (16 * 1024 * 1024)

struct arena;

struct arenas {
    struct regions *regions; // Borrowed.
    struct arena *first; // The newest.
    size_t bytes; // Of all.
};

// Forgets them. What is in use goes with the regions.
void arenas_fini(struct arenas *arenas);

// Zeroed whole pages, more than 0 bytes of them, at most ARENA_BLOCK_BYTES. 0, or a negative errno
// as of regions_make.
int arenas_get(struct arenas *arenas, size_t bytes, void **memory);
// Memory of that length from arenas_get. False: it is not from there. When nothing of a region is
// in use, it is freed.
bool arenas_put(struct arenas *arenas, void *memory, size_t bytes);

#endif
