// SPDX-License-Identifier: Apache-2.0
//
// The listener that calls come from. Stream thread.

#ifndef SERVER_RPC_LISTENER_H
#define SERVER_RPC_LISTENER_H

#include <stdint.h>

struct listener;
struct rpc_server;

// Returns the port, or 0: it could not be bound.
int rpc_listener_open(struct rpc_server *server);
// Calls and connections that stand go on; it is freed when the last has ended.
void rpc_listener_close(struct listener *listener);
void rpc_listener_release(struct listener *listener); // One of what it waits for has ended.
// Gives up a listener that went deaf, and opens another one when it is time.
void rpc_listener_reopen(struct rpc_server *server, uint64_t now_ms);

#endif
