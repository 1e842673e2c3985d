// SPDX-License-Identifier: Apache-2.0
//
// A link is a byte stream to one peer that never blocks. There are four kinds: TCP (tcp.c), memory
// shared with a process of this host (shm.c), a pair of bounded pipes inside this process, for
// tests (loopback.c), and an encrypting link over another link (tls.c). A link knows no frames and
// no ranks.
//
// Readiness: the owner registers `fd` with epoll, edge-triggered, for input and output. An event
// means only that the owner should try again, in both directions.
//
// Thread: one owner at a time. Links of one loopback pair belong to different threads.

#ifndef WORKER_LINK_LINK_H
#define WORKER_LINK_LINK_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

// The first bytes of each direction prove the identity of the peer (worker/transport/form.c). The
// side that connected sends LINK_HELLO_BYTES, the side that accepted sends LINK_ANSWER_BYTES. Links
// in memory and encrypting links carry these bytes in another way than the bytes that follow.
#define LINK_HELLO_BYTES LOCKSTEP_HELLO_BYTES
#define LINK_ANSWER_BYTES (LOCKSTEP_CHALLENGE_BYTES + LOCKSTEP_WELCOME_BYTES)
#define LINK_PLAIN_BYTES \
    (LINK_HELLO_BYTES > LINK_ANSWER_BYTES ? LINK_HELLO_BYTES : LINK_ANSWER_BYTES)
#define LINK_TOKEN_BYTES 33 // A random name of a unix socket, in hexadecimal digits, with its NUL.

struct link;
struct listener;

// Describes a descriptor that is passed over a link. The peer wrote the note, so the receiver
// checks it.
struct link_note {
    uint32_t kind; // enum link_note_kind
    uint32_t number; // Number of the region.
    uint64_t bytes; // Size in bytes of the memory behind the descriptor.
};

enum link_note_kind {
    LINK_NOTE_BOARD = 1, // The memory of the host's collectives: worker/transport/host/host.c.
    LINK_NOTE_REGION = 2, // Memory of gradients: worker/memory/regions.h.
};

