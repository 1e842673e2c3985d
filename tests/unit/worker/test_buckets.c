// SPDX-License-Identifier: Apache-2.0
//
// Layouts of buckets as readable text: "f32[3 2] f64@[1]" are a bucket of parameters 3 and 2 and
// one of parameter 1, which lies on devices. Then what must hold of every layout, over random ones,
// and hostile words.

#include "base/hash64.h"
#include "worker/kernels/kernels.h"
#include "worker/session/module/buckets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F DTYPE_FLOAT32
#define D DTYPE_FLOAT64

static uint32_t order_memory[LOCKSTEP_MAX_PARAMETERS];
static struct bucket bucket_memory[LOCKSTEP_MAX_BUCKETS];
static uint32_t words[LOCKSTEP_MAX_LAYOUT_WORDS];
static char sentence[LOCKSTEP_TEXT_BYTES];

static struct bucket_layout new_layout(void)
{
    return (struct bucket_layout){order_memory,  LOCKSTEP_MAX_PARAMETERS, 0,
                                  bucket_memory, LOCKSTEP_MAX_BUCKETS,    0};
}

static const char *layout_text(const struct bucket_layout *layout)
{
    static char text[4096];
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < layout->bucket_count; i++) {
        const struct bucket *bucket = &layout->buckets[i];
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s%s[", i > 0 ? " " : "",
                               bucket->dtype == F   ? "f32"
                               : bucket->dtype == D ? "f64"
                                                    : dtype_name(bucket->dtype),
                               bucket->device ? "@" : "");
        for (uint32_t k = 0; k < bucket->count; k++)
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%u", k > 0 ? " " : "",
                                   layout->order[bucket->first + k]);
        at += (size_t)snprintf(text + at, sizeof(text) - at, "]");
    }
    return text;
}

struct example {
    const char *name;
    struct bucket_parameter parameters[8];
    uint32_t count;
    uint32_t order[8];
    uint32_t order_count; // 0: definition reversed.
    struct bucket_caps caps;
    const char *want;
};

#define F4 \
    {F, true, 10, false}, {F, true, 10, false}, {F, true, 10, false}, \
    { \
        F, true, 10, false \
    }
#define MIXED6 \
    {F, true, 10, false}, {D, true, 5, false}, {F, true, 10, false}, {D, true, 5, false}, \
        {F, true, 10, false}, \
    { \
        D, true, 5, false \
    }

