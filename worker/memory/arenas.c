// SPDX-License-Identifier: Apache-2.0
//
// Blocks of whole pages inside regions. An arena has a flag for each page, and a request takes the
// first gap that is long enough. There are at most thousands of blocks, all made outside of steps,
// so a linear search is fast enough. Trainer's thread.

#include "worker/memory/arenas.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct arena {
    struct arena *next;
    uint8_t *memory; // The memory of the region.
    size_t pages;
    size_t used; // Pages in use.
    bool taken[]; // [pages]
};

static size_t arena_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t arena_pages(size_t bytes)
{
    return (bytes + arena_page() - 1) / arena_page();
}

// Returns the first page of a gap of `pages` pages; arena->pages if there is none.
static size_t arena_find(const struct arena *arena, size_t pages)
{
    size_t gap = 0;
    if (arena->pages - arena->used < pages)
        return arena->pages;
    for (size_t i = 0; i < arena->pages; i++) {
        gap = arena->taken[i] ? 0 : gap + 1;
        if (gap == pages)
            return i + 1 - pages;
    }
    return arena->pages;
}

static void arena_mark(struct arena *arena, size_t first, size_t pages, bool taken)
{
    for (size_t i = first; i < first + pages; i++) {
        assert(arena->taken[i] != taken);
        arena->taken[i] = taken;
    }
    arena->used = taken ? arena->used + pages : arena->used - pages;
}

// Adds an arena as large as all arenas so far, limited by ARENA_FIRST_BYTES and ARENA_MOST_BYTES,
// but at least of `least` bytes.
static int arenas_add(struct arenas *arenas, size_t least)
{
    size_t bytes = arenas->bytes < ARENA_FIRST_BYTES ? ARENA_FIRST_BYTES : arenas->bytes;
    bytes = bytes > ARENA_MOST_BYTES ? ARENA_MOST_BYTES : bytes;
    const size_t pages = arena_pages(bytes < least ? least : bytes);
    struct arena *arena = calloc(1, sizeof(*arena) + pages * sizeof(arena->taken[0]));
    void *memory = NULL;
    if (!arena)
        return -ENOMEM;
    const int status = regions_make(arenas->regions, pages * arena_page(), &memory);
    if (status < 0) {
        free(arena);
        return status;
    }
    arena->memory = memory;
    arena->pages = pages;
    arena->next = arenas->first;
    arenas->first = arena;
    arenas->bytes += pages * arena_page();
    return 0;
}

int arenas_get(struct arenas *arenas, size_t bytes, void **memory)
{
    const size_t pages = arena_pages(bytes);
    struct arena *arena = arenas->first;
    assert(bytes > 0 && bytes <= ARENA_BLOCK_BYTES);
    *memory = NULL;
    while (arena && arena_find(arena, pages) == arena->pages)
        arena = arena->next;
    if (!arena) {
        const int status = arenas_add(arenas, bytes);
        if (status < 0)
            return status;
        arena = arenas->first;
    }
    const size_t first = arena_find(arena, pages);
    arena_mark(arena, first, pages, true);
    *memory = arena->memory + first * arena_page();
    return 0;
}

void arenas_fini(struct arenas *arenas)
{
    while (arenas->first) {
        struct arena *arena = arenas->first;
        arenas->first = arena->next;
        free(arena);
    }
}

bool arenas_put(struct arenas *arenas, void *memory, size_t bytes)
{
    const uintptr_t at = (uintptr_t)memory;
    struct arena **place = &arenas->first;
    while (*place && (at < (uintptr_t)(*place)->memory ||
                      at >= (uintptr_t)(*place)->memory + (*place)->pages * arena_page()))
        place = &(*place)->next;
    struct arena *arena = *place;
    if (!arena)
        return false;
    const size_t pages = arena_pages(bytes);
    memset(memory, 0, pages * arena_page()); // The next arenas_get must give zeroed memory.
    arena_mark(arena, (at - (uintptr_t)arena->memory) / arena_page(), pages, false);
    if (arena->used == 0) {
        *place = arena->next;
        arenas->bytes -= arena->pages * arena_page();
        (void)regions_free(arenas->regions, arena->memory);
        free(arena);
    }
    return true;
}
