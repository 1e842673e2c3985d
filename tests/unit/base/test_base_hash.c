// SPDX-License-Identifier: Apache-2.0
// XXH64 against published values, and streaming against all at once.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/hash64.h"

static void test_published_values(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t hash;
    } table[] = {
        {"", 0xef46db3751d8e999u},
        {"a", 0xd24ec4f1a98c6e5bu},
        {"abc", 0x44bc2cf5ad770999u},
        {"Call me Ishmael. Some years ago--never mind how long precisely-", 0x02a2e85470d6fd96u},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        assert_int_equal(hash64(table[i].text, strlen(table[i].text)), table[i].hash);
}

static void test_any_cut_gives_the_same(void **state)
{
    (void)state;
    unsigned char bytes[200];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)(i * 37 + 11);
    for (size_t size = 0; size < sizeof(bytes); size++) {
        uint64_t whole = hash64(bytes, size);
        for (size_t cut = 0; cut <= size; cut++) {
            struct hash64 hash;
            hash64_init(&hash, 0);
            hash64_update(&hash, bytes, cut);
            (void)hash64_final(&hash);
            hash64_update(&hash, bytes + cut, size - cut);
            assert_int_equal(hash64_final(&hash), whole);
        }
        assert_true(whole != hash64(bytes, size + 1));
    }
}

static void test_every_bit_and_the_seed_count(void **state)
{
    (void)state;
    unsigned char bytes[100] = {0};
    struct hash64 seeded;
    uint64_t zero = hash64(bytes, sizeof(bytes));
    for (size_t bit = 0; bit < 8 * sizeof(bytes); bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_true(hash64(bytes, sizeof(bytes)) != zero);
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    hash64_init(&seeded, 1);
    hash64_update(&seeded, bytes, sizeof(bytes));
    assert_true(hash64_final(&seeded) != zero);
}

static void test_nothing_to_hash(void **state)
{
    (void)state;
    struct hash64 hash;
    hash64_init(&hash, 0);
    hash64_update(&hash, "", 0);
    assert_int_equal(hash64_final(&hash), hash64(NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_values),
        cmocka_unit_test(test_any_cut_gives_the_same),
        cmocka_unit_test(test_every_bit_and_the_seed_count),
        cmocka_unit_test(test_nothing_to_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
