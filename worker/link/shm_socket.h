// SPDX-License-Identifier: Apache-2.0
//
// A link to a rank of this host as its two files share it: shm.c, which moves bytes through the
// rings, and shm_socket.c, which uses the socket beside them for proofs, bells and descriptors. The
// messages of the socket stand here, too, for tests that write them by hand. Thread: the owner of
// the link.

#ifndef WORKER_LINK_SHM_SOCKET_H
#define WORKER_LINK_SHM_SOCKET_H

#include "worker/link/link.h"
#include "worker/link/shm_ring.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define SHM_NOTES 64 // Descriptors that one side may have passed and the other not taken.

enum shm_message_kind {
    SHM_BELL = 1, // The receiver looks into the memory.
    SHM_MEMORY = 2, // With a descriptor: the link's memory. Once, from the side that connected.
    SHM_DESCRIPTOR = 3, // With a descriptor and its note.
};

// One message of the socket, behind the proofs of each direction.
struct shm_message {
    uint32_t kind; // enum shm_message_kind
    uint32_t padding;
    struct link_note note;
};

struct shm_note {
    struct link_note note;
    int fd;
};

// A link. Its owner's thread only.
struct shm_link {
    struct link link;
    // set when made, then constant
    bool maker; // True if this side connected and made the memory.
    // the owner's
    bool trusted; // True if the peer has proven membership.
    bool ready; // True if both sides have the memory, as far as this one knows.
    bool full; // True if the last send found no room, and no room was seen since.
    bool shut; // True if nothing more is sent.
    bool gone; // True if the socket has ended.
    bool asleep; // As this side last said in memory; the peer may have cleared it since.
    int error; // errno of a link that is broken for good; 0: it is not.
    int memory_fd; // The maker's descriptor until it is passed; then -1.
    struct shm_memory *memory; // NULL until this side has it.
    struct shm_writer writer;
    struct shm_reader reader;
    uint32_t plain_out; // Bytes that still have to be sent over the socket.
    uint32_t plain_in; // Bytes that still have to come over the socket.
    uint32_t plain_first; // plain[plain_first, plain_end): bytes that came and were not received.
    uint32_t plain_end;
    uint8_t plain[LINK_PLAIN_BYTES];
    uint64_t passed; // Descriptors passed to the peer so far.
    uint64_t taken; // Descriptors of the peer that were taken so far.
    uint64_t announced; // Descriptors that the peer has passed, as last noticed.
    uint32_t note_first; // Index in notes, which is a ring.
    uint32_t note_count;
    struct shm_note notes[SHM_NOTES];
};

// Sends one message, with a descriptor if fd is not -1. 0, or -1 with errno.
int shm_socket_say(struct shm_link *shm, enum shm_message_kind kind, const struct link_note *note,
                   int fd);
// The maker passes the memory, once the peer has proven membership. Tried again while the socket is
// full.
void shm_socket_hand_over(struct shm_link *shm);
// Takes all messages that are there. Does nothing before the peer has proven membership.
void shm_socket_drain(struct shm_link *shm);
// The proofs travel over the socket. Both return bytes, 0 for the end, or -1 with errno. Before the
// peer has proven membership nothing behind its proofs is read.
ssize_t shm_socket_send_plain(struct shm_link *shm, const struct iovec *iov, int count);
ssize_t shm_socket_receive_plain(struct shm_link *shm, const struct iovec *iov, int count);

static inline struct shm_link *shm_of(struct link *link)
{
    return (struct shm_link *)(void *)link;
}

// The link is broken for good: -1, with errno.
static inline ssize_t shm_fail(struct shm_link *shm, int number)
{
    if (shm->error == 0)
        shm->error = number;
    errno = number;
    return -1;
}

static inline struct shm_side *shm_own_side(const struct shm_link *shm)
{
    return &shm->memory->sides[shm->maker ? 0 : 1];
}

static inline struct shm_side *shm_peer_side(const struct shm_link *shm)
{
    return &shm->memory->sides[shm->maker ? 1 : 0];
}

// Something in memory has changed. Rings the bell if the peer sleeps.
static inline void shm_tell(struct shm_link *shm)
{
    struct shm_side *peer = shm_peer_side(shm);
    if (atomic_exchange_explicit(&peer->asleep, SHM_AWAKE, memory_order_acq_rel) != SHM_AWAKE)
        (void)shm_socket_say(shm, SHM_BELL, NULL, -1);
}

#endif
