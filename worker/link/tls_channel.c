// SPDX-License-Identifier: Apache-2.0
//
// TLS 1.3 with a key that both sides know; see tls_channel.h. One thread at a time.
//
// OpenSSL reaches the carrier through a BIO of this file. A read of the BIO asks the carrier; a
// write always succeeds and adds to the held bytes. This file turns failures of OpenSSL into errno
// and leaves OpenSSL's error queue empty, because the trainer may use the error queue of the same
// thread.

#include "worker/link/tls_channel.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHANNEL_IDENTITY "lockstep" // The name of the only key.
#define CHANNEL_READ_BYTES ((size_t)128 * 1024) // Most bytes that one read asks of the carrier.
// A record is begun only if the held bytes leave room for it and for messages that TLS itself may
// add.
#define CHANNEL_ROOM_BYTES ((size_t)CRYPTO_RECORD_BYTES + 4096)
// A key encrypts at most 2^24.5 full records (RFC 8446, 5.5), which are 388 GB. The channel changes
// the key after a sixth of that.
#define CHANNEL_REKEY_BYTES ((uint64_t)64 << 30)

struct tls_channel {
    // set when made, then constant
    SSL *ssl;
    BIO_METHOD *method;
    struct crypto_carrier carrier;
    bool server;
    // the owner's
    uint8_t key[CRYPTO_KEY_BYTES];
    bool stands;
    bool ended; // True if the carrier's receive has reported the end.
    int error; // errno of the carrier, or EBADMSG; 0: no error.
    uint64_t sealed; // Bytes encrypted with the present key.
    size_t held_first;
    size_t held_end;
    uint8_t held[CRYPTO_HELD_BYTES];
};

// ---- the carrier, as OpenSSL sees it ------------------------------------------------------------

static int channel_write(BIO *bio, const char *bytes, int size)
{
    struct tls_channel *channel = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (size <= 0)
        return 0;
    if (sizeof(channel->held) - channel->held_end < (size_t)size) {
        const size_t held = channel->held_end - channel->held_first;
        memmove(channel->held, channel->held + channel->held_first, held);
        channel->held_first = 0;
        channel->held_end = held;
    }
    if (sizeof(channel->held) - channel->held_end < (size_t)size) {
        channel->error = ENOBUFS; // Cannot happen: there was room when the record was begun.
        return -1;
    }
    memcpy(channel->held + channel->held_end, bytes, (size_t)size);
    channel->held_end += (size_t)size;
    return size;
}

static int channel_read(BIO *bio, char *bytes, int size)
{
    struct tls_channel *channel = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (size <= 0)
        return 0;
    const ssize_t received =
        channel->carrier.receive(channel->carrier.context, bytes, (size_t)size);
    if (received > 0)
        return (int)received;
    if (received == 0) {
        channel->ended = true;
        return 0;
    }
    if (errno == EAGAIN)
        BIO_set_retry_read(bio);
    else
        channel->error = errno;
    return -1;
}

static long channel_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// ---- the key ------------------------------------------------------------------------------------

static SSL_SESSION *channel_session(SSL *ssl)
{
    static const unsigned char suite[] = {0x13, 0x01}; // TLS_AES_128_GCM_SHA256
    const struct tls_channel *channel = SSL_get_app_data(ssl);
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session && cipher &&
        SSL_SESSION_set1_master_key(session, channel->key, sizeof(channel->key)) == 1 &&
        SSL_SESSION_set_cipher(session, cipher) == 1 &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int channel_offer(SSL *ssl, const EVP_MD *digest, const unsigned char **identity,
                         size_t *length, SSL_SESSION **session)
{
    *session = NULL;
    if (digest && !EVP_MD_is_a(digest, "SHA256"))
        return 0;
    *identity = (const unsigned char *)CHANNEL_IDENTITY;
    *length = sizeof(CHANNEL_IDENTITY) - 1;
    *session = channel_session(ssl);
    return *session != NULL;
}

static int channel_find(SSL *ssl, const unsigned char *identity, size_t length,
                        SSL_SESSION **session)
{
    *session = NULL;
    if (length != sizeof(CHANNEL_IDENTITY) - 1 || memcmp(identity, CHANNEL_IDENTITY, length) != 0)
        return 1; // This side does not have that key, so the handshake fails.
    *session = channel_session(ssl);
    return *session != NULL;
}

// ---- life ---------------------------------------------------------------------------------------

// Neither side has or trusts a certificate, so the key is the only way to agree.
static SSL_CTX *channel_context(bool server)
{
    SSL_CTX *context = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (!context)
        return NULL;
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
        SSL_CTX_set1_groups_list(context, "X25519:P-256") != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1) {
        SSL_CTX_free(context);
        return NULL;
    }
    SSL_CTX_set_verify(context, server ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, CHANNEL_READ_BYTES);
    if (server)
        SSL_CTX_set_psk_find_session_callback(context, channel_find);
    else
        SSL_CTX_set_psk_use_session_callback(context, channel_offer);
    return context;
}

static bool channel_wire(struct tls_channel *channel)
{
    channel->method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "lockstep");
    if (!channel->method || BIO_meth_set_write(channel->method, channel_write) != 1 ||
        BIO_meth_set_read(channel->method, channel_read) != 1 ||
        BIO_meth_set_ctrl(channel->method, channel_control) != 1)
        return false;
    BIO *bio = BIO_new(channel->method);
    if (!bio)
        return false;
    BIO_set_data(bio, channel);
    BIO_set_init(bio, 1);
    SSL_set_bio(channel->ssl, bio, bio); // From now on channel->ssl owns the BIO.
    return true;
}

