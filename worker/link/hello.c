// SPDX-License-Identifier: Apache-2.0
//
// Computes and checks proofs of membership; see hello.h. Keeps no state; any thread.

#include "worker/link/hello.h"

#include "worker/link/crypto.h"

#include <string.h>

#define HELLO_LABEL_BYTES 32 // Padded with zeros.

// Offsets in the input of a proof: a label, then numbers in little-endian order, then both nonces.
enum hello_offset {
    AT_LABEL = 0,
    AT_NUMBER = AT_LABEL + HELLO_LABEL_BYTES,
    AT_INCARNATION = AT_NUMBER + 8,
    AT_WORLD_SIZE = AT_INCARNATION + 8,
    AT_CONNECTOR = AT_WORLD_SIZE + 4,
    AT_ACCEPTOR = AT_CONNECTOR + 4,
    AT_ENCRYPTS = AT_ACCEPTOR + 4,
    AT_CHALLENGE = AT_ENCRYPTS + 4,
    AT_NONCE = AT_CHALLENGE + LOCKSTEP_NONCE_BYTES,
    HELLO_BYTES = AT_NONCE + LOCKSTEP_NONCE_BYTES,
};

static_assert(LOCKSTEP_SECRET_BYTES == CRYPTO_KEY_BYTES, "the secret is the key");
static_assert(LOCKSTEP_PROOF_BYTES == CRYPTO_MAC_BYTES, "a proof is a whole HMAC");

static const char *const hello_labels[] = {
    [HELLO_CONNECTOR] = "lockstep data 1 connector",
    [HELLO_ACCEPTOR] = "lockstep data 1 acceptor",
};
static const char hello_key_label[] = "lockstep data 1 key";

static void hello_put(uint8_t *bytes, uint64_t value, int count)
{
    for (int i = 0; i < count; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static void hello_bytes(const struct hello *hello, const char *label, uint8_t bytes[HELLO_BYTES])
{
    memset(bytes, 0, HELLO_BYTES);
    memcpy(bytes + AT_LABEL, label, strlen(label));
    hello_put(bytes + AT_NUMBER, hello->generation.number, 8);
    hello_put(bytes + AT_INCARNATION, hello->generation.incarnation, 8);
    hello_put(bytes + AT_WORLD_SIZE, hello->world_size, 4);
    hello_put(bytes + AT_CONNECTOR, hello->connector, 4);
    hello_put(bytes + AT_ACCEPTOR, hello->acceptor, 4);
    hello_put(bytes + AT_ENCRYPTS, hello->encrypts, 4);
    memcpy(bytes + AT_CHALLENGE, hello->challenge, LOCKSTEP_NONCE_BYTES);
    memcpy(bytes + AT_NONCE, hello->nonce, LOCKSTEP_NONCE_BYTES);
}

bool hello_prove(const struct hello *hello, enum hello_side side,
                 uint8_t proof[LOCKSTEP_PROOF_BYTES])
{
    uint8_t bytes[HELLO_BYTES];
    hello_bytes(hello, hello_labels[side], bytes);
    return crypto_mac(hello->secret, bytes, sizeof(bytes), proof);
}

bool hello_check(const struct hello *hello, enum hello_side side,
                 const uint8_t proof[LOCKSTEP_PROOF_BYTES])
{
    uint8_t expected[LOCKSTEP_PROOF_BYTES];
    const bool made = hello_prove(hello, side, expected);
    const bool equal = made && crypto_equal(expected, proof, sizeof(expected));
    crypto_forget(expected, sizeof(expected));
    return equal;
}

// The secret is random, so HKDF needs no extraction, and its expansion is one block. The input of
// that block ends with the block number, so its length differs from the length of the input of a
// proof.
bool hello_key(const struct hello *hello, uint8_t key[LOCKSTEP_PROOF_BYTES])
{
    uint8_t bytes[HELLO_BYTES + 1];
    hello_bytes(hello, hello_key_label, bytes);
    bytes[HELLO_BYTES] = 1;
    return crypto_mac(hello->secret, bytes, sizeof(bytes), key);
}
