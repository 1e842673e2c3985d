// SPDX-License-Identifier: Apache-2.0
//
// A call from its beginning to its end: its queue of messages to send, its reads, and for a
// worker's stream its name, a peer. See parts.h. Stream thread.

#include "server/rpc/call.h"

#include "server/rpc/health.h"
#include "server/rpc/listener.h"
#include "server/rpc/parts.h"
#include "server/rpc/server.h"

#include "base/clock.h"
#include "base/text.h"
#include "server/rpc/credentials.h"
#include "server/rpc/descriptors.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

// The additional calls are replies that end at once.
#define CALLS_MAX (RPC_MAX_STREAMS + RPC_MAX_WATCHES + 1024)

// ---- queue of a call --------------------------------------------------------------------------

static void packet_free(struct packet *packet)
{
    grpc_byte_buffer_destroy(packet->buffer);
    free(packet);
}

static void call_count_queued(struct call *call, int64_t bytes)
{
    call->queue_bytes += (size_t)bytes;
    if (call->connection)
        call->connection->queued += (uint64_t)bytes;
}

void rpc_call_drop_queue(struct call *call)
{
    while (call->first) {
        struct packet *packet = call->first;
        call->first = packet->next;
        packet_free(packet);
    }
    call->last = NULL;
    call->queue_count = 0;
    call_count_queued(call, -(int64_t)call->queue_bytes);
}

bool rpc_call_queue(struct call *call, const uint8_t *bytes, size_t size)
{
    struct packet *packet = calloc(1, sizeof(*packet));
    if (!packet)
        return false;
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)bytes, size);
    packet->buffer = grpc_raw_byte_buffer_create(&slice, 1);
    packet->size = size;
    grpc_slice_unref(slice);
    if (call->last)
        call->last->next = packet;
    else
        call->first = packet;
    call->last = packet;
    call->queue_count++;
    call_count_queued(call, (int64_t)size);
    return true;
}

static struct packet *call_unqueue(struct call *call)
{
    struct packet *packet = call->first;
    call->first = packet->next;
    if (!call->first)
        call->last = NULL;
    call->queue_count--;
    call_count_queued(call, -(int64_t)packet->size);
    return packet;
}

// ---- batches of a call ------------------------------------------------------------------------

// Starts a batch. gRPC refuses a batch only for a bug in this file.
static void call_start(struct call *call, const grpc_op *op, struct op *tag)
{
    grpc_call_error error = grpc_call_start_batch(call->grpc, op, 1, tag, NULL);
    if (error != GRPC_CALL_OK) {
        fprintf(stderr, "grpc_call_start_batch: %s\n", grpc_call_error_to_string(error));
        abort();
    }
    call->pending++;
}

static void call_send_header(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    call_start(call, &op, &call->sent);
    call->header_sent = true;
    call->sending = true;
}

static void call_send_packet(struct call *call)
{
    struct packet *packet = call_unqueue(call);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = packet->buffer;
    call_start(call, &op, &call->sent);
    packet_free(packet);
    call->sending = true;
}

static void call_send_status(struct call *call)
{
    grpc_slice details = grpc_slice_from_copied_string(call->text);
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    op.data.send_status_from_server.status = (grpc_status_code)call->status;
    op.data.send_status_from_server.status_details = call->text[0] ? &details : NULL;
    call_start(call, &op, &call->sent);
    grpc_slice_unref(details);
    call->status_sent = true;
    call->sending = true;
}

// Starts the next batch that sends, if none is in flight and something is to be sent.
void rpc_call_pump(struct call *call)
{
    if (call->sending || call->dead || call->status_sent)
        return;
    if (!call->header_sent)
        call_send_header(call);
    else if (call->first)
        call_send_packet(call);
    else if (call->finishing)
        call_send_status(call);
}

// Returns true if the call may get another message: any message of a stream, or the one request of
// a health call.
static bool call_listens(const struct call *call)
{
    return call->method == METHOD_STREAM || (call->method != METHOD_UNKNOWN && !call->asked);
}

