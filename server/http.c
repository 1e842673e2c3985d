// SPDX-License-Identifier: Apache-2.0
//
// http.h over libevent's evhttp. All requests come to one function, which looks for the path in a
// table; so that each answer, errors included, has the same headers. HTTP thread, but for open and
// close.

#include "server/http.h"

#include "base/thread.h"
#include "server/page.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <event2/thread.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER_BYTES 8192
#define BODY_BYTES 1024 // Nothing here takes a body.
#define IDLE_S 10
#define ACCEPT_PAUSE_MS 100 // After a connection could not be accepted.
#define BACKLOG 128
#define JOB_PREFIX "/api/v1/jobs/"

#define TYPE_JSON "application/json"
#define TYPE_TEXT "text/plain; charset=utf-8"
#define TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"
#define TYPE_HTML "text/html; charset=utf-8"

struct http {
    // set at open, then constant
    struct http_config config;
    uint16_t port;
    struct event_base *base;
    struct evhttp *evhttp;
    struct event *stop;
    struct thread thread;
    // HTTP thread only
    struct json json;
    char *metrics; // RENDER_METRICS_BYTES
};

// ---- answers ----------------------------------------------------------------------------------

static void add_headers(struct evhttp_request *request, const char *type)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    evhttp_add_header(headers, "Content-Type", type);
    evhttp_add_header(headers, "Cache-Control", "no-store");
    evhttp_add_header(headers, "X-Content-Type-Options", "nosniff");
    evhttp_add_header(headers, "Content-Security-Policy",
                      "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; "
                      "script-src 'unsafe-inline'; frame-ancestors 'none'");
}

// Takes the body's bytes out of the buffer. A HEAD gets their number instead of them.
static void answer_buffer(struct evhttp_request *request, int code, const char *type,
                          struct evbuffer *body)
{
    add_headers(request, type);
    if (evhttp_request_get_command(request) == EVHTTP_REQ_HEAD) {
        char size[24];
        snprintf(size, sizeof size, "%zu", evbuffer_get_length(body));
        evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Length", size);
        evbuffer_drain(body, evbuffer_get_length(body));
    }
    evhttp_send_reply(request, code, NULL, body);
}

static void answer(struct evhttp_request *request, int code, const char *type, const char *bytes,
                   size_t size)
{
    struct evbuffer *body = evbuffer_new();
    if (!body || evbuffer_add(body, bytes, size) < 0)
        evhttp_send_reply(request, HTTP_INTERNAL, NULL, NULL);
    else
        answer_buffer(request, code, type, body);
    if (body)
        evbuffer_free(body);
}

static void answer_text(struct evhttp_request *request, int code, const char *text)
{
    answer(request, code, TYPE_TEXT, text, strlen(text));
}

static void answer_json(struct http *http, struct evhttp_request *request, int code)
{
    size_t size;
    const char *text = json_text(&http->json, &size);
    if (text)
        answer(request, code, TYPE_JSON, text, size);
    else
        answer_text(request, HTTP_INTERNAL, "the answer is too large\n");
}

static void answer_error(struct http *http, struct evhttp_request *request, int code,
                         const char *message)
{
    json_reset(&http->json);
    render_error(&http->json, code, message);
    answer_json(http, request, code);
}

// The picture to answer from; NULL: the core thread never answered, and the request is answered.
static const struct snapshot *look(struct http *http, struct evhttp_request *request)
{
    bool answered;
    const struct snapshot *snapshot = snapshot_read(http->config.board, &answered);
    if (!snapshot)
        answer_error(http, request, HTTP_SERVUNAVAIL, "the coordinator does not answer");
    return snapshot;
}

// ---- pages ------------------------------------------------------------------------------------

static void get_health(struct http *http, struct evhttp_request *request)
{
    bool answered;
    snapshot_read(http->config.board, &answered);
    if (answered)
        answer_text(request, HTTP_OK, "ok\n");
    else
        answer_text(request, HTTP_SERVUNAVAIL, "the core thread does not answer\n");
}

static void get_ready(struct http *http, struct evhttp_request *request)
{
    bool answered;
    const struct snapshot *snapshot = snapshot_read(http->config.board, &answered);
    if (!snapshot || !answered)
        answer_text(request, HTTP_SERVUNAVAIL, "the core thread does not answer\n");
    else if (snapshot->draining)
        answer_text(request, HTTP_SERVUNAVAIL, "draining\n");
    else if (!snapshot->rpc.listening)
        answer_text(request, HTTP_SERVUNAVAIL, "not listening: no file descriptors\n");
    else
        answer_text(request, HTTP_OK, "ok\n");
}

static void get_metrics(struct http *http, struct evhttp_request *request)
{
    const struct snapshot *snapshot = look(http, request);
    if (!snapshot)
        return;
    struct text text;
    text_init(&text, http->metrics, RENDER_METRICS_BYTES);
    render_metrics(&text, snapshot, &http->config.process);
    if (text.truncated)
        answer_text(request, HTTP_INTERNAL, "the answer is too large\n");
    else
        answer(request, HTTP_OK, TYPE_METRICS, text.bytes, text.size);
}

