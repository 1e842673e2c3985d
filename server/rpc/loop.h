// SPDX-License-Identifier: Apache-2.0
//
// The loop of the stream thread.

#ifndef SERVER_RPC_LOOP_H
#define SERVER_RPC_LOOP_H

struct rpc_server;

// Before rpc_server_wake.
void rpc_loop_open_wake(struct rpc_server *server);
// Serves until stop, on the calling thread.
void rpc_server_run(struct rpc_server *server);
// Makes the loop take a turn. Any thread, until rpc_server_close.
void rpc_server_wake(struct rpc_server *server);

#endif