static void call_await_end(struct call *call)
{
    if (call->awaits_end)
        return;
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    call_start(call, &op, &call->ended_op);
    call->awaits_end = true;
}

// True while the peer does not read its own messages. One of them is in flight then, and fails if
// the call breaks.
static bool call_pauses(const struct call *call)
{
    return call->queue_count >= RPC_QUEUE_PAUSE && call->sending;
}

// Starts to read the next message, unless the call pauses. A call that will never read again awaits
// its end: see the head of parts.h.
static void call_read(struct call *call)
{
    if (call->reading)
        return;
    if (!call_listens(call) || call->read_over || call->dead || call->finishing) {
        call_await_end(call);
        return;
    }
    if (call_pauses(call))
        return;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->incoming;
    call_start(call, &op, &call->received);
    call->reading = true;
}

static void call_timer(struct call *call, struct list *list, uint64_t wait_ms)
{
    list_remove(&call->timer);
    call->deadline_ms = clock_now_ms() + wait_ms;
    list_push_back(list, &call->timer);
}

// Ends the call after everything queued was sent.
void rpc_call_finish(struct call *call, enum rpc_status status, const char *text)
{
    if (call->finishing || call->dead)
        return;
    call->finishing = true;
    call->status = status;
    text_copy(call->text, sizeof(call->text), text);
    call_timer(call, &call->server->lingering, RPC_LINGER_MS);
    rpc_call_pump(call);
}

// Ends the call at once. The peer gets the status if its connection still works.
void rpc_call_cancel(struct call *call, enum rpc_status status, const char *text)
{
    if (call->dead)
        return;
    call->dead = true;
    text_copy(call->text, sizeof(call->text), text);
    list_remove(&call->timer);
    rpc_call_drop_queue(call);
    grpc_call_cancel_with_status(call->grpc, (grpc_status_code)status, call->text, NULL);
}

// Drops the queue and ends the call with a status. If a message is still being sent, the call is
// cancelled instead.
void rpc_call_abort(struct call *call, enum rpc_status status, const char *text)
{
    if (call->sending || call->status_sent) {
        rpc_call_cancel(call, status, text);
        return;
    }
    rpc_call_drop_queue(call);
    rpc_call_finish(call, status, text);
}

// ---- streams by name --------------------------------------------------------------------------

static rpc_peer call_peer(const struct call *call)
{
    uint64_t generation = call->server->slots[call->slot - 1].generation;
    return generation << 32 | call->slot;
}

static void server_limit_newcomers(const struct rpc_server *server)
{
    if (server->config.descriptors > 0)
        descriptors_limit(server->config.descriptors + RPC_NEWCOMERS + server->stream_connections);
}

// A connection is not a newcomer from its first stream to the end of its last one.
static void call_count_stream(struct call *call)
{
    call->server->counts.streams++;
    if (call->connection && call->connection->streams++ > 0)
        return;
    call->server->stream_connections++;
    server_limit_newcomers(call->server);
}

static void call_uncount_stream(struct call *call)
{
    call->server->counts.streams--;
    if (call->connection && --call->connection->streams > 0)
        return;
    call->server->stream_connections--;
    server_limit_newcomers(call->server);
}

static bool call_take_slot(struct call *call)
{
    struct rpc_server *server = call->server;
    if (server->free_slot == 0)
        return false;
    call->slot = server->free_slot;
    struct slot *slot = &server->slots[call->slot - 1];
    server->free_slot = slot->next_free;
    slot->call = call;
    slot->generation++;
    call_count_stream(call);
    return true;
}

static void call_leave_slot(struct call *call)
{
    if (call->slot == 0)
        return;
    struct rpc_server *server = call->server;
    struct slot *slot = &server->slots[call->slot - 1];
    slot->call = NULL;
    slot->next_free = server->free_slot;
    server->free_slot = call->slot;
    call_uncount_stream(call);
    call->slot = 0;
}