static const struct example examples[] = {
    {"a cap of exactly two", {F4}, 4, {0}, 0, {80, 80, 0}, "f32[3 2] f32[1 0]"},
    {"a cap is a threshold", {F4}, 4, {0}, 0, {81, 81, 0}, "f32[3 2 1] f32[0]"},
    {"a cap just below", {F4}, 4, {0}, 0, {79, 79, 0}, "f32[3 2] f32[1 0]"},
    {"one dtype per bucket", {MIXED6}, 6, {0}, 0, {80, 80, 0}, "f64[5 3] f32[4 2] f64[1] f32[0]"},
    {"memory of devices by itself",
     {{F, true, 10, true}, {F, true, 10, false}, {F, true, 10, true}, {F, true, 10, false}},
     4,
     {0},
     0,
     {80, 80, 0},
     "f32[3 1] f32@[2 0]"},
    {"a dtype and a place are a key",
     {{F, true, 10, true}, {D, true, 5, true}, {D, true, 5, false}},
     3,
     {0},
     0,
     {80, 80, 40},
     "f64[2] f64@[1] f32@[0]"},
    {"second cap repeats",
     {F4, F4},
     8,
     {0},
     0,
     {40, 120, 0},
     "f32[7] f32[6 5 4] f32[3 2 1] f32[0]"},
    {"each dtype walks the caps",
     {MIXED6},
     6,
     {0},
     0,
     {40, 80, 0},
     "f64[5] f32[4] f64[3 1] f32[2 0]"},
    {"each alone", {F4}, 4, {0}, 0, {0, 0, 0}, "f32[3] f32[2] f32[1] f32[0]"},
    {"all together", {F4}, 4, {0}, 0, {1 << 20, 1 << 20, 0}, "f32[3 2 1 0]"},
    {"in a learned order", {F4}, 4, {2, 0, 3, 1}, 4, {80, 80, 0}, "f32[2 0] f32[3 1]"},
    {"by what closes first",
     {{F, true, 10, false}, {D, true, 99, false}, {F, true, 10, false}},
     3,
     {0, 1, 2},
     3,
     {80, 80, 0},
     "f64[1] f32[0 2]"},
    {"frozen ones are left out",
     {{F, true, 10, false},
      {F, false, 10, false},
      {F, true, 10, false},
      {DTYPE_NONE, false, 1, false}},
     4,
     {0},
     0,
     {80, 80, 0},
     "f32[2 0]"},
    {"short tail", {F4, F4}, 8, {0}, 0, {1000, 1000, 80}, "f32[7 6 5 4 3 2] f32[1 0]"},
    {"short tail below its cap", {F4}, 4, {0}, 0, {1000, 1000, 79}, "f32[3 2 1] f32[0]"},
    {"short tail at the end of a cap", {F4}, 4, {0}, 0, {80, 80, 80}, "f32[3 2] f32[1 0]"},
    {"a tail is not split", {F4}, 4, {0}, 0, {40, 1000, 1000}, "f32[3 2 1 0]"},
    {"a tail is at most a bucket", {F4}, 4, {0}, 0, {40, 80, 1000}, "f32[3] f32[2] f32[1 0]"},
    {"a large last one is alone",
     {{F, true, 900, false}, {F, true, 10, false}, {F, true, 10, false}},
     3,
     {0},
     0,
     {9999, 9999, 40},
     "f32[2 1] f32[0]"},
    {"a tail is not empty",
     {{F, true, 0, false}, {F, true, 90, false}, {F, true, 10, false}},
     3,
     {0},
     0,
     {9999, 9999, 40},
     "f32[2] f32[1 0]"},
    {"a tail for each dtype",
     {MIXED6},
     6,
     {0},
     0,
     {999, 999, 40},
     "f64[5 3] f32[4 2] f64[1] f32[0]"},
    {"empty gradients are members",
     {{F, true, 0, false}, {F, true, 10, false}, {F, true, 0, false}},
     3,
     {0},
     0,
     {40, 40, 0},
     "f32[2 1] f32[0]"},
    {"nothing but empty",
     {{F, true, 0, false}, {F, true, 0, false}},
     2,
     {0},
     0,
     {9, 9, 9},
     "f32[1 0]"},
    {"nothing", {{F, false, 1, false}}, 1, {0}, 0, {9, 9, 9}, ""},
};

static void test_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        const struct example *e = &examples[i];
        struct bucket_layout layout = new_layout();
        enum bucket_error status =
            buckets_layout(e->parameters, e->count, e->order_count > 0 ? e->order : NULL,
                           e->order_count, e->caps, &layout, sentence, sizeof(sentence));
        if (status != BUCKET_OK)
            fail_msg("%s: %s", e->name, sentence);
        if (strcmp(layout_text(&layout), e->want) != 0)
            fail_msg("%s: %s, not %s", e->name, layout_text(&layout), e->want);
    }
}

static void expect(enum bucket_error got, enum bucket_error want, const char *want_sentence)
{
    assert_string_equal(sentence, want_sentence);
    assert_int_equal(got, want);
}

static enum bucket_error lay_out(const struct bucket_parameter *parameters, uint32_t count,
                                 const uint32_t *order, uint32_t order_count,
                                 struct bucket_layout layout)
{
    struct bucket_caps caps = {0, 0, 0};
    return buckets_layout(parameters, count, order, order_count, caps, &layout, sentence,
                          sizeof(sentence));
}

