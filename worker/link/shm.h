// SPDX-License-Identifier: Apache-2.0
//
// Links to ranks of this host, over memory that both processes have mapped. unix.c connects them.

#ifndef WORKER_LINK_SHM_H
#define WORKER_LINK_SHM_H

struct link;
struct shm_memory;

// Makes a link over a connected socket, which the link owns from now on. The side that connected
// also gives its memory and the memory's descriptor; the other side passes NULL and -1. Returns
// NULL if there is no memory; then the descriptors are closed and the memory is unmapped.
struct link *shm_link_make(int fd, struct shm_memory *memory, int memory_fd);

#endif