// Returns the stream with that name, or NULL if there is none or it has ended.
struct call *rpc_server_find(struct rpc_server *server, rpc_peer peer)
{
    uint32_t slot = (uint32_t)peer;
    if (slot == 0 || slot > RPC_MAX_STREAMS)
        return NULL;
    struct slot *entry = &server->slots[slot - 1];
    if (!entry->call || entry->generation != peer >> 32)
        return NULL;
    return entry->call->dead || entry->call->silent_end ? NULL : entry->call;
}

void rpc_call_report_closed(struct call *call, const char *text)
{
    if (call->slot == 0 || call->silent_end)
        return;
    call->silent_end = true;
    call->server->events.closed(call->server->events.context, call_peer(call), text);
}

// ---- end of a call ----------------------------------------------------------------------------

// Called at the end of every handler. Counts one batch less, and frees the call at 0.
static void call_release(struct call *call)
{
    assert(call->pending > 0);
    if (--call->pending > 0)
        return;
    call_leave_slot(call);
    rpc_call_drop_queue(call);
    list_remove(&call->link);
    list_remove(&call->timer);
    if (call->method == METHOD_WATCH)
        call->server->watch_count--;
    list_remove(&call->watcher);
    connections_leave(call->connection);
    call->server->call_count--;
    grpc_call_unref(call->grpc);
    rpc_listener_release(call->listener);
    free(call);
}

static void call_on_ended(struct op *op, bool ok)
{
    (void)ok; // This batch always succeeds.
    struct call *call = list_entry(op, struct call, ended_op);
    const char *text = call->dead ? call->text : "its control connection was lost";
    rpc_call_report_closed(call, call->cancelled ? text : "its control stream was ended");
    call->dead = true;
    rpc_call_drop_queue(call);
    call_leave_slot(call);
    call_release(call);
}

static void call_on_sent(struct op *op, bool ok)
{
    struct call *call = list_entry(op, struct call, sent);
    call->sending = false;
    if (ok)
        rpc_call_pump(call);
    call_read(call); // Messages that came before the call broke are still there.
    call_release(call);
}

// ---- received messages ------------------------------------------------------------------------

static void call_speaks(struct call *call, const uint8_t *bytes, size_t size)
{
    if (!call->finishing)
        list_remove(&call->timer); // The stream has sent a message, so it is not silent.
    call->server->events.message(call->server->events.context, call_peer(call), bytes, size);
}