static void test_errors(void **state)
{
    static struct bucket_parameter many[LOCKSTEP_MAX_PARAMETERS + 1];
    const struct bucket_parameter three[] = {
        {F, true, 1, false}, {F, false, 1, false}, {F, true, 1, false}};
    const struct bucket_parameter no_dtype[] = {{F, true, 1, false},
                                                {(enum dtype)77, true, 1, false}};
    const struct bucket_parameter large[] = {{D, true, UINT64_MAX / 16, false},
                                             {D, true, 1, false}};
    struct bucket_layout small = new_layout();
    (void)state;
    expect(lay_out(three, 3, (uint32_t[]){0, 3}, 2, new_layout()), BUCKET_BAD_ORDER,
           "the order names parameter 3 of 3");
    expect(lay_out(three, 3, (uint32_t[]){0, 1}, 2, new_layout()), BUCKET_BAD_ORDER,
           "the order names parameter 1, which is not trainable");
    expect(lay_out(three, 3, (uint32_t[]){2, 2}, 2, new_layout()), BUCKET_BAD_ORDER,
           "the order names parameter 2 twice");
    expect(lay_out(three, 3, (uint32_t[]){2}, 1, new_layout()), BUCKET_BAD_ORDER,
           "the order names 1 of 2 trainable parameters");
    expect(lay_out(no_dtype, 2, NULL, 0, new_layout()), BUCKET_BAD_DTYPE,
           "parameter 1 has no known dtype (77)");
    expect(lay_out(large, 2, NULL, 0, new_layout()), BUCKET_TOO_LARGE,
           "parameter 1 makes more than 2^63 bytes of float64");
    expect(lay_out(many, LOCKSTEP_MAX_PARAMETERS + 1, NULL, 0, new_layout()),
           BUCKET_TOO_MANY_PARAMETERS, "262145 parameters, but at most 262144 are possible");
    small.order_capacity = 1;
    expect(lay_out(three, 3, NULL, 0, small), BUCKET_TOO_MANY_PARAMETERS,
           "2 trainable parameters, but there is room for 1");
    small = new_layout();
    small.bucket_capacity = 1;
    expect(lay_out(three, 3, NULL, 0, small), BUCKET_TOO_MANY_BUCKETS,
           "more than 1 buckets: raise their size");
    for (size_t i = 0; i < LOCKSTEP_MAX_PARAMETERS; i++)
        many[i] = (struct bucket_parameter){F, true, 1, false};
    expect(lay_out(many, LOCKSTEP_MAX_PARAMETERS, NULL, 0, new_layout()), BUCKET_TOO_MANY_BUCKETS,
           "more than 1024 buckets: raise their size");
    small = new_layout();
    assert_int_equal(
        buckets_layout(no_dtype, 2, NULL, 0, (struct bucket_caps){0, 0, 0}, &small, NULL, 0),
        BUCKET_BAD_DTYPE);
}

// ---- Random layouts --------------------------------------------------------------------------

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % bound);
}

// Every parameter in one bucket, in the order given; buckets close in that order, and only the last
// one of a key and the one before it are below their cap.
static void check_layout(const struct bucket_layout *layout,
                         const struct bucket_parameter *parameters, const uint32_t *order,
                         uint32_t order_count, struct bucket_caps caps)
{
    uint32_t position[64], closing = 0, buckets_left[2][8] = {{0}}, seen[2][8] = {{0}};
    uint32_t first = 0;
    for (uint32_t i = 0; i < order_count; i++)
        position[order[i]] = i;
    for (uint32_t i = 0; i < layout->bucket_count; i++)
        buckets_left[layout->buckets[i].device][layout->buckets[i].dtype]++;
    assert_int_equal(layout->order_count, order_count);
    for (uint32_t i = 0; i < layout->bucket_count; i++) {
        const struct bucket *bucket = &layout->buckets[i];
        const uint32_t *members = layout->order + bucket->first;
        uint64_t elements = 0;
        assert_int_equal(bucket->first, first);
        assert_true(bucket->count > 0);
        first += bucket->count;
        for (uint32_t k = 0; k < bucket->count; k++) {
            assert_true(k == 0 || position[members[k]] > position[members[k - 1]]);
            assert_int_equal(parameters[members[k]].dtype, bucket->dtype);
            assert_int_equal(parameters[members[k]].device, bucket->device);
            elements += parameters[members[k]].elements;
        }
        assert_true(elements == bucket->elements);
        assert_true(i == 0 || position[members[bucket->count - 1]] > closing);
        closing = position[members[bucket->count - 1]];
        uint64_t bytes = elements * dtype_size(bucket->dtype);
        uint64_t cap = seen[bucket->device][bucket->dtype]++ == 0 ? caps.first_bytes : caps.bytes;
        uint32_t left = --buckets_left[bucket->device][bucket->dtype];
        if (left > (caps.last_bytes > 0 ? 1u : 0u))
            assert_true(bytes >= cap);
    }
    assert_int_equal(first, order_count);
}

