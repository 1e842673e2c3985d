// SPDX-License-Identifier: Apache-2.0
//
// Streams of server-sent events, see parts.h. A timer reads a snapshot four times a second while at
// least one client listens.
//
// While a reply has begun and not ended, the request belongs to its connection. When the peer
// closes the connection, libevent detaches the request and calls on_closed. Then this file must end
// the reply, which frees the request. When this file closes the connection, the connection frees
// the request, and on_closed must not be called.

#include "server/http/stream.h"

#include "server/http/answer.h"
#include "server/http/parts.h"
#include "server/render/stall.h"
#include "server/render/state.h"

#include "base/clock.h"
#include "server/render/where.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LOOK_MS 250
#define STATE_MS 1000
#define COMMENT_MS 15000
#define INPUT_BYTES 4096 // A client sends nothing, so its input buffer is small.
// The kernel's send buffer of a stream. By default it would be megabytes.
#define SEND_BYTES (128 * 1024)

struct stream {
    struct http_streams *streams;
    struct evhttp_request *request; // NULL: this entry is free.
    char job[LOCKSTEP_JOB_NAME_BYTES]; // Empty: always the latest job.
    uint64_t said_ms; // When bytes were sent last, in clock_now_ms.
    // Since when the client has too many unread bytes, in clock_now_ms; 0: it has not.
    uint64_t deaf_ms;
    uint64_t log_ms; // The time of the last log line that was sent, or when the stream began.
    char shown[LOCKSTEP_JOB_NAME_BYTES]; // The job that was sent last.
    uint32_t line; // The number of the last log line of this job; 0: none.
    uint64_t stall; // The number of the stall that was sent last; 0: none of this job.
    bool stalled; // True if that stall was active when it was sent.
    bool served; // True if the current turn of the timer has served this stream.
};

struct http_streams {
    struct http_core *core;
    struct event *look;
    uint32_t standing;
    uint64_t skipped;
    uint64_t state_ms; // When the next states are due, in clock_now_ms.
    struct stream streams[HTTP_STREAMS];
};

// ---- events that several streams share --------------------------------------------------------

struct shared {
    size_t users;
    size_t size;
    char bytes[];
};

static void shared_drop(struct shared *shared)
{
    if (shared && --shared->users == 0)
        free(shared);
}

static void shared_sent(const void *bytes, size_t size, void *shared)
{
    (void)bytes;
    (void)size;
    shared_drop(shared);
}

// Returns an event with the text of core->json. Returns NULL if there is no memory or the text is
// too large.
static struct shared *shared_event(struct http_core *core, const char *event)
{
    size_t size;
    const char *text = json_text(&core->json, &size);
    const size_t room = size + strlen(event) + 32;
    struct shared *shared = text ? malloc(sizeof(*shared) + room) : NULL;
    if (!shared)
        return NULL;
    shared->users = 1;
    const int head = snprintf(shared->bytes, room, "event: %s\ndata: ", event);
    memcpy(shared->bytes + head, text, size);
    memcpy(shared->bytes + head + size, "\n\n", 2);
    shared->size = (size_t)head + size + 2;
    return shared;
}

// ---- one stream -------------------------------------------------------------------------------

static void forget(struct stream *stream)
{
    stream->request = NULL;
    stream->streams->standing--;
}

// The peer has closed the connection.
static void on_closed(struct evhttp_connection *connection, void *context)
{
    struct stream *stream = context;
    struct evhttp_request *request = stream->request;
    (void)connection;
    forget(stream);
    evhttp_send_reply_end(request);
}

static void close_stream(struct stream *stream)
{
    struct evhttp_connection *connection = evhttp_request_get_connection(stream->request);
    if (!connection) { // The connection has ended without calling on_closed.
        on_closed(NULL, stream);
        return;
    }
    evhttp_connection_set_closecb(connection, NULL, NULL);
    forget(stream);
    evhttp_connection_free(connection);
}

static uint32_t deaf_ms(const struct http_streams *streams)
{
    const uint32_t wanted_ms = streams->core->config->deaf_ms;
    return wanted_ms > 0 ? wanted_ms : HTTP_DEAF_MS;
}

// Returns true if the client may be sent more. The stream may be closed afterwards.
static bool hears(struct stream *stream, uint64_t now_ms)
{
    struct evhttp_connection *connection = evhttp_request_get_connection(stream->request);
    if (!connection) {
        close_stream(stream);
        return false;
    }
    struct bufferevent *buffered = evhttp_connection_get_bufferevent(connection);
    if (evbuffer_get_length(bufferevent_get_output(buffered)) <= HTTP_UNSENT_BYTES) {
        stream->deaf_ms = 0;
        return true;
    }
    if (stream->deaf_ms == 0)
        stream->deaf_ms = now_ms;
    if (now_ms - stream->deaf_ms >= deaf_ms(stream->streams))
        close_stream(stream);
    return false;
}

