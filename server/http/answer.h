// SPDX-License-Identifier: Apache-2.0
//
// Answers: their headers, their errors, and the right to have them. HTTP thread.

#ifndef SERVER_HTTP_ANSWER_H
#define SERVER_HTTP_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

struct evbuffer;
struct evhttp_request;
struct http_core;
struct snapshot;

void http_headers(struct evhttp_request *request, const char *type);
// Takes the body's bytes out of the buffer. A HEAD gets their number instead of them.
void http_answer_buffer(struct evhttp_request *request, int code, const char *type,
                        struct evbuffer *body);
void http_answer(struct evhttp_request *request, int code, const char *type, const char *bytes,
                 size_t size);
void http_answer_text(struct evhttp_request *request, int code, const char *text);
// Answers with the text in core->json.
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

#endif
