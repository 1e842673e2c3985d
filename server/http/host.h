// SPDX-License-Identifier: Apache-2.0
//
// The host names by which clients may address this server. HTTP thread.

#ifndef SERVER_HTTP_HOST_H
#define SERVER_HTTP_HOST_H

#include <stdbool.h>

struct evhttp_request;
struct http_core;

// Returns true if the host name of this request is allowed for this path. Returns false after
// sending an error.
bool http_may_ask(struct http_core *core, struct evhttp_request *request, const char *path);
// The same check for a Host header; header NULL: the request had none. names: as http_config.hosts.
bool http_host_allowed(const char *header, const char *names);

#endif
