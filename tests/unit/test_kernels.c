// SPDX-License-Identifier: Apache-2.0
//
// Every level of the kernels against the slow and obvious loops below: random and hostile values,
// odd lengths, starts at every element of a vector, and nothing written beyond the end.

#include "worker/kernels.h"
#include "worker/kernels_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum {
    COUNT_MAX = 300,
    OFFSET_MAX = 9,
    GUARD = 16,
    BYTES = (COUNT_MAX + OFFSET_MAX) * 8 + GUARD
};

static const enum dtype all_dtypes[] = {DTYPE_NONE,  DTYPE_FLOAT32, DTYPE_FLOAT64,  DTYPE_INT32,
                                        DTYPE_INT64, DTYPE_FLOAT16, DTYPE_BFLOAT16, DTYPE_UINT8};
static const enum reduce_op all_ops[] = {REDUCE_SUM, REDUCE_MEAN, REDUCE_MIN, REDUCE_MAX,
                                         REDUCE_OR};
static const size_t counts[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 255, 300};
static const uint64_t weights[] = {1, 2, 3, 7, 1000, (1u << 24) + 1, (1ull << 53) + 1, UINT64_MAX};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

// ---- The obvious loops -----------------------------------------------------------------------

// volatile: every product and sum is stored, so that no compiler can join two of them.
#define REFERENCE_FLOAT(type) \
    static type obvious_##type(enum reduce_op op, type a, type b) \
    { \
        volatile type sum = a + b; \
        if (op == REDUCE_SUM || op == REDUCE_MEAN) \
            return sum; \
        if (isnan(a)) \
            return a; \
        if (isnan(b)) \
            return b; \
        if (a == 0 && b == 0) \
            return (op == REDUCE_MIN) == (signbit(a) != 0) ? a : b; \
        if (op == REDUCE_MIN) \
            return b < a ? b : a; \
        return b > a ? b : a; \
    } \
    static type obvious_weighted_##type(char what, type a, type b, uint64_t weight) \
    { \
        volatile type w = (type)weight; \
        volatile type product = w * b; \
        volatile type sum = a + product; \
        volatile type quotient = b / w; \
        return what == 'a' ? sum : what == 's' ? product : quotient; \
    }
REFERENCE_FLOAT(float)
REFERENCE_FLOAT(double)

static int64_t obvious_integer(enum reduce_op op, int64_t a, int64_t b)
{
    if (op == REDUCE_MIN)
        return a < b ? a : b;
    if (op == REDUCE_MAX)
        return a > b ? a : b;
    if (op == REDUCE_OR)
        return a | b;
    int64_t sum;
    (void)__builtin_add_overflow(a, b, &sum);
    return sum;
}

// acc = acc op in, for one element at at.
static void obvious_element(enum dtype dtype, enum reduce_op op, unsigned char *acc,
                            const unsigned char *in)
{
    union {
        float f;
        double d;
        int32_t i;
        int64_t l;
        uint8_t u;
    } a, b;
    memcpy(&a, acc, dtype_size(dtype));
    memcpy(&b, in, dtype_size(dtype));
    if (dtype == DTYPE_FLOAT32)
        a.f = obvious_float(op, a.f, b.f);
    else if (dtype == DTYPE_FLOAT64)
        a.d = obvious_double(op, a.d, b.d);
    else if (dtype == DTYPE_INT32)
        a.i = (int32_t)(uint32_t)(uint64_t)obvious_integer(op, a.i, b.i);
    else if (dtype == DTYPE_INT64)
        a.l = obvious_integer(op, a.l, b.l);
    else
        a.u = (uint8_t)obvious_integer(op, a.u, b.u);
    memcpy(acc, &a, dtype_size(dtype));
}

static void obvious_weighted_element(enum dtype dtype, char what, unsigned char *out,
                                     const unsigned char *in, uint64_t weight)
{
    float af, bf;
    double ad, bd;
    if (dtype == DTYPE_FLOAT32) {
        memcpy(&af, out, sizeof(af));
        memcpy(&bf, in, sizeof(bf));
        af = obvious_weighted_float(what, af, bf, weight);
        memcpy(out, &af, sizeof(af));
    } else {
        memcpy(&ad, out, sizeof(ad));
        memcpy(&bd, in, sizeof(bd));
        ad = obvious_weighted_double(what, ad, bd, weight);
        memcpy(out, &ad, sizeof(ad));
    }
}

