// SPDX-License-Identifier: Apache-2.0
//
// A guard in front of gRPC's sockets: it sees bytes before gRPC has them. gRPC owns its sockets,
// and reads from one for as long as something is there: 35 MB of calls that are begun and reset at
// once cost 3 GiB before the stream thread can refuse the first. So the two system calls by which a
// connection and its bytes come to gRPC are functions of this program: accept4 and recvmsg, which
// the linker gives to every library of the process in the place of libc's. Nothing else of this
// process uses recvmsg, and of other sockets than gRPC's accept4 does what libc's does.
//
// The guard is the same with TLS and in plaintext, over TCP and behind a path. A sanitizer's own
// versions of the two are not used.
//
// Any thread.

#ifndef LOCKSTEP_SERVER_RPC_SOCKETS_H
#define LOCKSTEP_SERVER_RPC_SOCKETS_H

#include <stdbool.h>

// Bytes that one connection may send before the stream thread has taken its next turn. A client
// with one stream has at most a window (64 KiB) and a message under way. A connection that says
// more ends.
#define RPC_TURN_BYTES (128 * 1024)

// Calls that one connection may begin in that time. Each costs gRPC 12 KiB until the thread has
// refused it, and the thread 40 us, for 28 bytes. Under TLS calls cannot be seen; there the bytes
// are the bound, and nobody begins a call without a certificate.
#define RPC_TURN_CALLS 64

// The stream thread has heard what was said so far. Before the first turn there is no bound.
void rpc_sockets_turn(void);

// True: a connection to a path is accepted only from a process of this user or of root. For paths
// in a directory that lets nobody else in: whoever got hold of the socket nevertheless is hung up
// on.
void rpc_sockets_close_to_others(bool closed);

#endif
