// SPDX-License-Identifier: Apache-2.0
//
// Memory that mates (ranks of the same host) can reach. A region is anonymous memory, sealed,
// allocated before its use, and mapped by each mate. Gradients in a region are reduced in place.
// The rank that made a region and a number identify the region; mates identify a place in memory by
// region and offset.
//
// The trainer's own memory cannot become a region: pages of the heap cannot be shared later without
// the heap's knowledge.
//
// The life of a region:
// 1. The rank makes the region.
// 2. The rank passes the region's descriptor to each mate, once.
// 3. Each mate maps the region and reports that. When all mates have mapped the region,
//    regions_find can find it.
// 4. The trainer frees the region.
// 5. When all mates that got the descriptor have mapped the region, the rank tells them that it is
//    freed. So no descriptor arrives after that message.
// 6. The mates unmap the region.
// Numbers ascend from 1, and a session uses no number twice.
//
// A region is mapped MAP_SHARED: a forked child does not get a copy of the region but shares it.
// The regions of mates are not mapped in a forked child.
//
// Any thread, except functions marked "Engine thread" (the thread that drives the transport).

#ifndef WORKER_MEMORY_REGIONS_H
#define WORKER_MEMORY_REGIONS_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct regions; // All regions of one session.

// Returns NULL if there is no memory.
struct regions *regions_open(void);
// Unmaps and frees everything. No call of another thread may be in progress.
void regions_close(struct regions *regions);

// Makes a region: zeroed whole pages, all allocated, that mates can map. Returns 0, or a negative
// errno: the size is below LOCKSTEP_REGION_BYTES (too small to be worth a descriptor), there are
// too many regions, the size is more than half of the free memory of this host, the process can
// open fewer than LOCKSTEP_SESSION_DESCRIPTORS_MOST descriptors, or the kernel refuses. On failure
// the caller can use private pages instead.
int regions_make(struct regions *regions, size_t bytes, void **memory);
// Frees a region. memory: the beginning of the region. Returns 0; -ENOENT: no region begins there.
int regions_free(struct regions *regions, void *memory);

// Finds the region that contains `memory`, if all mates have mapped that region. Returns the number
// of bytes, from `memory` on and at most `bytes`, that lie in the region; more bytes may lie in a
// neighbouring region. Returns 0 if no region contains the memory, if some mate has not mapped the
// region yet, or if there are no mates. Costs 30 ns: a lock that is rarely contended, and a binary
// search over at most LOCKSTEP_MAX_REGIONS regions.
size_t regions_find(struct regions *regions, const void *memory, size_t bytes, uint32_t *number,
                    uint64_t *offset);

// ---- between mates ------------------------------------------------------------------------------

// A generation begins. mates: the number of ranks of this host that take part, this rank included;
// 0: none from now on. local: this rank's number among them. Unmaps the regions that mates of an
// earlier generation passed, and forgets which mates have this rank's regions. Engine thread.
void regions_begin(struct regions *regions, uint32_t local, uint32_t mates);

// Returns a number that changes when there may be a region to pass or a freed region to report.
// Costs one load.
uint32_t regions_news(const struct regions *regions);

// Returns the descriptor of the next region to pass to mate `local`, in ascending order of numbers;
// -1: none. The descriptor is borrowed until the next call of this function or of regions_passed,
// even if the region is freed meanwhile. The caller reports with regions_passed that the region was
// passed; otherwise this function returns the same region again. Engine thread.
int regions_to_pass(struct regions *regions, uint32_t local, uint32_t *number, uint64_t *bytes);
void regions_passed(struct regions *regions, uint32_t local, uint32_t number);
// A mate reports that it has mapped a region of this rank, or, with REGION_UNMAPPED in the number,
// that it cannot map it. Returns false if that is impossible. Engine thread.
#define REGION_UNMAPPED (UINT32_C(1) << 31) // Numbers of regions are smaller.
bool regions_mapped(struct regions *regions, uint32_t local, uint32_t number);
// Sets *number to the next freed region of this rank that the mates have to unmap; each region
// comes once. Returns false if there is none. Engine thread.
bool regions_freed(struct regions *regions, uint32_t *number);

// A mate has passed the descriptor of a region; fd is given. Checks the seals and the size, and
// maps the region. Returns NULL, or the reason why an honest mate cannot have sent it. If this
// process has no room for the mapping, the result is also NULL, regions_of does not find the
// region, and the caller reports the region with REGION_UNMAPPED. Engine thread.
const char *regions_map(struct regions *regions, uint32_t local, uint32_t number, uint64_t bytes,
                        int fd);
// A mate reports that it has freed a region. Does nothing if the region is not mapped in this
// process: it was freed before it was passed here, or could not be mapped. Engine thread.
void regions_unmap(struct regions *regions, uint32_t local, uint32_t number);
// Returns the address of a place in a mate's region; NULL if the region is not mapped in this
// process, or ends before offset + bytes. Engine thread.
void *regions_of(const struct regions *regions, uint32_t local, uint32_t number, uint64_t offset,
                 uint64_t bytes);

// Makes this rank's regions private: when the call returns, no mate can write to them any more. The
// contents and addresses stay. Other threads of this process may read and write meanwhile, and none
// of their writes is lost. This protects against a mate that has stopped in the middle of writing.
// Returns 0; -ENOMEM: some regions are still shared. Engine thread.
int regions_detach(struct regions *regions);

#endif
