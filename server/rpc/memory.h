// SPDX-License-Identifier: Apache-2.0
//
// Ends connections while all together have more memory than their bound. Stream thread.

#ifndef SERVER_RPC_MEMORY_H
#define SERVER_RPC_MEMORY_H

#include <stdint.h>

struct rpc_server;

// Looks at memory when it is time, and ends what is too much.
void rpc_memory_keep(struct rpc_server *server, uint64_t now_ms);

#endif
