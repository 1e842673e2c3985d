// SPDX-License-Identifier: Apache-2.0
//
// The cryptography of links: a MAC, a comparison in constant time, random bytes. hello.h says which
// side proves what. In this folder only crypto.c and tls_channel.c use OpenSSL
// (tests/lint/includes.py). Any thread.

#ifndef WORKER_LINK_CRYPTO_H
#define WORKER_LINK_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CRYPTO_KEY_BYTES 32
#define CRYPTO_MAC_BYTES 32

// HMAC-SHA256. Returns false if there is no memory, or if the machine's policy refuses the
// algorithm; then mac is zeros and proves nothing.
bool crypto_mac(const uint8_t key[CRYPTO_KEY_BYTES], const void *bytes, size_t size,
                uint8_t mac[CRYPTO_MAC_BYTES]);

// True if the bytes are equal. The time does not depend on where the first difference is.
bool crypto_equal(const void *a, const void *b, size_t size);

// Fills `bytes` with random bytes for nonces, at most 256. Returns false if the kernel has none.
bool crypto_random(void *bytes, size_t size);

// Overwrites a secret. The compiler does not remove the overwriting.
void crypto_forget(void *bytes, size_t size);

#endif
