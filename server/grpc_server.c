// SPDX-License-Identifier: Apache-2.0
//
// grpc_server.h over the core of gRPC 1.51: one completion queue, served by one thread. This file
// and grpc_credentials.c alone know gRPC, whose C API changes between releases.
//
// Words. A tag is a pointer to a struct op, whose function handles the completion. A call is one
// RPC: a worker's stream, a health watch, or a reply that ends at once. A listener is one
// grpc_server object: there is one, and for as long as streams of a deaf one go on, also that.
//
// Lifetimes. Every started batch counts as one in call->pending; at 0 the call is freed. The batch
// RECV_CLOSE_ON_SERVER is started first and returns last in meaning: it is the only reliable sign
// that a call has ended, and nothing is started after it. A listener outlives its calls and its
// accepts, and the server its listeners.

#include "server/grpc_server.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "protos/codec.h"
#include "server/budget.h"
#include "server/connections.h"
#include "server/grpc_credentials.h"
#include "server/process.h"
#include "server/tls_limits.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KEEPALIVE_MS 20000
#define KEEPALIVE_TIMEOUT_MS 10000
#define PING_INTERVAL_MIN_MS 10000 // Of a worker's own keepalive, which has KEEPALIVE_MS.
#define HANDSHAKE_TIMEOUT_MS 5000
#define CONNECTION_IDLE_MS 60000 // A connection without any call.
#define METADATA_BYTES 8192
#define CALLS_MAX (RPC_MAX_STREAMS + RPC_MAX_WATCHES + 1024) // The rest are short replies.

#define UNIX_PREFIX "unix:"

#define STOP_GRACE_MS 500 // For streams to take their status when the server stops.

#define DEAF_CHECK_MS 250 // How soon a failed accept is seen.
#define REOPEN_FIRST_MS 100 // Waiting times before a listener is opened again.
#define REOPEN_LAST_MS 2000
#define REOPEN_DESCRIPTORS 16 // Free descriptors without which there is no point in it.

#define BUDGET_LOOK_MS 100 // How often memory is looked at.
#define BUDGET_LOG_MS 1000 // At most one line about it in this time.
#define BUDGET_EACH_BYTES (64 * 1024) // What the end of one connection gives back at least.
#define BUDGET_TEXT \
    "the coordinator has no memory left for all who are connected; what did not read or came " \
    "last " \
    "was ended"

static_assert(RPC_MAX_STREAMS + RPC_NEWCOMERS + 1024 <= BUDGET_SOCKETS, "all descriptors are seen");

#define GRPC_LOG_BURST 20 // gRPC's own log lines that are passed on in each
#define GRPC_LOG_PERIOD_MS 10000 // of these periods.

enum health {
    HEALTH_UNKNOWN = 0,
    HEALTH_SERVING = 1,
    HEALTH_NOT_SERVING = 2,
    HEALTH_NO_SERVICE = 3
};

struct op {
    void (*fn)(struct op *op, bool ok);
};

enum method {
    METHOD_STREAM,
    METHOD_CHECK,
    METHOD_WATCH,
    METHOD_UNKNOWN,
    METHOD_COUNT
};

// One posted request for the next call of a method.
struct accept {
    struct op op;
    struct listener *listener;
    enum method method;
    grpc_call *call;
    grpc_metadata_array metadata;
    grpc_call_details details; // METHOD_UNKNOWN only.
    gpr_timespec deadline;
};

struct listener {
    struct list link; // In server->listeners.
    struct rpc_server *server;
    grpc_server *grpc;
    void *registered[METHOD_COUNT];
    struct accept accepts[METHOD_COUNT];
    struct op shut;
    uint32_t pending; // Posted accepts, calls that live, the shutdown tag.
    bool closing;
};

// An encoded message on its way out.
struct packet {
    struct packet *next;
    grpc_byte_buffer *buffer;
    size_t size;
};

struct call {
    struct list link; // In server->calls.
    struct list timer; // In server->silent until it speaks, in server->lingering once finished.
    struct list watcher; // In server->watches.
    struct rpc_server *server;
    struct listener *listener;
    struct connection *connection; // NULL: not counted.
    grpc_call *grpc;
    enum method method;
    uint32_t pending; // Started batches.

    struct op sent;
    struct op received;
    struct op ended_op;
    grpc_byte_buffer *incoming;
    int cancelled; // Written by gRPC before ended_op.

    struct packet *first; // Queue of what is to be sent.
    struct packet *last;
    size_t queue_count;
    size_t queue_bytes;

    bool sending; // A batch that sends is in flight.
    bool header_sent;
    bool status_sent;
    bool reading; // RECV_MESSAGE is in flight.
    bool read_over; // The peer sends nothing more.
    bool finishing; // The status goes out when the queue is empty.
    bool dead; // Cancelled here, or ended: nothing more is started.
    bool silent_end; // closed() was called, or must not be.
    enum rpc_status status;
    char text[LOCKSTEP_TEXT_BYTES]; // Of the status, or for closed().

    uint64_t deadline_ms; // While in a timer list.
    uint32_t slot; // METHOD_STREAM: index + 1 in server->slots, else 0.
    bool asked; // METHOD_CHECK, METHOD_WATCH: the question has come.
    bool watches_service; // METHOD_WATCH: readiness, else a constant.
    enum health health; // METHOD_WATCH: what was queued last.
};

struct slot {
    struct call *call;
    uint32_t generation;
    uint32_t next_free; // Index + 1.
};