// Sends without checking `hears`.
static void send_shared(struct stream *stream, struct shared *shared, uint64_t now_ms)
{
    struct evbuffer *chunk = evbuffer_new();
    if (chunk && shared) {
        shared->users++;
        if (evbuffer_add_reference(chunk, shared->bytes, shared->size, shared_sent, shared) < 0)
            shared_drop(shared);
        evhttp_send_reply_chunk(stream->request, chunk);
        stream->said_ms = now_ms;
    }
    if (chunk)
        evbuffer_free(chunk);
}

static void send_text(struct stream *stream, const char *text, uint64_t now_ms)
{
    struct evbuffer *chunk = evbuffer_new();
    if (chunk && evbuffer_add(chunk, text, strlen(text)) == 0)
        evhttp_send_reply_chunk(stream->request, chunk);
    if (chunk)
        evbuffer_free(chunk);
    stream->said_ms = now_ms;
}

// ---- new stalls and log lines -----------------------------------------------------------------

// Returns the newest stall of the job if its current state was not sent on this stream yet.
// Otherwise returns NULL.
static const struct stall_view *new_stall(struct stream *stream, const struct snapshot *snapshot,
                                          const struct snapshot_job *job)
{
    const struct stall_view *newest = &snapshot->stalls[job->stalls.first];
    if (strcmp(stream->shown, job->view.name) != 0) { // Each job numbers its own stalls and lines.
        memcpy(stream->shown, job->view.name, sizeof(stream->shown));
        stream->stall = 0;
        stream->line = 0;
    }
    if (job->stalls.count == 0 ||
        (newest->number == stream->stall && newest->active == stream->stalled))
        return NULL;
    stream->stall = newest->number;
    stream->stalled = newest->active;
    return newest;
}

// True if the line was sent on this stream, or is older than what is sent. Several lines may have
// one time. A job that takes the name of an earlier one begins with number 1, at a later time.
static bool is_old_line(const struct stream *stream, uint32_t number, uint64_t at_ms)
{
    return at_ms < stream->log_ms || (at_ms == stream->log_ms && number <= stream->line);
}

// Sends the log lines that this stream has not sent yet, oldest first.
static void send_log(struct stream *stream, const struct snapshot *snapshot,
                     const struct snapshot_job *job, uint64_t now_ms)
{
    const struct event_view *events = &snapshot->events[job->events.first];
    for (uint32_t i = job->events.count; i > 0; i--) {
        const uint64_t at_ms = snapshot->made_ms - events[i - 1].age_ms;
        if (is_old_line(stream, events[i - 1].number, at_ms))
            continue;
        stream->log_ms = at_ms;
        stream->line = events[i - 1].number;
        struct json *json = &stream->streams->core->json;
        json_reset(json);
        json_object_begin(json, NULL);
        json_string(json, "job", job->view.name);
        json_u64(json, "age_ms", events[i - 1].age_ms);
        json_string(json, "id", events[i - 1].id);
        json_string(json, "text", events[i - 1].text);
        json_object_end(json);
        struct shared *line = shared_event(stream->streams->core, "log");
        send_shared(stream, line, now_ms);
        shared_drop(line);
    }
}

static void send_stall(struct stream *stream, const struct snapshot *snapshot,
                       const struct snapshot_job *job, const struct stall_view *stall,
                       uint64_t now_ms)
{
    struct http_core *core = stream->streams->core;
    json_reset(&core->json);
    render_stall(&core->json, NULL, snapshot, job, stall);
    struct shared *event = shared_event(core, "stall");
    send_shared(stream, event, now_ms);
    shared_drop(event);
}

// ---- serving all streams ----------------------------------------------------------------------

static const struct snapshot_job *job_of(const struct stream *stream,
                                         const struct snapshot *snapshot)
{
    if (stream->job[0])
        return snapshot_find(snapshot, stream->job);
    return snapshot->job_count > 0 ? &snapshot->jobs[snapshot->job_count - 1] : NULL;
}

// Returns the state of a job. The first stream that needs it renders it.
static struct shared *state_of(struct http_streams *streams, const struct snapshot *snapshot,
                               const struct snapshot_job *job)
{
    json_reset(&streams->core->json);
    render_state(&streams->core->json, snapshot, job->view.name);
    return shared_event(streams->core, "state");
}

static void serve(struct stream *stream, const struct snapshot *snapshot,
                  const struct snapshot_job *job, bool due, struct shared **state, uint64_t now_ms)
{
    stream->served = true;
    if (!hears(stream, now_ms)) {
        stream->streams->skipped += due;
        return;
    }
    const struct stall_view *stall = new_stall(stream, snapshot, job);
    if (stall)
        send_stall(stream, snapshot, job, stall, now_ms);
    send_log(stream, snapshot, job, now_ms);
    if (!due && !stall)
        return;
    if (!*state)
        *state = state_of(stream->streams, snapshot, job);
    send_shared(stream, *state, now_ms);
}

