// SPDX-License-Identifier: Apache-2.0
//
// The lines of gRPC's log. Any thread.

#ifndef SERVER_RPC_LOG_H
#define SERVER_RPC_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct log;

// Takes gRPC's log over. Its lines are dropped until rpc_log_pass_on sets a log for them. Call it
// before grpc_init.
void rpc_log_take(void);
void rpc_log_pass_on(struct log *log);
// Returns true if an accept has failed since the last call of this function.
bool rpc_log_said_deaf(void);
// Returns the number of failed TLS handshakes since the start.
uint64_t rpc_log_handshakes_failed(void);

#endif
