// SPDX-License-Identifier: Apache-2.0
//
// Proofs of membership by themselves: the bytes of the protocol, computed by another program, and
// that nothing which distinguishes two connections can be left out.

#include "worker/link/hello.h"

#include "worker/link/crypto.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

static uint8_t secret[LOCKSTEP_SECRET_BYTES];

static struct hello example(void)
{
    struct hello hello = {.secret = secret,
                          .generation = {.number = 7, .incarnation = 0x0123456789abcdef},
                          .world_size = 5,
                          .connector = 3,
                          .acceptor = 2};
    for (uint8_t i = 0; i < 32; i++) {
        secret[i] = i;
        hello.challenge[i] = (uint8_t)(0xc0 + i % 16);
        hello.nonce[i] = (uint8_t)(0x10 + i);
    }
    return hello;
}

static void digits(const uint8_t *bytes, size_t size, char *text)
{
    for (size_t i = 0; i < size; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

// By Python's hmac and struct: "<QQIIII" between the label, padded to 32 bytes, and the nonces.
static void proofs_are_those_of_the_protocol(void **state)
{
    static const char *const wanted[] = {
        [HELLO_CONNECTOR] = "b23ea6088b69c80f6001f1d2d0d0e5ac7f12b16258eafe80ff544bee910e8212",
        [HELLO_ACCEPTOR] = "05db9244e514b4266e468384a5fb9e90d68fb1ad6578e4bdf1a74bbfc9c13e98",
    };
    const struct hello hello = example();
    (void)state;
    for (int side = HELLO_CONNECTOR; side <= HELLO_ACCEPTOR; side++) {
        uint8_t proof[LOCKSTEP_PROOF_BYTES];
        char text[2 * LOCKSTEP_PROOF_BYTES + 1];
        assert_true(hello_prove(&hello, (enum hello_side)side, proof));
        digits(proof, sizeof(proof), text);
        assert_string_equal(text, wanted[side]);
        assert_true(hello_check(&hello, (enum hello_side)side, proof));
        assert_false(hello_check(&hello, (enum hello_side)(1 - side), proof));
    }
}

static void every_field_is_proven(void **state)
{
    struct hello others[11];
    uint8_t other_secret[LOCKSTEP_SECRET_BYTES];
    uint8_t proof[LOCKSTEP_PROOF_BYTES];
    const struct hello hello = example();
    (void)state;
    memcpy(other_secret, secret, sizeof(secret));
    other_secret[31] ^= 1;
    for (size_t i = 0; i < 11; i++)
        others[i] = hello;
    others[0].secret = other_secret;
    others[1].generation.number++;
    others[2].generation.incarnation ^= (uint64_t)1 << 63;
    others[3].world_size++;
    others[4].connector++;
    others[5].acceptor++;
    others[6].connector = hello.acceptor; // The same pair the other way round.
    others[6].acceptor = hello.connector;
    others[7].challenge[0] ^= 1;
    others[8].nonce[31] ^= 0x80;
    memcpy(others[9].challenge, hello.nonce, sizeof(hello.nonce));
    memcpy(others[9].nonce, hello.challenge, sizeof(hello.challenge));
    others[10].encrypts = true;
    for (int side = HELLO_CONNECTOR; side <= HELLO_ACCEPTOR; side++) {
        for (size_t i = 0; i < 11; i++) {
            assert_true(hello_prove(&others[i], (enum hello_side)side, proof));
            assert_false(hello_check(&hello, (enum hello_side)side, proof));
        }
    }
}

// The key is none of the proofs, and another one for each connection.
static void keys_are_of_one_connection(void **state)
{
    struct hello other = example();
    uint8_t key[LOCKSTEP_PROOF_BYTES];
    uint8_t proof[LOCKSTEP_PROOF_BYTES];
    char text[2 * LOCKSTEP_PROOF_BYTES + 1];
    const struct hello hello = example();
    (void)state;
    assert_true(hello_key(&hello, key));
    digits(key, sizeof(key), text);
    assert_string_equal(text, "94a4ce66246d3b842fcb38a18d5f0a7b9854f8a6ea24d0343e341be12cf643c1");
    for (int side = HELLO_CONNECTOR; side <= HELLO_ACCEPTOR; side++) {
        assert_true(hello_prove(&hello, (enum hello_side)side, proof));
        assert_memory_not_equal(key, proof, sizeof(key));
    }
    other.challenge[31] ^= 1;
    assert_true(hello_key(&other, proof));
    assert_memory_not_equal(key, proof, sizeof(key));
}

static void every_bit_of_a_proof_counts(void **state)
{
    uint8_t proof[LOCKSTEP_PROOF_BYTES];
    const struct hello hello = example();
    (void)state;
    assert_true(hello_prove(&hello, HELLO_CONNECTOR, proof));
    for (size_t bit = 0; bit < 8 * sizeof(proof); bit++) {
        proof[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        assert_false(hello_check(&hello, HELLO_CONNECTOR, proof));
        proof[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    assert_true(hello_check(&hello, HELLO_CONNECTOR, proof));
}

static void random_is_random(void **state)
{
    uint8_t one[32] = {0};
    uint8_t other[32] = {0};
    uint8_t long_one[257];
    (void)state;
    assert_true(crypto_random(one, sizeof(one)));
    assert_true(crypto_random(other, sizeof(other)));
    assert_memory_not_equal(one, other, sizeof(one));
    assert_false(crypto_random(long_one, sizeof(long_one)));
    crypto_forget(one, sizeof(one));
    for (size_t i = 0; i < sizeof(one); i++)
        assert_int_equal(one[i], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proofs_are_those_of_the_protocol),
        cmocka_unit_test(every_field_is_proven),
        cmocka_unit_test(keys_are_of_one_connection),
        cmocka_unit_test(every_bit_of_a_proof_counts),
        cmocka_unit_test(random_is_random),
    };
    return cmocka_run_group_tests_name("hello", tests, NULL, NULL);
}
