// SPDX-License-Identifier: Apache-2.0
//
// tls_limits.h. OpenSSL has a setting for the bytes of certificates and none for those of a hello,
// and gRPC does not give out what they are set on. What is open to everybody is OpenSSL's
// allocator, and a function that it calls for each connection that it makes ("ex data").
//
// Messages are what is largest of all that OpenSSL takes in this process: its buffer for one has
// 21 KiB from the beginning, one for a record has 17 KiB, the largest of its tables 8 KiB.

#include "server/tls_limits.h"

#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

// Of a connection, found by its index of "ex data". The thread that reads from it.
struct said {
    uint64_t turn;
    size_t bytes; // In that turn.
};

static int said_index = -1; // Set at the start, then constant.
static atomic_uint_fast64_t turns;

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

// Called with the header of each record that has come. What is behind a shutdown is not read.
static void hear_record(int sent, int version, int type, const void *bytes, size_t size,
                        SSL *connection, void *context)
{
    const uint8_t *header = bytes;
    const uint64_t turn = atomic_load(&turns);
    (void)version;
    (void)context;
    if (sent || type != SSL3_RT_HEADER || size < SSL3_RT_HEADER_LENGTH || turn == 0)
        return;
    struct said *said = SSL_get_ex_data(connection, said_index);
    if (!said)
        return;
    if (said->turn != turn)
        *said = (struct said){.turn = turn};
    said->bytes += (size_t)header[3] << 8 | header[4];
    if (said->bytes > TLS_TURN_BYTES)
        SSL_set_shutdown(connection, SSL_get_shutdown(connection) | SSL_RECEIVED_SHUTDOWN);
}

static void free_connection(void *connection, void *said, CRYPTO_EX_DATA *data, int index,
                            long number, void *context)
{
    (void)connection;
    (void)data;
    (void)index;
    (void)number;
    (void)context;
    free(said);
}

// Called by OpenSSL at the end of SSL_new.
static void limit_connection(void *connection, void *unused, CRYPTO_EX_DATA *data, int index,
                             long number, void *context)
{
    (void)unused;
    (void)number;
    (void)context;
    CRYPTO_set_ex_data(data, index, calloc(1, sizeof(struct said)));
    SSL_set_msg_callback(connection, hear_record);
    SSL_set_max_cert_list(connection, TLS_MESSAGE_BYTES);
    SSL_set_mode(connection, SSL_MODE_RELEASE_BUFFERS);
}

int tls_limits_set(void)
{
    if (CRYPTO_set_mem_functions(limited_malloc, limited_realloc, plain_free) != 1)
        return -1;
    said_index = SSL_get_ex_new_index(0, NULL, limit_connection, NULL, free_connection);
    return said_index < 0 ? -1 : 0;
}

void tls_limits_turn(void)
{
    atomic_fetch_add(&turns, 1);
}