static void check_words(const struct bucket_layout *layout,
                        const struct bucket_parameter *parameters, uint32_t count)
{
    static uint32_t order_again[64];
    static struct bucket buckets_again[64];
    struct bucket_layout again = {order_again, 64, 0, buckets_again, 64, 0};
    uint32_t word_count = buckets_encode(layout, words);
    assert_int_equal(word_count, buckets_word_count(layout));
    enum bucket_error status =
        buckets_decode(words, word_count, parameters, count, &again, sentence, sizeof(sentence));
    if (status != BUCKET_OK)
        fail_msg("decode: %s", sentence);
    assert_int_equal(again.order_count, layout->order_count);
    assert_int_equal(again.bucket_count, layout->bucket_count);
    for (uint32_t i = 0; i < again.order_count; i++)
        assert_int_equal(again.order[i], layout->order[i]);
    for (uint32_t i = 0; i < again.bucket_count; i++) {
        const struct bucket *a = &again.buckets[i], *b = &layout->buckets[i];
        assert_true(a->first == b->first && a->count == b->count && a->dtype == b->dtype &&
                    a->device == b->device && a->elements == b->elements);
    }
    assert_true(buckets_hash(layout) == buckets_hash(&again));
    assert_true(buckets_hash(layout) == hash64(words, word_count * sizeof(words[0])));
}

static uint32_t random_module(struct bucket_parameter *parameters, uint32_t count, uint32_t *order)
{
    uint32_t order_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        parameters[i] =
            (struct bucket_parameter){(enum dtype)(1 + random_below(4)), random_below(5) > 0,
                                      random_below(30), random_below(3) == 0};
        if (!parameters[i].trainable)
            continue;
        uint32_t at = random_below(++order_count);
        order[order_count - 1] = order[at];
        order[at] = i;
    }
    return order_count;
}

static void test_random_layouts(void **state)
{
    (void)state;
    for (int round = 0; round < 20000; round++) {
        struct bucket_parameter parameters[64];
        uint32_t order[64], count = random_below(65);
        uint32_t order_count = random_module(parameters, count, order);
        struct bucket_caps caps = {random_below(400), random_below(400),
                                   random_below(2) * random_below(400)};
        struct bucket_layout layout = new_layout();
        enum bucket_error status = buckets_layout(parameters, count, order, order_count, caps,
                                                  &layout, sentence, sizeof(sentence));
        assert_int_equal(status, BUCKET_OK);
        check_layout(&layout, parameters, order, order_count, caps);
        check_words(&layout, parameters, count);
    }
}

// ---- Hostile words ---------------------------------------------------------------------------

static const struct bucket_parameter four[] = {
    {F, true, 1, false}, {F, true, 1, false}, {D, true, 1, false}, {F, false, 1, false}};
static const struct bucket_parameter two_places[] = {{F, true, 1, false}, {F, true, 1, true}};

static enum bucket_error decode(const uint32_t *from, uint32_t word_count)
{
    struct bucket_layout layout = new_layout();
    return buckets_decode(from, word_count, four, 4, &layout, sentence, sizeof(sentence));
}

static void test_bad_words(void **state)
{
    (void)state;
    assert_int_equal(decode((uint32_t[]){2, 2, 3, 1, 0, 2}, 6), BUCKET_OK);
    expect(decode(NULL, 0), BUCKET_BAD_WORDS, "a layout of no words");
    expect(decode((uint32_t[]){UINT32_MAX}, 1), BUCKET_TOO_MANY_BUCKETS,
           "4294967295 buckets, but at most 1024 are possible and there is room for 1024");
    expect(decode((uint32_t[]){2, 2, 3, 1, 0}, 5), BUCKET_BAD_WORDS,
           "5 words, but 2 buckets of 3 trainable parameters take 6");
    expect(decode((uint32_t[]){2, 2, 3, 1, 0, 4}, 6), BUCKET_BAD_ORDER,
           "the order names parameter 4 of 4");
    expect(decode((uint32_t[]){2, 2, 3, 1, 0, 3}, 6), BUCKET_BAD_ORDER,
           "the order names parameter 3, which is not trainable");
    expect(decode((uint32_t[]){2, 2, 3, 1, 0, 1}, 6), BUCKET_BAD_ORDER,
           "the order names parameter 1 twice");
    expect(decode((uint32_t[]){2, 3, 3, 1, 0, 2}, 6), BUCKET_BAD_WORDS,
           "bucket 0 has parameter 1 of float32 beside parameter 2 of float64");
    expect(decode((uint32_t[]){2, 2, 2, 1, 0, 2}, 6), BUCKET_BAD_WORDS,
           "bucket 1 ends at 2, which is not within 3 to 3");
    expect(decode((uint32_t[]){2, 2, 4, 1, 0, 2}, 6), BUCKET_BAD_WORDS,
           "bucket 1 ends at 4, which is not within 3 to 3");
    expect(decode((uint32_t[]){1, 2, 1, 0, 2}, 5), BUCKET_BAD_WORDS,
           "the buckets end at 2, but there are 3 parameters in the order");
    expect(decode((uint32_t[]){0, 1, 0, 2}, 4), BUCKET_BAD_WORDS,
           "the buckets end at 0, but there are 3 parameters in the order");
}

