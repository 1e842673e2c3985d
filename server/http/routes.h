// SPDX-License-Identifier: Apache-2.0
//
// The answer to each path. HTTP thread.

#ifndef LOCKSTEP_SERVER_HTTP_ROUTES_H
#define LOCKSTEP_SERVER_HTTP_ROUTES_H

struct evhttp_request;

// Answers a request, for evhttp_set_gencb. context is the struct http_core.
void http_on_request(struct evhttp_request *request, void *context);

#endif