// ---- Values ----------------------------------------------------------------------------------

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint64_t random_word(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

// Bits of NaNs with payloads (quiet and signalling, both signs), infinities, zeros, denormals,
// the extremes, and of the extremes of integers of that size.
static const uint32_t hostile32[] = {
    0x7fc00000, 0xffc12345, 0x7f800001, 0xff800abc, 0x7f800000, 0xff800000, 0x00000000, 0x80000000,
    0x00000001, 0x807fffff, 0x7f7fffff, 0xff7fffff, 0x00800000, 0x3f800000, 0xffffffff, 0x7fffffff};
static const uint64_t hostile64[] = {
    0x7ff8000000000000, 0xfff8123456789abc, 0x7ff0000000000001, 0xfff0000000000abc,
    0x7ff0000000000000, 0xfff0000000000000, 0x0000000000000000, 0x8000000000000000,
    0x0000000000000001, 0x800fffffffffffff, 0x7fefffffffffffff, 0xffefffffffffffff,
    0x0010000000000000, 0x3ff0000000000000, 0xffffffffffffffff, 0x7fffffffffffffff};

// Every second element is hostile, the others are ordinary numbers.
static void fill(enum dtype dtype, unsigned char *bytes, size_t count)
{
    size_t size = dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t word = random_word();
        float f = ldexpf((float)(int32_t)word, (int)(word >> 60) - 31);
        double d = ldexp((double)(int64_t)word, (int)(word & 15) - 63);
        if (word >> 32 & 1)
            memcpy(bytes + i * size,
                   size == 4 ? (const void *)&hostile32[word >> 33 & 15]
                             : (const void *)&hostile64[word >> 33 & 15],
                   size);
        else if (dtype == DTYPE_FLOAT32)
            memcpy(bytes + i * size, &f, size);
        else if (dtype == DTYPE_FLOAT64)
            memcpy(bytes + i * size, &d, size);
        else
            memcpy(bytes + i * size, &word, size);
    }
}

static bool is_nan(enum dtype dtype, const unsigned char *at)
{
    float f;
    double d;
    memcpy(&f, at, sizeof(f));
    if (dtype == DTYPE_FLOAT32)
        return isnan(f);
    if (dtype != DTYPE_FLOAT64)
        return false;
    memcpy(&d, at, sizeof(d));
    return isnan(d);
}

// Same bits; where arithmetic made a NaN (free_nan), any NaN.
static void assert_same(enum dtype dtype, const unsigned char *got, const unsigned char *want,
                        size_t count, bool free_nan, const char *what)
{
    size_t size = dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        const unsigned char *x = got + i * size, *y = want + i * size;
        if (free_nan && is_nan(dtype, x) && is_nan(dtype, y))
            continue;
        if (memcmp(x, y, size) != 0)
            fail_msg("%s: %s: element %zu of %zu differs", what, dtype_name(dtype), i, count);
    }
}

// ---- One comparison --------------------------------------------------------------------------

struct memory {
    _Alignas(64) unsigned char acc[BYTES];
    _Alignas(64) unsigned char in[BYTES];
    _Alignas(64) unsigned char want[BYTES];
};

static void memory_fill(struct memory *memory, enum dtype dtype)
{
    memset(memory, 0xa5, sizeof(*memory));
    fill(dtype, memory->acc, COUNT_MAX + OFFSET_MAX);
    fill(dtype, memory->in, COUNT_MAX + OFFSET_MAX);
    memcpy(memory->want, memory->acc, BYTES);
}

static void compare_reduce(const struct kernel_table *table, enum dtype dtype, enum reduce_op op,
                           size_t count, size_t offset)
{
    static struct memory memory;
    size_t size = dtype_size(dtype), at = offset * size, in_at = (offset * 3 % OFFSET_MAX) * size;
    memory_fill(&memory, dtype);
    for (size_t i = 0; i < count; i++)
        obvious_element(dtype, op, memory.want + at + i * size, memory.in + in_at + i * size);
    table->reduce[dtype][op](memory.acc + at, memory.in + in_at, count);
    assert_same(dtype, memory.acc + at, memory.want + at, count,
                op == REDUCE_SUM || op == REDUCE_MEAN, table->name);
    assert_memory_equal(memory.acc, memory.want, at);
    assert_memory_equal(memory.acc + at + count * size, memory.want + at + count * size,
                        BYTES - at - count * size);
}

