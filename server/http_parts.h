// SPDX-License-Identifier: Apache-2.0
//
// What the files server/http*.c share: answers, streams of events, and questions that wait for a
// worker. These files alone know libevent. Everything runs on the HTTP thread.

#ifndef LOCKSTEP_SERVER_HTTP_PARTS_H
#define LOCKSTEP_SERVER_HTTP_PARTS_H

#include "base/json.h"
#include "server/http.h"

#define HTTP_TYPE_JSON "application/json"
#define HTTP_TYPE_TEXT "text/plain; charset=utf-8"

struct event_base;
struct evbuffer;
struct evhttp_request;
struct http_streams;
struct http_waits;

// What answering needs.
struct http_core {
    const struct http_config *config;
    struct event_base *base;
    struct json json;
};

// ---- http_answer.c ----------------------------------------------------------------------------

void http_headers(struct evhttp_request *request, const char *type);
// Takes the body's bytes out of the buffer. A HEAD gets their number instead of them.
void http_answer_buffer(struct evhttp_request *request, int code, const char *type,
                        struct evbuffer *body);
void http_answer(struct evhttp_request *request, int code, const char *type, const char *bytes,
                 size_t size);
void http_answer_text(struct evhttp_request *request, int code, const char *text);
// What core->json holds.
void http_answer_json(struct http_core *core, struct evhttp_request *request, int code);
void http_answer_error(struct http_core *core, struct evhttp_request *request, int code,
                       const char *message);

// The picture to answer from; NULL: the core thread never answered, and the request is answered.
const struct snapshot *http_look(struct http_core *core, struct evhttp_request *request);

// Stacks and timelines show more than how a job is: whether this request may have them. False: it
// is answered.
bool http_may_inspect(struct http_core *core, struct evhttp_request *request);

// ---- http_stream.c: server-sent events --------------------------------------------------------
//
// Each stream gets `state` once a second, `stall` when one begins or ends, `log` for a new line,
// and a comment when there is nothing to say. A state is rendered once for all streams of its job.
// Of a client with HTTP_UNSENT_BYTES unread nothing more is sent until it has read, and one that
// has not for HTTP_DEAF_MS is closed. Nobody waits for it.

#define HTTP_STREAMS 64
#define HTTP_UNSENT_BYTES ((size_t)256 * 1024)
#define HTTP_DEAF_MS 30000

struct http_streams *http_streams_open(struct http_core *core); // NULL: no memory.
void http_streams_close(struct http_streams *streams);
// Takes the request. job: NULL: always the latest one.
void http_streams_add(struct http_streams *streams, struct evhttp_request *request,
                      const char *job);
// Standing now, and states that were not sent because a client had not read.
void http_streams_count(const struct http_streams *streams, uint32_t *standing, uint64_t *skipped);

// ---- http_wait.c: questions to workers --------------------------------------------------------

#define HTTP_WAITS 16
#define HTTP_WAIT_MS 2000
#define HTTP_TIMELINE_RANKS 16

struct http_waits *http_waits_open(struct http_core *core); // NULL: no memory.
void http_waits_close(struct http_waits *waits);
// Take the request.
void http_waits_stack(struct http_waits *waits, struct evhttp_request *request, const char *job,
                      uint32_t rank, bool fresh);
void http_waits_timeline(struct http_waits *waits, struct evhttp_request *request, const char *job,
                         uint32_t first, uint32_t last);

#endif
