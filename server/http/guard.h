// SPDX-License-Identifier: Apache-2.0
//
// Bounds on HTTP connections. HTTP thread.

#ifndef SERVER_HTTP_GUARD_H
#define SERVER_HTTP_GUARD_H

#include "server/http/parts.h"

#include <stdbool.h>
#include <stdint.h>

struct evconnlistener;
struct event_base;
struct evhttp;
struct evhttp_request;
struct http_guard;
struct http_tls;

// Returns NULL if there is no memory. tls is borrowed. request_ms 0: HTTP_REQUEST_MS.
struct http_guard *http_guard_open(struct event_base *base, struct evhttp *evhttp,
                                   struct http_tls *tls, uint32_t request_ms);
void http_guard_close(struct http_guard *guard); // Call it after evhttp is freed. NULL is allowed.
void http_guard_listens(struct http_guard *guard, struct evconnlistener *listener);
// Called when a request has come completely. Returns false if its connection could not be set up as
// required (no memory for TLS); then the request must not be answered.
bool http_guard_asked(struct http_guard *guard, struct evhttp_request *request);
// The answer is a stream: it may take any time.
void http_guard_streams(struct http_guard *guard, struct evhttp_request *request);
struct http_guard_counts http_guard_counts(const struct http_guard *guard);

#endif
