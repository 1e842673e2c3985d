// SPDX-License-Identifier: Apache-2.0
// Certificates that were read and checked (base/tls_files.h) into a context of OpenSSL, for those
// parts that speak TLS without gRPC: HTTP on both sides, and the handshake that looks for a reason.
// Any thread; each context by one at a time.
#ifndef LOCKSTEP_BASE_TLS_CONTEXT_H
#define LOCKSTEP_BASE_TLS_CONTEXT_H

#include "base/tls_files.h"

#include <stdbool.h>

struct ssl_ctx_st; // SSL_CTX

// TLS 1.3 only, without anything to show or to believe yet. NULL: no memory.
struct ssl_ctx_st *tls_context_new(bool server);

// Sets our own certificate: tls.crt with its chain, and tls.key.
bool tls_context_show(struct ssl_ctx_st *context, const struct tls_files *files);

// Sets the authorities that we believe. pem: certificates. False: there is none.
bool tls_context_trust(struct ssl_ctx_st *context, const char *pem);

#endif
