// SPDX-License-Identifier: Apache-2.0
//
// Calls of grpc.health.v1. Stream thread.

#ifndef SERVER_RPC_HEALTH_H
#define SERVER_RPC_HEALTH_H

#include "server/rpc/parts.h"

struct call;
struct rpc_server;

// Answers the request of a health call. Takes ownership of the buffer.
void rpc_health_answer(struct call *call, grpc_byte_buffer *payload);
// Sends the readiness to all watchers whose last answer was different.
void rpc_health_tell(struct rpc_server *server);

#endif
