// SPDX-License-Identifier: Apache-2.0
//
// Counts the calls of each connection. A connection is identified by gRPC's name for its peer
// ("ipv4:10.0.0.7:4711"), which is all that gRPC says of connections. This file does not use struct
// call.
//
// Stream thread only.

#ifndef LOCKSTEP_SERVER_RPC_CONNECTIONS_H
#define LOCKSTEP_SERVER_RPC_CONNECTIONS_H

#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>

#define CONNECTIONS_BUCKETS 4096

struct connection {
    struct list link; // The link in its bucket of the hash table.
    uint32_t calls;
    uint32_t streams; // Calls that are streams. The caller counts them.
    uint64_t queued; // Bytes that are queued for the client. The caller counts them.
    char name[];
};

struct connections {
    struct list buckets[CONNECTIONS_BUCKETS];
};

void connections_init(struct connections *connections);

// Counts one more call of the connection with that name, and returns the connection.
// connections_leave undoes it. Returns NULL if the connection has `most` calls already, or there is
// no memory.
struct connection *connections_enter(struct connections *connections, const char *name,
                                     uint32_t most);

// Returns the connection with that name, or NULL if there is none.
struct connection *connections_find(struct connections *connections, const char *name);

// Counts one call less. A connection without calls is freed. NULL is allowed.
void connections_leave(struct connection *connection);

#endif
