// SPDX-License-Identifier: Apache-2.0
//
// See tls_limits.h. OpenSSL has a limit for the bytes of certificates, but none for those of a
// hello, and gRPC gives no access to the objects that have the limit. Two things are open to every
// program: OpenSSL's allocator, and a function that OpenSSL calls for each new connection ("ex
// data").
//
// Messages are the largest allocations of OpenSSL in this process: a message buffer has at least 21
// KiB, a record buffer 17 KiB, and the largest table 8 KiB.

#include "server/http/tls_limits.h"

#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <stdlib.h>

// ---- memory -----------------------------------------------------------------------------------

// OpenSSL grows a message buffer to four thirds of the requested size, which includes a header.
#define ALLOCATION_BYTES (TLS_MESSAGE_BYTES / 3 * 4 + 64)

static void *limited_malloc(size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return size <= ALLOCATION_BYTES ? malloc(size) : NULL;
}

static void *limited_realloc(void *memory, size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return size <= ALLOCATION_BYTES ? realloc(memory, size) : NULL;
}

static void plain_free(void *memory, const char *file, int line)
{
    (void)file;
    (void)line;
    free(memory);
}

// ---- connections ------------------------------------------------------------------------------

static _Thread_local const char *refusal = "a client's certificate is refused";

// OpenSSL calls this function for each certificate of a client's chain. good: 0 if it is refused.
static int note_refusal(int good, X509_STORE_CTX *context)
{
    if (good)
        return good;
    switch (X509_STORE_CTX_get_error(context)) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        refusal = X509_STORE_CTX_get_error_depth(context) == 0
                      ? "a client's certificate has expired"
                      : "an authority that signed a client's certificate has expired";
        break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        refusal = "a client's certificate is not valid yet; do the clocks agree?";
        break;
    case X509_V_ERR_INVALID_PURPOSE:
        refusal = "a client's certificate must not be used by a client of TLS (its extended key "
                  "usage)";
        break;
    default:
        refusal = "a client's certificate is not signed by an authority in ca.crt, or is not valid "
                  "with it";
        break;
    }
    return good;
}

const char *tls_limits_refusal(void)
{
    return refusal;
}

// OpenSSL calls this function at the end of SSL_new.
static void limit_connection(void *connection, void *unused, CRYPTO_EX_DATA *data, int index,
                             long number, void *context)
{
    (void)unused;
    (void)data;
    (void)index;
    (void)number;
    (void)context;
    SSL_set_max_cert_list(connection, TLS_MESSAGE_BYTES);
    SSL_set_mode(connection, SSL_MODE_RELEASE_BUFFERS);
    if (!SSL_get_verify_callback(connection))
        SSL_set_verify(connection, SSL_get_verify_mode(connection), note_refusal);
}

int tls_limits_set(void)
{
    if (CRYPTO_set_mem_functions(limited_malloc, limited_realloc, plain_free) != 1)
        return -1;
    return SSL_get_ex_new_index(0, NULL, limit_connection, NULL, NULL) < 0 ? -1 : 0;
}
