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

// Starts the control thread, which begins to connect; returns at once. Messages sent before the
// stream is established are queued. The thread retries to connect for connect_timeout_ms, and then
// reports ended() with the reason of the last attempt. While a side refuses the other side's
// certificate, the thread retries for 10 seconds at most. Until the connect timeout the thread also
// begins a new stream, with the same hello, if the stream ends before the coordinator has sent more
// than welcome, or with a refusal that asks the worker to come later. Returns 0, or with a sentence
// in error: -1 (address or certificates unusable) or -2 (no memory, no thread).
int control_open(const struct control_target *target, const struct control_events *events,
                 struct control **control, char *error, size_t error_bytes);
// Queues a copy of message; any thread; never blocks. Returns 0; -1: the stream has ended, or the
// message cannot begin the stream that stands again; -2:
// LOCKSTEP_SEND_QUEUE messages wait, or message is a heartbeat and another heartbeat waits; -3: the
// message cannot be encoded (a bug); -4: there is no memory for the copy.
int control_send(struct control *control, const struct up_message *message);
// Returns false if there is none; else fills *hello with the hello of the first stream. Any thread.
bool control_hello(struct control *control, struct up_message *hello);
// Says whether the worker cannot go on without the coordinator. While it is needed, and there are
// several addresses, a coordinator that does not answer within ASK_ANSWER_MS, twice, loses this
// stream, and the next address is tried. Any thread.
void control_need(struct control *control, bool needed);
// Ends the kept stream that stands, because the coordinator owes an answer for too long. broke() is
// reported, and another stream to the same address begins. Any thread.
void control_renew(struct control *control);
// True if no message waits to be sent: gRPC has taken all messages, or the stream has ended. Any
// thread.
bool control_is_idle(struct control *control);
// Sends everything queued, half-closes the stream, waits at most linger_ms for the end of the
// stream, and cancels the stream otherwise. While messages are queued and the stream stands, it
// waits until none has left for five seconds more. Then joins the thread and frees the control.
// After this call returns no event is reported.
void control_close(struct control *control, uint64_t linger_ms);

#endif
