// SPDX-License-Identifier: Apache-2.0
//
// One GET over HTTP/1.1 to a coordinator's page. Not a web client: no redirects, no TLS, an answer
// of HTTP_MAX_BYTES at most. Blocks until the deadline at the latest. Any thread.

#ifndef LOCKSTEP_CLI_HTTP_H
#define LOCKSTEP_CLI_HTTP_H

#include <stddef.h>
#include <stdint.h>

#define HTTP_MAX_BYTES (16 * 1024 * 1024)

// Returns the status code with the body, NUL-terminated, given in *body (free it), or -1 with a
// sentence in error. address: HOST:PORT.
int http_get(const char *address, const char *path, uint64_t timeout_ms, char **body, char *error,
             size_t error_bytes);

#endif
