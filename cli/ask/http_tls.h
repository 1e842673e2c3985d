// SPDX-License-Identifier: Apache-2.0
//
// TLS on a connection that stands, for the client of cli/ask/http.h: TLS 1.3, the server's
// certificate is verified and has to be for the host that was asked for. Nothing is shown. The
// socket does not block, and stays the caller's. Main thread.

#ifndef LOCKSTEP_CLI_ASK_HTTP_TLS_H
#define LOCKSTEP_CLI_ASK_HTTP_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct http_tls; // Opaque.

// Shakes hands. cacert: a file with the authorities to believe; "": those of this machine. NULL,
// with the reason in error: it is not who we wanted, or the time is over.
struct http_tls *http_tls_open(int fd, const char *host, const char *cacert, uint64_t deadline_ms,
                               char *error, size_t error_bytes);

// 0, or -1 with errno.
int http_tls_send(struct http_tls *tls, const char *bytes, size_t size, uint64_t deadline_ms);

// How many bytes came; 0: that was all; -1 with errno.
ssize_t http_tls_receive(struct http_tls *tls, char *bytes, size_t size, uint64_t deadline_ms);

void http_tls_close(struct http_tls *tls); // NULL is allowed.

#endif