static void get_jobs(struct http *http, struct evhttp_request *request)
{
    const struct snapshot *snapshot = look(http, request);
    if (!snapshot)
        return;
    json_reset(&http->json);
    render_jobs(&http->json, snapshot, &http->config.process);
    answer_json(http, request, HTTP_OK);
}

static void get_job(struct http *http, struct evhttp_request *request, const char *name)
{
    const struct snapshot *snapshot = look(http, request);
    if (!snapshot)
        return;
    json_reset(&http->json);
    if (render_job(&http->json, snapshot, name))
        answer_json(http, request, HTTP_OK);
    else
        answer_error(http, request, HTTP_NOTFOUND, "there is no such job");
}

static void get_page(struct http *http, struct evhttp_request *request)
{
    (void)http;
    struct evbuffer *body = evbuffer_new();
    if (!body) {
        evhttp_send_reply(request, HTTP_INTERNAL, NULL, NULL);
        return;
    }
    for (size_t i = 0; page_parts[i]; i++)
        evbuffer_add_reference(body, page_parts[i], strlen(page_parts[i]), NULL, NULL);
    answer_buffer(request, HTTP_OK, TYPE_HTML, body);
    evbuffer_free(body);
}

// ---- routes -----------------------------------------------------------------------------------

struct route {
    const char *path;
    void (*get)(struct http *http, struct evhttp_request *request);
};

static const struct route routes[] = {
    {"/", get_page},           {"/healthz", get_health},   {"/readyz", get_ready},
    {"/metrics", get_metrics}, {"/api/v1/jobs", get_jobs},
};

static void route_job(struct http *http, struct evhttp_request *request, const char *encoded)
{
    size_t size;
    char *name = evhttp_uridecode(encoded, 0, &size);
    if (name && size == strlen(name) && size < LOCKSTEP_JOB_NAME_BYTES)
        get_job(http, request, name);
    else
        answer_error(http, request, HTTP_NOTFOUND, "there is no such job");
    free(name);
}

static void route(struct http *http, struct evhttp_request *request, const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(path, routes[i].path) == 0) {
            routes[i].get(http, request);
            return;
        }
    }
    if (strncmp(path, JOB_PREFIX, strlen(JOB_PREFIX)) == 0)
        route_job(http, request, path + strlen(JOB_PREFIX));
    else
        answer_error(http, request, HTTP_NOTFOUND, "there is no such page");
}

static void on_request(struct evhttp_request *request, void *context)
{
    struct http *http = context;
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    enum evhttp_cmd_type command = evhttp_request_get_command(request);
    if (command != EVHTTP_REQ_GET && command != EVHTTP_REQ_HEAD) {
        evhttp_add_header(evhttp_request_get_output_headers(request), "Allow", "GET, HEAD");
        answer_error(http, request, HTTP_BADMETHOD, "only GET and HEAD are understood");
    } else {
        route(http, request, path && path[0] ? path : "/");
    }
}

// ---- the listener -----------------------------------------------------------------------------

static void on_resume(evutil_socket_t fd, short what, void *listener)
{
    (void)fd;
    (void)what;
    evconnlistener_enable(listener);
}

// Out of descriptors, most likely. libevent would try again at once and for ever. The context is
// evhttp's own.
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
    snprintf(service, sizeof service, "%u", endpoint->port);
    endpoint_text(endpoint, text, sizeof text);
    int fd = -1;
    int one = 1;
    if (getaddrinfo(endpoint->host, service, &hints, &found) == 0)
        fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
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
    socklen_t size = sizeof address;
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
    evhttp_set_allowed_methods(evhttp, UINT16_MAX); // So that the answer to them is ours.
}

// Takes the socket.
static bool accept_on(struct http *http, int fd)
{
    struct evhttp_bound_socket *bound = evhttp_accept_socket_with_handle(http->evhttp, fd);
    if (!bound) {
        close(fd);
        return false;
    }
    evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(bound), on_accept_error);
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

static void http_free(struct http *http)
{
    if (http->evhttp)
        evhttp_free(http->evhttp);
    if (http->stop)
        event_free(http->stop);
    if (http->base)
        event_base_free(http->base);
    json_fini(&http->json);
    free(http->metrics);
    free(http);
}

static bool http_init(struct http *http, const struct http_config *config)
{
    http->config = *config;
    json_init(&http->json, RENDER_JSON_BYTES);
    evthread_use_pthreads();
    http->metrics = malloc(RENDER_METRICS_BYTES);
    http->base = event_base_new();
    if (!http->metrics || !http->base)
        return false;
    http->evhttp = evhttp_new(http->base);
    http->stop = event_new(http->base, -1, EV_PERSIST, on_stop, http);
    if (!http->evhttp || !http->stop)
        return false;
    set_limits(http->evhttp);
    evhttp_set_gencb(http->evhttp, on_request, http);
    return true;
}

int http_open(const struct http_config *config, struct http **result, char *error,
              size_t error_bytes)
{
    int fd = bind_socket(&config->endpoint, error, error_bytes);
    if (fd < 0)
        return -1;
    struct http *http = calloc(1, sizeof *http);
    if (!http) {
        close(fd);
        snprintf(error, error_bytes, "no memory for the HTTP server");
        return -1;
    }
    http->port = bound_port(fd);
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
