// SPDX-License-Identifier: Apache-2.0
//
// The lines of gRPC's log. Any thread.

#ifndef SERVER_RPC_LOG_H
#define SERVER_RPC_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct log;

// From now on it comes here, and goes nowhere until rpc_log_pass_on. Before grpc_init.
void rpc_log_take(void);
void rpc_log_pass_on(struct log *log);
// Whether an accept has failed since this was asked last.
bool rpc_log_said_deaf(void);
// Failed handshakes of TLS since the start.
uint64_t rpc_log_handshakes_failed(void);

#endif
