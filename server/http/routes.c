// SPDX-License-Identifier: Apache-2.0
//
// The answer to each path. One function gets all requests and finds the path in tables, so that all
// answers, including errors, have the same headers (answer.c). Answers that take time are in
// stream.c and wait.c. HTTP thread.

#include "server/http/routes.h"

#include "server/http/answer.h"
#include "server/http/guard.h"
#include "server/http/host.h"
#include "server/http/page.h"
#include "server/http/parts.h"
#include "server/http/stream.h"
#include "server/http/token.h"
#include "server/http/wait.h"
#include "server/render/metrics.h"
#include "server/render/stall.h"
#include "server/render/state.h"

#include "base/parse.h"
#include "base/text.h"

#include <event2/buffer.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define API_PREFIX "/api/v1"
#define JOB_PREFIX API_PREFIX "/jobs/"
#define RANK_PREFIX "/ranks/"
#define STACK_SUFFIX "/stack"

#define TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"

// ---- pages ------------------------------------------------------------------------------------

static void get_health(struct http_core *core, struct evhttp_request *request)
{
    bool answered;
    snapshot_read(core->config->board, &answered);
    if (answered)
        http_answer_text(request, HTTP_OK, "ok\n");
    else
        http_answer_text(request, HTTP_SERVUNAVAIL, "the core thread does not answer\n");
}

static void get_ready(struct http_core *core, struct evhttp_request *request)
{
    bool answered;
    const struct snapshot *snapshot = snapshot_read(core->config->board, &answered);
    if (!snapshot || !answered)
        http_answer_text(request, HTTP_SERVUNAVAIL, "the core thread does not answer\n");
    else if (snapshot->draining)
        http_answer_text(request, HTTP_SERVUNAVAIL, "draining\n");
    else if (!snapshot->rpc.listening)
        http_answer_text(request, HTTP_SERVUNAVAIL, "not listening: no file descriptors\n");
    else
        http_answer_text(request, HTTP_OK, "ok\n");
}

static void get_metrics(struct http_core *core, struct evhttp_request *request)
{
    const struct snapshot *snapshot = http_look(core, request);
    if (!snapshot)
        return;
    struct text text;
    struct render_http counts;
    const struct http_guard_counts connections = http_guard_counts(core->guard);
    http_streams_count(core->streams, &counts.streams, &counts.skipped);
    counts.connections = connections.connections;
    counts.connections_refused = connections.refused;
    counts.connections_late = connections.late;
    counts.without_jobs = !http_has_token(core, request);
    text_init(&text, core->metrics, RENDER_METRICS_BYTES);
    render_metrics(&text, snapshot, &core->config->process, &counts);
    if (text.truncated)
        http_answer_text(request, HTTP_INTERNAL, "the answer is too large\n");
    else
        http_answer(request, HTTP_OK, TYPE_METRICS, text.bytes, text.size);
}

static void get_jobs(struct http_core *core, struct evhttp_request *request)
{
    if (!http_may_read(core, request))
        return;
    const struct snapshot *snapshot = http_look(core, request);
    if (!snapshot)
        return;
    json_reset(&core->json);
    render_jobs(&core->json, snapshot, &core->config->process);
    http_answer_json(core, request, HTTP_OK);
}

static void get_all_stalls(struct http_core *core, struct evhttp_request *request)
{
    if (!http_may_read(core, request))
        return;
    const struct snapshot *snapshot = http_look(core, request);
    if (!snapshot)
        return;
    json_reset(&core->json);
    render_stalls(&core->json, snapshot, NULL);
    http_answer_json(core, request, HTTP_OK);
}