// Serves all streams that show this job.
static void serve_job(struct http_streams *streams, const struct snapshot *snapshot,
                      const struct snapshot_job *job, bool due, uint64_t now_ms)
{
    struct shared *state = NULL;
    for (uint32_t i = 0; i < HTTP_STREAMS; i++) {
        struct stream *stream = &streams->streams[i];
        if (stream->request && !stream->served && job_of(stream, snapshot) == job)
            serve(stream, snapshot, job, due, &state, now_ms);
    }
    shared_drop(state);
}

static void serve_nothing(struct stream *stream, uint64_t now_ms)
{
    if (now_ms - stream->said_ms >= COMMENT_MS && hears(stream, now_ms))
        send_text(stream, ": nothing new\n\n", now_ms);
}

static void look_at_all(struct http_streams *streams)
{
    bool answered;
    const struct snapshot *snapshot = snapshot_read(streams->core->config->board, &answered);
    const uint64_t now_ms = clock_now_ms();
    const bool due = now_ms >= streams->state_ms;
    if (due)
        streams->state_ms = now_ms + STATE_MS;
    for (uint32_t i = 0; i < HTTP_STREAMS; i++)
        streams->streams[i].served = false;
    for (uint32_t i = 0; i < HTTP_STREAMS; i++) {
        struct stream *stream = &streams->streams[i];
        if (!stream->request || stream->served)
            continue;
        const struct snapshot_job *job = answered && snapshot ? job_of(stream, snapshot) : NULL;
        if (job)
            serve_job(streams, snapshot, job, due, now_ms);
        else
            serve_nothing(stream, now_ms);
    }
}

static void on_look(evutil_socket_t fd, short what, void *context)
{
    static const struct timeval soon = {.tv_usec = LOOK_MS * 1000};
    struct http_streams *streams = context;
    (void)fd;
    (void)what;
    look_at_all(streams);
    if (streams->standing > 0)
        event_add(streams->look, &soon);
}

// ---- begin and end ----------------------------------------------------------------------------

// Removes libevent's timeouts for idle connections, which are meant for requests: a client that
// only listens is not idle. Input from the client is not read.
static void begin(struct stream *stream, struct evhttp_request *request)
{
    static const int send_bytes = SEND_BYTES;
    struct evhttp_connection *connection = evhttp_request_get_connection(request);
    struct bufferevent *buffered = evhttp_connection_get_bufferevent(connection);
    http_headers(request, "text/event-stream");
    evhttp_send_reply_start(request, HTTP_OK, NULL);
    bufferevent_set_timeouts(buffered, NULL, NULL);
    bufferevent_setwatermark(buffered, EV_READ, 0, INPUT_BYTES);
    setsockopt(bufferevent_getfd(buffered), SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof(send_bytes));
    evhttp_connection_set_closecb(connection, on_closed, stream);
    send_text(stream, "retry: 2000\n\n", clock_now_ms());
}

void http_streams_add(struct http_streams *streams, struct evhttp_request *request, const char *job)
{
    static const struct timeval at_once = {0};
    struct stream *stream = streams->streams;
    while (stream < streams->streams + HTTP_STREAMS && stream->request)
        stream++;
    if (stream == streams->streams + HTTP_STREAMS) {
        http_answer_error(streams->core, request, HTTP_SERVUNAVAIL,
                          "too many listen to events; ask for /api/v1/jobs/{job}/state instead");
        return;
    }
    *stream = (struct stream){.streams = streams, .request = request, .log_ms = clock_now_ms()};
    snprintf(stream->job, sizeof(stream->job), "%s", job ? job : "");
    streams->standing++;
    streams->state_ms = 0;
    begin(stream, request);
    event_add(streams->look, &at_once);
}

void http_streams_count(const struct http_streams *streams, uint32_t *standing, uint64_t *skipped)
{
    *standing = streams->standing;
    *skipped = streams->skipped;
}

struct http_streams *http_streams_open(struct http_core *core)
{
    struct http_streams *streams = calloc(1, sizeof(*streams));
    if (!streams)
        return NULL;
    streams->core = core;
    streams->look = event_new(core->base, -1, 0, on_look, streams);
    if (!streams->look) {
        free(streams);
        return NULL;
    }
    return streams;
}

void http_streams_close(struct http_streams *streams)
{
    for (uint32_t i = 0; i < HTTP_STREAMS; i++) {
        if (streams->streams[i].request)
            close_stream(&streams->streams[i]);
    }
    event_free(streams->look);
    free(streams);
}
