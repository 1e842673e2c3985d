// SPDX-License-Identifier: Apache-2.0
//
// A link is a byte stream to one peer that never blocks: TCP (tcp.c), memory shared with a
// process of this host (shm.c), or a pair of bounded pipes inside this process, for tests
// (loopback.c); or one over another one that encrypts what passes (tls.c). It knows no
// frames and no ranks.
//
// Readiness: `fd` is registered with epoll, edge-triggered, for input and output. An event means
// "try again", in both directions; nothing else is promised.
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

// So many bytes of each direction come first and prove who the peer is (worker/transport/form.c):
// those of whoever has connected, and those of whoever has accepted. Links in memory, and those
// that encrypt, carry them otherwise than what follows.
#define LINK_HELLO_BYTES LOCKSTEP_HELLO_BYTES
#define LINK_ANSWER_BYTES (LOCKSTEP_CHALLENGE_BYTES + LOCKSTEP_WELCOME_BYTES)
#define LINK_PLAIN_BYTES \
    (LINK_HELLO_BYTES > LINK_ANSWER_BYTES ? LINK_HELLO_BYTES : LINK_ANSWER_BYTES)
#define LINK_TOKEN_BYTES 33 // A random name of a unix socket, in hexadecimal digits, with its NUL.

struct link;
struct listener;

// What a descriptor that is passed over a link is. Of the peer's making: to be checked.
struct link_note {
    uint32_t kind; // enum link_note_kind
    uint32_t number; // Of a region.
    uint64_t bytes; // Of the memory behind it.
};

enum link_note_kind {
    LINK_NOTE_BOARD = 1, // The memory of the host's collectives: worker/transport/host/host.c.
    LINK_NOTE_REGION = 2, // Memory of gradients: worker/memory/regions.h.
};

// Each function but readable and close sets errno when it returns -1.
struct link_ops {
    // Of a link that link_connect made: 1 it stands, 0 not yet, -1 it failed.
    int (*connected)(struct link *link);
    // The peer has proven membership by those bytes, and no descriptor of it was accepted before.
    // key: what only the two of them know, of this connection. NULL where that changes nothing.
    void (*proven)(struct link *link, const uint8_t key[LOCKSTEP_PROOF_BYTES]);
    // Whether it carries more than those bytes by now. NULL: it always does.
    bool (*ready)(struct link *link);
    // Bytes taken, at least 1; -1: EAGAIN, or the link is broken.
    ssize_t (*send)(struct link *link, const struct iovec *iov, int count);
    // Of a link that is `held`: 0, all of it is on its way; -1: EAGAIN, or broken. NULL: never so.
    int (*push)(struct link *link);
    // Bytes received, at least 1; 0: the peer has ended its direction; -1: EAGAIN, or broken. What
    // arrived before an end or a break is received first.
    ssize_t (*receive)(struct link *link, const struct iovec *iov, int count);
    // Bytes that the next receive returns for certain, if it is given the room.
    size_t (*readable)(struct link *link);
    // Bytes that it has taken, and the peer has not. NULL: not known. May cost a system call.
    size_t (*unsent)(struct link *link);
    // True if the unsent bytes have reached the peer's host, so that only the peer's process has
    // yet to take them. NULL: that is not known. May cost a system call.
    bool (*reached)(struct link *link);
    // Fewer bytes than these are not worth an event of `fd`, until it is called again; an end
    // always is. NULL: every byte is worth one.
    void (*await)(struct link *link, size_t bytes);
    // 0; -1 when the peer's host has been silent for so long, with bytes on the way to it, that it
    // must be gone. A peer process that stands still is not silent: its kernel answers.
    int (*check)(struct link *link);
    // The five below are NULL for links that know of changes by their descriptor only.
    // Whether receive has something, an end included, or send has room that it did not have the
    // last time it was full. Costs no system call. Where it is NULL, epoll is asked.
    bool (*pending)(struct link *link);
    // This side is about to block (true) or runs again (false). Between the two a peer that sends,
    // makes room or wakes makes `fd` readable. Ask pending again after sleep(true): what came
    // before it did not.
    void (*sleep)(struct link *link, bool asleep);
    // Makes the peer look, if it sleeps: something that both know of has changed in memory.
    void (*wake)(struct link *link);
    // Hands a descriptor to the peer with a few bytes that say what it is; fd stays the caller's.
    // 0; -1: EAGAIN, or the link is broken. Descriptors arrive in order, not ordered with bytes.
    // EAGAIN, also while the link is young: to be tried again in the next transport_progress; the
    // peer makes this side run when there is room.
    int (*pass)(struct link *link, const struct link_note *note, int fd);
    // The next descriptor passed by the peer, to be owned; -1 with EAGAIN: none. Costs no system
    // call when there is none.
    int (*take)(struct link *link, struct link_note *note);
    // No more is sent. What has been is still delivered.
    void (*shut)(struct link *link);
    // Frees. reset: the peer sees a broken connection, and what it has not received may be lost.
    void (*close)(struct link *link, bool reset);
};

struct link {
    // set when made, then constant
    const struct link_ops *ops;
    int fd;
    bool short_is_dry; // A receive that returned less than it was given room for took all there is.
    // the owner's
    bool held; // It keeps bytes that send has taken: ops->push.
};

struct listener_ops {
    // The next connection, or NULL.
    struct link *(*accept)(struct listener *listener);
    void (*close)(struct listener *listener);
};

struct listener {
    // set when made, then constant
    const struct listener_ops *ops;
    int fd; // Readable when there may be something to accept. Level-triggered.
    char address[LOCKSTEP_ADDRESS_BYTES]; // For link_connect.
    uint64_t refused; // Connections of other users of this host, closed at once.
};

// An address is one part, or several separated by ";", each another way to the same rank:
// "tcp:10.0.0.7:4711;unix:0123...". The first part is for everybody. Of the others unknown ones are
// ignored. Begins to connect by the first part; ops->connected says how it goes. NULL with a
// sentence in error.
struct link *link_connect(const char *address, uint32_t torn_bytes, char *error,
                          size_t error_bytes);
// Whether an address has a part for processes of the same host, and its token.
bool link_token(const char *address, char token[LINK_TOKEN_BYTES]);

#endif
