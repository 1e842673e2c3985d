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

// Starts the thread and begins to connect; returns at once. The channel retries while
// connect_timeout_ms lasts, then ended() is called with what the last attempt said; certificates
// that one side refuses are tried again for 10 seconds at most. Messages sent before the stream
// stands are queued. A stream that ends in that time before the coordinator has said more than
// welcome, or with a refusal that asks to come later, is begun again with the same hello.
// Returns 0, or with a sentence in error -1 (address or certificates unusable) or -2 (no memory, no
// thread).
int control_open(const struct control_target *target, const struct control_events *events,
                 struct control **control, char *error, size_t error_bytes);

// Queues a copy of message; any thread; never blocks. Returns 0, -1 when the stream has ended, -2
// when LOCKSTEP_SEND_QUEUE messages wait, or another heartbeat does, -3 when the message cannot be
// encoded (a bug), -4 without memory for the copy.
int control_send(struct control *control, const struct up_message *message);

// True if nothing waits to be sent: gRPC has taken it all, or the stream has ended. Any thread.
bool control_is_idle(struct control *control);

// Half-closes after everything queued was sent, waits at most linger_ms for the end of the stream,
// cancels it otherwise, joins the thread and frees. No event is reported after it returned.
void control_close(struct control *control, uint64_t linger_ms);

// The local address by which this host reaches `address`, as text without a port ("10.0.0.7"):
// a connected UDP socket's own name. 0, or -1; or -2 with errno when this process lacks memory or
// descriptors for the question.
int control_local_address(const char *address, char *text, size_t text_bytes);

#endif
