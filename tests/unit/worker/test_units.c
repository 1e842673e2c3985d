// SPDX-License-Identifier: Apache-2.0
//
// Units against a slow reference: which of them a chunk meets, one by one, and bits one at a time.

#include "tests/support/choice.h"
#include "worker/memory/units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define UNITS_MOST 300
#define ROUNDS 3000

static uint64_t random_state = 42;

static uint32_t draw(uint32_t below)
{
    return (uint32_t)(choice_random(&random_state) % below);
}

// ---- which units --------------------------------------------------------------------------------

// The definition, word by word.
static bool meets(const uint64_t *ends, uint32_t count, uint32_t unit, struct ring_span span)
{
    const uint64_t begin = unit == 0 ? 0 : ends[unit - 1];
    const uint64_t behind = span.first + span.count;
    if (ends[unit] > begin)
        return begin < behind && ends[unit] > span.first;
    if (begin == ends[count - 1])
        return behind == begin;
    return begin >= span.first && begin < behind;
}

static void check_met(const uint64_t *ends, uint32_t count, struct ring_span span)
{
    const struct unit_range range = units_met(ends, count, span);
    for (uint32_t u = 0; u < count; u++)
        assert_int_equal(u >= range.first && u < range.first + range.count,
                         meets(ends, count, u, span));
}

static uint32_t random_ends(uint64_t *ends)
{
    const uint32_t count = 1 + draw(12);
    uint64_t end = 0;
    for (uint32_t u = 0; u < count; u++) {
        end += draw(3) == 0 ? 0 : draw(9);
        ends[u] = end;
    }
    return count;
}

static void a_chunk_meets_what_the_definition_says(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t ends[12];
        const uint32_t count = random_ends(ends);
        const uint64_t elements = ends[count - 1];
        for (uint64_t first = 0; first < elements; first++)
            for (uint64_t length = 1; length <= elements - first; length++)
                check_met(ends, count, (struct ring_span){first, length});
        if (elements == 0)
            check_met(ends, count, (struct ring_span){0, 0});
    }
}

static void a_cut_meets_every_unit(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t ends[12];
        uint32_t met[12] = {0};
        uint64_t at = 0;
        const uint32_t count = random_ends(ends);
        const uint64_t elements = ends[count - 1];
        do {
            const uint64_t most = elements - at;
            const uint64_t length = most == 0 ? 0 : 1 + draw((uint32_t)most);
            const struct unit_range range = units_met(ends, count, (struct ring_span){at, length});
            for (uint32_t i = 0; i < range.count; i++)
                met[range.first + i]++;
            at += length;
        } while (at < elements);
        for (uint32_t u = 0; u < count; u++) {
            const uint64_t begin = u == 0 ? 0 : ends[u - 1];
            assert_true(met[u] >= 1);
            assert_true(met[u] == 1 || ends[u] > begin);
        }
    }
}

static void no_units_are_met_where_there_are_none(void **state)
{
    (void)state;
    assert_int_equal(units_met(NULL, 0, (struct ring_span){5, 7}).count, 0);
    assert_int_equal(units_usage(NULL, (struct unit_range){0, 0}), USAGE_ALL);
}

// ---- bits ---------------------------------------------------------------------------------------

// Blocks of exactly the words and bytes that a test needs, so that a sanitizer reports an access
// behind them.
struct bits {
    uint32_t units;
    struct unit_range range;
    uint64_t *words;
    uint8_t *bytes;
};

static void bits_make(struct bits *bits)
{
    const uint32_t density = draw(4);
    bits->units = 1 + draw(UNITS_MOST);
    bits->range.first = draw(bits->units);
    bits->range.count = 1 + draw(bits->units - bits->range.first);
    bits->words = calloc(units_words(bits->units), sizeof(uint64_t));
    bits->bytes = malloc(units_bytes(bits->range.count));
    for (uint32_t u = 0; u < bits->units; u++) {
        if (density == 3 || (density > 0 && draw(3) < density))
            units_set_used(bits->words, u);
    }
    memset(bits->bytes, 0xee, units_bytes(bits->range.count));
}

static void bits_free(struct bits *bits)
{
    free(bits->words);
    free(bits->bytes);
}

static bool byte_bit(const uint8_t *bytes, uint32_t i)
{
    return bytes[i / 8] >> (i % 8) & 1;
}

static void packed_bits_are_those_of_the_words(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct bits bits;
        uint32_t used = 0;
        bits_make(&bits);
        units_pack(bits.words, bits.range, bits.bytes);
        for (uint32_t i = 0; i < bits.range.count; i++) {
            const bool is = units_is_used(bits.words, bits.range.first + i);
            assert_int_equal(byte_bit(bits.bytes, i), is);
            used += is;
        }
        const enum unit_usage usage = used == 0                  ? USAGE_NONE
                                      : used == bits.range.count ? USAGE_ALL
                                                                 : USAGE_SOME;
        assert_true(units_are_clean(bits.bytes, bits.range.count));
        assert_int_equal(units_usage(bits.words, bits.range), usage);
        assert_true(units_include(bits.bytes, bits.range, bits.words));
        bits_free(&bits);
    }
}

static void merged_bits_are_in_the_words(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        struct bits bits;
        bits_make(&bits);
        const uint32_t words = units_words(bits.units);
        uint64_t *into = calloc(words, sizeof(uint64_t));
        for (uint32_t u = 0; u < bits.units; u++) {
            if (draw(3) == 0)
                units_set_used(into, u);
        }
        uint64_t *before = malloc(words * sizeof(uint64_t));
        memcpy(before, into, words * sizeof(uint64_t));
        units_pack(bits.words, bits.range, bits.bytes);
        units_merge(into, bits.range, bits.bytes);
        bool included = true;
        for (uint32_t u = 0; u < bits.units; u++) {
            const bool inside = u >= bits.range.first && u - bits.range.first < bits.range.count;
            const bool had = units_is_used(before, u);
            const bool said = inside && units_is_used(bits.words, u);
            assert_int_equal(units_is_used(into, u), had || said);
            included = included && (!inside || !had || said);
        }
        assert_int_equal(units_include(bits.bytes, bits.range, before), included);
        free(before);
        free(into);
        bits_free(&bits);
    }
}

static void bits_of_no_unit_are_not_clean(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= 64; count++) {
        uint8_t bits[8] = {0};
        assert_true(units_are_clean(bits, count));
        if (count % 8 == 0)
            continue;
        bits[count / 8] = (uint8_t)(1u << (count % 8));
        assert_false(units_are_clean(bits, count));
        bits[count / 8] = 0x80;
        assert_false(units_are_clean(bits, count));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_meets_what_the_definition_says),
        cmocka_unit_test(a_cut_meets_every_unit),
        cmocka_unit_test(no_units_are_met_where_there_are_none),
        cmocka_unit_test(packed_bits_are_those_of_the_words),
        cmocka_unit_test(merged_bits_are_in_the_words),
        cmocka_unit_test(bits_of_no_unit_are_not_clean),
    };
    return cmocka_run_group_tests_name("units", tests, NULL, NULL);
}
