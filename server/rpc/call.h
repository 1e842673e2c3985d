// SPDX-License-Identifier: Apache-2.0
//
// One call, from its beginning to its end. Stream thread.

#ifndef SERVER_RPC_CALL_H
#define SERVER_RPC_CALL_H

#include "server/rpc/parts.h"
#include "server/rpc/server.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct listener;

// Begins to serve a call of this method; takes the grpc_call.
void rpc_call_open(struct listener *listener, enum method method, grpc_call *grpc);
// Copies a message behind those that wait to be sent. False: there is no memory.
bool rpc_call_queue(struct call *call, const uint8_t *bytes, size_t size);
void rpc_call_drop_queue(struct call *call);
// Starts the next batch that sends, if one is due.
void rpc_call_pump(struct call *call);
// Three ends: after everything queued was sent; without what waits, but with a status that arrives
// unless a message is stuck on its way; and at once, the peer is told if it still listens.
void rpc_call_finish(struct call *call, enum rpc_status status, const char *text);
void rpc_call_abort(struct call *call, enum rpc_status status, const char *text);
void rpc_call_cancel(struct call *call, enum rpc_status status, const char *text);
// Tells the service that its stream is over, once.
void rpc_call_report_closed(struct call *call, const char *text);
// The stream of that name, if it can still be spoken to.
struct call *rpc_server_find(struct rpc_server *server, rpc_peer peer);

#endif
