// SPDX-License-Identifier: Apache-2.0
//
// Calls of grpc.health.v1. Stream thread.

#ifndef SERVER_RPC_HEALTH_H
#define SERVER_RPC_HEALTH_H

#include "server/rpc/parts.h"

struct call;
struct rpc_server;

// The question of a call has come; takes the buffer.
void rpc_health_answer(struct call *call, grpc_byte_buffer *payload);
// Readiness may have changed.
void rpc_health_tell(struct rpc_server *server);

#endif
