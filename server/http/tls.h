// SPDX-License-Identifier: Apache-2.0
//
// TLS of the HTTP side. HTTP thread, but for open and close.

#ifndef SERVER_HTTP_TLS_H
#define SERVER_HTTP_TLS_H

#include <stddef.h>

struct http_tls;
struct log;
struct ssl_st;

// NULL, with a sentence in error: the files cannot be used. directory is borrowed until close.
struct http_tls *http_tls_open(const char *directory, struct log *log, char *error,
                               size_t error_bytes);
void http_tls_close(struct http_tls *tls); // NULL is allowed.
// For the next connection, with the certificate of now; given. NULL: no memory.
struct ssl_st *http_tls_accept(struct http_tls *tls);

#endif
