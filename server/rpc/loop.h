// SPDX-License-Identifier: Apache-2.0
//
// The loop of the stream thread.

#ifndef SERVER_RPC_LOOP_H
#define SERVER_RPC_LOOP_H

struct rpc_server;

// Prepares rpc_server_wake. Call it before the first wake.
void rpc_loop_open_wake(struct rpc_server *server);
// Serves on the calling thread until the server has stopped.
void rpc_server_run(struct rpc_server *server);
// Makes the loop take a turn. Any thread may call it until rpc_server_close.
void rpc_server_wake(struct rpc_server *server);

#endif
