// SPDX-License-Identifier: Apache-2.0
//
// Opens and closes the server of server.h over the core of gRPC 1.51, and has the functions that
// the service calls. parts.h lists the other files. Stream thread.

#include "server/rpc/server.h"

#include "server/rpc/call.h"
#include "server/rpc/health.h"
#include "server/rpc/listener.h"
#include "server/rpc/log.h"
#include "server/rpc/loop.h"
#include "server/rpc/parts.h"

#include "base/clock.h"
#include "base/text.h"
#include "server/rpc/credentials.h"
#include "server/rpc/sockets.h"

#include <grpc/support/alloc.h>

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define UNIX_PREFIX "unix:"
#define STOP_GRACE_MS 500 // How long streams have to receive their status when the server stops.

// ---- open and close ---------------------------------------------------------------------------

bool rpc_server_is_unix(const struct rpc_server *server)
{
    return strncmp(server->config.host, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0;
}

// Returns the errno value for which the port could not be bound. gRPC writes it only to its log, so
// this function tries to bind once more.
static int bind_error(const char *host, uint16_t port)
{
    char service[8];
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return EADDRNOTAVAIL;
    int one = 1;
    int error = 0;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) < 0 || listen(fd, 1) < 0)
        error = errno;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return error;
}

// Returns the errno value for which the path cannot be bound, or 0. The check is needed because
// gRPC would replace the socket of a process that already listens there.
static int path_error(const char *host, bool bound)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    text_copy(address.sun_path, sizeof(address.sun_path), host + strlen(UNIX_PREFIX));
    const struct sockaddr *name = (const struct sockaddr *)&address;
    int error = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    if (connect(fd, name, sizeof(address)) == 0 || errno == EAGAIN)
        error = EADDRINUSE;
    else if (bound && bind(fd, name, sizeof(address)) < 0)
        error = errno;
    close(fd);
    return error;
}

