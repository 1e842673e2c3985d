// SPDX-License-Identifier: Apache-2.0
//
// Answers: their headers, errors, and access checks. HTTP thread.

#ifndef SERVER_HTTP_ANSWER_H
#define SERVER_HTTP_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

struct evbuffer;
struct evhttp_request;
struct http_core;
struct snapshot;

void http_headers(struct evhttp_request *request, const char *type);
// Sends an answer. Moves the bytes out of body. A HEAD request gets only their number.
void http_answer_buffer(struct evhttp_request *request, int code, const char *type,
                        struct evbuffer *body);
void http_answer(struct evhttp_request *request, int code, const char *type, const char *bytes,
                 size_t size);
void http_answer_text(struct evhttp_request *request, int code, const char *text);
// Answers with the text in core->json.
void http_answer_json(struct http_core *core, struct evhttp_request *request, int code);
void http_answer_error(struct http_core *core, struct evhttp_request *request, int code,
                       const char *message);
// Returns the snapshot for the answer. Returns NULL, after sending an error, if the core thread
// never made one.
const struct snapshot *http_look(struct http_core *core, struct evhttp_request *request);
// Returns true if the request carries the right token, or the server has none.
bool http_has_token(struct http_core *core, struct evhttp_request *request);
// Returns true if this request may get data that names jobs: if there is a token, the request must
// carry it. Returns false after sending an error.
bool http_may_read(struct http_core *core, struct evhttp_request *request);
// Returns true if this request may get stacks, timelines and events, which show more than the state
// of a job. Without a token only this host may get them. Returns false after sending an error.
bool http_may_inspect(struct http_core *core, struct evhttp_request *request);

#endif