static void test_words_that_mix_places(void **state)
{
    struct bucket_layout layout = new_layout();
    const uint32_t apart[] = {2, 1, 2, 1, 0};
    const uint32_t together[] = {1, 2, 1, 0};
    (void)state;
    assert_int_equal(buckets_decode(apart, 5, two_places, 2, &layout, sentence, sizeof(sentence)),
                     BUCKET_OK);
    assert_string_equal(layout_text(&layout), "f32@[1] f32[0]");
    expect(buckets_decode(together, 4, two_places, 2, &layout, sentence, sizeof(sentence)),
           BUCKET_BAD_WORDS,
           "bucket 0 has parameter 1 of float32 on devices beside parameter 0 of float32");
}

// Random words that decode are encoded to the same words again.
static void test_random_words(void **state)
{
    uint32_t accepted = 0;
    (void)state;
    for (int round = 0; round < 200000; round++) {
        uint32_t from[7], again[7], count = random_below(8);
        struct bucket_layout layout = new_layout();
        for (uint32_t i = 0; i < count; i++)
            from[i] = random_below(16) > 0 ? random_below(4) : random_below(UINT32_MAX);
        if (buckets_decode(from, count, four, 4, &layout, NULL, 0) != BUCKET_OK)
            continue;
        accepted++;
        assert_int_equal(buckets_encode(&layout, again), count);
        assert_memory_equal(again, from, count * sizeof(from[0]));
    }
    assert_true(accepted > 0);
}

// Slots of `count` equal gradients that travel `times` times in a step, with the default caps.
static uint64_t default_slots(uint32_t count, uint64_t elements, uint32_t times, uint64_t *cap)
{
    static struct bucket_parameter parameters[LOCKSTEP_MAX_PARAMETERS];
    struct bucket_layout layout = new_layout();
    for (uint32_t i = 0; i < count; i++)
        parameters[i] = (struct bucket_parameter){F, true, elements, false};
    *cap = buckets_default_bytes(parameters, count, times);
    const struct bucket_caps caps = {1 << 20, *cap, 1 << 20};
    assert_int_equal(
        buckets_layout(parameters, count, NULL, 0, caps, &layout, sentence, sizeof(sentence)),
        BUCKET_OK);
    return (uint64_t)layout.bucket_count * times;
}

// A bucket closes at LOCKSTEP_BUCKET_PARAMETERS gradients, whatever its size, and so does the tail.
static void test_a_bucket_of_many_gradients(void **state)
{
    static struct bucket_parameter parameters[LOCKSTEP_MAX_PARAMETERS];
    const uint32_t full = LOCKSTEP_BUCKET_PARAMETERS;
    const struct {
        uint32_t count;
        uint64_t last_bytes;
        uint32_t buckets;
        uint32_t last; // Gradients of the last bucket.
    } rows[] = {
        {full, 0, 1, full},
        {full + 1, 0, 2, 1},
        {full + 1, 1 << 20, 2, full},
        {2 * full + 5, 1 << 20, 3, full},
        {2 * full + 5, 4, 4, 1},
        {LOCKSTEP_MAX_PARAMETERS, 0, LOCKSTEP_MAX_PARAMETERS / full, full},
        {LOCKSTEP_MAX_PARAMETERS, 1 << 20, LOCKSTEP_MAX_PARAMETERS / full, full},
    };
    (void)state;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PARAMETERS; i++)
        parameters[i] = (struct bucket_parameter){F, true, 1, false};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bucket_layout layout = new_layout();
        const struct bucket_caps caps = {1 << 20, 4 << 20, rows[i].last_bytes};
        assert_int_equal(buckets_layout(parameters, rows[i].count, NULL, 0, caps, &layout, sentence,
                                        sizeof(sentence)),
                         BUCKET_OK);
        assert_int_equal(layout.bucket_count, rows[i].buckets);
        assert_int_equal(layout.buckets[layout.bucket_count - 1].count, rows[i].last);
        for (uint32_t b = 0; b < layout.bucket_count; b++)
            assert_in_range(layout.buckets[b].count, 1, full);
    }
}

