// SPDX-License-Identifier: Apache-2.0
//
// A guard in front of gRPC's sockets: it sees bytes before gRPC does. gRPC owns its sockets, and
// reads from a socket as long as data is there: 35 MB of calls that begin and are reset at once
// cost 3 GiB before the stream thread can refuse the first. So this program replaces the two system
// calls by which gRPC gets connections and bytes: accept4 and recvmsg. The linker gives the
// program's versions to every library of the process instead of libc's. Nothing else in this
// process uses recvmsg. For sockets that are not gRPC's, accept4 does what libc's does. The third
// call that is replaced is unlink, by which gRPC removes the file of a Unix socket.
//
// The guard works with TLS and in plaintext, over TCP and over Unix sockets. It also replaces a
// sanitizer's versions of the three functions.
//
// Any thread.

#ifndef LOCKSTEP_SERVER_RPC_SOCKETS_H
#define LOCKSTEP_SERVER_RPC_SOCKETS_H

#include <stdbool.h>

// Bytes that one connection may send before the stream thread has taken its next turn. A client
// with one stream sends at most a window (64 KiB) and a message in that time. A connection that
// sends more is ended.
#define RPC_TURN_BYTES (128 * 1024)

// Calls that one connection may begin in the same time. A client begins a call with 28 bytes. The
// call costs gRPC 12 KiB until the stream thread has refused it, and costs that thread 40 us. Under
// TLS the guard cannot see calls. There only the bytes are bounded, and a client without a
// certificate cannot begin calls.
#define RPC_TURN_CALLS 64

// The stream thread calls this once it has handled what was received so far; the counts start again
// at 0. Before the first turn there is no bound.
void rpc_sockets_turn(void);

// If closed is true, a connection to a Unix socket is accepted only from a process of this user or
// of root; others are disconnected. For paths in a directory that only this user may enter.
void rpc_sockets_close_to_others(bool closed);

// If kept is true, gRPC removes no file of a Unix socket. A listener that went deaf removes its
// file when its last handshake has ended. Then the file is already that of the listener in its
// place.
void rpc_sockets_keep_files(bool kept);

// Between true and false, this thread removes files all the same: it binds a path anew.
void rpc_sockets_replace_file(bool replaces);

#endif
