// SPDX-License-Identifier: Apache-2.0
//
// How many calls each connection has, by the name that gRPC has for its other end
// ("ipv4:10.0.0.7:4711"); gRPC itself says no more of connections than that. Knows nothing of what
// a call is.
//
// Stream thread only.

#ifndef LOCKSTEP_SERVER_RPC_CONNECTIONS_H
#define LOCKSTEP_SERVER_RPC_CONNECTIONS_H

#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>

#define CONNECTIONS_BUCKETS 4096

struct connection {
    struct list link; // Its place in the bucket.
    uint32_t calls;
    uint32_t streams; // Those of its calls that are streams; the owner counts them.
    uint64_t queued; // Bytes that wait for its client; the owner counts them.
    char name[];
};

struct connections {
    struct list buckets[CONNECTIONS_BUCKETS];
};

void connections_init(struct connections *connections);

// One more call of the connection of that name, for connections_leave. NULL: it has `most`, or
// there is no memory.
struct connection *connections_enter(struct connections *connections, const char *name,
                                     uint32_t most);

// NULL: there is none of that name.
struct connection *connections_find(struct connections *connections, const char *name);

// One call less; with the last one the connection is forgotten. NULL is allowed.
void connections_leave(struct connection *connection);

#endif
