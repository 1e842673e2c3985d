// SPDX-License-Identifier: Apache-2.0
//
// Streams of server-sent events. HTTP thread.

#ifndef SERVER_HTTP_STREAM_H
#define SERVER_HTTP_STREAM_H

#include <stdint.h>

struct evhttp_request;
struct http_core;
struct http_streams;

struct http_streams *http_streams_open(struct http_core *core); // NULL: no memory.
void http_streams_close(struct http_streams *streams);
// Takes ownership of the request. job NULL: the stream always shows the latest job.
void http_streams_add(struct http_streams *streams, struct evhttp_request *request,
                      const char *job);
// *standing: streams that are open now. *skipped: states that were not sent, because a client had
// not read.
void http_streams_count(const struct http_streams *streams, uint32_t *standing, uint64_t *skipped);

#endif