static void get_page(struct http_core *core, struct evhttp_request *request, const char *path)
{
    const struct page_file *file = page_files;
    while (file->path && strcmp(file->path, path) != 0)
        file++;
    if (!file->path) {
        http_answer_error(core, request, HTTP_NOTFOUND, "there is no such page");
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

// ---- one job ----------------------------------------------------------------------------------

// The subject of a request. The job existed when the request came.
struct about {
    struct archive_job job; // The generation has no number while workers gather.
    bool latest; // True if the request named no job, so this is the latest one.
    uint32_t rank;
    uint32_t world_size; // Of the job.
};

static void get_job(struct http_core *core, struct evhttp_request *request,
                    const struct about *about,
                    bool (*render)(struct json *, const struct snapshot *, const char *))
{
    const struct snapshot *snapshot = http_look(core, request);
    if (!snapshot)
        return;
    json_reset(&core->json);
    render(&core->json, snapshot, about->job.name);
    http_answer_json(core, request, HTTP_OK);
}

static void get_whole(struct http_core *core, struct evhttp_request *request,
                      const struct about *about)
{
    get_job(core, request, about, render_job);
}

static void get_state(struct http_core *core, struct evhttp_request *request,
                      const struct about *about)
{
    get_job(core, request, about, render_state);
}

static void get_history(struct http_core *core, struct evhttp_request *request,
                        const struct about *about)
{
    get_job(core, request, about, render_history);
}

static void get_stalls(struct http_core *core, struct evhttp_request *request,
                       const struct about *about)
{
    get_job(core, request, about, render_stalls);
}

static void get_events(struct http_core *core, struct evhttp_request *request,
                       const struct about *about)
{
    if (!http_may_inspect(core, request))
        return;
    if (evhttp_request_get_command(request) == EVHTTP_REQ_HEAD) {
        http_answer(request, HTTP_OK, "text/event-stream", "", 0);
        return;
    }
    http_guard_streams(core->guard, request);
    http_streams_add(core->streams, request, about->latest ? NULL : about->job.name);
}

// Returns a parameter of the request's query, or NULL if there is none with that name. The
// parameter is freed with the list.
static const char *query(struct evhttp_request *request, struct evkeyvalq *list, const char *name)
{
    const char *text = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(request));
    TAILQ_INIT(list);
    if (!text || evhttp_parse_query_str(text, list) < 0)
        return NULL;
    return evhttp_find_header(list, name);
}

// Writes "rank 3 has left the job", or returns NULL if the rank is there.
static const char *describe_gone(const struct snapshot *snapshot, const struct about *about,
                                 char *text, size_t bytes)
{
    const struct snapshot_job *job = snapshot_find(snapshot, about->job.name);
    for (uint32_t i = 0; job && i < job->workers.count; i++) {
        const struct worker_view *worker = &snapshot->workers[job->workers.first + i];
        if (!worker->has_rank || worker->rank != about->rank || (!worker->left && !worker->lost))
            continue;
        snprintf(text, bytes, "rank %" PRIu32 " %s", about->rank,
                 worker->lost ? "was lost" : "has left the job");
        return text;
    }
    return NULL;
}

static void get_stack(struct http_core *core, struct evhttp_request *request,
                      const struct about *about)
{
    struct evkeyvalq list;
    char gone[64];
    if (!http_may_inspect(core, request))
        return;
    if (about->rank >= about->world_size) {
        http_answer_error(core, request, HTTP_NOTFOUND, "the job has no such rank");
        return;
    }
    const struct snapshot *snapshot = http_look(core, request);
    if (!snapshot)
        return;
    const char *fresh = query(request, &list, "fresh");
    http_waits_stack(core->waits, request, &about->job, about->rank,
                     fresh && strcmp(fresh, "1") == 0,
                     describe_gone(snapshot, about, gone, sizeof(gone)));
    evhttp_clear_headers(&list);
}

// Parses "7" or "0-7".
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

static void get_timeline(struct http_core *core, struct evhttp_request *request,
                         const struct about *about)
{
    struct evkeyvalq list;
    uint32_t first = 0;
    uint32_t last = HTTP_TIMELINE_RANKS - 1;
    if (!http_may_inspect(core, request))
        return;
    const char *ranks = query(request, &list, "ranks");
    if (ranks && !parse_ranks(ranks, &first, &last)) {
        http_answer_error(core, request, HTTP_BADREQUEST,
                          "ranks is a rank, or two as in 0-7; 16 of them at most");
    } else if (first >= about->world_size) {
        http_answer_error(core, request, HTTP_NOTFOUND, "the job has no such rank");
    } else {
        last = last < about->world_size ? last : about->world_size - 1;
        http_waits_timeline(core->waits, request, &about->job, first, last);
    }
    evhttp_clear_headers(&list);
}

// ---- routes -----------------------------------------------------------------------------------

struct route {
    const char *path;
    void (*get)(struct http_core *core, struct evhttp_request *request);
};

static const struct route routes[] = {
    {"/healthz", get_health},           {"/readyz", get_ready},
    {"/metrics", get_metrics},          {"/api/v1/jobs", get_jobs},
    {"/api/v1/stalls", get_all_stalls},
};

// Paths below /api/v1/jobs/{job}. A path with `alone` also works without a job, for the latest one,
// and without /api/v1.
struct job_route {
    const char *path;
    bool alone;
    void (*get)(struct http_core *core, struct evhttp_request *request, const struct about *about);
};

static const struct job_route job_routes[] = {
    {"", false, get_whole},           {"/state", false, get_state},
    {"/history", false, get_history}, {"/stalls", false, get_stalls},
    {"/events", true, get_events},    {"/timeline", true, get_timeline},
};

// Parses a path such as "/ranks/3/stack".
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

// name NULL: the latest job.
static void route_named(struct http_core *core, struct evhttp_request *request, const char *name,
                        const char *path)
{
    struct about about = {.latest = !name};
    const struct job_route *found = find_job_route(path, !name, &about);
    if (!found) {
        http_answer_error(core, request, HTTP_NOTFOUND, "there is no such page");
        return;
    }
    if (!http_may_read(core, request))
        return; // Checked first, so that the answer does not reveal whether the job exists.
    const struct snapshot *snapshot = http_look(core, request);
    if (!snapshot)
        return;
    const struct snapshot_job *job = NULL;
    if (name)
        job = snapshot_find(snapshot, name);
    else if (snapshot->job_count > 0)
        job = &snapshot->jobs[snapshot->job_count - 1];
    if (!job) {
        http_answer_error(core, request, HTTP_NOTFOUND, "there is no such job");
        return;
    }
    memcpy(about.job.name, job->view.name, sizeof(about.job.name));
    if (job->view.state != JOB_GATHERING)
        about.job.generation = job->view.generation;
    about.world_size = job->view.world_size;
    found->get(core, request, &about);
}

static void route_job(struct http_core *core, struct evhttp_request *request, const char *rest)
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
        route_named(core, request, name, rest);
    else
        http_answer_error(core, request, HTTP_NOTFOUND, "there is no such job");
    free(name);
}

