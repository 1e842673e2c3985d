// SPDX-License-Identifier: Apache-2.0
//
// One attempt at a control stream; call.h has the contract. A call is over when its status and all
// other batches have completed; only then is the call released. The status batch is started alone
// because it always "succeeds".

#include "worker/control/call.h"

#include "base/text.h"
#include "worker/control/channel.h"

#include <assert.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

#define METHOD "/lockstep.v1.Coordinator/Session"

struct call_parts {
    grpc_call *call;
    grpc_byte_buffer *received;
    grpc_metadata_array headers;
    grpc_metadata_array trailers;
    grpc_status_code status;
    grpc_slice status_details;
};

// Starts a batch of one operation. A refusal would be a bug in this file, so the function asserts.
static void call_start(struct call *call, grpc_op *op, enum call_tag tag)
{
    void *name = (void *)(uintptr_t)tag;
    grpc_call_error error = grpc_call_start_batch(call->parts->call, op, 1, name, NULL);
    assert(error == GRPC_CALL_OK);
    (void)error;
    call->pending++;
}

void call_receive(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->parts->received;
    call_start(call, &op, CALL_RECEIVE);
}

static void call_await_headers(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_INITIAL_METADATA};
    op.data.recv_initial_metadata.recv_initial_metadata = &call->parts->headers;
    call_start(call, &op, CALL_HEADERS);
}

static void call_await_status(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &call->parts->trailers;
    op.data.recv_status_on_client.status = &call->parts->status;
    op.data.recv_status_on_client.status_details = &call->parts->status_details;
    call_start(call, &op, CALL_STATUS);
}

bool call_begin(struct call *call, const struct channel *channel)
{
    struct call_parts *parts = calloc(1, sizeof(*parts));
    if (!parts)
        return false;
    call->parts = parts;
    call->cancelled = call->has_status = call->sending = call->half_closed = false;
    grpc_metadata_array_init(&parts->headers);
    grpc_metadata_array_init(&parts->trailers);
    parts->call = grpc_channel_create_call(channel->now, NULL, GRPC_PROPAGATE_DEFAULTS, channel->cq,
                                           grpc_slice_from_static_string(METHOD), NULL,
                                           gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    call_await_status(call);
    call_await_headers(call);
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    call_start(call, &op, CALL_START);
    return true;
}

void call_send(struct call *call, const uint8_t *bytes, size_t size)
{
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, size);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = buffer;
    call_start(call, &op, CALL_SEND);
    grpc_byte_buffer_destroy(buffer);
    call->sending = true;
}

void call_half_close(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    call_start(call, &op, CALL_HALF_CLOSE);
    call->half_closed = true;
}

void call_cancel(struct call *call, const char *reason)
{
    if (!call->parts || call->cancelled || call->has_status)
        return;
    call->cancelled = true;
    text_copy(call->reason, sizeof(call->reason), reason);
    grpc_call_cancel(call->parts->call, NULL);
}

size_t call_take(struct call *call, uint8_t *bytes, size_t capacity)
{
    struct call_parts *parts = call->parts;
    grpc_byte_buffer_reader reader;
    size_t size = 0;
    if (!parts->received)
        return SIZE_MAX;
    if (grpc_byte_buffer_reader_init(&reader, parts->received)) {
        grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
        grpc_byte_buffer_reader_destroy(&reader);
        size = GRPC_SLICE_LENGTH(slice);
        if (size <= capacity)
            memcpy(bytes, GRPC_SLICE_START_PTR(slice), size);
        else
            size = 0; // Not reached: the channel's limit of a message is not above the capacity.
        grpc_slice_unref(slice);
    }
    grpc_byte_buffer_destroy(parts->received);
    parts->received = NULL;
    call_receive(call);
    return size;
}

enum ending_status call_status(const struct call *call)
{
    const grpc_status_code status = call->parts->status;
    if (status == GRPC_STATUS_OK)
        return ENDING_OK;
    if (status == GRPC_STATUS_PERMISSION_DENIED)
        return ENDING_REFUSED;
    return status == GRPC_STATUS_UNIMPLEMENTED ? ENDING_UNKNOWN_METHOD : ENDING_OTHER;
}

void call_learn_reason(struct call *call, bool stood, bool *from_peer)
{
    const grpc_slice *slice = &call->parts->status_details;
    char details[LOCKSTEP_TEXT_BYTES];
    struct text text;
    text_init(&text, details, sizeof(details));
    text_append_bytes(&text, (const char *)GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice));
    *from_peer = !sentences_is_transport_error(details);
    if (*from_peer && stood)
        text_copy(call->reason, sizeof(call->reason), details);
    else
        sentences_shorten(details, call->reason, sizeof(call->reason));
}

void call_end(struct call *call)
{
    struct call_parts *parts = call->parts;
    grpc_metadata_array_destroy(&parts->headers);
    grpc_metadata_array_destroy(&parts->trailers);
    grpc_slice_unref(parts->status_details);
    grpc_call_unref(parts->call);
    free(parts);
    call->parts = NULL;
}
