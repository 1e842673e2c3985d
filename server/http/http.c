// SPDX-License-Identifier: Apache-2.0
//
// http.h over libevent's evhttp. All requests come to one function, which looks for the path in
// tables; so that each answer, errors included, has the same headers (answer.c). What takes
// time is in stream.c and wait.c. HTTP thread, but for open and close.

#include "server/http/http.h"

#include "server/http/answer.h"
#include "server/http/guard.h"
#include "server/http/host.h"
#include "server/http/stream.h"
#include "server/http/tls.h"
#include "server/http/token.h"
#include "server/http/wait.h"
#include "server/render/metrics.h"
#include "server/render/stall.h"
#include "server/render/state.h"

#include "base/parse.h"
#include "base/thread.h"
#include "server/http/parts.h"
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
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER_BYTES 8192
#define BODY_BYTES 1024 // Nothing here takes a body.
#define IDLE_S 10
#define ACCEPT_PAUSE_MS 100 // After a connection could not be accepted.
#define BACKLOG 128
#define API_PREFIX "/api/v1"
#define JOB_PREFIX API_PREFIX "/jobs/"
#define RANK_PREFIX "/ranks/"
#define STACK_SUFFIX "/stack"

#define TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"

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
    struct http_guard *guard;
    struct http_streams *streams;
    struct http_waits *waits;
    char *metrics; // RENDER_METRICS_BYTES
};

// ---- pages ------------------------------------------------------------------------------------

static void get_health(struct http *http, struct evhttp_request *request)
{
    bool answered;
    snapshot_read(http->config.board, &answered);
    if (answered)
        http_answer_text(request, HTTP_OK, "ok\n");
    else
        http_answer_text(request, HTTP_SERVUNAVAIL, "the core thread does not answer\n");
}

static void get_ready(struct http *http, struct evhttp_request *request)
{
    bool answered;
    const struct snapshot *snapshot = snapshot_read(http->config.board, &answered);
    if (!snapshot || !answered)
        http_answer_text(request, HTTP_SERVUNAVAIL, "the core thread does not answer\n");
    else if (snapshot->draining)
        http_answer_text(request, HTTP_SERVUNAVAIL, "draining\n");
    else if (!snapshot->rpc.listening)
        http_answer_text(request, HTTP_SERVUNAVAIL, "not listening: no file descriptors\n");
    else
        http_answer_text(request, HTTP_OK, "ok\n");
}

static void get_metrics(struct http *http, struct evhttp_request *request)
{
    const struct snapshot *snapshot = http_look(&http->core, request);
    if (!snapshot)
        return;
    struct text text;
    struct render_http counts;
    const struct http_guard_counts connections = http_guard_counts(http->guard);
    http_streams_count(http->streams, &counts.streams, &counts.skipped);
    counts.connections = connections.connections;
    counts.connections_refused = connections.refused;
    counts.connections_late = connections.late;
    counts.without_jobs = !http_has_token(&http->core, request);
    text_init(&text, http->metrics, RENDER_METRICS_BYTES);
    render_metrics(&text, snapshot, &http->config.process, &counts);
    if (text.truncated)
        http_answer_text(request, HTTP_INTERNAL, "the answer is too large\n");
    else
        http_answer(request, HTTP_OK, TYPE_METRICS, text.bytes, text.size);
}

static void get_jobs(struct http *http, struct evhttp_request *request)
{
    if (!http_may_read(&http->core, request))
        return;
    const struct snapshot *snapshot = http_look(&http->core, request);
    if (!snapshot)
        return;
    json_reset(&http->core.json);
    render_jobs(&http->core.json, snapshot, &http->config.process);
    http_answer_json(&http->core, request, HTTP_OK);
}

static void get_all_stalls(struct http *http, struct evhttp_request *request)
{
    if (!http_may_read(&http->core, request))
        return;
    const struct snapshot *snapshot = http_look(&http->core, request);
    if (!snapshot)
        return;
    json_reset(&http->core.json);
    render_stalls(&http->core.json, snapshot, NULL);
    http_answer_json(&http->core, request, HTTP_OK);
}