// Each function except readable, unsent, round_trip_ms and close sets errno when it returns -1.
struct link_ops {
    // For a link that link_connect made. Returns 1: connected; 0: not yet connected; -1: failed.
    int (*connected)(struct link *link);
    // The peer has proven membership by its first bytes. Before this call the link accepts no
    // descriptor from the peer. key: a secret of this connection that only the two sides know;
    // borrowed for the call. NULL: the link does the same before and after the proof.
    void (*proven)(struct link *link, const uint8_t key[LOCKSTEP_PROOF_BYTES]);
    // True if the link can now carry bytes after the first bytes. NULL: the link always can.
    bool (*ready)(struct link *link);
    // Returns the number of bytes taken, at least 1; -1: EAGAIN, or the link is broken.
    ssize_t (*send)(struct link *link, const struct iovec *iov, int count);
    // Sends bytes that a link with `held` set keeps. Returns 0: no kept bytes are left; -1: EAGAIN,
    // or the link is broken. NULL: the link never sets `held`.
    int (*push)(struct link *link);
    // Returns the number of bytes received, at least 1; 0: the peer has ended its direction; -1:
    // EAGAIN, or the link is broken. Bytes that arrived before an end or a break are received
    // first.
    ssize_t (*receive)(struct link *link, const struct iovec *iov, int count);
    // Returns the bytes that the next receive returns for certain, given enough room.
    size_t (*readable)(struct link *link);
    // Returns the bytes that the link has taken and the peer has not. NULL: the link does not know.
    // May cost a system call.
    size_t (*unsent)(struct link *link);
    // Returns the smoothed round trip to the peer's host, in ms. NULL: less than one ms. Costs a
    // system call.
    uint32_t (*round_trip_ms)(struct link *link);
    // True if the unsent bytes have reached the peer's host, and only the peer's process has not
    // taken them yet. NULL: the link does not know. May cost a system call.
    bool (*reached)(struct link *link);
    // Until the next call of await, `fd` need not report fewer than `bytes` bytes. An end always
    // makes an event. NULL: every byte makes an event.
    void (*await)(struct link *link, size_t bytes);
    // Returns -1 if bytes are on the way to the peer's host and the host has been silent for so
    // long that it must be gone; else 0. The host of a stopped process is not silent, because its
    // kernel answers.
    int (*check)(struct link *link);
    // The next five functions are NULL for links that report changes only by their descriptor.
    // True if receive has bytes or an end to return, or if send has room again after it was full.
    // Costs no system call. NULL: only epoll tells.
    bool (*pending)(struct link *link);
    // This side is about to block (true) or runs again (false). Between the two calls, `fd` becomes
    // readable when the peer sends, makes room or calls wake. The caller must call pending again
    // after sleep(true), because an earlier change has not made `fd` readable.
    void (*sleep)(struct link *link, bool asleep);
    // Wakes the peer if it sleeps, because memory that both sides watch has changed.
    void (*wake)(struct link *link);
    // Passes a descriptor to the peer, with a note that describes it; fd stays the caller's.
    // Returns 0; -1: EAGAIN, or the link is broken. Descriptors arrive in order among themselves,
    // but in no order relative to bytes. A new link also returns EAGAIN. After EAGAIN the next
    // transport_progress tries again; the peer wakes this side when there is room.
    int (*pass)(struct link *link, const struct link_note *note, int fd);
    // Returns the next descriptor that the peer passed, given to the caller; -1 with EAGAIN: none.
    // -1 with EMFILE: the peer passed a region, and this process had no free descriptor for it;
    // the note is set.
    // Costs no system call if there is none.
    int (*take)(struct link *link, struct link_note *note);
    // Copies `bytes` bytes at `address` in the peer's process to `to`. The peer has said that the
    // memory holds still until it hears of the end. Several pulls may copy one piece of memory; if
    // the one with `last` returns 0, all of them have copied the peer's bytes. Returns 0; -1: this
    // link cannot do that, or the memory cannot be read, or the peer has ended. A part may have
    // been copied then. NULL: the link never can. Blocks for the time of the copy.
    int (*pull)(struct link *link, uint64_t address, void *to, size_t bytes, bool last);
    // True if pull may work: it has not been tried yet, or has worked. NULL if pull is.
    bool (*pulls)(const struct link *link);
    // Ends this side's direction: the link sends no more bytes. Bytes that were sent are still
    // delivered.
    void (*shut)(struct link *link);
    // Frees the link. reset: true if the peer must see a broken connection; then bytes that the
    // peer has not received may be lost.
    void (*close)(struct link *link, bool reset);
};

struct link {
    // set when made, then constant
    const struct link_ops *ops;
    int fd;
    // True if a receive that fills only a part of its room has taken all bytes that there are.
    bool short_is_dry;
    // the owner's
    bool held; // True if the link keeps bytes that send has taken; ops->push sends them.
};

struct listener_ops {
    // Returns the next connection; NULL if none waits.
    struct link *(*accept)(struct listener *listener);
    void (*close)(struct listener *listener);
};

struct listener {
    // set when made, then constant
    const struct listener_ops *ops;
    int fd; // Readable when a connection waits. Level-triggered.
    char address[LOCKSTEP_ADDRESS_BYTES]; // The address that link_connect takes.
    uint64_t refused; // Connections from other users of this host, which were closed at once.
};

// Begins to connect to the first part of an address; ops->connected reports the progress. Returns
// NULL with a sentence in error on failure. An address has one part, or several parts separated by
// ";". Each part is another way to reach the same rank: "tcp:10.0.0.7:4711;unix:0123...". Every
// rank can use the first part. Later parts of an unknown kind are ignored. torn_bytes: see
// loopback.h.
struct link *link_connect(const char *address, uint32_t torn_bytes, char *error,
                          size_t error_bytes);
// True if an address has a part for processes of the same host. Then `token` holds the name of that
// part's socket.
bool link_token(const char *address, char token[LINK_TOKEN_BYTES]);

#endif
