// SPDX-License-Identifier: Apache-2.0
//
// Encrypted channels by themselves, over two buffers: what goes in comes out, and nothing else
// does. Another key, another side, bytes that were changed on the way, and a peer with a
// certificate instead of the key.

#include "worker/link/tls_channel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <string.h>

// One direction of a channel: bytes that were sent and not received yet.
struct pipe {
    uint8_t bytes[1 << 20];
    size_t first;
    size_t end;
    size_t room; // Bytes that one call takes; 0: none.
    bool ended;
};

struct end {
    struct pipe *out;
    struct pipe *in;
    struct tls_channel *channel;
};

struct couple {
    struct pipe pipes[2];
    struct end ends[2]; // The client, the server.
};

static ssize_t pipe_send(void *context, const void *bytes, size_t size)
{
    struct pipe *pipe = ((struct end *)context)->out;
    const size_t part = size < pipe->room ? size : pipe->room;
    errno = EAGAIN;
    if (part == 0 || sizeof(pipe->bytes) - pipe->end < part)
        return -1;
    memcpy(pipe->bytes + pipe->end, bytes, part);
    pipe->end += part;
    return (ssize_t)part;
}

static ssize_t pipe_receive(void *context, void *bytes, size_t size)
{
    struct pipe *pipe = ((struct end *)context)->in;
    const size_t there = pipe->end - pipe->first;
    const size_t part = size < there ? size : there;
    errno = EAGAIN;
    if (part == 0)
        return pipe->ended ? 0 : -1;
    memcpy(bytes, pipe->bytes + pipe->first, part);
    pipe->first += part;
    if (pipe->first == pipe->end)
        pipe->first = pipe->end = 0;
    return (ssize_t)part;
}

static struct couple *couple_make(uint8_t client_key, uint8_t server_key, bool both_clients)
{
    struct couple *couple = calloc(1, sizeof(*couple));
    assert_non_null(couple);
    for (int i = 0; i < 2; i++) {
        uint8_t key[CRYPTO_KEY_BYTES];
        struct end *end = &couple->ends[i];
        memset(key, i == 0 ? client_key : server_key, sizeof(key));
        couple->pipes[i].room = SIZE_MAX;
        *end = (struct end){.out = &couple->pipes[i], .in = &couple->pipes[1 - i]};
        const struct crypto_carrier carrier = {pipe_send, pipe_receive, end};
        end->channel = tls_channel_make(i == 1 && !both_clients, key, &carrier);
        assert_non_null(end->channel);
    }
    return couple;
}

static void couple_free(struct couple *couple)
{
    for (int i = 0; i < 2; i++)
        tls_channel_free(couple->ends[i].channel);
    free(couple);
}

// The status of each side when nothing happens any more.
static void couple_meet(struct couple *couple, int statuses[2], int numbers[2])
{
    for (int i = 0; i < 20; i++) {
        errno = 0;
        statuses[i % 2] = tls_channel_meet(couple->ends[i % 2].channel);
        numbers[i % 2] = errno;
    }
}

static struct couple *couple_stands(void)
{
    struct couple *couple = couple_make(7, 7, false);
    int statuses[2];
    int numbers[2];
    couple_meet(couple, statuses, numbers);
    assert_int_equal(statuses[0], 1);
    assert_int_equal(statuses[1], 1);
    return couple;
}

