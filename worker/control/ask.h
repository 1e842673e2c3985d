// SPDX-License-Identifier: Apache-2.0
//
// Asks a coordinator whether it answers. A keepalive finds out after 30 seconds that one is stopped
// or cut off, which is too long if its worker needs it and another address may have another one. So
// while the worker needs it, the control thread calls Check of grpc.health.v1 on the same
// connection now and then. Any answer will do, also that there is no such method. Control thread.

#ifndef WORKER_CONTROL_ASK_H
#define WORKER_CONTROL_ASK_H

#include <stdbool.h>
#include <stdint.h>

struct ask_parts;
struct channel;

#define ASK_SOON_MS 500 // From the beginning of the need, or of a stream, to the first question.
#define ASK_ANSWER_MS 1000 // How long an answer is awaited.
#define ASK_AGAIN_MS 2000 // From an answer to the next question.
// Questions in a row without an answer: a machine that stood still does not miss two.
#define ASK_MISSES 2

struct ask {
    struct ask_parts *parts; // gRPC's objects; NULL: no question is under way.
    bool needed; // True while the worker needs the coordinator.
    bool stale; // True if the question is to a stream that has ended.
    uint32_t missed; // Number of questions in a row without an answer.
    uint64_t at_ms; // When the next question is due.
};

// Tells whether the worker needs the coordinator.
void ask_need(struct ask *ask, bool needed, uint64_t now_ms);
// The stream has ended, or another one stands.
void ask_renew(struct ask *ask, uint64_t now_ms);
// Asks, if a question is due. The answer completes as CALL_ASK.
void ask_tick(struct ask *ask, struct channel *channel, uint64_t now_ms);
// When ask_tick is due; UINT64_MAX: never.
uint64_t ask_deadline(const struct ask *ask);
// A question is over. Returns true if the coordinator counts as silent.
bool ask_over(struct ask *ask, uint64_t now_ms);
// Waits for the end of a question that is under way; before channel_close.
void ask_close(struct ask *ask, struct channel *channel);

#endif
