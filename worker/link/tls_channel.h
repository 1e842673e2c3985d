// SPDX-License-Identifier: Apache-2.0
//
// A TLS 1.3 channel between two sides that know one key, over any carrier of bytes: no
// certificates, one cipher suite, fresh keys by a Diffie-Hellman exchange. The channel never
// blocks. Not here: sockets, frames, and the origin of the key (hello.h). One thread at a time.
//
// The channel holds ciphertext that the carrier does not take at once, up to CRYPTO_HELD_BYTES.
// When the held bytes leave no room, the channel takes no plaintext until the carrier has taken
// ciphertext. So the caller never has to offer the same plaintext again, as OpenSSL would otherwise
// demand.

#ifndef WORKER_LINK_TLS_CHANNEL_H
#define WORKER_LINK_TLS_CHANNEL_H

#include "worker/link/crypto.h"

#include <sys/types.h>

#define CRYPTO_RECORD_BYTES 16384 // Most plaintext bytes in one record.
#define CRYPTO_HELD_BYTES ((size_t)128 * 1024)

struct tls_channel;

// Functions that move bytes below the channel. Both return the bytes moved, at least 1; 0: the
// other side has ended (receive only); -1 with errno: EAGAIN, or the carrier is broken.
struct crypto_carrier {
    ssize_t (*send)(void *context, const void *bytes, size_t size);
    ssize_t (*receive)(void *context, void *bytes, size_t size);
    void *context;
};

// Makes a channel. One side is the server, the other side is the client. Returns NULL if there is
// no memory, or if OpenSSL lacks an algorithm. The key is copied, and overwritten after the
// handshake.
struct tls_channel *tls_channel_make(bool server, const uint8_t key[CRYPTO_KEY_BYTES],
                                     const struct crypto_carrier *carrier);
void tls_channel_free(struct tls_channel *channel);

// Goes on with the handshake as far as possible. Returns 1: the handshake is complete; 0: more
// bytes have to arrive; -1 with errno: EBADMSG if the other side does not know the key.
int tls_channel_meet(struct tls_channel *channel);

// After the handshake: encrypts and sends. Returns the bytes taken, at least 1, at most one record;
// -1: EAGAIN, or the channel is broken.
ssize_t tls_channel_send(struct tls_channel *channel, const void *bytes, size_t size);
// Returns the bytes received, at least 1; 0: the other side has ended; -1: EAGAIN, or the channel
// is broken, with EBADMSG if the other side did not make the received bytes.
ssize_t tls_channel_receive(struct tls_channel *channel, void *bytes, size_t size);
// Returns the bytes that the next receive returns for certain.
size_t tls_channel_readable(struct tls_channel *channel);

// tls_channel_held returns the bytes of ciphertext that the carrier has not taken. tls_channel_push
// gives these bytes to the carrier; it returns 0: none are left; -1: EAGAIN, or the carrier is
// broken.
size_t tls_channel_held(const struct tls_channel *channel);
int tls_channel_push(struct tls_channel *channel);

#endif
