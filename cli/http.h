// SPDX-License-Identifier: Apache-2.0
//
// One GET over HTTP/1.1 to a coordinator's page. Not a web client: no redirects, no TLS, an answer
// of HTTP_MAX_BYTES at most. Blocks until the deadline at the latest. Any thread.

#ifndef LOCKSTEP_CLI_HTTP_H
#define LOCKSTEP_CLI_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_MAX_BYTES (16 * 1024 * 1024)

// Takes what people give as an address, "http://127.0.0.1:8080/" or "127.0.0.1:8080", to HOST:PORT.
// False when it is neither, or too long.
bool http_read_address(const char *value, char *address, size_t capacity);

// Returns the status code with the body, NUL-terminated, given in *body (free it), or -1 with a
// sentence in error. address: HOST:PORT. token: shown as a bearer's; "": none is.
int http_get(const char *address, const char *path, const char *token, uint64_t timeout_ms,
             char **body, char *error, size_t error_bytes);

#endif