// Takes ownership of the buffer.
static void call_take_message(struct call *call, grpc_byte_buffer *buffer)
{
    grpc_byte_buffer_reader reader;
    if (buffer->data.raw.compression != GRPC_COMPRESS_NONE ||
        grpc_byte_buffer_length(buffer) > LOCKSTEP_MESSAGE_BYTES ||
        !grpc_byte_buffer_reader_init(&reader, buffer)) {
        rpc_call_cancel(call, RPC_UNIMPLEMENTED, "compressed messages are not taken");
    } else {
        grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
        call_speaks(call, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        grpc_slice_unref(slice);
        grpc_byte_buffer_reader_destroy(&reader);
    }
    grpc_byte_buffer_destroy(buffer);
}

// ---- reads ------------------------------------------------------------------------------------

// The peer sends nothing more. If the reason is that the call broke, call_on_ended follows.
static void call_read_is_over(struct call *call)
{
    call->read_over = true;
    if (call->dead || grpc_call_failed_before_recv_message(call->grpc))
        return;
    if (call->method != METHOD_STREAM) {
        rpc_call_finish(call, RPC_INVALID_ARGUMENT, "the call ended without a HealthCheckRequest");
        return;
    }
    rpc_call_report_closed(call, "it ended its control stream");
    rpc_call_finish(call, RPC_OK, "");
}

static void call_on_received(struct op *op, bool ok)
{
    struct call *call = list_entry(op, struct call, received);
    grpc_byte_buffer *buffer = call->incoming;
    call->incoming = NULL;
    call->reading = false;
    if (!ok || !buffer) {
        if (buffer)
            grpc_byte_buffer_destroy(buffer);
        call_read_is_over(call);
    } else if (call->dead || call->silent_end) {
        grpc_byte_buffer_destroy(buffer);
    } else {
        if (call->method == METHOD_STREAM)
            call_take_message(call, buffer);
        else
            rpc_health_answer(call, buffer);
    }
    call_read(call);
    call_release(call);
}

// ---- beginning of a call ----------------------------------------------------------------------

// Checks the certificate before the service learns of the stream, so that a client without rights
// cannot make the service store anything.
static bool call_may_stream(struct call *call)
{
    if (rpc_credentials_allow(call->server->credentials, call->grpc, NULL))
        return true;
    call->server->counts.streams_unauthorized++;
    rpc_call_finish(call, RPC_PERMISSION_DENIED, RPC_UNAUTHORIZED_TEXT);
    return false;
}

static void call_open_stream(struct call *call)
{
    struct rpc_server *server = call->server;
    if (!call_may_stream(call))
        return;
    if (!call_take_slot(call)) {
        server->counts.streams_refused++;
        rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "the coordinator holds all streams it can");
        return;
    }
    server->counts.streams_opened++;
    call_timer(call, &server->silent, RPC_SILENCE_MS);
    char *address = grpc_call_get_peer(call->grpc);
    server->events.opened(server->events.context, call_peer(call), address);
    gpr_free(address);
    rpc_call_pump(call);
}

// Returns false if the connection has more calls than it was allowed. Connections over a Unix
// socket are not counted, because their peers have no names. The socket's directory decides who may
// connect.
static bool call_enter_connection(struct call *call)
{
    struct rpc_server *server = call->server;
    if (rpc_server_is_unix(server))
        return true;
    char *name = grpc_call_get_peer(call->grpc);
    call->connection = connections_enter(&server->connections, name, 2 * RPC_CONNECTION_CALLS);
    gpr_free(name);
    return call->connection != NULL;
}

static void call_serve(struct call *call)
{
    struct rpc_server *server = call->server;
    if (server->stopping)
        rpc_call_cancel(call, RPC_UNAVAILABLE, "the coordinator is shutting down");
    else if (server->call_count > CALLS_MAX)
        rpc_call_cancel(call, RPC_RESOURCE_EXHAUSTED, "too many calls at once");
    else if (!call_enter_connection(call))
        rpc_call_cancel(call, RPC_RESOURCE_EXHAUSTED, "too many calls on one connection");
    else if (call->method == METHOD_STREAM)
        call_open_stream(call);
    else if (call->method != METHOD_UNKNOWN)
        call_timer(call, &server->silent, RPC_SILENCE_MS);
    else {
        server->counts.unknown_methods++;
        rpc_call_finish(call, RPC_UNIMPLEMENTED, "the coordinator has no such method");
    }
}

// Takes ownership of the grpc_call.
void rpc_call_open(struct listener *listener, enum method method, grpc_call *grpc)
{
    struct call *call = calloc(1, sizeof(*call));
    if (!call) {
        grpc_call_cancel(grpc, NULL);
        grpc_call_unref(grpc);
        return;
    }
    *call = (struct call){
        .server = listener->server,
        .listener = listener,
        .grpc = grpc,
        .method = method,
        .sent = {call_on_sent},
        .received = {call_on_received},
        .ended_op = {call_on_ended},
    };
    list_init(&call->timer);
    list_init(&call->watcher);
    list_push_back(&listener->server->calls, &call->link);
    listener->server->call_count++;
    listener->server->watch_count += method == METHOD_WATCH ? 1 : 0;
    listener->pending++;
    call_serve(call);
    call_read(call);
}
