// SPDX-License-Identifier: Apache-2.0
//
// The OpenSSL calls behind crypto.h, except TLS. Any thread.

#include "worker/link/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <assert.h>
#include <string.h>
#include <sys/random.h>

static_assert(CRYPTO_MAC_BYTES <= EVP_MAX_MD_SIZE, "a digest of OpenSSL has room for it");

bool crypto_mac(const uint8_t key[CRYPTO_KEY_BYTES], const void *bytes, size_t size,
                uint8_t mac[CRYPTO_MAC_BYTES])
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    const bool made = HMAC(EVP_sha256(), key, CRYPTO_KEY_BYTES, bytes, size, digest, &length) &&
                      length == CRYPTO_MAC_BYTES;
    if (made)
        memcpy(mac, digest, CRYPTO_MAC_BYTES);
    else
        memset(mac, 0, CRYPTO_MAC_BYTES);
    return made;
}

bool crypto_equal(const void *a, const void *b, size_t size)
{
    return CRYPTO_memcmp(a, b, size) == 0;
}

bool crypto_random(void *bytes, size_t size)
{
    // For up to 256 bytes getrandom returns all bytes or an error.
    return size <= 256 && getrandom(bytes, size, 0) == (ssize_t)size;
}

void crypto_forget(void *bytes, size_t size)
{
    OPENSSL_cleanse(bytes, size);
}
