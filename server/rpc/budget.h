// SPDX-License-Identifier: Apache-2.0
//
// The bound on the memory of all connections together. Each connection has bounds of its own, but
// gRPC does not let us make them so small that a host could spare the sum: the bound for a client
// that does not read is a number of frames, and a client with a certificate may have as many
// connections as there are descriptors. So the sum is measured. While it is above its bound,
// connections end, those first that a job misses least.
//
// This file knows the allocator and the system's sockets. The caller says which calls end with a
// connection.
//
// Stream thread only.

#ifndef LOCKSTEP_SERVER_RPC_BUDGET_H
#define LOCKSTEP_SERVER_RPC_BUDGET_H

#include "server/rpc/connections.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUDGET_SOCKETS 8192 // More descriptors than this process may have.

// Bytes that this process has from its allocator. 0 under a sanitizer, which has its own.
uint64_t budget_memory(void);

// Gives the system back what is free.
void budget_trim(void);

// One connection of a listener.
struct budget_socket {
    int fd;
    uint64_t unread; // Bytes that its client does not take, here and in the kernel; 0: a few.
    struct connection *connection; // NULL: it has no call.
};

// The connections that were accepted at this port and have not been ended, in the order in which
// they end: those first that have no stream, among these or the others whoever has the most unread,
// then whoever has the most calls. Returns their number. leaving: of others, which have been ended
// and whose memory will be given back when gRPC has seen that.
size_t budget_sockets(struct connections *connections, uint16_t port,
                      struct budget_socket sockets[BUDGET_SOCKETS], size_t *leaving);

// Whether it does what a worker does: it has a stream, one call for it, and reads.
bool budget_is_modest(const struct budget_socket *socket);

// Ends a connection; what is under way to its client is dropped. The descriptor stays its owner's.
void budget_end(const struct budget_socket *socket);

#endif