static void route(struct http_core *core, struct evhttp_request *request, const char *path)
{
    struct about about;
    const char *alone = path;
    if (strncmp(path, API_PREFIX, strlen(API_PREFIX)) == 0)
        alone += strlen(API_PREFIX);
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(path, routes[i].path) == 0) {
            routes[i].get(core, request);
            return;
        }
    }
    if (strncmp(path, JOB_PREFIX, strlen(JOB_PREFIX)) == 0)
        route_job(core, request, path + strlen(JOB_PREFIX));
    else if (find_job_route(alone, true, &about))
        route_named(core, request, NULL, alone);
    else
        get_page(core, request, path);
}

void http_on_request(struct evhttp_request *request, void *context)
{
    struct http_core *core = context;
    if (!http_guard_asked(core->guard, request)) {
        http_answer_text(request, HTTP_SERVUNAVAIL, "no room\n");
        return;
    }
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    enum evhttp_cmd_type command = evhttp_request_get_command(request);
    if (command != EVHTTP_REQ_GET && command != EVHTTP_REQ_HEAD) {
        evhttp_add_header(evhttp_request_get_output_headers(request), "Allow", "GET, HEAD");
        http_answer_error(core, request, HTTP_BADMETHOD, "only GET and HEAD are understood");
    } else if (http_may_ask(core, request, path ? path : "")) {
        route(core, request, path && path[0] ? path : "/");
    }
}