// Returns true if only the owner may enter the directory of a path, and this user is the owner.
static bool path_is_private(const char *host)
{
    char path[sizeof((struct sockaddr_un *)NULL)->sun_path];
    struct stat directory;
    text_copy(path, sizeof(path), host + strlen(UNIX_PREFIX));
    char *slash = strrchr(path, '/');
    if (!slash)
        return false;
    slash[slash == path ? 1 : 0] = '\0';
    return stat(path, &directory) == 0 && directory.st_uid == geteuid() &&
           (directory.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

static void server_set_address(struct rpc_server *server, uint16_t port)
{
    bool six = strchr(server->config.host, ':') != NULL;
    server->port = port;
    if (rpc_server_is_unix(server)) {
        server->port = 0; // gRPC returns the port 1 for a Unix socket.
        text_copy(server->address, sizeof(server->address), server->config.host);
        return;
    }
    snprintf(server->address, sizeof(server->address), six ? "[%s]:%u" : "%s:%u",
             server->config.host, port);
}

static void server_explain_bind(const struct rpc_server *server, char *error, size_t error_bytes)
{
    const bool path = rpc_server_is_unix(server);
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
    server->budget_look_ms = config->memory_bytes > 0 ? 0 : UINT64_MAX;
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
    struct rpc_server *server = calloc(1, sizeof(*server));
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
    rpc_log_take();
    grpc_init();
    server->queue = grpc_completion_queue_create_for_next(NULL);
    rpc_loop_open_wake(server);
    server_set_address(server, config->port);
    rpc_sockets_close_to_others(rpc_server_is_unix(server) && path_is_private(config->host));
    bool taken = rpc_server_is_unix(server) && path_error(config->host, false) != 0;
    int port = taken ? 0 : rpc_listener_open(server);
    if (port <= 0) {
        server_explain_bind(server, error, error_bytes);
        rpc_server_close(server);
        return -1;
    }
    server_set_address(server, (uint16_t)port);
    // gRPC's log is passed on only from now on: if opening fails, the error sentence is enough.
    rpc_log_pass_on(config->log);
    *result = server;
    return 0;
}

static void server_stop(void *context)
{
    struct rpc_server *server = context;
    if (server->stopping)
        return;
    server->stopping = true;
    rpc_sockets_keep_files(false);
    // The file of a listener that went deaf, unless another coordinator listens there.
    if (rpc_server_is_unix(server) && !server->listener && server->reopen_ms > 0 &&
        path_error(server->config.host, false) == 0)
        unlink(server->config.host + strlen(UNIX_PREFIX));
    server->listener = NULL;
    server->counts.listening = false;
    list_for_each (node, &server->calls) {
        struct call *call = list_entry(node, struct call, link);
        call->silent_end = true;
        rpc_call_finish(call, RPC_UNAVAILABLE, "the coordinator is shutting down");
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
        ; // The event is a wake that the loop did not handle.
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

// ---- functions that the service calls ---------------------------------------------------------

static bool server_send(void *context, rpc_peer peer, const uint8_t *bytes, size_t size)
{
    struct rpc_server *server = context;
    struct call *call = rpc_server_find(server, peer);
    if (!call || call->finishing)
        return false;
    if (call->queue_count >= LOCKSTEP_SEND_QUEUE || call->queue_bytes + size > RPC_QUEUE_BYTES ||
        !rpc_call_queue(call, bytes, size)) {
        server->counts.slow_consumers++;
        rpc_call_cancel(call, RPC_RESOURCE_EXHAUSTED, "it does not read its control stream");
        return false;
    }
    rpc_call_pump(call);
    return true;
}

static bool server_allows(void *context, rpc_peer peer, const char *job)
{
    struct rpc_server *server = context;
    struct call *call = rpc_server_find(server, peer);
    if (call && rpc_credentials_allow(server->credentials, call->grpc, job))
        return true;
    server->counts.streams_unauthorized += call ? 1 : 0;
    return false;
}

static uint64_t server_origin(void *context, rpc_peer peer)
{
    struct call *call = rpc_server_find(context, peer);
    uint64_t hash = UINT64_C(0xcbf29ce484222325); // FNV-1a
    if (!call)
        return 0;
    char *address = grpc_call_get_peer(call->grpc); // "ipv4:10.0.0.7:4711"
    const char *port = strrchr(address, ':');
    for (const char *at = address; at < port; at++)
        hash = (hash ^ (uint8_t)*at) * UINT64_C(0x100000001b3);
    gpr_free(address);
    return hash == 0 ? 1 : hash;
}

static void server_finish(void *context, rpc_peer peer, enum rpc_status status, const char *text)
{
    struct call *call = rpc_server_find(context, peer);
    if (!call)
        return;
    call->silent_end = true;
    rpc_call_finish(call, status, text);
}

static void server_abort(void *context, rpc_peer peer, enum rpc_status status, const char *text)
{
    struct call *call = rpc_server_find(context, peer);
    if (!call)
        return;
    call->silent_end = true;
    rpc_call_abort(call, status, text);
}

static void server_set_serving(void *context, bool serving)
{
    struct rpc_server *server = context;
    server->serving = serving;
    rpc_health_tell(server);
}

static struct rpc_counts server_counts(const void *context)
{
    const struct rpc_server *server = context;
    const struct rpc_credentials_counts tls = rpc_credentials_counts(server->credentials);
    struct rpc_counts counts = server->counts;
    counts.handshakes_failed = rpc_log_handshakes_failed();
    counts.tls_reloads = tls.reloads;
    counts.tls_reload_failures = tls.reload_failures;
    counts.tls_expires_s = tls.expires_s;
    return counts;
}

const struct rpc_calls rpc_server_calls = {
    .send = server_send,
    .allows = server_allows,
    .origin = server_origin,
    .finish = server_finish,
    .abort = server_abort,
    .set_serving = server_set_serving,
    .stop = server_stop,
    .counts = server_counts,
};
