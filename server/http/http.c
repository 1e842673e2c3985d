// SPDX-License-Identifier: Apache-2.0
//
// http.h over libevent's evhttp: the listener, the thread, and the objects that they own. routes.c
// makes the answers. HTTP thread, except for open and close.

#include "server/http/http.h"

#include "server/http/guard.h"
#include "server/http/routes.h"
#include "server/http/stream.h"
#include "server/http/tls.h"
#include "server/http/token.h"
#include "server/http/wait.h"

#include "base/thread.h"
#include "server/http/parts.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/listener.h>
#include <event2/thread.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER_BYTES 8192
#define BODY_BYTES 1024 // No request needs a body.
#define IDLE_S 10
#define ACCEPT_PAUSE_MS 100 // How long the listener pauses after a failed accept.
#define BACKLOG 128

struct http {
    // set at open, then constant
    struct http_config config;
    uint16_t port;
    struct event_base *base;
    struct evhttp *evhttp;
    struct http_tls *tls; // NULL: plaintext.
    struct event *stop;
    struct thread thread;
    // HTTP thread only
    struct http_core core;
};

// ---- the listener -----------------------------------------------------------------------------

static void on_resume(evutil_socket_t fd, short what, void *listener)
{
    (void)fd;
    (void)what;
    evconnlistener_enable(listener);
}

// Called when an accept failed, most likely because no descriptor was free. libevent would try
// again at once without end. The context is evhttp's own.
static void on_accept_error(struct evconnlistener *listener, void *context)
{
    static const struct timeval pause = {.tv_usec = ACCEPT_PAUSE_MS * 1000};
    (void)context;
    evconnlistener_disable(listener);
    event_base_once(evconnlistener_get_base(listener), -1, EV_TIMEOUT, on_resume, listener, &pause);
}

static int bind_socket(const struct endpoint *endpoint, char *error, size_t error_bytes)
{
    char service[8];
    char text[LOCKSTEP_ADDRESS_BYTES + 16];
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    snprintf(service, sizeof(service), "%u", endpoint->port);
    endpoint_text(endpoint, text, sizeof(text));
    int fd = -1;
    int one = 1;
    if (getaddrinfo(endpoint->host, service, &hints, &found) == 0)
        fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
        bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
        freeaddrinfo(found);
        return fd;
    }
    snprintf(error, error_bytes,
             "cannot listen on %s (%s): stop the process that has it, or choose another port with "
             "--http; port 0 takes any, and off does without",
             text, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (found)
        freeaddrinfo(found);
    return -1;
}

static uint16_t bound_port(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        return 0;
    if (address.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

static void set_limits(struct evhttp *evhttp)
{
    evhttp_set_max_headers_size(evhttp, HEADER_BYTES);
    evhttp_set_max_body_size(evhttp, BODY_BYTES);
    evhttp_set_timeout(evhttp, IDLE_S);
    // All methods are allowed here, so that routes.c answers the wrong ones.
    evhttp_set_allowed_methods(evhttp, UINT16_MAX);
}

// Takes ownership of the socket.
static bool accept_on(struct http *http, int fd)
{
    struct evhttp_bound_socket *bound = evhttp_accept_socket_with_handle(http->evhttp, fd);
    if (!bound) {
        close(fd);
        return false;
    }
    evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(bound), on_accept_error);
    http_guard_listens(http->core.guard, evhttp_bound_socket_get_listener(bound));
    return true;
}

// ---- open, run, close -------------------------------------------------------------------------

static void on_stop(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    event_base_loopbreak(((struct http *)context)->base);
}

static void run(void *context)
{
    struct http *http = context;
    event_base_loop(http->base, EVLOOP_NO_EXIT_ON_EMPTY);
}

// Streams and waits end before the connections that they use.
static void http_free(struct http *http)
{
    if (http->core.streams)
        http_streams_close(http->core.streams);
    if (http->core.waits)
        http_waits_close(http->core.waits);
    if (http->evhttp)
        evhttp_free(http->evhttp);
    http_guard_close(http->core.guard);
    http_tls_close(http->tls);
    http_token_close(http->core.token);
    if (http->stop)
        event_free(http->stop);
    if (http->base)
        event_base_free(http->base);
    json_fini(&http->core.json);
    free(http->core.metrics);
    free(http);
}

static bool http_init(struct http *http, const struct http_config *config)
{
    http->config = *config;
    json_init(&http->core.json, RENDER_JSON_BYTES);
    evthread_use_pthreads();
    http->core.metrics = malloc(RENDER_METRICS_BYTES);
    http->base = event_base_new();
    if (!http->core.metrics || !http->base)
        return false;
    http->evhttp = evhttp_new(http->base);
    http->stop = event_new(http->base, -1, EV_PERSIST, on_stop, http);
    http->core.config = &http->config;
    http->core.base = http->base;
    http->core.streams = http_streams_open(&http->core);
    http->core.waits = http_waits_open(&http->core);
    if (!http->evhttp || !http->stop || !http->core.streams || !http->core.waits)
        return false;
    http->core.guard = http_guard_open(http->base, http->evhttp, http->tls, config->request_ms);
    if (!http->core.guard)
        return false;
    set_limits(http->evhttp);
    evhttp_set_gencb(http->evhttp, http_on_request, &http->core);
    return true;
}

// Reads the certificate and the token. Returns false, with the reason in error, if that failed.
static bool open_secrets(struct http *http, const struct http_config *config, char *error,
                         size_t error_bytes)
{
    if (config->tls_dir)
        http->tls = http_tls_open(config->tls_dir, config->log, error, error_bytes);
    if (config->tls_dir && !http->tls)
        return false;
    if (config->token_file)
        http->core.token = http_token_open(config->token_file, config->log, error, error_bytes);
    return !config->token_file || http->core.token;
}

int http_open(const struct http_config *config, struct http **result, char *error,
              size_t error_bytes)
{
    int fd = bind_socket(&config->endpoint, error, error_bytes);
    if (fd < 0)
        return -1;
    struct http *http = calloc(1, sizeof(*http));
    if (!http) {
        close(fd);
        snprintf(error, error_bytes, "no memory for the HTTP server");
        return -1;
    }
    http->port = bound_port(fd);
    if (!open_secrets(http, config, error, error_bytes)) {
        close(fd);
        http_free(http);
        return -1;
    }
    if (!http_init(http, config)) {
        close(fd);
    } else if (accept_on(http, fd) && thread_start(&http->thread, "http", run, http) == 0) {
        *result = http;
        return 0;
    }
    snprintf(error, error_bytes, "no memory or no thread for the HTTP server");
    http_free(http);
    return -1;
}

uint16_t http_port(const struct http *http)
{
    return http->port;
}

void http_close(struct http *http)
{
    event_active(http->stop, EV_TIMEOUT, 0);
    thread_join(&http->thread);
    http_free(http);
}
