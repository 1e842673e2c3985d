// SPDX-License-Identifier: Apache-2.0
//
// Memory that mates (ranks of one host) can reach: anonymous, sealed, allocated before its use, and
// mapped by each of them. Gradients that lie in it are reduced where they are. A region is named by
// its maker's rank and a number; what is said of memory between mates is (region, offset).
//
// Why not the trainer's own memory: pages that a heap gave cannot be shared afterwards without
// changing what the heap knows of them.
//
// Thread: regions_make, regions_free and regions_find on the trainer's thread; the others on the
// engine's, but for what is marked.

#ifndef WORKER_REGION_H
#define WORKER_REGION_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct regions; // All of one session.

// NULL without memory.
struct regions *regions_open(void);
void regions_close(struct regions *regions);

// Zeroed pages, also of 0 bytes (a page that must not be touched). Shareable where the kernel
// allows it, else private; nobody is told yet. 0, or a negative errno.
int regions_make(struct regions *regions, size_t bytes, void **memory);
// memory: as it was made. Mates unmap it when they are told, or at the end. 0; -ENOENT: no region
// begins there.
int regions_free(struct regions *regions, void *memory);

// Where [memory, memory + bytes) lies in a region that all mates have mapped. False: it does not,
// or not yet. Costs a search over the regions; any thread.
bool regions_find(struct regions *regions, const void *memory, size_t bytes, uint32_t *number,
                  uint64_t *offset);

// ---- between mates
// -------------------------------------------------------------------------------

// The next region that mate `local` has not been handed; -1: none. The descriptor stays the
// regions'. regions_passed says that it was.
int regions_to_pass(struct regions *regions, uint32_t local, uint32_t *number, uint64_t *bytes);
void regions_passed(struct regions *regions, uint32_t local, uint32_t number);
// A mate has handed over a descriptor, owned from now on. Checks seals and size, and maps it.
// NULL, or what is impossible about it.
const char *regions_map(struct regions *regions, uint32_t local, uint32_t number, uint64_t bytes,
                        int fd);
// A mate says that it has mapped a region of this rank.
void regions_mapped(struct regions *regions, uint32_t local, uint32_t number);
// Memory of a mate; NULL: not mapped here, or not so long.
void *regions_of(const struct regions *regions, uint32_t local, uint32_t number, uint64_t offset,
                 uint64_t bytes);

// From now on this rank's regions are its own again, whatever a mate does: what is there is copied
// to private pages at the same addresses. For a mate that stands still while it may be writing.
void regions_detach(struct regions *regions);

#endif