static void bytes_arrive(void **state)
{
    struct couple *couple = couple_stands();
    uint8_t sent[50000];
    uint8_t received[50000];
    (void)state;
    for (size_t i = 0; i < sizeof(sent); i++)
        sent[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int way = 0; way < 2; way++) {
        struct tls_channel *from = couple->ends[way].channel;
        struct tls_channel *to = couple->ends[1 - way].channel;
        assert_int_equal(tls_channel_readable(to), 0);
        for (size_t done = 0; done < sizeof(sent);) {
            const ssize_t taken = tls_channel_send(from, sent + done, sizeof(sent) - done);
            assert_true(taken > 0 && taken <= CRYPTO_RECORD_BYTES);
            done += (size_t)taken;
        }
        assert_int_equal(tls_channel_push(from), 0);
        // Not as they are.
        assert_null(memmem(couple->ends[way].out->bytes, couple->ends[way].out->end, sent, 16));
        for (size_t done = 0; done < sizeof(sent);) {
            const size_t sure = tls_channel_readable(to);
            assert_true(sure > 0);
            const ssize_t got = tls_channel_receive(to, received + done, sizeof(sent) - done);
            assert_true(got > 0 && (size_t)got >= (sure < sizeof(sent) - done ? sure : 0));
            done += (size_t)got;
        }
        assert_memory_equal(sent, received, sizeof(sent));
        assert_int_equal(tls_channel_receive(to, received, 1), -1);
        assert_int_equal(errno, EAGAIN);
    }
    // An end, after what was sent.
    assert_int_equal(tls_channel_send(couple->ends[0].channel, sent, 5), 5);
    assert_int_equal(tls_channel_push(couple->ends[0].channel), 0);
    couple->pipes[0].ended = true;
    assert_int_equal(tls_channel_receive(couple->ends[1].channel, received, 50), 5);
    assert_int_equal(tls_channel_receive(couple->ends[1].channel, received, 50), 0);
    couple_free(couple);
}

// Leaves an error in the thread's queue, as a trainer does that parses a key and forgets to clear
// it.
static void leave_error(void)
{
    ERR_raise(ERR_LIB_PEM, PEM_R_NO_START_LINE);
}

static void errors_of_others_are_no_failure(void **state)
{
    struct couple *couple = couple_make(7, 7, false);
    uint8_t byte = 1;
    int statuses[2] = {0, 0};
    (void)state;
    for (int i = 0; i < 20; i++) {
        leave_error();
        statuses[i % 2] = tls_channel_meet(couple->ends[i % 2].channel);
        assert_true(statuses[i % 2] >= 0);
    }
    assert_int_equal(statuses[0], 1);
    assert_int_equal(statuses[1], 1);
    leave_error();
    assert_int_equal(tls_channel_receive(couple->ends[1].channel, &byte, 1), -1);
    assert_int_equal(errno, EAGAIN);
    leave_error();
    assert_int_equal(tls_channel_send(couple->ends[0].channel, &byte, 1), 1);
    assert_int_equal(tls_channel_push(couple->ends[0].channel), 0);
    leave_error();
    assert_int_equal(tls_channel_readable(couple->ends[1].channel), 1);
    leave_error();
    assert_int_equal(tls_channel_receive(couple->ends[1].channel, &byte, 1), 1);
    ERR_clear_error();
    couple_free(couple);
}

// The other side takes nothing for a while: what is held is bounded, and nothing is lost.
static void what_is_held_is_bounded(void **state)
{
    struct couple *couple = couple_stands();
    struct tls_channel *from = couple->ends[0].channel;
    uint8_t bytes[1000];
    uint64_t sent = 0;
    uint64_t received = 0;
    (void)state;
    for (int round = 0; round < 5; round++) {
        couple->pipes[0].room = 0;
        for (;;) {
            for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (uint8_t)((sent + i) * 40503u >> 7);
            const ssize_t taken = tls_channel_send(from, bytes, sizeof(bytes));
            if (taken < 0)
                break;
            sent += (uint64_t)taken;
        }
        assert_int_equal(errno, EAGAIN);
        assert_true(tls_channel_held(from) > CRYPTO_HELD_BYTES / 2);
        assert_true(tls_channel_held(from) <= CRYPTO_HELD_BYTES);
        assert_int_equal(tls_channel_push(from), -1);
        couple->pipes[0].room = 777;
        assert_int_equal(tls_channel_push(from), 0);
        assert_int_equal(tls_channel_held(from), 0);
        while (received < sent) {
            const ssize_t got = tls_channel_receive(couple->ends[1].channel, bytes, sizeof(bytes));
            assert_true(got > 0);
            for (ssize_t i = 0; i < got; i++)
                assert_int_equal(bytes[i], (uint8_t)((received + (uint64_t)i) * 40503u >> 7));
            received += (uint64_t)got;
        }
    }
    couple_free(couple);
}

