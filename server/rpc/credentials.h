// SPDX-License-Identifier: Apache-2.0
//
// The daemon's side of TLS on the control streams. It uses TLS 1.3, and every worker must show a
// certificate, which is verified. The names in the certificate say what the worker may do
// (base/tls_names.h). When the files of --tls-dir change, the next handshake uses the new files if
// they are valid; open streams continue. credentials.c uses gRPC. This header declares types of its
// own, so that it does not include gRPC.
//
// Threads: the stream thread, except for the functions that gRPC calls during handshakes on its own
// threads.

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
    uint64_t reload_failures; // Times that the files changed and could not be used.
    uint64_t expires_s; // Unix time in seconds at which the current certificate expires.
};

// Reads and checks the files. directory is borrowed until close. Returns 0, or -1 with a sentence
// in error.
int rpc_credentials_open(const char *directory, struct log *log,
                         struct rpc_credentials **credentials, char *error, size_t error_bytes);

// Listens on address with TLS, or in plaintext if credentials is NULL. Returns the port, or 0 or
// less if binding failed.
int rpc_credentials_bind(struct rpc_credentials *credentials, struct grpc_server *server,
                         const char *address);

// Returns true if the peer of this call may be a worker of that job, or of any job if job is NULL.
// Always true without credentials.
bool rpc_credentials_allow(struct rpc_credentials *credentials, struct grpc_call *call,
                           const char *job);

// Returns the reason of a failed handshake, found in a line of gRPC's log, or NULL if the line is
// not about one. Call it on the thread that logs the line.
const char *rpc_credentials_failure(const char *line);

struct rpc_credentials_counts rpc_credentials_counts(struct rpc_credentials *credentials);

// Call it after every server that was bound is destroyed. NULL is allowed.
void rpc_credentials_close(struct rpc_credentials *credentials);

#endif
