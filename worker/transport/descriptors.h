// SPDX-License-Identifier: Apache-2.0
//
// The file descriptors that a transport has open. Engine thread, except transport_forked.

#ifndef WORKER_TRANSPORT_DESCRIPTORS_H
#define WORKER_TRANSPORT_DESCRIPTORS_H

#include "protos/limits.h"
#include "worker/transport/flow/peers.h"
#include "worker/transport/ports.h"

#include <stdatomic.h>
#include <stdbool.h>

// Two listeners, the eventfd that wakes the engine, epoll, one per link, one per guest, one per
// mate, one per attempt at a port, one spare.
#define DESCRIPTORS_MOST \
    (4 + LOCKSTEP_MAX_LINKS + LOCKSTEP_MAX_UNPROVEN + LOCKSTEP_MAX_MATES + PORTS_AT_ONCE + 1)

struct transport;

struct descriptors {
    int epoll;
    struct endpoint wake_endpoint;
    // The descriptors that a forked child closes; -1: a free place.
    atomic_int open[DESCRIPTORS_MOST];
};

// Records the descriptor: from now on a forked child closes it.
void transport_register(struct transport *transport, int fd);
// Registers the descriptor and adds it to epoll. link: true for the descriptor of a link, which
// epoll watches edge-triggered for reading and writing; other descriptors are watched for reading
// only. False: epoll refused the descriptor.
bool transport_watch(struct transport *transport, int fd, struct endpoint *endpoint, bool link);
void transport_unwatch(struct transport *transport, int fd);
// Runs in a forked child, from the atfork handler: closes every registered descriptor and frees
// nothing. Makes only async-signal-safe calls.
void transport_forked(struct transport *transport);

#endif