static void compare_weighted(const struct kernel_table *table, enum dtype dtype, char what,
                             uint64_t weight, size_t count, size_t offset, bool in_place)
{
    static struct memory memory;
    size_t size = dtype_size(dtype), at = offset * size;
    kernel_weight_loop *loop = what == 'a'   ? table->add_weighted[dtype]
                               : what == 's' ? table->scale[dtype]
                                             : table->divide[dtype];
    memory_fill(&memory, dtype);
    if (in_place)
        memcpy(memory.in, memory.acc, BYTES);
    for (size_t i = 0; i < count; i++)
        obvious_weighted_element(dtype, what, memory.want + at + i * size,
                                 memory.in + at + i * size, weight);
    loop(memory.acc + at, (in_place ? memory.acc : memory.in) + at, weight, count);
    assert_same(dtype, memory.acc + at, memory.want + at, count, true, table->name);
    assert_memory_equal(memory.acc, memory.want, at);
    assert_memory_equal(memory.acc + at + count * size, memory.want + at + count * size,
                        BYTES - at - count * size);
}

// ---- Tests -----------------------------------------------------------------------------------

static void test_what_is_supported(void **state)
{
    (void)state;
    for (size_t d = 0; d < LENGTH(all_dtypes); d++)
        for (size_t o = 0; o < LENGTH(all_ops); o++) {
            enum dtype dtype = all_dtypes[d];
            enum reduce_op op = all_ops[o];
            bool known = dtype != DTYPE_NONE && dtype != DTYPE_FLOAT16 && dtype != DTYPE_BFLOAT16;
            bool fits = dtype_is_float(dtype) ? op != REDUCE_OR : op != REDUCE_MEAN;
            assert_int_equal(kernel_supported(dtype, op), known && fits);
            for (unsigned l = 0; kernel_level(l) != NULL; l++)
                assert_int_equal(kernel_level(l)->reduce[dtype][op] != NULL, known && fits);
        }
    assert_false(kernel_supported((enum dtype)99, REDUCE_SUM));
    assert_false(kernel_supported(DTYPE_FLOAT32, (enum reduce_op)99));
}

static void test_dtypes(void **state)
{
    static const size_t sizes[] = {0, 4, 8, 4, 8, 2, 2, 1};
    (void)state;
    for (size_t d = 0; d < LENGTH(all_dtypes); d++)
        assert_int_equal(dtype_size(all_dtypes[d]), sizes[all_dtypes[d]]);
    assert_string_equal(dtype_name(DTYPE_BFLOAT16), "bfloat16");
    assert_true(dtype_is_float(DTYPE_FLOAT16));
    assert_false(dtype_is_float(DTYPE_UINT8));
    assert_int_equal(dtype_size((enum dtype)99), 0);
    assert_string_equal(dtype_name((enum dtype)99), "unknown");
}

static void test_reduce_equals_obvious(void **state)
{
    (void)state;
    for (unsigned l = 0; kernel_level(l) != NULL; l++)
        for (size_t d = 0; d < LENGTH(all_dtypes); d++)
            for (size_t o = 0; o < LENGTH(all_ops); o++)
                for (size_t c = 0; c < LENGTH(counts); c++)
                    for (size_t offset = 0; offset < OFFSET_MAX; offset++)
                        if (kernel_supported(all_dtypes[d], all_ops[o]))
                            compare_reduce(kernel_level(l), all_dtypes[d], all_ops[o], counts[c],
                                           offset);
}

static void test_weighted_equals_obvious(void **state)
{
    static const enum dtype floats[] = {DTYPE_FLOAT32, DTYPE_FLOAT64};
    (void)state;
    for (unsigned l = 0; kernel_level(l) != NULL; l++)
        for (size_t d = 0; d < LENGTH(floats); d++)
            for (size_t w = 0; w < LENGTH(weights); w++)
                for (size_t c = 0; c < LENGTH(counts); c++)
                    for (int what = 0; what < 5; what++)
                        compare_weighted(kernel_level(l), floats[d], "asdsd"[what], weights[w],
                                         counts[c], (c + w) % OFFSET_MAX, what >= 3);
}

