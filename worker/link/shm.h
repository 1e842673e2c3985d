// SPDX-License-Identifier: Apache-2.0
//
// What unix.c (who connects to whom) needs of shm.c (the link), and what travels over the
// socket of such a link besides the hellos: for tests that speak by hand.

#ifndef WORKER_LINK_SHM_H
#define WORKER_LINK_SHM_H

#include "worker/link/link.h"

#define SHM_NOTES 64 // Descriptors that a side may have passed and the other not taken.

enum shm_message_kind {
    SHM_BELL = 1, // Look into the memory.
    SHM_MEMORY =
        2, // With a descriptor: the memory of the link. Once, from the side that connected.
    SHM_DESCRIPTOR = 3, // With a descriptor and its note.
};

// One message of the socket, behind the proofs of each direction.
struct shm_message {
    uint32_t kind; // enum shm_message_kind
    uint32_t padding;
    struct link_note note;
};

struct shm_memory;

// Anonymous memory for a link: sealed, and every page of it there. Returns the descriptor, and the
// mapping in *memory; -1 with errno.
int shm_memory_make(struct shm_memory **memory);
void shm_memory_unmap(struct shm_memory *memory);

// Takes the connected socket, and of the side that connects the memory with its descriptor (of the
// other: NULL and -1). NULL without memory; then everything is closed.
struct link *shm_link_make(int fd, struct shm_memory *memory, int memory_fd);

#endif
