// SPDX-License-Identifier: Apache-2.0
//
// The names by which this server may be asked. HTTP thread.

#ifndef SERVER_HTTP_HOST_H
#define SERVER_HTTP_HOST_H

#include <stdbool.h>

struct evhttp_request;
struct http_core;

// Whether a request to this path may ask by the name that it has used. False: it is answered.
bool http_may_ask(struct http_core *core, struct evhttp_request *request, const char *path);
// The same of the header Host; NULL: there was none. names: as of http_config.
bool http_host_allowed(const char *header, const char *names);

#endif
