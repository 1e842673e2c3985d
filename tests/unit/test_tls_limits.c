// SPDX-License-Identifier: Apache-2.0
//
// What a client that has proven nothing can make OpenSSL take: a server, and the first bytes of
// messages that a stranger sends it.

#include "server/tls_limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/wait.h>
#include <unistd.h>

#define RECORD_BYTES 5 // Of its header.
#define MESSAGE_BYTES 4 // The same of a message.

// What tls_limits_set returned at the start, and in a process that had used OpenSSL before.
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

// The server's answer to the first bytes of a hello that will have so many: what it waits for.
static int hear_hello_of(size_t bytes)
{
    const uint8_t begin[RECORD_BYTES + MESSAGE_BYTES] = {22,
                                                         3,
                                                         1,
                                                         0,
                                                         MESSAGE_BYTES,
                                                         1,
                                                         (uint8_t)(bytes >> 16),
                                                         (uint8_t)(bytes >> 8),
                                                         (uint8_t)bytes};
    struct server server;
    server_open(&server);
    assert_int_equal(BIO_write(SSL_get_rbio(server.connection), begin, sizeof begin), sizeof begin);
    const int result = SSL_do_handshake(server.connection);
    const int wants = SSL_get_error(server.connection, result);
    server_close(&server);
    return wants;
}

// Condition: a hello of the largest size that is promised, and one that OpenSSL alone would take.
// Decision: it waits for the rest of the first, and ends the second before there is memory for it.
static void long_hellos_are_refused(void **state)
{
    (void)state;
    assert_int_equal(hear_hello_of(512), SSL_ERROR_WANT_READ);
    assert_int_equal(hear_hello_of(TLS_MESSAGE_BYTES), SSL_ERROR_WANT_READ);
    assert_int_equal(hear_hello_of(TLS_MESSAGE_BYTES / 2 * 3), SSL_ERROR_SSL);
    assert_int_equal(hear_hello_of(131000), SSL_ERROR_SSL);
}

// Of every connection in the process, whoever makes it.
static void certificates_and_records_have_a_bound(void **state)
{
    (void)state;
    struct server server;
    server_open(&server);
    assert_int_equal(SSL_get_max_cert_list(server.connection), TLS_MESSAGE_BYTES);
    assert_true(SSL_get_mode(server.connection) & SSL_MODE_RELEASE_BUFFERS);
    server_close(&server);
}

// ---- what is said at once ---------------------------------------------------------------------

struct couple {
    SSL_CTX *contexts[2];
    SSL *client;
    SSL *server;
};

// For this key and name, signed by itself; for an hour.
static X509 *certificate_of(EVP_PKEY *key)
{
    X509 *certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    return certificate;
}

static void couple_open(struct couple *couple)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = certificate_of(key);
    BIO *pipes[2] = {BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem())};
    couple->contexts[0] = SSL_CTX_new(TLS_client_method());
    couple->contexts[1] = SSL_CTX_new(TLS_server_method());
    assert_int_equal(SSL_CTX_use_certificate(couple->contexts[1], certificate), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(couple->contexts[1], key), 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
    couple->client = SSL_new(couple->contexts[0]);
    couple->server = SSL_new(couple->contexts[1]);
    BIO_up_ref(pipes[0]);
    BIO_up_ref(pipes[1]);
    SSL_set_bio(couple->client, pipes[0], pipes[1]);
    SSL_set_bio(couple->server, pipes[1], pipes[0]);
    SSL_set_connect_state(couple->client);
    SSL_set_accept_state(couple->server);
    for (int i = 0; i < 4; i++) {
        SSL_do_handshake(couple->client);
        SSL_do_handshake(couple->server);
    }
    assert_true(SSL_is_init_finished(couple->server));
}

static void couple_close(struct couple *couple)
{
    SSL_free(couple->client);
    SSL_free(couple->server);
    SSL_CTX_free(couple->contexts[0]);
    SSL_CTX_free(couple->contexts[1]);
    ERR_clear_error();
}

#define PART_BYTES 1024 // A pipe of this test takes 16 KiB: OpenSSL allocates it.

// The client says so many bytes, and the server reads them as they come: how many it has heard.
static size_t say(struct couple *couple, size_t bytes)
{
    static const uint8_t said[PART_BYTES];
    uint8_t heard[PART_BYTES];
    size_t got = 0;
    for (size_t i = 0; i < bytes; i += PART_BYTES) {
        assert_int_equal(SSL_write(couple->client, said, PART_BYTES), PART_BYTES);
        const int part = SSL_read(couple->server, heard, PART_BYTES);
        if (part <= 0)
            break;
        got += (size_t)part;
    }
    return got;
}

// Condition: a client says something before each turn, then very much before the next one.
// Decision: all is heard, then no more than the bound.
static void much_at_once_is_not_heard(void **state)
{
    (void)state;
    const size_t much = TLS_TURN_BYTES / 4 * 3;
    struct couple couple;
    couple_open(&couple);
    assert_int_equal(say(&couple, 2 * TLS_TURN_BYTES), 2 * TLS_TURN_BYTES); // No turn was ever.
    for (int i = 0; i < 3; i++) {
        tls_limits_turn();
        assert_int_equal(say(&couple, much), much);
    }
    tls_limits_turn();
    const size_t heard = say(&couple, 2 * TLS_TURN_BYTES);
    assert_in_range(heard, much, TLS_TURN_BYTES);
    tls_limits_turn();
    assert_int_equal(say(&couple, PART_BYTES), 0);
    couple_close(&couple);
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
        cmocka_unit_test(much_at_once_is_not_heard),
        cmocka_unit_test(too_late_is_told),
    };
    limited_late = set_late();
    limited = tls_limits_set();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
