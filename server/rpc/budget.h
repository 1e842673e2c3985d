// SPDX-License-Identifier: Apache-2.0
//
// The bound on the memory of all connections together. Each connection has bounds of its own, but
// gRPC does not allow bounds so small that a host has memory for their sum: the bound for a client
// that does not read is a number of frames, and a client with a certificate may open as many
// connections as there are descriptors. So the sum is measured. While the sum is above its bound,
// connections are ended, beginning with those that jobs need least.
//
// This file uses the allocator and the system's sockets. The caller ends the calls of a connection.
//
// Stream thread only.

#ifndef LOCKSTEP_SERVER_RPC_BUDGET_H
#define LOCKSTEP_SERVER_RPC_BUDGET_H

#include "server/rpc/connections.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUDGET_SOCKETS 8192 // More than the descriptors that this process may open.

// Returns the bytes that this process has allocated. Returns 0 under a sanitizer, which has its own
// allocator.
uint64_t budget_memory(void);

// Gives free memory back to the system.
void budget_trim(void);

// One connection of a listener.
struct budget_socket {
    int fd;
    // Bytes that the client has not read, queued here and in the kernel. Small amounts count as 0.
    uint64_t unread;
    struct connection *connection; // NULL: the socket has no call.
};

// Fills sockets with the open connections that were accepted at this port, in the order in which
// they should be ended: first those without a stream, then those with one. Among these, connections
// with more unread bytes come first, then those with more calls. Returns their number. *leaving:
// how many connections were ended already but are still known to gRPC, so that their memory is not
// free yet.
size_t budget_sockets(struct connections *connections, uint16_t port,
                      struct budget_socket sockets[BUDGET_SOCKETS], size_t *leaving);

// Returns true if the connection looks like a worker's: it has one stream and no other call, and
// its client reads.
bool budget_is_modest(const struct budget_socket *socket);

// Ends a connection and drops bytes on the way to its client. The descriptor still belongs to gRPC,
// which closes it.
void budget_end(const struct budget_socket *socket);

#endif
