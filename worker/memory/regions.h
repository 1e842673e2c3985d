// SPDX-License-Identifier: Apache-2.0
//
// Memory that mates (ranks of one host) can reach: anonymous, sealed, allocated before its use, and
// mapped by each of them. Gradients that lie in it are reduced where they are. A region is named by
// its maker's rank and a number; what is said of memory between mates is (region, offset).
//
// Why not the trainer's own memory: pages that a heap gave cannot be shared afterwards without
// changing what the heap knows of them.
//
// The life of a region: made; passed to each mate (a descriptor, once); mapped by it, which it
// says; found from the moment on when all mates have it; freed; told to the mates when all of those
// that it was passed to have mapped it, so that no descriptor can arrive after the news of its end;
// unmapped by them. Numbers ascend from 1 and none is used twice in a session.
//
// A region is MAP_SHARED: a forked child does not get a copy of it but the region itself.
//
// Thread: any, but for what is marked: those are the engine's (whoever drives the transport).

#ifndef WORKER_MEMORY_REGIONS_H
#define WORKER_MEMORY_REGIONS_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct regions; // All of one session.

// NULL without memory.
struct regions *regions_open(void);
// Unmaps everything. No call of another thread may run.
void regions_close(struct regions *regions);

// Zeroed whole pages that mates can map, all of them allocated. 0, or a negative errno when there
// is no such memory: too little (below LOCKSTEP_REGION_BYTES it is not worth a descriptor), too
// many regions, more than half of the memory that is left here, or what the kernel says. Private
// pages serve the caller then.
int regions_make(struct regions *regions, size_t bytes, void **memory);
// memory: as it was made. 0; -ENOENT: no region begins there.
int regions_free(struct regions *regions, void *memory);

// Where memory lies in a region that all mates have mapped, and how many of the bytes from there on
// lie in it: the rest may be in a neighbour. 0: it does not lie in one, or not yet, or there are no
// mates. Costs a lock that is hardly ever contended, and a binary search over LOCKSTEP_MAX_REGIONS
// at most: 30 ns.
size_t regions_find(struct regions *regions, const void *memory, size_t bytes, uint32_t *number,
                    uint64_t *offset);

// ---- between mates ------------------------------------------------------------------------------

// A generation begins, with so many mates, this rank included, of which it is number `local`.
// Nothing is passed or mapped yet; what mates of another generation had handed over is unmapped.
// mates of 0: there are none from now on. Engine thread.
void regions_begin(struct regions *regions, uint32_t local, uint32_t mates);

// Changes when there may be something new to pass or to tell. One load.
uint32_t regions_news(const struct regions *regions);

// The next region that mate `local` has not been handed; -1: none. Numbers ascend. The descriptor
// stays the regions' and is open until the next call of this function or regions_passed, also when
// the region is freed meanwhile. regions_passed says that it was handed over; without that the same
// one comes again. Engine thread.
int regions_to_pass(struct regions *regions, uint32_t local, uint32_t *number, uint64_t *bytes);
void regions_passed(struct regions *regions, uint32_t local, uint32_t number);
// A mate says that it has mapped a region of this rank. False: that cannot be. Engine thread.
bool regions_mapped(struct regions *regions, uint32_t local, uint32_t number);
// The next region of this rank that was freed and that mates are to unmap, each of them once.
// False: none. Engine thread.
bool regions_freed(struct regions *regions, uint32_t *number);

// A mate has handed over a descriptor, owned from now on. Checks seals and size, and maps it.
// NULL, or what is impossible about it. Where this process has no room for the mapping it is NULL
// too, regions_of finds nothing, and the mate must not be told that it is mapped. Engine thread.
const char *regions_map(struct regions *regions, uint32_t local, uint32_t number, uint64_t bytes,
                        int fd);
// A mate says that it has freed a region. False: it is not mapped here. Engine thread.
bool regions_unmap(struct regions *regions, uint32_t local, uint32_t number);
// Memory of a mate; NULL: not mapped here, or not so long. Engine thread.
void *regions_of(const struct regions *regions, uint32_t local, uint32_t number, uint64_t offset,
                 uint64_t bytes);

// From now on this rank's regions are its own again, whatever a mate does: what is there is copied
// to private pages, which take the place of the shared ones at the same addresses; no thread of
// this process sees anything but the one or the other. For a mate that stands still while it may be
// writing. 0, or -ENOMEM: some are shared still. Engine thread, while nobody here writes to them.
int regions_detach(struct regions *regions);

#endif