static void another_key_does_not_meet(void **state)
{
    struct couple *couple = couple_make(7, 8, false);
    int statuses[2];
    int numbers[2];
    (void)state;
    couple_meet(couple, statuses, numbers);
    assert_int_equal(statuses[0], -1);
    assert_int_equal(statuses[1], -1);
    assert_int_equal(numbers[0], EBADMSG);
    assert_int_equal(numbers[1], EBADMSG);
    couple_free(couple);
    // A message of the client is sent back to it, or is sent by another client.
    couple = couple_make(7, 7, true);
    couple_meet(couple, statuses, numbers);
    assert_int_equal(statuses[0], -1);
    assert_int_equal(statuses[1], -1);
    couple_free(couple);
}

// One bit is changed on the way, of each part of a record.
static void changed_bytes_are_found(void **state)
{
    static const size_t places[] = {0, 1, 3, 5, 20, 120};
    (void)state;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        struct couple *couple = couple_stands();
        uint8_t bytes[100] = {0};
        assert_int_equal(tls_channel_send(couple->ends[0].channel, bytes, sizeof(bytes)),
                         sizeof(bytes));
        assert_int_equal(tls_channel_push(couple->ends[0].channel), 0);
        assert_true(places[i] < couple->pipes[0].end);
        couple->pipes[0].bytes[places[i]] ^= 0x10;
        couple->pipes[0].ended = true; // A longer record is awaited in vain.
        const ssize_t received = tls_channel_receive(couple->ends[1].channel, bytes, sizeof(bytes));
        assert_true(received == 0 || (received == -1 && errno == EBADMSG));
        assert_true(places[i] == 3 || received == -1);
        couple_free(couple);
    }
}

// ---- somebody with a certificate ----------------------------------------------------------------

static SSL *stranger_make(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    assert_true(context && key && certificate);
    assert_int_equal(ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1), 1);
    assert_non_null(X509_gmtime_adj(X509_getm_notBefore(certificate), -60));
    assert_non_null(X509_gmtime_adj(X509_getm_notAfter(certificate), 3600));
    assert_int_equal(X509_set_pubkey(certificate, key), 1);
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    assert_int_equal(SSL_CTX_use_certificate(context, certificate), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(context, key), 1);
    SSL *ssl = SSL_new(context);
    assert_non_null(ssl);
    SSL_set_bio(ssl, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_accept_state(ssl);
    X509_free(certificate);
    EVP_PKEY_free(key);
    SSL_CTX_free(context);
    return ssl;
}

// He would agree with a client on keys of their own; but he does not know ours.
static void a_certificate_is_no_key(void **state)
{
    struct couple *couple = couple_make(7, 7, false);
    struct end *client = &couple->ends[0];
    SSL *stranger = stranger_make();
    int status = 0;
    int number = 0;
    (void)state;
    for (int i = 0; i < 10 && status == 0; i++) {
        uint8_t bytes[8192];
        status = tls_channel_meet(client->channel);
        number = errno;
        const int said = (int)(client->out->end - client->out->first);
        if (said > 0)
            (void)BIO_write(SSL_get_rbio(stranger), client->out->bytes + client->out->first, said);
        client->out->first = client->out->end = 0;
        (void)SSL_do_handshake(stranger);
        const int answer = BIO_read(SSL_get_wbio(stranger), bytes, sizeof(bytes));
        for (int k = 0; k < answer; k++)
            client->in->bytes[client->in->end++] = bytes[k];
    }
    assert_int_equal(status, -1);
    assert_int_equal(number, EBADMSG);
    SSL_free(stranger);
    couple_free(couple);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive),
        cmocka_unit_test(errors_of_others_are_no_failure),
        cmocka_unit_test(what_is_held_is_bounded),
        cmocka_unit_test(another_key_does_not_meet),
        cmocka_unit_test(changed_bytes_are_found),
        cmocka_unit_test(a_certificate_is_no_key),
    };
    return cmocka_run_group_tests_name("tls_channel", tests, NULL, NULL);
}
