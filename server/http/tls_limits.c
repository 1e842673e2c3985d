// SPDX-License-Identifier: Apache-2.0
//
// tls_limits.h. OpenSSL has a setting for the bytes of certificates and none for those of a hello,
// and gRPC does not give out what they are set on. What is open to everybody is OpenSSL's
// allocator, and a function that it calls for each connection that it makes ("ex data").
//
// Messages are what is largest of all that OpenSSL takes in this process: its buffer for one has
// 21 KiB from the beginning, one for a record has 17 KiB, the largest of its tables 8 KiB.

#include "server/http/tls_limits.h"

#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <stdlib.h>

// ---- memory -----------------------------------------------------------------------------------

// A buffer for a message grows to four thirds of what is asked for, which has a header, too.
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

// Called by OpenSSL at the end of SSL_new.
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
}

int tls_limits_set(void)
{
    if (CRYPTO_set_mem_functions(limited_malloc, limited_realloc, plain_free) != 1)
        return -1;
    return SSL_get_ex_new_index(0, NULL, limit_connection, NULL, NULL) < 0 ? -1 : 0;
}