struct rpc_server {
    // set at open, then constant
    struct rpc_config config;
    struct rpc_events events;
    char address[LOCKSTEP_ADDRESS_BYTES]; // With the port that was bound.
    uint16_t port;
    struct rpc_credentials *credentials; // NULL: plaintext.
    grpc_completion_queue *queue;
    grpc_channel *lame; // Carries wake_call, which is never started.
    grpc_call *wake_call;

    // guarded by wake_mutex
    struct mutex wake_mutex;
    struct op wake;
    bool wake_posted;

    // loop thread only
    struct listener *listener; // NULL while deaf and when stopping.
    struct list listeners;
    struct list calls;
    struct list silent;
    struct list lingering;
    struct list watches;
    struct connections connections;
    uint32_t stream_connections; // Those of them that have a stream.
    uint32_t call_count;
    uint32_t watch_count;
    struct slot slots[RPC_MAX_STREAMS];
    uint32_t free_slot; // Index + 1.
    uint64_t budget_look_ms; // When memory is looked at next,
    uint64_t budget_log_ms; // and when the next line may be written.
    struct budget_socket sockets[BUDGET_SOCKETS];
    bool over_budget;
    uint64_t reopen_ms;
    uint64_t reopen_wait_ms;
    uint64_t cut_ms; // After stop: when patience ends; else UINT64_MAX.
    uint64_t turn_ms; // When the owner wants its next turn.
    bool serving;
    bool stopping;
    struct rpc_counts counts;
};

// atomic: set by gRPC's log function in any thread, with locks of gRPC held.
static atomic_bool listener_is_deaf;
static _Atomic(struct log *) grpc_log;
static atomic_uint_fast64_t grpc_log_period;
static atomic_uint grpc_log_lines;
static atomic_uint_fast64_t handshakes_failed;

// ---- gRPC's log -------------------------------------------------------------------------------

// True: this line is one too many for now.
static bool grpc_log_is_flooded(void)
{
    uint64_t period = clock_now_ms() / GRPC_LOG_PERIOD_MS;
    if (atomic_exchange(&grpc_log_period, period) != period)
        atomic_store(&grpc_log_lines, 0);
    return atomic_fetch_add(&grpc_log_lines, 1) >= GRPC_LOG_BURST;
}

// Any thread. A failed accept is logged with the listener's lock held, so nothing here may call
// gRPC: the flag is all that is left, and the loop looks at it.
static void grpc_log_line(gpr_log_func_args *args)
{
    if (strncmp(args->message, "Failed accept4", 14) == 0)
        atomic_store(&listener_is_deaf, true);
    const char *failure = rpc_credentials_failure(args->message);
    if (failure)
        atomic_fetch_add(&handshakes_failed, 1);
    if (args->severity != GPR_LOG_SEVERITY_ERROR || grpc_log_is_flooded())
        return;
    if (failure)
        log_event(atomic_load(&grpc_log), LOG_LEVEL_WARN, "tls_handshake_failed", "text=%s grpc=%s",
                  failure, args->message);
    else
        log_event(atomic_load(&grpc_log), LOG_LEVEL_WARN, "grpc_message", "text=%s", args->message);
}

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

static void call_drop_queue(struct call *call)
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

