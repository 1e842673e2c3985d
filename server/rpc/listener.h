// SPDX-License-Identifier: Apache-2.0
//
// The listener that accepts connections and calls.

#ifndef SERVER_RPC_LISTENER_H
#define SERVER_RPC_LISTENER_H

#include <stdint.h>

struct listener;
struct rpc_server;

// Returns the port, or 0 if it could not be bound.
int rpc_listener_open(struct rpc_server *server);
// Stops accepting. Open calls and connections continue; the listener is freed when the last of them
// has ended.
void rpc_listener_close(struct listener *listener);
// Gives back one of listener->pending. At 0 the listener is freed.
void rpc_listener_release(struct listener *listener);
// Closes a listener that went deaf, and opens a new one when the waiting time is over.
void rpc_listener_reopen(struct rpc_server *server, uint64_t now_ms);

#endif
