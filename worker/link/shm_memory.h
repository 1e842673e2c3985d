// SPDX-License-Identifier: Apache-2.0
//
// The anonymous memory of a link between ranks of one host. One side makes and seals the memory,
// the other side checks and maps it. The memory has no name, so the kernel frees it when the last
// process that holds it ends. Any thread.

#ifndef WORKER_LINK_SHM_MEMORY_H
#define WORKER_LINK_SHM_MEMORY_H

#include <stdbool.h>

struct shm_memory; // worker/link/shm_ring.h

// Makes memory that is sealed and whose pages are all allocated. Returns the descriptor, and the
// mapping in *memory; or -1 with errno.
int shm_memory_make(struct shm_memory **memory);
// True if a descriptor of the peer is memory of the right size, whose pages are all allocated and
// whose size can no longer change.
bool shm_memory_is_sound(int fd);
// Maps the memory. The caller checks a descriptor of the peer with shm_memory_is_sound before.
// Returns NULL with errno on failure.
struct shm_memory *shm_memory_map(int fd);
// Does nothing if memory is NULL.
void shm_memory_unmap(struct shm_memory *memory);

#endif
