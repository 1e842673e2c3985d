// SPDX-License-Identifier: Apache-2.0
//
// What the files server/http/*.c share: answers, streams of events, and questions that wait for a
// worker. These files alone know libevent. Everything runs on the HTTP thread.

#ifndef LOCKSTEP_SERVER_HTTP_PARTS_H
#define LOCKSTEP_SERVER_HTTP_PARTS_H

#include "base/json.h"
#include "server/http/http.h"

#define HTTP_TYPE_JSON "application/json"
#define HTTP_TYPE_TEXT "text/plain; charset=utf-8"
#define HTTP_MISDIRECTED 421

struct evconnlistener;
struct event_base;
struct evbuffer;
struct evhttp;
struct evhttp_request;
struct http_streams;
struct http_guard;
struct http_tls;
struct http_token;
struct http_waits;
struct ssl_st;

// What answering needs.
struct http_core {
    const struct http_config *config;
    struct event_base *base;
    struct http_token *token; // NULL: none.
    struct json json;
};

// ---- answer.c ---------------------------------------------------------------------------------

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

// Whether it has shown the token, where there is one.
bool http_has_token(struct http_core *core, struct evhttp_request *request);
// Whether this request may have what names a job: where there is a token, only with it. False: it
// is answered.
bool http_may_read(struct http_core *core, struct evhttp_request *request);
// Stacks, timelines and events show more than how a job is: whether this request may have them,
// which others than this host may not without a token. False: it is answered.
bool http_may_inspect(struct http_core *core, struct evhttp_request *request);

// ---- host.c -----------------------------------------------------------------------------------

// Whether a request to this path may ask by the name that it has used. False: it is answered.
bool http_may_ask(struct http_core *core, struct evhttp_request *request, const char *path);
// The same of the header Host; NULL: there was none. names: as of http_config.
bool http_host_allowed(const char *header, const char *names);

// ---- token.c ----------------------------------------------------------------------------------

// NULL, with a sentence in error: there is no token in the file. path is borrowed until close.
struct http_token *http_token_open(const char *path, struct log *log, char *error,
                                   size_t error_bytes);
void http_token_close(struct http_token *token); // NULL is allowed.
bool http_token_is(struct http_token *token, const char *given);

// ---- tls.c ------------------------------------------------------------------------------------

// NULL, with a sentence in error: the files cannot be used. directory is borrowed until close.
struct http_tls *http_tls_open(const char *directory, struct log *log, char *error,
                               size_t error_bytes);
void http_tls_close(struct http_tls *tls); // NULL is allowed.
// For the next connection, with the certificate of now; given. NULL: no memory.
struct ssl_st *http_tls_accept(struct http_tls *tls);

// ---- guard.c: bounds on connections -----------------------------------------------------------
//
// A connection has HTTP_REQUEST_MS for its whole request, from the handshake or the last answer on,
// however slowly it sends it; and HTTP_ANSWER_MS to read an answer. Those of one address above
// HTTP_PEER_CONNECTIONS are closed. When there are HTTP_CONNECTIONS none is accepted until one has
// ended, and whoever waits longest without a request is closed to make room.

#define HTTP_CONNECTIONS 512
#define HTTP_PEER_CONNECTIONS 128
#define HTTP_REQUEST_MS 10000
#define HTTP_ANSWER_MS 60000

struct http_guard_counts {
    uint32_t connections; // Now.
    uint64_t refused; // Above HTTP_PEER_CONNECTIONS.
    uint64_t late; // Closed for taking too long, or to make room.
};

// NULL: no memory. tls is borrowed. request_ms 0: HTTP_REQUEST_MS.
struct http_guard *http_guard_open(struct event_base *base, struct evhttp *evhttp,
                                   struct http_tls *tls, uint32_t request_ms);
void http_guard_close(struct http_guard *guard); // After evhttp is gone. NULL is allowed.
void http_guard_listens(struct http_guard *guard, struct evconnlistener *listener);
// A request is whole. False: it came over a connection that could not be made as it has to be (no
// memory for TLS), and must get nothing.
bool http_guard_asked(struct http_guard *guard, struct evhttp_request *request);
void http_guard_streams(struct http_guard *guard, struct evhttp_request *request); // It goes on.
struct http_guard_counts http_guard_counts(const struct http_guard *guard);

// ---- stream.c: server-sent events -------------------------------------------------------------
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

// ---- wait.c: questions to workers -------------------------------------------------------------

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
