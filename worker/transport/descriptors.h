// SPDX-License-Identifier: Apache-2.0
//
// The descriptors that a transport has open. Engine thread, but for transport_forked.

#ifndef WORKER_TRANSPORT_DESCRIPTORS_H
#define WORKER_TRANSPORT_DESCRIPTORS_H

#include "protos/limits.h"
#include "worker/transport/flow/peers.h"

#include <stdatomic.h>
#include <stdbool.h>

// Two listeners, wake-up, epoll, the peers and the unproven.
#define DESCRIPTORS_MOST (4 + LOCKSTEP_MAX_NEIGHBOURS + LOCKSTEP_MAX_UNPROVEN + 1)

struct transport;

struct descriptors {
    int epoll;
    struct endpoint wake_endpoint;
    atomic_int open[DESCRIPTORS_MOST]; // For a forked child; -1: free.
};

// From now on a forked child closes it.
void transport_register(struct transport *transport, int fd);
// Registers it, and has epoll watch it. link: by edges, for what comes and what can be sent.
bool transport_watch(struct transport *transport, int fd, struct endpoint *endpoint, bool link);
void transport_unwatch(struct transport *transport, int fd);
// In a forked child, from the atfork handler: closes every descriptor, frees nothing. Only calls
// that are safe there.
void transport_forked(struct transport *transport);

#endif
