// SPDX-License-Identifier: Apache-2.0
//
// Memory that mates (ranks of one host) can reach: anonymous, sealed, allocated before its use, and
// mapped by each of them. Gradients that lie in it are reduced in place. The maker's rank and a
// number name a region; mates name a place in memory by region and offset.
//
// The trainer's own memory cannot be used for that: pages that a heap gave cannot be shared later
// without changing what the heap knows of them.
//
// The life of a region:
// 1. It is made.
// 2. Its descriptor is passed to each mate, once.
// 3. Each mate maps it and says so. When all mates have mapped it, it can be found.
// 4. It is freed.
// 5. When all mates that it was passed to have mapped it, they are told of its end. So no
// descriptor
//    arrives after the news of the end.
// 6. The mates unmap it.
// Numbers ascend from 1, and no number is used twice in a session.
//
// A region is MAP_SHARED: a forked child does not get a copy of it but the region itself.
//
// Any thread, but for the functions marked "Engine thread" (the thread that drives the transport).

#ifndef WORKER_MEMORY_REGIONS_H
#define WORKER_MEMORY_REGIONS_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct regions; // All regions of one session.

// NULL if there is no memory.
struct regions *regions_open(void);
// Unmaps everything and frees. No call of another thread may be in progress.
void regions_close(struct regions *regions);

// Makes a region: zeroed whole pages that mates can map, all of them allocated. 0, or a negative
// errno: the size is below LOCKSTEP_REGION_BYTES (not worth a descriptor), there are too many
// regions, the size is more than half of the free memory of this host, or the kernel refuses. The
// caller can use private pages then.
int regions_make(struct regions *regions, size_t bytes, void **memory);
// Frees a region. memory: its beginning. 0; -ENOENT: no region begins there.
int regions_free(struct regions *regions, void *memory);

// Finds the region that memory lies in, if all mates have mapped it. Returns how many of the bytes
// lie in the region; the rest may lie in a neighbour. 0: the memory lies in no region, or some mate
// has not mapped it yet, or there are no mates. Costs 30 ns: a lock that is hardly ever contended,
// and a binary search over at most LOCKSTEP_MAX_REGIONS.
size_t regions_find(struct regions *regions, const void *memory, size_t bytes, uint32_t *number,
                    uint64_t *offset);

// ---- between mates ------------------------------------------------------------------------------

// A generation begins. mates: how many ranks of the host take part, this rank included; 0: none
// from now on. local: the number of this rank among them. Regions that mates of an earlier
// generation passed are unmapped; nothing is passed or mapped yet. Engine thread.
void regions_begin(struct regions *regions, uint32_t local, uint32_t mates);

// A number that changes when there may be something new to pass or to tell. Costs one load.
uint32_t regions_news(const struct regions *regions);

// The descriptor of the next region to pass to mate `local`, in ascending order of numbers; -1:
// none. It is borrowed until the next call of this function or of regions_passed, even if the
// region is freed meanwhile. regions_passed reports that the region was passed; without it the same
// one comes again. Engine thread.
int regions_to_pass(struct regions *regions, uint32_t local, uint32_t *number, uint64_t *bytes);
void regions_passed(struct regions *regions, uint32_t local, uint32_t number);
// A mate says that it has mapped a region of this rank. False: that is impossible. Engine thread.
bool regions_mapped(struct regions *regions, uint32_t local, uint32_t number);
// The next freed region of this rank that the mates have to unmap; each region comes once. False:
// there is none. Engine thread.
bool regions_freed(struct regions *regions, uint32_t *number);

// A mate has passed the descriptor of a region, which is owned from now on. Checks seals and size,
// and maps it. NULL, or why it is impossible. If this process has no room for the mapping, the
// result is NULL too, regions_of finds nothing, and the mate must not be told that the region is
// mapped. Engine thread.
const char *regions_map(struct regions *regions, uint32_t local, uint32_t number, uint64_t bytes,
                        int fd);
// A mate says that it has freed a region. False: the region is not mapped here. Engine thread.
bool regions_unmap(struct regions *regions, uint32_t local, uint32_t number);
// Memory in a region of a mate; NULL: the region is not mapped here, or ends before offset + bytes.
// Engine thread.
void *regions_of(const struct regions *regions, uint32_t local, uint32_t number, uint64_t offset,
                 uint64_t bytes);

// Makes this rank's regions private, so that no mate can write to them any more. Their contents are
// copied to private pages, which replace the shared pages at the same addresses; every thread of
// this process sees either the old pages or the new ones. This is for a mate that stands still and
// may be in the middle of writing. 0, or -ENOMEM: some regions are still shared. Engine thread,
// while no thread of this process writes to the regions.
int regions_detach(struct regions *regions);

#endif
