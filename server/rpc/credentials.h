// SPDX-License-Identifier: Apache-2.0
//
// The daemon's side of TLS on the control streams: TLS 1.3, a certificate is asked of every worker
// and verified, and its names say what it may do (base/tls_names.h). When the files of --tls-dir
// change, the next handshake uses what they hold then, if it is usable; streams that stand go on.
// credentials.c knows gRPC; the names below are its own, so that this header need not.
//
// Threads: the stream thread, but for what gRPC calls during handshakes, on threads of its own.

#ifndef LOCKSTEP_SERVER_RPC_CREDENTIALS_H
#define LOCKSTEP_SERVER_RPC_CREDENTIALS_H

#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct grpc_call;
struct grpc_server;
struct rpc_credentials; // Opaque.

struct rpc_credentials_counts {
    uint64_t reloads;
    uint64_t reload_failures; // Files that changed and could not be used.
    uint64_t expires_s; // Unix time at which the present certificate ends.
};

// Reads and checks the files. directory is borrowed until close. Returns 0, or -1 with a sentence
// in error.
int rpc_credentials_open(const char *directory, struct log *log,
                         struct rpc_credentials **credentials, char *error, size_t error_bytes);

// Listens on address with TLS; credentials NULL: in plaintext. Returns the port, 0 or less: it
// could not be bound.
int rpc_credentials_bind(struct rpc_credentials *credentials, struct grpc_server *server,
                         const char *address);

// Whether the peer of this call may be a worker of that job; NULL: of some job. Without credentials
// everybody may.
bool rpc_credentials_allow(struct rpc_credentials *credentials, struct grpc_call *call,
                           const char *job);

// The reason of a failed handshake, from a line of gRPC's log; NULL: the line is about none. Any
// thread; pure.
const char *rpc_credentials_failure(const char *line);

struct rpc_credentials_counts rpc_credentials_counts(struct rpc_credentials *credentials);

// After every server that was bound is destroyed. NULL is allowed.
void rpc_credentials_close(struct rpc_credentials *credentials);

#endif
