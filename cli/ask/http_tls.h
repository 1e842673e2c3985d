// SPDX-License-Identifier: Apache-2.0
//
// TLS on an open connection, for the client of cli/ask/http.h. It uses TLS 1.3, and the server's
// certificate must be valid for the requested host. The client shows no certificate. The socket is
// non-blocking and stays the caller's. Main thread.

#ifndef LOCKSTEP_CLI_ASK_HTTP_TLS_H
#define LOCKSTEP_CLI_ASK_HTTP_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct http_tls; // Opaque.

// Makes the handshake. cacert: a file with the trusted authorities; "": those of this machine.
// Returns NULL, with the reason in error, if the server could not be verified or the deadline has
// passed.
struct http_tls *http_tls_open(int fd, const char *host, const char *cacert, uint64_t deadline_ms,
                               char *error, size_t error_bytes);

// Returns 0, or -1 with errno.
int http_tls_send(struct http_tls *tls, const char *bytes, size_t size, uint64_t deadline_ms);

// Returns how many bytes were received; 0 at the end; -1 with errno.
ssize_t http_tls_receive(struct http_tls *tls, char *bytes, size_t size, uint64_t deadline_ms);

void http_tls_close(struct http_tls *tls); // NULL is allowed.

#endif
