// SPDX-License-Identifier: Apache-2.0
//
// One attempt at a control stream: a gRPC call and its batches. grpc.c decides when a call begins
// and what its end means. Control thread only.

#ifndef WORKER_CONTROL_CALL_H
#define WORKER_CONTROL_CALL_H

#include "protos/limits.h"
#include "worker/control/sentences.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel;
struct grpc_byte_buffer;
struct grpc_call;

// The operation that has completed. At most one batch of each kind is in flight.
enum call_tag {
    CALL_WAKE = 1, // Not a batch of the call: channel_wake.
    CALL_START, // The call's headers were written.
    CALL_HEADERS, // The peer's headers came. gRPC delivers no message until they are requested.
    CALL_STATUS,
    CALL_RECEIVE,
    CALL_SEND,
    CALL_HALF_CLOSE,
    CALL_ASK, // Not a batch of the call: ask.h.
};

struct call {
    struct call_parts *parts; // gRPC's objects; NULL between two attempts.
    unsigned pending; // Batches of the call that have not completed.
    bool cancelled; // True if this worker cancelled the call; then `reason` says why.
    bool has_status; // True if the status has completed; then no other batch is started.
    bool sending; // True while a CALL_SEND is in flight.
    bool half_closed; // True if CALL_HALF_CLOSE was started.
    char reason[LOCKSTEP_TEXT_BYTES];
};

// Begins a call of the coordinator's method. Returns false if there is no memory.
bool call_begin(struct call *call, const struct channel *channel);
// Begins to wait for the peer's next message.
void call_receive(struct call *call);
// Sends a message. The bytes are copied.
void call_send(struct call *call, const uint8_t *bytes, size_t size);
void call_half_close(struct call *call);
// Ends the call with a reason of this worker. All batches complete soon.
void call_cancel(struct call *call, const char *reason);
// Copies the message that came into bytes[capacity], and waits for the next one. Returns its size;
// SIZE_MAX: the peer sends no more messages, and the status gives the reason.
size_t call_take(struct call *call, uint8_t *bytes, size_t capacity);
// The status of a call whose batches have all completed.
enum ending_status call_status(const struct call *call);
// Sets `reason` from the text of the status: the peer's own words, or a shorter form of gRPC's
// words. stood: the call was established. All batches of the call have completed.
void call_learn_reason(struct call *call, bool stood, bool *from_peer);
// Frees a call whose batches have all completed.
void call_end(struct call *call);

#endif
