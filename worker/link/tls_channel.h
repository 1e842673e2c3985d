// SPDX-License-Identifier: Apache-2.0
//
// A channel of TLS 1.3 between two sides that know one key, over anything that carries bytes: no
// certificates, one suite, fresh keys by an exchange of Diffie and Hellman. It never blocks. Not
// here: sockets, frames, and where the key comes from (hello.h). One thread at a time.
//
// Ciphertext that the carrier does not take at once is held, up to CRYPTO_HELD_BYTES; then nothing
// more is taken until it has. So what was taken never has to be offered again, which TLS would
// otherwise ask for.

#ifndef WORKER_LINK_TLS_CHANNEL_H
#define WORKER_LINK_TLS_CHANNEL_H

#include "worker/link/crypto.h"

#include <sys/types.h>

#define CRYPTO_RECORD_BYTES 16384 // The most that one record carries.
#define CRYPTO_HELD_BYTES ((size_t)128 * 1024)

struct tls_channel;

// Both return the bytes moved, at least 1; 0: the other side has ended (receive only); -1 with
// errno: EAGAIN, or the carrier is broken.
struct crypto_carrier {
    ssize_t (*send)(void *context, const void *bytes, size_t size);
    ssize_t (*receive)(void *context, void *bytes, size_t size);
    void *context;
};

// One side is the server, the other one is not. NULL: no memory, or OpenSSL does not have what is
// needed. The key is copied, and forgotten when the channel stands.
struct tls_channel *tls_channel_make(bool server, const uint8_t key[CRYPTO_KEY_BYTES],
                                     const struct crypto_carrier *carrier);
void tls_channel_free(struct tls_channel *channel);

// Does what can be done for the channel to stand. 1: it does; 0: more has to come; -1: errno, which
// is EBADMSG when the other side does not know the key.
int tls_channel_meet(struct tls_channel *channel);

// Of a channel that stands. Bytes taken, at least 1, at most a record; -1: EAGAIN, or broken.
ssize_t tls_channel_send(struct tls_channel *channel, const void *bytes, size_t size);
// Bytes, at least 1; 0: the other side has ended; -1: EAGAIN, or broken: EBADMSG when what came was
// not made by the other side.
ssize_t tls_channel_receive(struct tls_channel *channel, void *bytes, size_t size);
// Bytes that the next receive returns for certain.
size_t tls_channel_readable(struct tls_channel *channel);

// Ciphertext that the carrier has not taken; and hands it on. 0: there is none any more; -1:
// EAGAIN, or broken.
size_t tls_channel_held(const struct tls_channel *channel);
int tls_channel_push(struct tls_channel *channel);

#endif
