// SPDX-License-Identifier: Apache-2.0
//
// Stacks and timelines, which may wait for a worker's answer. HTTP thread.

#ifndef SERVER_HTTP_WAIT_H
#define SERVER_HTTP_WAIT_H

#include <stdbool.h>
#include <stdint.h>

struct archive_job;
struct evhttp_request;
struct http_core;
struct http_waits;

struct http_waits *http_waits_open(struct http_core *core); // NULL: no memory.
void http_waits_close(struct http_waits *waits);
// These functions take ownership of the request.
// gone: what the error says of a rank that no question can reach any more; NULL: the rank is there.
void http_waits_stack(struct http_waits *waits, struct evhttp_request *request,
                      const struct archive_job *job, uint32_t rank, bool fresh, const char *gone);
void http_waits_timeline(struct http_waits *waits, struct evhttp_request *request,
                         const struct archive_job *job, uint32_t first, uint32_t last);

#endif
