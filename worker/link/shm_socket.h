// SPDX-License-Identifier: Apache-2.0
//
// The struct of a link to a rank of this host, which two files share: shm.c moves bytes through the
// rings, and shm_socket.c uses the socket beside the rings for proofs, bells and descriptors. The
// messages of the socket are declared here, too, because tests write them by hand. Thread: the
// owner of the link.

#ifndef WORKER_LINK_SHM_SOCKET_H
#define WORKER_LINK_SHM_SOCKET_H

#include "worker/link/link.h"
#include "worker/link/shm_ring.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define SHM_NOTES 64 // Most descriptors that one side has passed and the other side has not taken.

enum shm_message_kind {
    SHM_BELL = 1, // Tells the receiver to look into the memory.
    // Carries the descriptor of the link's memory. Sent once, by the side that connected.
    SHM_MEMORY = 2,
    SHM_DESCRIPTOR = 3, // Carries a passed descriptor and its note.
};

// One message on the socket, after the proofs of that direction.
struct shm_message {
    uint32_t kind; // enum shm_message_kind
    uint32_t padding;
    struct link_note note;
};

struct shm_note {
    struct link_note note;
    int fd; // -1: this process had no free descriptor for the region.
};

// Whether this side can read the memory of the other process.
enum shm_pulls {
    SHM_PULL_UNTRIED = 0,
    SHM_PULL_WORKS,
    SHM_PULL_REFUSED,
};

// A link in memory. Owner's thread only.
struct shm_link {
    struct link link;
    // set when made, then constant
    bool maker; // True if this side connected and made the memory.
    // the owner's
    bool trusted; // True if the peer has proven membership.
    bool ready; // True if this side knows that both sides have the memory.
    bool full; // True if the last send found no room, and this side has not seen room since.
    bool shut; // True if this side sends no more bytes.
    bool gone; // True if the peer's end of the socket is closed.
    // What this side last wrote to its word `asleep`; the peer may have cleared the word since.
    bool asleep;
    int error; // errno of a link that is broken for good; 0: the link is not broken.
    int memory_fd; // The maker's descriptor of the memory until it is passed; then -1.
    struct shm_memory *memory; // NULL until this side has mapped the memory.
    struct shm_writer writer;
    struct shm_reader reader;
    uint32_t plain_out; // Bytes of this side's proofs that the socket has not taken yet.
    uint32_t plain_in; // Bytes of the peer's proofs that the socket has not delivered yet.
    // plain[plain_first, plain_end) came from the socket and was not received by the owner yet.
    uint32_t plain_first;
    uint32_t plain_end;
    uint8_t plain[LINK_PLAIN_BYTES];
    uint64_t passed; // Descriptors passed to the peer so far.
    uint64_t taken; // Descriptors of the peer that were taken so far.
    uint64_t announced; // The peer's count of passed descriptors, as shm_pending last saw it.
    uint64_t probe; // This side's random number, which the peer reads to find this process.
    enum shm_pulls pulls;
    pid_t pid; // The peer's process. Set by the first pull.
    uint32_t note_first; // Index of the oldest note in notes[], which is a ring.
    uint32_t note_count;
    struct shm_note notes[SHM_NOTES];
};

// Sends one message, with a descriptor if fd is not -1. Returns 0, or -1 with errno.
int shm_socket_say(struct shm_link *shm, enum shm_message_kind kind, const struct link_note *note,
                   int fd);
// The maker passes the memory after the peer has proven membership. The caller tries again while
// the socket is full.
void shm_socket_hand_over(struct shm_link *shm);
// Takes all messages from the socket. Does nothing before the peer has proven membership.
void shm_socket_drain(struct shm_link *shm);
// Send and receive proofs over the socket. Both functions return bytes, 0 for the end, or -1 with
// errno. Until the peer has proven membership, nothing after the peer's proofs is accepted.
ssize_t shm_socket_send_plain(struct shm_link *shm, const struct iovec *iov, int count);
ssize_t shm_socket_receive_plain(struct shm_link *shm, const struct iovec *iov, int count);

static inline struct shm_link *shm_of(struct link *link)
{
    return (struct shm_link *)(void *)link;
}

// Marks the link as broken for good. Returns -1, with errno.
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

// Tells the peer that something in memory has changed: rings the bell if the peer sleeps.
static inline void shm_tell(struct shm_link *shm)
{
    struct shm_side *peer = shm_peer_side(shm);
    if (atomic_exchange_explicit(&peer->asleep, SHM_AWAKE, memory_order_acq_rel) != SHM_AWAKE)
        (void)shm_socket_say(shm, SHM_BELL, NULL, -1);
}

#endif