static bool call_queue(struct call *call, const uint8_t *bytes, size_t size)
{
    struct packet *packet = calloc(1, sizeof *packet);
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

// A refused batch is a mistake of this file, not of the world.
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

// Starts the next batch that sends, if one is due.
static void call_pump(struct call *call)
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

// Whether there is something more to hear: all of a stream, the one question about health.
static bool call_listens(const struct call *call)
{
    return call->method == METHOD_STREAM || (call->method != METHOD_UNKNOWN && !call->asked);
}

// Asks for the next message, unless the peer does not read what it gets.
static void call_read(struct call *call)
{
    if (!call_listens(call) || call->reading || call->read_over || call->dead || call->finishing ||
        call->queue_count >= RPC_QUEUE_PAUSE)
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
static void call_finish(struct call *call, enum rpc_status status, const char *text)
{
    if (call->finishing || call->dead)
        return;
    call->finishing = true;
    call->status = status;
    text_copy(call->text, sizeof call->text, text);
    call_timer(call, &call->server->lingering, RPC_LINGER_MS);
    call_pump(call);
}

// Ends the call at once. The peer is told if it still listens.
static void call_cancel(struct call *call, enum rpc_status status, const char *text)
{
    if (call->dead)
        return;
    call->dead = true;
    text_copy(call->text, sizeof call->text, text);
    list_remove(&call->timer);
    call_drop_queue(call);
    grpc_call_cancel_with_status(call->grpc, (grpc_status_code)status, call->text, NULL);
}

// Ends the call without what waits in its queue, but with a status that arrives, unless a message
// is stuck on its way.
static void call_abort(struct call *call, enum rpc_status status, const char *text)
{
    if (call->sending || call->status_sent) {
        call_cancel(call, status, text);
        return;
    }
    call_drop_queue(call);
    call_finish(call, status, text);
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
        process_limit_descriptors(server->config.descriptors + RPC_NEWCOMERS +
                                  server->stream_connections);
}

// A connection is no newcomer from its first stream to the end of its last one.
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

// The stream of that name, if it can still be spoken to.
static struct call *server_find(struct rpc_server *server, rpc_peer peer)
{
    uint32_t slot = (uint32_t)peer;
    if (slot == 0 || slot > RPC_MAX_STREAMS)
        return NULL;
    struct slot *entry = &server->slots[slot - 1];
    if (!entry->call || entry->generation != peer >> 32)
        return NULL;
    return entry->call->dead || entry->call->silent_end ? NULL : entry->call;
}

static void call_report_closed(struct call *call, const char *text)
{
    if (call->slot == 0 || call->silent_end)
        return;
    call->silent_end = true;
    call->server->events.closed(call->server->events.context, call_peer(call), text);
}

// ---- end of a call ----------------------------------------------------------------------------

static void listener_release(struct listener *listener);

// Called at the end of every handler: gives back one started batch.
static void call_release(struct call *call)
{
    assert(call->pending > 0);
    if (--call->pending > 0)
        return;
    call_leave_slot(call);
    call_drop_queue(call);
    list_remove(&call->link);
    list_remove(&call->timer);
    if (call->method == METHOD_WATCH)
        call->server->watch_count--;
    list_remove(&call->watcher);
    connections_leave(call->connection);
    call->server->call_count--;
    grpc_call_unref(call->grpc);
    listener_release(call->listener);
    free(call);
}

static void call_on_ended(struct op *op, bool ok)
{
    (void)ok; // This batch always succeeds.
    struct call *call = list_entry(op, struct call, ended_op);
    const char *text = call->dead ? call->text : "its control connection was lost";
    call_report_closed(call, call->cancelled ? text : "its control stream was ended");
    call->dead = true;
    call_drop_queue(call);
    call_leave_slot(call);
    call_release(call);
}

static void call_on_sent(struct op *op, bool ok)
{
    struct call *call = list_entry(op, struct call, sent);
    call->sending = false;
    if (ok) {
        call_pump(call);
        call_read(call);
    }
    call_release(call);
}

// ---- messages in ------------------------------------------------------------------------------

static void call_speaks(struct call *call, const uint8_t *bytes, size_t size)
{
    if (!call->finishing)
        list_remove(&call->timer); // It is not silent.
    call->server->events.message(call->server->events.context, call_peer(call), bytes, size);
}

// Takes the buffer.
static void call_take_message(struct call *call, grpc_byte_buffer *buffer)
{
    grpc_byte_buffer_reader reader;
    if (buffer->data.raw.compression != GRPC_COMPRESS_NONE ||
        grpc_byte_buffer_length(buffer) > LOCKSTEP_MESSAGE_BYTES ||
        !grpc_byte_buffer_reader_init(&reader, buffer)) {
        call_cancel(call, RPC_UNIMPLEMENTED, "compressed messages are not taken");
    } else {
        grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
        call_speaks(call, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        grpc_slice_unref(slice);
        grpc_byte_buffer_reader_destroy(&reader);
    }
    grpc_byte_buffer_destroy(buffer);
}

// ---- health -----------------------------------------------------------------------------------

static void call_send_health(struct call *call, enum health health)
{
    uint8_t bytes[16];
    size_t size = 0;
    call->health = health;
    if (codec_encode_health_response((int)health, bytes, sizeof bytes, &size) != CODEC_OK ||
        !call_queue(call, bytes, size))
        call_finish(call, RPC_INTERNAL, "the answer could not be encoded");
    call_pump(call);
}

static enum health server_readiness(const struct rpc_server *server)
{
    return server->serving ? HEALTH_SERVING : HEALTH_NOT_SERVING;
}

// Sets the name that a health request asks for; false: it cannot be decoded.
static bool health_service(grpc_byte_buffer *payload, char *service, size_t capacity)
{
    grpc_byte_buffer_reader reader;
    service[0] = '\0';
    if (!payload || payload->data.raw.compression != GRPC_COMPRESS_NONE ||
        !grpc_byte_buffer_reader_init(&reader, payload))
        return false;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    enum codec_status status = codec_decode_health_request(
        GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice), service, capacity);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return status == CODEC_OK;
}

static enum health server_health(const struct rpc_server *server, const char *service)
{
    if (service[0] == '\0')
        return HEALTH_SERVING;
    return strcmp(service, server->config.service) == 0 ? server_readiness(server)
                                                        : HEALTH_NO_SERVICE;
}

static void call_check(struct call *call, const char *service)
{
    enum health health = server_health(call->server, service);
    if (health == HEALTH_NO_SERVICE) {
        call_finish(call, RPC_NOT_FOUND, "no such service");
        return;
    }
    call_send_health(call, health);
    call_finish(call, RPC_OK, "");
}

static void call_watch(struct call *call, const char *service)
{
    struct rpc_server *server = call->server;
    if (server->watch_count > RPC_MAX_WATCHES) {
        call_finish(call, RPC_RESOURCE_EXHAUSTED, "too many health watches");
        return;
    }
    call->watches_service = strcmp(service, server->config.service) == 0;
    list_push_back(&server->watches, &call->watcher);
    call_send_health(call, server_health(server, service));
}

static void call_answer_health(struct call *call, grpc_byte_buffer *payload)
{
    char service[LOCKSTEP_NAME_BYTES];
    if (!health_service(payload, service, sizeof service))
        call_finish(call, RPC_INVALID_ARGUMENT, "not a HealthCheckRequest");
    else if (call->method == METHOD_CHECK)
        call_check(call, service);
    else
        call_watch(call, service);
}

// Takes the buffer.
static void call_take_question(struct call *call, grpc_byte_buffer *payload)
{
    call->asked = true;
    if (!call->finishing) {
        list_remove(&call->timer); // It is not silent.
        call_answer_health(call, payload);
    }
    grpc_byte_buffer_destroy(payload);
}

// A watcher that does not read has one answer waiting, the latest.
static void server_tell_watchers(struct rpc_server *server)
{
    list_for_each (node, &server->watches) {
        struct call *call = list_entry(node, struct call, watcher);
        if (call->watches_service && !call->dead && call->health != server_readiness(server)) {
            call_drop_queue(call);
            call_send_health(call, server_readiness(server));
        }
    }
}

// ---- what comes in ----------------------------------------------------------------------------

// The peer sends nothing more. If that is because the call broke, call_on_ended follows.
static void call_read_is_over(struct call *call)
{
    call->read_over = true;
    if (call->dead || grpc_call_failed_before_recv_message(call->grpc))
        return;
    if (call->method != METHOD_STREAM) {
        call_finish(call, RPC_INVALID_ARGUMENT, "the call ended without a HealthCheckRequest");
        return;
    }
    call_report_closed(call, "it ended its control stream");
    call_finish(call, RPC_OK, "");
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
            call_take_question(call, buffer);
        call_read(call);
    }
    call_release(call);
}

// ---- begin of a call --------------------------------------------------------------------------

// Before the service hears of it, so that a stranger can make nothing remember it.
static bool call_may_stream(struct call *call)
{
    if (rpc_credentials_allow(call->server->credentials, call->grpc, NULL))
        return true;
    call->server->counts.streams_unauthorized++;
    call_finish(call, RPC_PERMISSION_DENIED, RPC_UNAUTHORIZED_TEXT);
    return false;
}

static void call_open_stream(struct call *call)
{
    struct rpc_server *server = call->server;
    if (!call_may_stream(call))
        return;
    if (!call_take_slot(call)) {
        server->counts.streams_refused++;
        call_finish(call, RPC_RESOURCE_EXHAUSTED, "the coordinator holds all streams it can");
        return;
    }
    server->counts.streams_opened++;
    call_timer(call, &server->silent, RPC_SILENCE_MS);
    char *address = grpc_call_get_peer(call->grpc);
    server->events.opened(server->events.context, call_peer(call), address);
    gpr_free(address);
    call_pump(call);
    call_read(call);
}

static void call_await_end(struct call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    call_start(call, &op, &call->ended_op);
}

static bool server_is_unix(const struct rpc_server *server)
{
    return strncmp(server->config.host, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0;
}

static void call_open_health(struct call *call)
{
    call_timer(call, &call->server->silent, RPC_SILENCE_MS);
    call_read(call);
}

// False: the connection has more calls than it has been told that it may have. The ends of sockets
// with a path have no names of their own; who may connect to one is said by its directory.
static bool call_enter_connection(struct call *call)
{
    struct rpc_server *server = call->server;
    if (server_is_unix(server))
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
        call_cancel(call, RPC_UNAVAILABLE, "the coordinator is shutting down");
    else if (server->call_count > CALLS_MAX)
        call_cancel(call, RPC_RESOURCE_EXHAUSTED, "too many calls at once");
    else if (!call_enter_connection(call))
        call_cancel(call, RPC_RESOURCE_EXHAUSTED, "too many calls on one connection");
    else if (call->method == METHOD_STREAM)
        call_open_stream(call);
    else if (call->method != METHOD_UNKNOWN)
        call_open_health(call);
    else {
        server->counts.unknown_methods++;
        call_finish(call, RPC_UNIMPLEMENTED, "the coordinator has no such method");
    }
}

// Takes the grpc_call.
static void call_open(struct listener *listener, enum method method, grpc_call *grpc)
{
    struct call *call = calloc(1, sizeof *call);
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
    call_await_end(call);
    call_serve(call);
}

// ---- listeners --------------------------------------------------------------------------------

static void listener_release(struct listener *listener)
{
    assert(listener->pending > 0);
    if (--listener->pending > 0)
        return;
    grpc_server_destroy(listener->grpc);
    list_remove(&listener->link);
    free(listener);
}

static void listener_on_shut(struct op *op, bool ok)
{
    (void)ok;
    listener_release(list_entry(op, struct listener, shut));
}

static void accept_post(struct accept *accept);

static void accept_on_call(struct op *op, bool ok)
{
    struct accept *accept = list_entry(op, struct accept, op);
    struct listener *listener = accept->listener;
    grpc_metadata_array_destroy(&accept->metadata);
    if (accept->method == METHOD_UNKNOWN)
        grpc_call_details_destroy(&accept->details);
    if (ok)
        call_open(listener, accept->method, accept->call);
    if (ok && !listener->closing)
        accept_post(accept);
    listener_release(listener);
}

static void accept_post(struct accept *accept)
{
    struct listener *listener = accept->listener;
    grpc_completion_queue *queue = listener->server->queue;
    grpc_call_error error;
    grpc_metadata_array_init(&accept->metadata);
    if (accept->method == METHOD_UNKNOWN) {
        grpc_call_details_init(&accept->details);
        error = grpc_server_request_call(listener->grpc, &accept->call, &accept->details,
                                         &accept->metadata, queue, queue, &accept->op);
    } else {
        error = grpc_server_request_registered_call(
            listener->grpc, listener->registered[accept->method], &accept->call, &accept->deadline,
            &accept->metadata, NULL, queue, queue, &accept->op);
    }
    if (error != GRPC_CALL_OK)
        abort(); // A mistake of this file.
    listener->pending++;
}

static grpc_server *listener_create(struct rpc_server *server)
{
    grpc_arg args[] = {
        {.key = GRPC_ARG_ALLOW_REUSEPORT, .value.integer = 0},
        {.key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, .value.integer = LOCKSTEP_MESSAGE_BYTES},
        {.key = GRPC_ARG_MAX_METADATA_SIZE, .value.integer = METADATA_BYTES},
        {.key = GRPC_ARG_MAX_CONCURRENT_STREAMS, .value.integer = RPC_CONNECTION_CALLS},
        {.key = GRPC_ARG_HTTP2_BDP_PROBE, .value.integer = 0}, // Windows stay at 64 KiB.
        {.key = GRPC_ARG_MAX_CONNECTION_IDLE_MS, .value.integer = CONNECTION_IDLE_MS},
        {.key = GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, .value.integer = HANDSHAKE_TIMEOUT_MS},
        {.key = GRPC_ARG_KEEPALIVE_TIME_MS, .value.integer = KEEPALIVE_MS},
        {.key = GRPC_ARG_KEEPALIVE_TIMEOUT_MS, .value.integer = KEEPALIVE_TIMEOUT_MS},
        {.key = GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, .value.integer = 1},
        {.key = GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, .value.integer = 0},
        {.key = GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
         .value.integer = PING_INTERVAL_MIN_MS},
        {.key = GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, .value.integer = 0},
        {.key = GRPC_ARG_ENABLE_CHANNELZ, .value.integer = 0},
    };
    size_t count = sizeof args / sizeof args[0];
    for (size_t i = 0; i < count; i++)
        args[i].type = GRPC_ARG_INTEGER;
    grpc_channel_args list = {count, args};
    grpc_server *grpc = grpc_server_create(&list, NULL);
    grpc_server_register_completion_queue(grpc, server->queue, NULL);
    return grpc;
}

// Without their messages, which are read call by call: one that gRPC waits for by itself is a call
// that nobody counts.
static void listener_register(struct listener *listener)
{
    const char *const methods[] = {
        [METHOD_STREAM] = listener->server->config.method,
        [METHOD_CHECK] = "/grpc.health.v1.Health/Check",
        [METHOD_WATCH] = "/grpc.health.v1.Health/Watch",
    };
    for (int method = 0; method < METHOD_UNKNOWN; method++)
        listener->registered[method] = grpc_server_register_method(listener->grpc, methods[method],
                                                                   NULL, GRPC_SRM_PAYLOAD_NONE, 0);
}

static int listener_bind(struct listener *listener)
{
    struct rpc_server *server = listener->server;
    return rpc_credentials_bind(server->credentials, listener->grpc, server->address);
}

// Calls and connections that stand go on; the tag comes when the last has ended.
static void listener_close(struct listener *listener)
{
    if (listener->closing)
        return;
    listener->closing = true;
    listener->pending++;
    grpc_server_shutdown_and_notify(listener->grpc, listener->server->queue, &listener->shut);
}

// Returns the port, or 0: it could not be bound.
static int listener_open(struct rpc_server *server)
{
    struct listener *listener = calloc(1, sizeof *listener);
    if (!listener)
        return 0;
    listener->server = server;
    listener->shut.fn = listener_on_shut;
    listener->grpc = listener_create(server);
    list_push_back(&server->listeners, &listener->link);
    listener_register(listener);
    int port = listener_bind(listener);
    grpc_server_start(listener->grpc);
    if (port <= 0) {
        listener_close(listener);
        return 0;
    }
    for (int method = 0; method < METHOD_COUNT; method++) {
        struct accept *accept = &listener->accepts[method];
        *accept = (struct accept){
            .op = {accept_on_call}, .listener = listener, .method = (enum method)method};
        accept_post(accept);
    }
    server->listener = listener;
    server->counts.listening = true;
    return port;
}

// ---- a deaf listener --------------------------------------------------------------------------

static bool descriptors_are_free(void)
{
    int taken[REOPEN_DESCRIPTORS];
    int count = 0;
    while (count < REOPEN_DESCRIPTORS) {
        taken[count] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (taken[count] < 0)
            break;
        count++;
    }
    for (int i = 0; i < count; i++)
        close(taken[i]);
    return count == REOPEN_DESCRIPTORS;
}

static void server_went_deaf(struct rpc_server *server, uint64_t now_ms)
{
    server->counts.accept_failures++;
    if (!server->listener)
        return;
    log_event(server->config.log, LOG_LEVEL_ERROR, "listener_deaf", "port=%u streams=%u hint=%s",
              server->port, server->counts.streams,
              "a connection could not be accepted, probably for lack of file descriptors; raise "
              "the hard limit (ulimit -Hn, LimitNOFILE=). The listener is being opened again");
    listener_close(server->listener);
    server->listener = NULL;
    server->counts.listening = false;
    server->reopen_wait_ms = REOPEN_FIRST_MS;
    server->reopen_ms = now_ms + server->reopen_wait_ms;
}

static void server_reopen(struct rpc_server *server, uint64_t now_ms)
{
    if (descriptors_are_free() && listener_open(server) > 0) {
        server->counts.listener_reopens++;
        log_event(server->config.log, LOG_LEVEL_INFO, "listener_reopened", "port=%u streams=%u",
                  server->port, server->counts.streams);
        return;
    }
    server->reopen_wait_ms *= 2;
    if (server->reopen_wait_ms > REOPEN_LAST_MS)
        server->reopen_wait_ms = REOPEN_LAST_MS;
    server->reopen_ms = now_ms + server->reopen_wait_ms;
}

static void server_listen_again(struct rpc_server *server, uint64_t now_ms)
{
    if (server->stopping)
        return;
    if (atomic_exchange(&listener_is_deaf, false))
        server_went_deaf(server, now_ms);
    if (!server->listener && now_ms >= server->reopen_ms)
        server_reopen(server, now_ms);
}

// ---- memory -----------------------------------------------------------------------------------

static void server_end_connection(struct rpc_server *server, const struct budget_socket *socket)
{
    list_for_each (node, &server->calls) {
        struct call *call = list_entry(node, struct call, link);
        if (socket->connection && call->connection == socket->connection)
            call_cancel(call, RPC_RESOURCE_EXHAUSTED, BUDGET_TEXT);
    }
    budget_end(socket);
}

// Those that a job misses least. Returns how many of `most` have ended, or are about to.
static uint64_t server_end_connections(struct rpc_server *server, uint64_t most)
{
    size_t ended = 0;
    if (server_is_unix(server))
        return 0;
    const size_t count =
        budget_sockets(&server->connections, server->port, server->sockets, &ended);
    for (size_t i = 0; i < count && ended < most; i++) {
        if (budget_is_modest(&server->sockets[i]))
            continue;
        server_end_connection(server, &server->sockets[i]);
        server->counts.budget_ended++;
        ended++;
    }
    return ended;
}

// Of those that stand, the latest.
static void server_end_streams(struct rpc_server *server, uint64_t most)
{
    struct list *node = server->calls.previous;
    for (; node != &server->calls && most > 0; node = node->previous) {
        struct call *call = list_entry(node, struct call, link);
        if (call->slot == 0 || call->dead)
            continue;
        call_cancel(call, RPC_RESOURCE_EXHAUSTED, BUDGET_TEXT);
        server->counts.budget_ended++;
        most--;
    }
}

static void server_shrink(struct rpc_server *server, uint64_t memory, uint64_t now_ms)
{
    const uint64_t most = (memory - server->config.memory_bytes) / BUDGET_EACH_BYTES + 1;
    if (server_end_connections(server, most) == 0)
        server_end_streams(server, most);
    server->over_budget = true;
    if (now_ms < server->budget_log_ms)
        return;
    server->budget_log_ms = now_ms + BUDGET_LOG_MS;
    log_event(server->config.log, LOG_LEVEL_ERROR, "memory_over_budget",
              "mib=%llu budget_mib=%llu ended_total=%llu hint=%s", (unsigned long long)memory >> 20,
              (unsigned long long)server->config.memory_bytes >> 20,
              (unsigned long long)server->counts.budget_ended,
              "somebody connects too often or does not read, or --memory-mib is too low for so "
              "many workers; see SECURITY.md");
}

static void server_keep_budget(struct rpc_server *server, uint64_t now_ms)
{
    if (now_ms < server->budget_look_ms || server->config.memory_bytes == 0)
        return;
    server->budget_look_ms = now_ms + BUDGET_LOOK_MS;
    const uint64_t memory = server->config.memory ? server->config.memory() : budget_memory();
    server->counts.memory_bytes = memory;
    if (memory > server->config.memory_bytes) {
        server_shrink(server, memory, now_ms);
    } else if (server->over_budget) {
        server->over_budget = false;
        budget_trim();
    }
}

// ---- the loop ---------------------------------------------------------------------------------

static struct call *expired(const struct list *list, uint64_t now_ms)
{
    struct list *node = list_first(list);
    if (!node)
        return NULL;
    struct call *call = list_entry(node, struct call, timer);
    return call->deadline_ms <= now_ms ? call : NULL;
}

static void server_expire(struct rpc_server *server, uint64_t now_ms)
{
    struct call *call;
    while ((call = expired(&server->silent, now_ms))) {
        server->counts.streams_silent += call->slot != 0 ? 1 : 0;
        call_report_closed(call, "it opened a control stream and said nothing");
        call_finish(call, RPC_DEADLINE_EXCEEDED,
                    call->method == METHOD_STREAM ? "a stream begins with a hello; none came"
                                                  : "the call began, and no message came");
    }
    while ((call = expired(&server->lingering, now_ms))) {
        list_remove(&call->timer);
        call_cancel(call, call->status == RPC_OK ? RPC_DEADLINE_EXCEEDED : call->status,
                    "the end of the stream was not read");
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t first_deadline(const struct list *list)
{
    struct list *node = list_first(list);
    return node ? list_entry(node, struct call, timer)->deadline_ms : UINT64_MAX;
}

// How long the queue may block. Bounded, because nothing wakes it when the listener goes deaf.
static uint64_t server_wait_ms(const struct rpc_server *server, uint64_t now_ms)
{
    uint64_t next = earlier(server->turn_ms, now_ms + DEAF_CHECK_MS);
    next = earlier(next, server->cut_ms);
    next = earlier(next, first_deadline(&server->silent));
    next = earlier(next, first_deadline(&server->lingering));
    if (!server->listener && !server->stopping)
        next = earlier(next, server->reopen_ms);
    return next > now_ms ? next - now_ms : 0;
}

static void server_close_listeners(struct rpc_server *server)
{
    list_for_each (node, &server->listeners)
        listener_close(list_entry(node, struct listener, link));
}

static void server_cut_calls(struct rpc_server *server)
{
    list_for_each (node, &server->calls)
        call_cancel(list_entry(node, struct call, link), RPC_UNAVAILABLE, "shutting down");
    list_for_each (node, &server->listeners)
        grpc_server_cancel_all_calls(list_entry(node, struct listener, link)->grpc);
}

// After stop: first the calls end with their status, then the listeners and their connections,
// because what is written while a connection closes may be lost. Patience has a bound.
static void server_wind_down(struct rpc_server *server, uint64_t now_ms)
{
    if (!server->stopping)
        return;
    bool cut = now_ms >= server->cut_ms;
    if (cut || list_empty(&server->calls))
        server_close_listeners(server);
    if (cut) {
        server_cut_calls(server);
        server->cut_ms = UINT64_MAX;
    }
}

static void server_turn(struct rpc_server *server)
{
    uint64_t now_ms = clock_now_ms();
    tls_limits_turn();
    server_listen_again(server, now_ms);
    server_expire(server, now_ms);
    server_keep_budget(server, now_ms);
    if (!server->stopping)
        server->turn_ms = server->events.turn(server->events.context, now_ms);
    else
        server->turn_ms = UINT64_MAX;
    server_wind_down(server, now_ms);
}

static bool server_has_ended(const struct rpc_server *server)
{
    return server->stopping && list_empty(&server->listeners) && list_empty(&server->calls);
}

void rpc_server_run(struct rpc_server *server)
{
    server_turn(server);
    while (!server_has_ended(server)) {
        uint64_t wait_ms = server_wait_ms(server, clock_now_ms());
        gpr_timespec deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                             gpr_time_from_millis((int64_t)wait_ms, GPR_TIMESPAN));
        grpc_event event = grpc_completion_queue_next(server->queue, deadline, NULL);
        if (event.type == GRPC_OP_COMPLETE) {
            struct op *op = event.tag;
            op->fn(op, event.success != 0);
        }
        server_turn(server);
    }
}

// ---- waking -----------------------------------------------------------------------------------

// The C API has no alarm. An empty batch on a call that was never started puts its tag into the
// queue at once; the mutex is what "thread-compatible" asks for.
void rpc_server_wake(struct rpc_server *server)
{
    mutex_lock(&server->wake_mutex);
    if (!server->wake_posted) {
        server->wake_posted =
            grpc_call_start_batch(server->wake_call, NULL, 0, &server->wake, NULL) == GRPC_CALL_OK;
    }
    mutex_unlock(&server->wake_mutex);
}

static void server_on_wake(struct op *op, bool ok)
{
    (void)ok;
    struct rpc_server *server = list_entry(op, struct rpc_server, wake);
    mutex_lock(&server->wake_mutex);
    server->wake_posted = false;
    mutex_unlock(&server->wake_mutex);
}

static void server_open_wake(struct rpc_server *server)
{
    mutex_init(&server->wake_mutex);
    server->wake.fn = server_on_wake;
    server->lame = grpc_lame_client_channel_create(NULL, GRPC_STATUS_UNAVAILABLE, "wake");
    server->wake_call = grpc_channel_create_call(
        server->lame, NULL, GRPC_PROPAGATE_DEFAULTS, server->queue,
        grpc_slice_from_static_string("/wake"), NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
}

// ---- open and close ---------------------------------------------------------------------------

// Why the port could not be bound. gRPC tells only its log, so the system is asked once more.
static int bind_error(const char *host, uint16_t port)
{
    char service[8];
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return EADDRNOTAVAIL;
    int one = 1;
    int error = 0;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, 1) < 0)
        error = errno;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return error;
}

// Why the path could not be had, or 0. gRPC would take it away from a process that listens there.
static int path_error(const char *host, bool bound)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    text_copy(address.sun_path, sizeof address.sun_path, host + strlen(UNIX_PREFIX));
    const struct sockaddr *name = (const struct sockaddr *)&address;
    int error = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    if (connect(fd, name, sizeof address) == 0 || errno == EAGAIN)
        error = EADDRINUSE;
    else if (bound && bind(fd, name, sizeof address) < 0)
        error = errno;
    close(fd);
    return error;
}

static void server_set_address(struct rpc_server *server, uint16_t port)
{
    bool six = strchr(server->config.host, ':') != NULL;
    server->port = port;
    if (server_is_unix(server)) {
        server->port = 0; // Of a path gRPC says 1.
        text_copy(server->address, sizeof server->address, server->config.host);
        return;
    }
    snprintf(server->address, sizeof server->address, six ? "[%s]:%u" : "%s:%u",
             server->config.host, port);
}

static void server_explain_bind(const struct rpc_server *server, char *error, size_t error_bytes)
{
    const bool path = server_is_unix(server);
    int code = path ? path_error(server->config.host, true)
                    : bind_error(server->config.host, server->port);
    const char *advice = code == EADDRINUSE ? "stop the process that has it, or choose another "
                                              "port with --listen; port 0 takes any"
                                            : "choose another address with --listen";
    snprintf(error, error_bytes, "cannot listen on %s (%s): %s", server->address,
             code ? strerror(code) : "gRPC gave no reason", advice);
}

static void server_init(struct rpc_server *server, const struct rpc_config *config,
                        const struct rpc_events *events)
{
    server->config = *config;
    server->events = *events;
    server->turn_ms = UINT64_MAX;
    server->cut_ms = UINT64_MAX;
    server->serving = true;
    list_init(&server->listeners);
    list_init(&server->calls);
    list_init(&server->silent);
    list_init(&server->lingering);
    list_init(&server->watches);
    connections_init(&server->connections);
    for (uint32_t i = RPC_MAX_STREAMS; i > 0; i--) {
        server->slots[i - 1].next_free = server->free_slot;
        server->free_slot = i;
    }
}

int rpc_server_open(const struct rpc_config *config, const struct rpc_events *events,
                    struct rpc_server **result, char *error, size_t error_bytes)
{
    struct rpc_server *server = calloc(1, sizeof *server);
    if (!server) {
        snprintf(error, error_bytes, "no memory for the gRPC server");
        return -1;
    }
    server_init(server, config, events);
    if (config->tls_dir && rpc_credentials_open(config->tls_dir, config->log, &server->credentials,
                                                error, error_bytes) < 0) {
        free(server);
        return -1;
    }
    gpr_set_log_function(grpc_log_line);
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR); // GRPC_VERBOSITY must not hide failed accepts.
    grpc_init();
    server->queue = grpc_completion_queue_create_for_next(NULL);
    server_open_wake(server);
    server_set_address(server, config->port);
    bool taken = server_is_unix(server) && path_error(config->host, false) != 0;
    int port = taken ? 0 : listener_open(server);
    if (port <= 0) {
        server_explain_bind(server, error, error_bytes);
        rpc_server_close(server);
        return -1;
    }
    server_set_address(server, (uint16_t)port);
    atomic_store(&grpc_log, config->log); // Before, the sentence above said enough.
    *result = server;
    return 0;
}

