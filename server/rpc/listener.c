// SPDX-License-Identifier: Apache-2.0
//
// A listener, its settings, and its replacement after it went deaf. Stream thread.

#include "server/rpc/listener.h"

#include "server/rpc/call.h"
#include "server/rpc/log.h"
#include "server/rpc/parts.h"

#include "base/log.h"
#include "server/rpc/credentials.h"
#include "server/rpc/sockets.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define KEEPALIVE_MS 20000
#define KEEPALIVE_TIMEOUT_MS 10000
// The shortest interval of a worker's keepalive that is allowed. Workers use KEEPALIVE_MS.
#define PING_INTERVAL_MIN_MS 10000
#define HANDSHAKE_TIMEOUT_MS 5000
#define CONNECTION_IDLE_MS 60000 // How long a connection may have no call.
#define METADATA_BYTES 8192

#define REOPEN_FIRST_MS 100 // The first and the longest wait before a listener is opened again.
#define REOPEN_LAST_MS 2000
#define REOPEN_DESCRIPTORS 16 // Free descriptors that are needed before a listener is opened again.

// ---- listeners --------------------------------------------------------------------------------

void rpc_listener_release(struct listener *listener)
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
    rpc_listener_release(list_entry(op, struct listener, shut));
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
        rpc_call_open(listener, accept->method, accept->call);
    if (ok && !listener->closing)
        accept_post(accept);
    rpc_listener_release(listener);
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
        abort(); // Only a bug in this file can cause this.
    listener->pending++;
}

static grpc_server *listener_create(struct rpc_server *server)
{
    grpc_arg args[] = {
        {.key = GRPC_ARG_ALLOW_REUSEPORT, .value.integer = 0},
        {.key = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, .value.integer = LOCKSTEP_MESSAGE_BYTES},
        {.key = GRPC_ARG_MAX_METADATA_SIZE, .value.integer = METADATA_BYTES},
        {.key = GRPC_ARG_MAX_CONCURRENT_STREAMS, .value.integer = RPC_CONNECTION_CALLS},
        {.key = GRPC_ARG_HTTP2_BDP_PROBE, .value.integer = 0}, // Keeps HTTP/2 windows at 64 KiB.
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
    size_t count = sizeof(args) / sizeof(args[0]);
    for (size_t i = 0; i < count; i++)
        args[i].type = GRPC_ARG_INTEGER;
    grpc_channel_args list = {count, args};
    grpc_server *grpc = grpc_server_create(&list, NULL);
    grpc_server_register_completion_queue(grpc, server->queue, NULL);
    return grpc;
}

// The methods are registered without a first message, which the call reads itself. If gRPC waited
// for the first message, there would be calls that this program does not count.
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
    rpc_sockets_replace_file(true);
    const int port = rpc_credentials_bind(server->credentials, listener->grpc, server->address);
    rpc_sockets_replace_file(false);
    return port;
}

// Open calls and connections continue. The tag `shut` completes when the last of them has ended.
void rpc_listener_close(struct listener *listener)
{
    if (listener->closing)
        return;
    listener->closing = true;
    listener->pending++;
    grpc_server_shutdown_and_notify(listener->grpc, listener->server->queue, &listener->shut);
}

// Returns the port, or 0 if it could not be bound.
int rpc_listener_open(struct rpc_server *server)
{
    struct listener *listener = calloc(1, sizeof(*listener));
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
        rpc_listener_close(listener);
        return 0;
    }
    for (int method = 0; method < METHOD_COUNT; method++) {
        struct accept *accept = &listener->accepts[method];
        *accept = (struct accept){
            .op = {accept_on_call}, .listener = listener, .method = (enum method)method};
        accept_post(accept);
    }
    rpc_sockets_keep_files(true);
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
    rpc_listener_close(server->listener);
    server->listener = NULL;
    server->counts.listening = false;
    server->reopen_wait_ms = REOPEN_FIRST_MS;
    server->reopen_ms = now_ms + server->reopen_wait_ms;
}

static void server_reopen(struct rpc_server *server, uint64_t now_ms)
{
    if (descriptors_are_free() && rpc_listener_open(server) > 0) {
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

void rpc_listener_reopen(struct rpc_server *server, uint64_t now_ms)
{
    if (server->stopping)
        return;
    if (rpc_log_said_deaf())
        server_went_deaf(server, now_ms);
    if (!server->listener && now_ms >= server->reopen_ms)
        server_reopen(server, now_ms);
}
