// SPDX-License-Identifier: Apache-2.0
//
// The functions of grpc.c that other files call.

#ifndef WORKER_CONTROL_GRPC_H
#define WORKER_CONTROL_GRPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct control;
struct control_events;
struct control_target;
struct up_message;

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

#endif