static void server_stop(void *context)
{
    struct rpc_server *server = context;
    if (server->stopping)
        return;
    server->stopping = true;
    server->listener = NULL;
    server->counts.listening = false;
    list_for_each (node, &server->calls) {
        struct call *call = list_entry(node, struct call, link);
        call->silent_end = true;
        call_finish(call, RPC_UNAVAILABLE, "the coordinator is shutting down");
    }
    server->cut_ms = clock_now_ms() + STOP_GRACE_MS;
}

void rpc_server_close(struct rpc_server *server)
{
    server_stop(server);
    rpc_server_run(server);
    grpc_call_unref(server->wake_call);
    grpc_channel_destroy(server->lame);
    grpc_completion_queue_shutdown(server->queue);
    while (
        grpc_completion_queue_next(server->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
        GRPC_QUEUE_SHUTDOWN)
        ; // A wake that nobody took.
    grpc_completion_queue_destroy(server->queue);
    grpc_shutdown();
    rpc_credentials_close(server->credentials);
    mutex_fini(&server->wake_mutex);
    free(server);
}

uint16_t rpc_server_port(const struct rpc_server *server)
{
    return server->port;
}

const char *rpc_server_version(void)
{
    return grpc_version_string();
}

// ---- what the service calls -------------------------------------------------------------------

static bool server_send(void *context, rpc_peer peer, const uint8_t *bytes, size_t size)
{
    struct rpc_server *server = context;
    struct call *call = server_find(server, peer);
    if (!call || call->finishing)
        return false;
    if (call->queue_count >= LOCKSTEP_SEND_QUEUE || call->queue_bytes + size > RPC_QUEUE_BYTES ||
        !call_queue(call, bytes, size)) {
        server->counts.slow_consumers++;
        call_cancel(call, RPC_RESOURCE_EXHAUSTED, "it does not read its control stream");
        return false;
    }
    call_pump(call);
    return true;
}

static bool server_allows(void *context, rpc_peer peer, const char *job)
{
    struct rpc_server *server = context;
    struct call *call = server_find(server, peer);
    if (call && rpc_credentials_allow(server->credentials, call->grpc, job))
        return true;
    server->counts.streams_unauthorized += call ? 1 : 0;
    return false;
}

static void server_finish(void *context, rpc_peer peer, enum rpc_status status, const char *text)
{
    struct call *call = server_find(context, peer);
    if (!call)
        return;
    call->silent_end = true;
    call_finish(call, status, text);
}

static void server_abort(void *context, rpc_peer peer, enum rpc_status status, const char *text)
{
    struct call *call = server_find(context, peer);
    if (!call)
        return;
    call->silent_end = true;
    call_abort(call, status, text);
}

static void server_set_serving(void *context, bool serving)
{
    struct rpc_server *server = context;
    server->serving = serving;
    server_tell_watchers(server);
}

static struct rpc_counts server_counts(const void *context)
{
    const struct rpc_server *server = context;
    const struct rpc_credentials_counts tls = rpc_credentials_counts(server->credentials);
    struct rpc_counts counts = server->counts;
    counts.handshakes_failed = atomic_load(&handshakes_failed);
    counts.tls_reloads = tls.reloads;
    counts.tls_reload_failures = tls.reload_failures;
    counts.tls_expires_s = tls.expires_s;
    return counts;
}

const struct rpc_calls rpc_server_calls = {
    .send = server_send,
    .allows = server_allows,
    .finish = server_finish,
    .abort = server_abort,
    .set_serving = server_set_serving,
    .stop = server_stop,
    .counts = server_counts,
};
