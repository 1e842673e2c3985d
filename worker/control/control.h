// SPDX-License-Identifier: Apache-2.0
//
// The worker's end of the control stream: one bidirectional gRPC stream, kept by one thread of its
// own. It moves messages and reports the state of the stream; it knows nothing of their meaning.
// grpc.c implements it; it and credentials.c are the only files of the worker that
// include gRPC.
//
// Heartbeats are messages like others, but only the newest is of use: while one waits to be sent,
// further ones are refused.

#ifndef WORKER_CONTROL_CONTROL_H
#define WORKER_CONTROL_CONTROL_H

#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>

struct control; // Opaque.

struct control_events {
    // Both called on the control thread, one at a time. They must not block and must not call
    // control_close.
    void (*received)(void *context, const struct down_message *message); // Borrowed for the call.
    // The stream ended: text is a sentence ("connection refused", "unavailable: ..."). Called once.
    void (*ended)(void *context, const char *text);
    void *context;
};

// Where the coordinator is, and how it is spoken to. Copied.
struct control_target {
    const char *address; // "host:port", "[::1]:port" or "unix:/path".
    uint64_t connect_timeout_ms;
    const char *tls_dir; // base/tls_files.h; NULL or "": plaintext.
    const char *job; // That the certificate has to be for.
};

#endif
