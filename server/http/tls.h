// SPDX-License-Identifier: Apache-2.0
//
// TLS of the HTTP side. HTTP thread, except for open and close.

#ifndef SERVER_HTTP_TLS_H
#define SERVER_HTTP_TLS_H

#include <stddef.h>

struct http_tls;
struct log;
struct ssl_st;

// Returns NULL, with a sentence in error, if the files cannot be used. directory is borrowed until
// close.
struct http_tls *http_tls_open(const char *directory, struct log *log, char *error,
                               size_t error_bytes);
void http_tls_close(struct http_tls *tls); // NULL is allowed.
// Returns the TLS state for a new connection, with the current certificate. It is given to the
// caller. Returns NULL if there is no memory.
struct ssl_st *http_tls_accept(struct http_tls *tls);

#endif
