// SPDX-License-Identifier: Apache-2.0
//
// Memory that a client without proof of membership can make OpenSSL take: a server, and the first
// bytes of messages that a stranger sends it.

#include "server/http/tls_limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RECORD_BYTES 5 // Size of a record's header.
#define MESSAGE_BYTES 4 // Size of a message's header.
#define FRAGMENT_BYTES 16384 // Most bytes of a message in one record.
#define HELLO_BYTES 131000 // OpenSSL alone takes a hello of this size.

// Results of tls_limits_set at the start, and in a process that had used OpenSSL before.
static int limited;
static int limited_late;

struct server {
    SSL_CTX *context;
    SSL *connection;
};

static void server_open(struct server *server)
{
    server->context = SSL_CTX_new(TLS_server_method());
    server->connection = SSL_new(server->context);
    assert_non_null(server->connection);
    SSL_set_bio(server->connection, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_accept_state(server->connection);
}

static void server_close(struct server *server)
{
    SSL_free(server->connection);
    SSL_CTX_free(server->context);
    ERR_clear_error();
}

// The server's answer to all but the last of so many bytes of a hello: what it waits for.
static int hear_hello_of(uint32_t bytes)
{
    static uint8_t hello[MESSAGE_BYTES + HELLO_BYTES];
    const uint8_t begin[MESSAGE_BYTES] = {1, (uint8_t)(bytes >> 16), (uint8_t)(bytes >> 8),
                                          (uint8_t)bytes};
    const uint32_t size = MESSAGE_BYTES + bytes - 1;
    int wants = SSL_ERROR_WANT_READ;
    struct server server;
    server_open(&server);
    memcpy(hello, begin, sizeof(begin));
    for (uint32_t at = 0, piece; at < size && wants == SSL_ERROR_WANT_READ; at += piece) {
        piece = size - at < FRAGMENT_BYTES ? size - at : FRAGMENT_BYTES;
        const uint8_t record[RECORD_BYTES] = {22, 3, 1, (uint8_t)(piece >> 8), (uint8_t)piece};
        BIO *incoming = SSL_get_rbio(server.connection);
        assert_int_equal(BIO_write(incoming, record, sizeof(record)), sizeof(record));
        assert_int_equal(BIO_write(incoming, hello + at, (int)piece), piece);
        const int result = SSL_do_handshake(server.connection);
        wants = SSL_get_error(server.connection, result);
    }
    server_close(&server);
    return wants;
}

// Condition: all but the last byte of a hello of the largest size that is promised, and of one that
// OpenSSL alone would take. Some versions of OpenSSL take memory for a message as soon as they know
// its size, and others as its bytes come.
// Decision: it waits for the rest of the first, and ends the second before there is memory for it.
static void long_hellos_are_refused(void **state)
{
    (void)state;
    assert_int_equal(hear_hello_of(512), SSL_ERROR_WANT_READ);
    assert_int_equal(hear_hello_of(TLS_MESSAGE_BYTES), SSL_ERROR_WANT_READ);
    assert_int_equal(hear_hello_of(TLS_MESSAGE_BYTES / 2 * 3), SSL_ERROR_SSL);
    assert_int_equal(hear_hello_of(HELLO_BYTES), SSL_ERROR_SSL);
}

// The bounds hold for every connection in the process.
static void certificates_and_records_have_a_bound(void **state)
{
    (void)state;
    struct server server;
    server_open(&server);
    assert_int_equal(SSL_get_max_cert_list(server.connection), TLS_MESSAGE_BYTES);
    assert_true(SSL_get_mode(server.connection) & SSL_MODE_RELEASE_BUFFERS);
    server_close(&server);
}

// Limits that come too late would hold for a part only.
static void too_late_is_told(void **state)
{
    (void)state;
    assert_int_equal(limited, 0);
    assert_int_equal(limited_late, -1);
}

static int set_late(void)
{
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        SSL_CTX_free(SSL_CTX_new(TLS_server_method()));
        _exit(tls_limits_set() == -1 ? 1 : 0);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? -WEXITSTATUS(status) : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_hellos_are_refused),
        cmocka_unit_test(certificates_and_records_have_a_bound),
        cmocka_unit_test(too_late_is_told),
    };
    limited_late = set_late();
    limited = tls_limits_set();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
