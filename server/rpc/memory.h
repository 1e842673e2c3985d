// SPDX-License-Identifier: Apache-2.0
//
// Ends connections while the process uses more memory than its bound.

#ifndef SERVER_RPC_MEMORY_H
#define SERVER_RPC_MEMORY_H

#include <stdint.h>

struct rpc_server;

// Measures memory if it is time to, and ends connections while memory is above the bound.
void rpc_memory_keep(struct rpc_server *server, uint64_t now_ms);

#endif
