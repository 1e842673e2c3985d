// SPDX-License-Identifier: Apache-2.0
// Puts certificates that base/tls_files.h has read and checked into an OpenSSL context. For the
// parts that speak TLS without gRPC: the HTTP server, the HTTP client, and the handshake that looks
// for a reason. Any thread; one thread at a time for each context.
#ifndef LOCKSTEP_BASE_TLS_CONTEXT_H
#define LOCKSTEP_BASE_TLS_CONTEXT_H

#include "base/tls_files.h"

#include <stdbool.h>

struct ssl_ctx_st; // SSL_CTX

// Returns a context for TLS 1.3 only, without a certificate and without trusted authorities.
// Returns NULL if there is no memory.
struct ssl_ctx_st *tls_context_new(bool server);

// Sets our own certificate: tls.crt with its chain, and tls.key.
bool tls_context_show(struct ssl_ctx_st *context, const struct tls_files *files);

// Sets the trusted authorities. pem: their certificates. Returns false if pem contains none.
bool tls_context_trust(struct ssl_ctx_st *context, const char *pem);

#endif
