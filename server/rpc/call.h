// SPDX-License-Identifier: Apache-2.0
//
// One call (RPC), from its beginning to its end. Stream thread.

#ifndef SERVER_RPC_CALL_H
#define SERVER_RPC_CALL_H

#include "server/rpc/parts.h"
#include "server/rpc/server.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct listener;

// Starts to serve a call of this method. Takes ownership of the grpc_call.
void rpc_call_open(struct listener *listener, enum method method, grpc_call *grpc);
// Copies a message to the end of the call's send queue. Returns false if there is no memory.
bool rpc_call_queue(struct call *call, const uint8_t *bytes, size_t size);
void rpc_call_drop_queue(struct call *call);
// Starts the next batch that sends, if none is in flight and something is to be sent.
void rpc_call_pump(struct call *call);
// Three ways to end a call. finish ends it after everything queued was sent. abort drops the queue
// and sends the status, or cancels the call if a message is still being sent. cancel ends the call
// at once; the peer gets the status if its connection still works.
void rpc_call_finish(struct call *call, enum rpc_status status, const char *text);
void rpc_call_abort(struct call *call, enum rpc_status status, const char *text);
void rpc_call_cancel(struct call *call, enum rpc_status status, const char *text);
// Tells the service that the call's stream has ended. Only the first call has an effect.
void rpc_call_report_closed(struct call *call, const char *text);
// Returns the stream with that name, or NULL if there is none or it has ended.
struct call *rpc_server_find(struct rpc_server *server, rpc_peer peer);

#endif
