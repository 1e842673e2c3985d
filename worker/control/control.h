// SPDX-License-Identifier: Apache-2.0
//
// The worker's end of the control stream: one bidirectional gRPC stream, driven by a thread of its
// own. The control moves messages and reports the state of the stream; it does not interpret
// messages. grpc.c implements it; only files of this folder include gRPC headers in the worker.
//
// A heartbeat is a message like any other, but only the newest one matters: while a heartbeat waits
// to be sent, further heartbeats are refused.

#ifndef WORKER_CONTROL_CONTROL_H
#define WORKER_CONTROL_CONTROL_H

#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>

struct control; // Opaque.

struct control_events {
    // The control thread calls these functions, one at a time. They must not block and must not
    // call control_close.
    void (*received)(void *context, const struct down_message *message); // Borrowed for the call.
    // The stream ended for good: text is a sentence ("connection refused", "unavailable: ...").
    // Called once.
    void (*ended)(void *context, const char *text);
    void *context;
    // A warning for the log: event is the name of its line, text a sentence. May be NULL. Called
    // once at most if the coordinator is not reached soon after the opening, and for each
    // certificate of this worker that expires while a stream stands.
    void (*warned)(void *context, const char *event, const char *text);
    // A kept stream ended, and the control begins another one; text is a sentence. The messages
    // that waited are dropped. Called again when attempts fail for another reason than before; text
    // then names every address. May be NULL, as the next one: then no stream is kept.
    void (*broke)(void *context, const char *text);
    // Another stream stands: it takes a hello, and after it all other messages.
    void (*stands)(void *context);
};

// The coordinator's address, and how to connect to it. Copied.
struct control_target {
    // "host:port", "[::1]:port" or "unix:/path", or a list of these (base/parse.h): each is tried
    // in turn. A name is looked up at every attempt.
    const char *address;
    uint64_t connect_timeout_ms;
    const char *tls_dir; // base/tls_files.h; NULL or "": plaintext.
    const char *job; // The job that this worker's certificate must be for.
};

#endif
