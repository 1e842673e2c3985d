// SPDX-License-Identifier: Apache-2.0
//
// A link is a byte stream to one peer that never blocks: TCP (tcp.c), memory shared with a process
// of this host (shm.c), a pair of bounded pipes inside this process, for tests (loopback.c), or a
// link over another link that encrypts its bytes (tls.c). A link knows no frames and no ranks.
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

// The first bytes of each direction prove who the peer is (worker/transport/form.c). The side that
// connected sends LINK_HELLO_BYTES, the side that accepted sends LINK_ANSWER_BYTES. Links in memory
// and links that encrypt carry these bytes in another way than the bytes that follow.
#define LINK_HELLO_BYTES LOCKSTEP_HELLO_BYTES
#define LINK_ANSWER_BYTES (LOCKSTEP_CHALLENGE_BYTES + LOCKSTEP_WELCOME_BYTES)
#define LINK_PLAIN_BYTES \
    (LINK_HELLO_BYTES > LINK_ANSWER_BYTES ? LINK_HELLO_BYTES : LINK_ANSWER_BYTES)
#define LINK_TOKEN_BYTES 33 // A random name of a unix socket, in hexadecimal digits, with its NUL.

struct link;
struct listener;

// What a descriptor that is passed over a link is. The peer wrote it, so the receiver checks it.
struct link_note {
    uint32_t kind; // enum link_note_kind
    uint32_t number; // Number of the region.
    uint64_t bytes; // Size of the memory behind the descriptor.
};

enum link_note_kind {
    LINK_NOTE_BOARD = 1, // The memory of the host's collectives: worker/transport/host/host.c.
    LINK_NOTE_REGION = 2, // Memory of gradients: worker/memory/regions.h.
};

// Each function but readable and close sets errno when it returns -1.
struct link_ops {
    // For a link that link_connect made. 1: it is connected; 0: not yet; -1: it failed.
    int (*connected)(struct link *link);
    // The peer has proven membership by its first bytes. Before that no descriptor of the peer was
    // accepted. key: a secret of this connection that only the two sides know. The function is NULL
    // for links to which this makes no difference.
    void (*proven)(struct link *link, const uint8_t key[LOCKSTEP_PROOF_BYTES]);
    // True if the link now carries more than the first bytes. NULL: it always does.
    bool (*ready)(struct link *link);
    // Bytes taken, at least 1; -1: EAGAIN, or the link is broken.
    ssize_t (*send)(struct link *link, const struct iovec *iov, int count);
    // For a link that is `held`. 0: all kept bytes are on their way; -1: EAGAIN, or the link is
    // broken. NULL: the link is never `held`.
    int (*push)(struct link *link);
    // Bytes received, at least 1; 0: the peer has ended its direction; -1: EAGAIN, or the link is
    // broken. Bytes that arrived before an end or a break are received first.
    ssize_t (*receive)(struct link *link, const struct iovec *iov, int count);
    // Bytes that the next receive certainly returns if it is given room for them.
    size_t (*readable)(struct link *link);
    // Bytes that the link has taken and the peer has not. NULL: not known. May cost a system call.
    size_t (*unsent)(struct link *link);
    // True if the unsent bytes have reached the peer's host, so that only the peer's process has
    // yet to take them. NULL: that is not known. May cost a system call.
    bool (*reached)(struct link *link);
    // Until the next call, fewer bytes than these need no event of `fd`; an end always makes one.
    // NULL: every byte makes an event.
    void (*await)(struct link *link, size_t bytes);
    // 0; -1 if bytes are on the way to the peer's host and the host has been silent for so long
    // that it must be gone. The host of a process that stands still is not silent: its kernel
    // answers.
    int (*check)(struct link *link);
    // The five below are NULL for links that know of changes by their descriptor only.
    // True if receive has something, an end included, or send has room again after it was full.
    // Costs no system call. NULL: epoll is asked.
    bool (*pending)(struct link *link);
    // This side is about to block (true) or runs again (false). Between the two, a peer that sends,
    // makes room or wakes makes `fd` readable. Ask pending again after sleep(true): a change before
    // it made nothing readable.
    void (*sleep)(struct link *link, bool asleep);
    // Wakes the peer if it sleeps: something that both sides watch has changed in memory.
    void (*wake)(struct link *link);
    // Passes a descriptor to the peer, with a note that says what it is; fd stays the caller's. 0;
    // -1: EAGAIN, or the link is broken. Descriptors arrive in order, but in no order with bytes.
    // After EAGAIN, which also a new link returns, the next transport_progress tries again; the
    // peer wakes this side when there is room.
    int (*pass)(struct link *link, const struct link_note *note, int fd);
    // The next descriptor that the peer passed, owned by the caller; -1 with EAGAIN: none. Costs no
    // system call if there is none.
    int (*take)(struct link *link, struct link_note *note);
    // Nothing more is sent. Bytes that were sent are still delivered.
    void (*shut)(struct link *link);
    // Frees the link. reset: true if the peer is to see a broken connection; bytes that it has not
    // received may then be lost.
    void (*close)(struct link *link, bool reset);
};

struct link {
    // set when made, then constant
    const struct link_ops *ops;
    int fd;
    bool short_is_dry; // True if a receive that does not fill its room has taken all there is.
    // the owner's
    bool held; // True if the link keeps bytes that send has taken: ops->push.
};

struct listener_ops {
    // The next connection, or NULL.
    struct link *(*accept)(struct listener *listener);
    void (*close)(struct listener *listener);
};

struct listener {
    // set when made, then constant
    const struct listener_ops *ops;
    int fd; // Readable when a connection may wait. Level-triggered.
    char address[LOCKSTEP_ADDRESS_BYTES]; // The address that link_connect takes.
    uint64_t refused; // Connections of other users of this host, closed at once.
};

// Begins to connect by the first part of an address; ops->connected reports the progress. NULL with
// a sentence in error. An address has one part, or several separated by ";", each another way to
// the same rank: "tcp:10.0.0.7:4711;unix:0123...". Every rank can use the first part. A later part
// of an unknown kind is ignored.
struct link *link_connect(const char *address, uint32_t torn_bytes, char *error,
                          size_t error_bytes);
// True if an address has a part for processes of the same host; then token is set.
bool link_token(const char *address, char token[LINK_TOKEN_BYTES]);

#endif
