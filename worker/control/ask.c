// SPDX-License-Identifier: Apache-2.0
//
// Questions to a coordinator that may be stopped; ask.h has the contract.

#include "worker/control/ask.h"

#include "worker/control/call.h"
#include "worker/control/channel.h"

#include <assert.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <stdlib.h>

#define METHOD "/grpc.health.v1.Health/Check"

struct ask_parts {
    grpc_call *call;
    grpc_byte_buffer *request; // No bytes: the process as a whole is asked for.
    grpc_byte_buffer *answer;
    grpc_metadata_array headers;
    grpc_metadata_array trailers;
    grpc_status_code status;
    grpc_slice details;
};

void ask_need(struct ask *ask, bool needed, uint64_t now_ms)
{
    if (ask->needed == needed)
        return;
    ask->needed = needed;
    ask->missed = 0;
    ask->at_ms = now_ms + ASK_SOON_MS;
}

void ask_renew(struct ask *ask, uint64_t now_ms)
{
    ask->stale = ask->parts != NULL;
    ask->missed = 0;
    ask->at_ms = now_ms + ASK_SOON_MS;
}

static void ask_start(struct ask_parts *parts, struct channel *channel)
{
    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},  {.op = GRPC_OP_SEND_MESSAGE},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT}, {.op = GRPC_OP_RECV_INITIAL_METADATA},
        {.op = GRPC_OP_RECV_MESSAGE},           {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};
    ops[1].data.send_message.send_message = parts->request;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &parts->headers;
    ops[4].data.recv_message.recv_message = &parts->answer;
    ops[5].data.recv_status_on_client.trailing_metadata = &parts->trailers;
    ops[5].data.recv_status_on_client.status = &parts->status;
    ops[5].data.recv_status_on_client.status_details = &parts->details;
    const gpr_timespec deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                               gpr_time_from_millis(ASK_ANSWER_MS, GPR_TIMESPAN));
    parts->call =
        grpc_channel_create_call(channel->now, NULL, GRPC_PROPAGATE_DEFAULTS, channel->cq,
                                 grpc_slice_from_static_string(METHOD), NULL, deadline, NULL);
    const grpc_call_error error =
        grpc_call_start_batch(parts->call, ops, 6, (void *)(uintptr_t)CALL_ASK, NULL);
    assert(error == GRPC_CALL_OK);
    (void)error;
}

void ask_tick(struct ask *ask, struct channel *channel, uint64_t now_ms)
{
    if (now_ms < ask_deadline(ask) || !channel->now)
        return;
    ask->at_ms = now_ms + ASK_AGAIN_MS;
    ask->parts = calloc(1, sizeof(*ask->parts));
    if (!ask->parts)
        return;
    ask->stale = false;
    ask->parts->request = grpc_raw_byte_buffer_create(NULL, 0);
    grpc_metadata_array_init(&ask->parts->headers);
    grpc_metadata_array_init(&ask->parts->trailers);
    ask_start(ask->parts, channel);
}

uint64_t ask_deadline(const struct ask *ask)
{
    return ask->needed && !ask->parts ? ask->at_ms : UINT64_MAX;
}

static void ask_free(struct ask *ask)
{
    struct ask_parts *parts = ask->parts;
    grpc_metadata_array_destroy(&parts->headers);
    grpc_metadata_array_destroy(&parts->trailers);
    grpc_slice_unref(parts->details);
    grpc_byte_buffer_destroy(parts->request);
    if (parts->answer)
        grpc_byte_buffer_destroy(parts->answer);
    grpc_call_unref(parts->call);
    free(parts);
    ask->parts = NULL;
}

bool ask_over(struct ask *ask, uint64_t now_ms)
{
    const bool missed = ask->parts->status == GRPC_STATUS_DEADLINE_EXCEEDED;
    ask_free(ask);
    if (ask->stale || !ask->needed)
        return false;
    ask->missed = missed ? ask->missed + 1 : 0;
    ask->at_ms = missed ? now_ms : now_ms + ASK_AGAIN_MS;
    return ask->missed == ASK_MISSES;
}

void ask_close(struct ask *ask, struct channel *channel)
{
    if (!ask->parts)
        return;
    grpc_call_cancel(ask->parts->call, NULL);
    for (grpc_event event = {.type = GRPC_QUEUE_TIMEOUT};
         event.type != GRPC_OP_COMPLETE || event.tag != (void *)(uintptr_t)CALL_ASK;)
        event = channel_next(channel, UINT64_MAX);
    ask_free(ask);
}