static void get_page(struct http *http, struct evhttp_request *request, const char *path)
{
    const struct page_file *file = page_files;
    while (file->path && strcmp(file->path, path) != 0)
        file++;
    if (!file->path) {
        http_answer_error(&http->core, request, HTTP_NOTFOUND, "there is no such page");
        return;
    }
    struct evbuffer *body = evbuffer_new();
    if (!body) {
        evhttp_send_reply(request, HTTP_INTERNAL, NULL, NULL);
        return;
    }
    evbuffer_add_reference(body, file->bytes, (size_t)(file->end - file->bytes), NULL, NULL);
    http_answer_buffer(request, HTTP_OK, file->type, body);
    evbuffer_free(body);
}

// ---- of one job -------------------------------------------------------------------------------

// What one of these is about. The job was there when the request came.
struct about {
    const char *job;
    bool latest; // It was not named, and is the latest one.
    uint32_t rank;
};

static void get_job(struct http *http, struct evhttp_request *request, const struct about *about,
                    bool (*render)(struct json *, const struct snapshot *, const char *))
{
    const struct snapshot *snapshot = http_look(&http->core, request);
    if (!snapshot)
        return;
    json_reset(&http->core.json);
    render(&http->core.json, snapshot, about->job);
    http_answer_json(&http->core, request, HTTP_OK);
}

static void get_whole(struct http *http, struct evhttp_request *request, const struct about *about)
{
    get_job(http, request, about, render_job);
}

static void get_state(struct http *http, struct evhttp_request *request, const struct about *about)
{
    get_job(http, request, about, render_state);
}

static void get_stalls(struct http *http, struct evhttp_request *request, const struct about *about)
{
    get_job(http, request, about, render_stalls);
}

static void get_events(struct http *http, struct evhttp_request *request, const struct about *about)
{
    if (!http_may_inspect(&http->core, request))
        return;
    if (evhttp_request_get_command(request) == EVHTTP_REQ_HEAD) {
        http_answer(request, HTTP_OK, "text/event-stream", "", 0);
        return;
    }
    http_guard_streams(http->guard, request);
    http_streams_add(http->streams, request, about->latest ? NULL : about->job);
}

// A parameter of the request's query; NULL: it has none of that name. Freed with the list.
static const char *query(struct evhttp_request *request, struct evkeyvalq *list, const char *name)
{
    const char *text = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(request));
    TAILQ_INIT(list);
    if (!text || evhttp_parse_query_str(text, list) < 0)
        return NULL;
    return evhttp_find_header(list, name);
}

static void get_stack(struct http *http, struct evhttp_request *request, const struct about *about)
{
    struct evkeyvalq list;
    if (!http_may_inspect(&http->core, request))
        return;
    const char *fresh = query(request, &list, "fresh");
    http_waits_stack(http->waits, request, about->job, about->rank,
                     fresh && strcmp(fresh, "1") == 0);
    evhttp_clear_headers(&list);
}

// "7", or "0-7".
static bool parse_ranks(const char *text, uint32_t *first, uint32_t *last)
{
    char begin[16];
    uint64_t low, high;
    const char *dash = strchr(text, '-');
    const size_t size = dash ? (size_t)(dash - text) : strlen(text);
    if (size >= sizeof(begin))
        return false;
    memcpy(begin, text, size);
    begin[size] = '\0';
    if (!parse_u64(begin, &low) || !parse_u64(dash ? dash + 1 : begin, &high) || high < low ||
        high >= LOCKSTEP_MAX_WORLD || high - low >= HTTP_TIMELINE_RANKS)
        return false;
    *first = (uint32_t)low;
    *last = (uint32_t)high;
    return true;
}

