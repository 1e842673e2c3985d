// SPDX-License-Identifier: Apache-2.0
//
// Links to ranks of this host, over memory that both processes have mapped. unix.c connects them.

#ifndef WORKER_LINK_SHM_H
#define WORKER_LINK_SHM_H

struct link;
struct shm_memory;

// Takes the connected socket. The side that connected also gives its memory and the memory's
// descriptor, which are owned from now on; the other side gives NULL and -1. NULL without memory;
// then everything is closed.
struct link *shm_link_make(int fd, struct shm_memory *memory, int memory_fd);

#endif