// 3 * (1 + 2^-23) rounds to 3 + 2^-21, which is 2^-23 too much; a fused multiply-add keeps the
// exact product, and after the addition of -3 - 2^-21 it would leave -2^-23 and not zero.
static void test_product_is_rounded_first(void **state)
{
    float acc[37], in[37];
    double acc64[37], in64[37];
    (void)state;
    for (unsigned l = 0; kernel_level(l) != NULL; l++) {
        for (int i = 0; i < 37; i++) {
            in[i] = 1.0f + 0x1p-23f;
            acc[i] = -(3.0f + 0x1p-21f);
            in64[i] = 1.0 + 0x1p-52;
            acc64[i] = -(3.0 + 0x1p-50);
        }
        kernel_level(l)->add_weighted[DTYPE_FLOAT32](acc, in, 3, 37);
        kernel_level(l)->add_weighted[DTYPE_FLOAT64](acc64, in64, 3, 37);
        for (int i = 0; i < 37; i++) {
            assert_true(acc[i] == 0.0f);
            assert_true(acc64[i] == 0.0);
        }
    }
}

static void test_weight_zero_contributes_nothing(void **state)
{
    float in[3] = {INFINITY, NAN, 5.0f}, acc[3] = {1.0f, 2.0f, -0.0f}, before[3];
    const float zeros[3] = {0.0f, 0.0f, 0.0f};
    (void)state;
    memcpy(before, acc, sizeof(acc));
    kernel_add_weighted(DTYPE_FLOAT32, acc, in, 0, 3);
    assert_memory_equal(acc, before, sizeof(acc));
    kernel_scale(DTYPE_FLOAT32, acc, in, 0, 3);
    assert_memory_equal(acc, zeros, sizeof(acc));
    kernel_scale(DTYPE_FLOAT32, NULL, NULL, 0, 0);
}

static void test_weighted_mean(void **state)
{
    double a[2] = {1.0, -2.0};
    const double b[2] = {5.0, 6.0};
    (void)state;
    kernel_scale(DTYPE_FLOAT64, a, a, 1, 2);
    kernel_add_weighted(DTYPE_FLOAT64, a, b, 3, 2);
    kernel_divide(DTYPE_FLOAT64, a, a, 4, 2);
    assert_true(a[0] == 4.0 && a[1] == 4.0);
    kernel_reduce(DTYPE_FLOAT64, REDUCE_MAX, a, b, 2);
    assert_true(a[0] == 5.0 && a[1] == 6.0);
}

static void test_integers_wrap(void **state)
{
    int32_t a = INT32_MIN, minus_one = -1;
    int64_t b = INT64_MAX, one = 1;
    uint8_t c = 250, ten = 10;
    (void)state;
    kernel_reduce(DTYPE_INT32, REDUCE_SUM, &a, &minus_one, 1);
    kernel_reduce(DTYPE_INT64, REDUCE_SUM, &b, &one, 1);
    kernel_reduce(DTYPE_UINT8, REDUCE_SUM, &c, &ten, 1);
    assert_true(a == INT32_MAX && b == INT64_MIN && c == 4);
}

static void test_environment(void **state)
{
    volatile float tiny = 0x1p-126f, third, one = 1.0f, three = 3.0f;
    (void)state;
    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); // Flush to zero, denormals are zero.
    volatile float flushed = tiny * 0.5f;
    assert_true(flushed == 0.0f);
#endif
    third = one / three;
    assert_true(third == 0x1.555556p-2f || third == 0x1.555558p-2f);
    kernels_environment();
    assert_int_equal(fegetround(), FE_TONEAREST);
    volatile float kept = tiny * 0.5f;
    assert_true(kept == 0x1p-127f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_what_is_supported),
        cmocka_unit_test(test_reduce_equals_obvious),
        cmocka_unit_test(test_weighted_equals_obvious),
        cmocka_unit_test(test_product_is_rounded_first),
        cmocka_unit_test(test_weight_zero_contributes_nothing),
        cmocka_unit_test(test_weighted_mean),
        cmocka_unit_test(test_integers_wrap),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