static void get_timeline(struct http *http, struct evhttp_request *request,
                         const struct about *about)
{
    struct evkeyvalq list;
    uint32_t first = 0;
    uint32_t last = HTTP_TIMELINE_RANKS - 1;
    if (!http_may_inspect(&http->core, request))
        return;
    const char *ranks = query(request, &list, "ranks");
    if (ranks && !parse_ranks(ranks, &first, &last)) {
        http_answer_error(&http->core, request, HTTP_BADREQUEST,
                          "ranks is a rank, or two as in 0-7; 16 of them at most");
    } else {
        const struct snapshot *snapshot = http_look(&http->core, request);
        const struct snapshot_job *job = snapshot ? snapshot_find(snapshot, about->job) : NULL;
        if (job && job->workers.count > 0 && last >= job->workers.count)
            last = first < job->workers.count ? job->workers.count - 1 : first;
        if (snapshot)
            http_waits_timeline(http->waits, request, about->job, first, last);
    }
    evhttp_clear_headers(&list);
}

// ---- routes -----------------------------------------------------------------------------------

struct route {
    const char *path;
    void (*get)(struct http *http, struct evhttp_request *request);
};

static const struct route routes[] = {
    {"/healthz", get_health},           {"/readyz", get_ready},
    {"/metrics", get_metrics},          {"/api/v1/jobs", get_jobs},
    {"/api/v1/stalls", get_all_stalls},
};

// Behind /api/v1/jobs/{job}; those that `alone` says also without a job, for the latest one, and
// then also without /api/v1.
struct job_route {
    const char *path;
    bool alone;
    void (*get)(struct http *http, struct evhttp_request *request, const struct about *about);
};

static const struct job_route job_routes[] = {
    {"", false, get_whole},
    {"/state", false, get_state},
    {"/stalls", false, get_stalls},
    {"/events", true, get_events},
    {"/timeline", true, get_timeline},
};

// "/ranks/3/stack"
static bool parse_stack(const char *path, uint32_t *rank)
{
    char text[16];
    uint64_t number;
    if (strncmp(path, RANK_PREFIX, strlen(RANK_PREFIX)) != 0)
        return false;
    const char *begin = path + strlen(RANK_PREFIX);
    const char *end = strchr(begin, '/');
    if (!end || strcmp(end, STACK_SUFFIX) != 0 || (size_t)(end - begin) >= sizeof(text))
        return false;
    memcpy(text, begin, (size_t)(end - begin));
    text[end - begin] = '\0';
    if (!parse_u64(text, &number) || number >= LOCKSTEP_MAX_WORLD)
        return false;
    *rank = (uint32_t)number;
    return true;
}

static const struct job_route *find_job_route(const char *path, bool alone, struct about *about)
{
    static const struct job_route stack = {NULL, true, get_stack};
    for (size_t i = 0; i < sizeof(job_routes) / sizeof(job_routes[0]); i++) {
        if (strcmp(path, job_routes[i].path) == 0 && (job_routes[i].alone || !alone))
            return &job_routes[i];
    }
    return parse_stack(path, &about->rank) ? &stack : NULL;
}

// name: NULL: of the latest job.
static void route_named(struct http *http, struct evhttp_request *request, const char *name,
                        const char *path)
{
    char copy[LOCKSTEP_JOB_NAME_BYTES];
    struct about about = {.job = copy, .latest = !name};
    const struct job_route *found = find_job_route(path, !name, &about);
    if (!found) {
        http_answer_error(&http->core, request, HTTP_NOTFOUND, "there is no such page");
        return;
    }
    if (!http_may_read(&http->core, request))
        return; // Before it can be seen whether there is such a job.
    const struct snapshot *snapshot = http_look(&http->core, request);
    if (!snapshot)
        return;
    const struct snapshot_job *job = NULL;
    if (name)
        job = snapshot_find(snapshot, name);
    else if (snapshot->job_count > 0)
        job = &snapshot->jobs[snapshot->job_count - 1];
    if (!job) {
        http_answer_error(&http->core, request, HTTP_NOTFOUND, "there is no such job");
        return;
    }
    snprintf(copy, sizeof(copy), "%s", job->view.name);
    found->get(http, request, &about);
}