// Words of another process: a bucket with one gradient too many is refused.
static void test_words_of_a_bucket_of_many_gradients(void **state)
{
    static struct bucket_parameter parameters[LOCKSTEP_BUCKET_PARAMETERS + 1];
    const uint32_t count = LOCKSTEP_BUCKET_PARAMETERS + 1;
    struct bucket_layout layout = new_layout();
    (void)state;
    for (uint32_t i = 0; i < count; i++) {
        parameters[i] = (struct bucket_parameter){F, true, 1, false};
        words[2 + i] = i;
    }
    words[0] = 1;
    words[1] = count;
    expect(buckets_decode(words, 2 + count, parameters, count, &layout, sentence, sizeof(sentence)),
           BUCKET_BAD_WORDS, "bucket 0 has 16385 parameters, but at most 16384 are possible");
    words[0] = 2;
    words[1] = count - 1;
    words[2] = count;
    for (uint32_t i = 0; i < count; i++)
        words[3 + i] = i;
    assert_int_equal(
        buckets_decode(words, 3 + count, parameters, count, &layout, sentence, sizeof(sentence)),
        BUCKET_OK);
}

static void test_default_bytes(void **state)
{
    const uint64_t least = 4 << 20;
    uint64_t cap = 0;
    (void)state;
    assert_int_equal(buckets_default_bytes(NULL, 0, 1), least);
    // 1 MiB each: the first bucket has one of them, the last has one, the others have four.
    assert_int_equal(default_slots(10, 1 << 18, 1, &cap), 4);
    assert_int_equal(cap, least);
    // Up to 256 MiB the cap is constant; above, the number of buckets is.
    assert_true(default_slots(256, 1 << 18, 1, &cap) <= BUCKET_SHARES + 2);
    assert_int_equal(cap, least);
    assert_true(default_slots(4096, 1 << 20, 1, &cap) <= BUCKET_SHARES + 2);
    assert_int_equal(cap, (uint64_t)4096 * (4 << 20) / BUCKET_SHARES);
    assert_true(default_slots(4096, 1 << 18, LOCKSTEP_MAX_CALLS, &cap) <= LOCKSTEP_MAX_SLOTS);
}

static void test_default_bytes_of_frozen_and_endless(void **state)
{
    const struct bucket_parameter frozen[] = {{F, false, 1 << 30, false}, {F, true, 10, false}};
    const struct bucket_parameter endless[] = {{F, true, (uint64_t)1 << 61, false}};
    (void)state;
    assert_int_equal(buckets_default_bytes(frozen, 2, 1), 4 << 20);
    assert_true(buckets_default_bytes(endless, 1, LOCKSTEP_MAX_CALLS) == UINT64_MAX);
}

static void test_empty_module(void **state)
{
    struct bucket_layout layout = {NULL, 0, 0, NULL, 0, 0};
    const uint32_t none[] = {0};
    (void)state;
    assert_int_equal(buckets_layout(NULL, 0, NULL, 0, (struct bucket_caps){1, 1, 1}, &layout,
                                    sentence, sizeof(sentence)),
                     BUCKET_OK);
    assert_string_equal(sentence, "");
    assert_int_equal(buckets_word_count(&layout), 1);
    assert_true(buckets_hash(&layout) == hash64(none, sizeof(none)));
    assert_int_equal(buckets_decode(none, 1, NULL, 0, &layout, NULL, 0), BUCKET_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_random_layouts),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_words_that_mix_places),
        cmocka_unit_test(test_random_words),
        cmocka_unit_test(test_a_bucket_of_many_gradients),
        cmocka_unit_test(test_words_of_a_bucket_of_many_gradients),
        cmocka_unit_test(test_default_bytes),
        cmocka_unit_test(test_default_bytes_of_frozen_and_endless),
        cmocka_unit_test(test_empty_module),
    };
    return cmocka_run_group_tests_name("buckets", tests, NULL, NULL);
}
