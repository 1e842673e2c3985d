// SPDX-License-Identifier: Apache-2.0
//
// The anonymous memory of a link between ranks of one host: made and sealed by one side, checked
// and mapped by the other. It has no name, so the kernel frees it with the last process that has
// it. Any thread.

#ifndef WORKER_LINK_SHM_MEMORY_H
#define WORKER_LINK_SHM_MEMORY_H

#include <stdbool.h>

struct shm_memory; // worker/link/shm_ring.h

// Makes memory that is sealed and has all of its pages. Returns the descriptor, and the mapping in
// *memory; or -1 with errno.
int shm_memory_make(struct shm_memory **memory);
// True if a descriptor of the peer is memory of the right size with all of its pages, and can no
// longer change its size.
bool shm_memory_is_sound(int fd);
// Maps such memory. NULL with errno.
struct shm_memory *shm_memory_map(int fd);
// NULL is allowed.
void shm_memory_unmap(struct shm_memory *memory);

#endif