struct tls_channel *tls_channel_make(bool server, const uint8_t key[CRYPTO_KEY_BYTES],
                                     const struct crypto_carrier *carrier)
{
    struct tls_channel *channel = malloc(sizeof(*channel));
    if (!channel)
        return NULL;
    memset(channel, 0, offsetof(struct tls_channel, held));
    channel->carrier = *carrier;
    channel->server = server;
    memcpy(channel->key, key, sizeof(channel->key));
    SSL_CTX *context = channel_context(server);
    channel->ssl = context ? SSL_new(context) : NULL;
    SSL_CTX_free(context); // channel->ssl holds its own reference.
    if (channel->ssl && channel_wire(channel)) {
        (void)SSL_set_app_data(channel->ssl, channel);
        if (server)
            SSL_set_accept_state(channel->ssl);
        else
            SSL_set_connect_state(channel->ssl);
        ERR_clear_error();
        return channel;
    }
    ERR_clear_error();
    tls_channel_free(channel);
    return NULL;
}

void tls_channel_free(struct tls_channel *channel)
{
    if (!channel)
        return;
    SSL_free(channel->ssl);
    BIO_meth_free(channel->method);
    crypto_forget(channel->key, sizeof(channel->key));
    free(channel);
}

// ---- bytes --------------------------------------------------------------------------------------

// Finds the reason why an OpenSSL function failed. SSL_get_error also reads the thread's queue of
// errors, in which other code of the process may have left some: the caller empties it before the
// function. Returns 0: the other side has ended; -1: see errno.
static int channel_failure(struct tls_channel *channel, int returned)
{
    const int kind = SSL_get_error(channel->ssl, returned);
    ERR_clear_error();
    errno = EAGAIN;
    if (channel->error == 0 && (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE))
        return -1;
    if (channel->error == 0 && (channel->ended || kind == SSL_ERROR_ZERO_RETURN))
        return 0;
    if (channel->error == 0)
        channel->error = EBADMSG;
    errno = channel->error;
    return -1;
}

size_t tls_channel_held(const struct tls_channel *channel)
{
    return channel->held_end - channel->held_first;
}

int tls_channel_push(struct tls_channel *channel)
{
    while (channel->held_first < channel->held_end) {
        const ssize_t sent =
            channel->carrier.send(channel->carrier.context, channel->held + channel->held_first,
                                  channel->held_end - channel->held_first);
        if (sent < 0)
            return -1;
        channel->held_first += (size_t)sent;
    }
    channel->held_first = channel->held_end = 0;
    return 0;
}

int tls_channel_meet(struct tls_channel *channel)
{
    if (channel->stands)
        return 1;
    if (channel->error != 0) {
        errno = channel->error;
        return -1;
    }
    ERR_clear_error();
    const int returned = SSL_do_handshake(channel->ssl);
    int status = returned == 1 ? 1 : channel_failure(channel, returned);
    if (status == 0) // The connection ended before the handshake did.
        errno = channel->error = ECONNRESET;
    const bool broken = status == 0 || (status < 0 && errno != EAGAIN);
    const int number = errno;
    if (tls_channel_push(channel) < 0 && errno != EAGAIN && !broken)
        return -1;
    errno = number;
    if (status == 1 && !SSL_session_reused(channel->ssl)) {
        errno = channel->error = EBADMSG; // The handshake did not use the key.
        return -1;
    }
    if (status != 1)
        return broken ? -1 : 0;
    crypto_forget(channel->key, sizeof(channel->key));
    channel->stands = true;
    return 1;
}

// Changes the key before the key has encrypted too many bytes.
static void channel_rekey(struct tls_channel *channel)
{
    if (channel->sealed < CHANNEL_REKEY_BYTES)
        return;
    if (SSL_key_update(channel->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1)
        channel->sealed = 0;
}

ssize_t tls_channel_send(struct tls_channel *channel, const void *bytes, size_t size)
{
    if (channel->error != 0) {
        errno = channel->error;
        return -1;
    }
    if (tls_channel_held(channel) > sizeof(channel->held) - CHANNEL_ROOM_BYTES &&
        tls_channel_push(channel) < 0)
        return -1;
    channel_rekey(channel);
    const size_t most = size < CRYPTO_RECORD_BYTES ? size : CRYPTO_RECORD_BYTES;
    ERR_clear_error();
    const int taken = SSL_write(channel->ssl, bytes, (int)most);
    if (taken <= 0)
        return channel_failure(channel, taken) == 0 ? (errno = EPIPE, -1) : -1;
    channel->sealed += (uint64_t)taken;
    return taken;
}

ssize_t tls_channel_receive(struct tls_channel *channel, void *bytes, size_t size)
{
    ERR_clear_error();
    const int received = SSL_read(channel->ssl, bytes, size < INT32_MAX ? (int)size : INT32_MAX);
    return received > 0 ? received : channel_failure(channel, received);
}

size_t tls_channel_readable(struct tls_channel *channel)
{
    uint8_t byte = 0;
    if (SSL_pending(channel->ssl) == 0 && SSL_peek(channel->ssl, &byte, 1) <= 0)
        ERR_clear_error(); // The next receive reports the reason.
    const int pending = SSL_pending(channel->ssl);
    return pending > 0 ? (size_t)pending : 0;
}