static void route_job(struct http *http, struct evhttp_request *request, const char *rest)
{
    char encoded[3 * LOCKSTEP_JOB_NAME_BYTES];
    size_t size = strcspn(rest, "/");
    char *name = NULL;
    if (size < sizeof(encoded)) {
        memcpy(encoded, rest, size);
        encoded[size] = '\0';
        rest += size;
        name = evhttp_uridecode(encoded, 0, &size);
    }
    if (name && size == strlen(name) && size < LOCKSTEP_JOB_NAME_BYTES)
        route_named(http, request, name, rest);
    else
        http_answer_error(&http->core, request, HTTP_NOTFOUND, "there is no such job");
    free(name);
}

static void route(struct http *http, struct evhttp_request *request, const char *path)
{
    struct about about;
    const char *alone = path;
    if (strncmp(path, API_PREFIX, strlen(API_PREFIX)) == 0)
        alone += strlen(API_PREFIX);
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(path, routes[i].path) == 0) {
            routes[i].get(http, request);
            return;
        }
    }
    if (strncmp(path, JOB_PREFIX, strlen(JOB_PREFIX)) == 0)
        route_job(http, request, path + strlen(JOB_PREFIX));
    else if (find_job_route(alone, true, &about))
        route_named(http, request, NULL, alone);
    else
        get_page(http, request, path);
}

static void on_request(struct evhttp_request *request, void *context)
{
    struct http *http = context;
    if (!http_guard_asked(http->guard, request)) {
        http_answer_text(request, HTTP_SERVUNAVAIL, "no room\n");
        return;
    }
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    enum evhttp_cmd_type command = evhttp_request_get_command(request);
    if (command != EVHTTP_REQ_GET && command != EVHTTP_REQ_HEAD) {
        evhttp_add_header(evhttp_request_get_output_headers(request), "Allow", "GET, HEAD");
        http_answer_error(&http->core, request, HTTP_BADMETHOD, "only GET and HEAD are understood");
    } else if (http_may_ask(&http->core, request, path ? path : "")) {
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
    http_guard_listens(http->guard, evhttp_bound_socket_get_listener(bound));
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

// Streams and waits end before the connections that they are on.
static void http_free(struct http *http)
{
    if (http->streams)
        http_streams_close(http->streams);
    if (http->waits)
        http_waits_close(http->waits);
    if (http->evhttp)
        evhttp_free(http->evhttp);
    http_guard_close(http->guard);
    http_tls_close(http->tls);
    http_token_close(http->core.token);
    if (http->stop)
        event_free(http->stop);
    if (http->base)
        event_base_free(http->base);
    json_fini(&http->core.json);
    free(http->metrics);
    free(http);
}

static bool http_init(struct http *http, const struct http_config *config)
{
    http->config = *config;
    json_init(&http->core.json, RENDER_JSON_BYTES);
    evthread_use_pthreads();
    http->metrics = malloc(RENDER_METRICS_BYTES);
    http->base = event_base_new();
    if (!http->metrics || !http->base)
        return false;
    http->evhttp = evhttp_new(http->base);
    http->stop = event_new(http->base, -1, EV_PERSIST, on_stop, http);
    http->core.config = &http->config;
    http->core.base = http->base;
    http->streams = http_streams_open(&http->core);
    http->waits = http_waits_open(&http->core);
    if (!http->evhttp || !http->stop || !http->streams || !http->waits)
        return false;
    http->guard = http_guard_open(http->base, http->evhttp, http->tls, config->request_ms);
    if (!http->guard)
        return false;
    set_limits(http->evhttp);
    evhttp_set_gencb(http->evhttp, on_request, http);
    return true;
}

// Of the files that were named. False: error says why not.
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
