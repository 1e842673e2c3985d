// SPDX-License-Identifier: Apache-2.0
//
// Every level of the kernels against the slow and obvious loops below: random and hostile values,
// odd lengths, starts at every element of a vector, and nothing written beyond the end. For 16-bit
// floats the tests also take every value, and pairs of values from the whole range.

#include "worker/kernels/kernels.h"
#include "worker/kernels/table.h"

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

static const enum dtype all_dtypes[] = {DTYPE_NONE,   DTYPE_FLOAT32, DTYPE_FLOAT64,  DTYPE_INT32,
                                        DTYPE_INT64,  DTYPE_FLOAT16, DTYPE_BFLOAT16, DTYPE_UINT8,
                                        DTYPE_INT8,   DTYPE_INT16,   DTYPE_UINT16,   DTYPE_UINT32,
                                        DTYPE_UINT64, DTYPE_BOOL};
static const enum reduce_op all_ops[] = {REDUCE_SUM, REDUCE_MEAN,    REDUCE_MIN, REDUCE_MAX,
                                         REDUCE_OR,  REDUCE_PRODUCT, REDUCE_AND, REDUCE_XOR};
static const size_t counts[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 255, 300};
static const uint64_t weights[] = {1, 2, 3, 7, 1000, (1u << 24) + 1, (1ull << 53) + 1, UINT64_MAX};
static const int exponents[] = {-126, -125, -41, -40, -25, -14, -1, 0, 1, 14, 24, 39, 40, 127};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

// ---- The obvious loops -----------------------------------------------------------------------

// volatile: every product and sum is stored, so that no compiler can join two of them.
#define REFERENCE_FLOAT(type) \
    static type obvious_##type(enum reduce_op op, type a, type b) \
    { \
        volatile type sum = a + b; \
        volatile type product = a * b; \
        if (op == REDUCE_SUM || op == REDUCE_MEAN) \
            return sum; \
        if (op == REDUCE_PRODUCT) \
            return product; \
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

// A 16-bit float: its units are 2^(exponent_min - fraction_bits) where numbers are denormal.
struct small_format {
    int fraction_bits;
    int exponent_min;
    double limit; // From here on, halfway between the largest number and the next, infinite.
    uint16_t infinity;
    uint16_t quiet;
};
static const struct small_format float16 = {10, -14, 65520.0, 0x7c00, 0x0200};
static const struct small_format bfloat16 = {7, -126, 0x1p128 - 0x1p119, 0x7f80, 0x0040};

static const struct small_format *small_format(enum dtype dtype)
{
    return dtype == DTYPE_FLOAT16 ? &float16 : dtype == DTYPE_BFLOAT16 ? &bfloat16 : NULL;
}

static bool small_is_nan(const struct small_format *format, uint16_t half)
{
    return (half & 0x7fff) > format->infinity;
}

// NaNs are quieted.
static float obvious_widen(const struct small_format *format, uint16_t half)
{
    const int exponent = (half & 0x7fff) >> format->fraction_bits;
    const int fraction = half & ((1 << format->fraction_bits) - 1);
    const int leading = exponent > 0 ? 1 << format->fraction_bits : 0;
    const int power = exponent > 0 ? exponent - 1 : 0;
    double value = ldexp(leading + fraction, format->exponent_min - format->fraction_bits + power);
    if ((half & 0x7fff) == format->infinity)
        value = INFINITY;
    float result = (float)(half & 0x8000 ? -value : value);
    if (small_is_nan(format, half)) {
        const uint32_t bits = (uint32_t)(half & 0x8000) << 16 | 0x7fc00000 |
                              (uint32_t)fraction << (23 - format->fraction_bits);
        memcpy(&result, &bits, sizeof(result));
    }
    return result;
}

// A double holds every float32, so value may be either.
static uint16_t obvious_narrow(const struct small_format *format, double value)
{
    const double magnitude = fabs(value);
    int half = format->infinity;
    if (magnitude < format->limit) {
        const int exponent =
            magnitude < ldexp(1, format->exponent_min) ? format->exponent_min : ilogb(magnitude);
        const double units = nearbyint(ldexp(magnitude, format->fraction_bits - exponent));
        half = ((exponent - format->exponent_min) << format->fraction_bits) + (int)units;
    }
    return (uint16_t)((signbit(value) ? 0x8000 : 0) | half);
}

// Narrows a float32, which may be a NaN.
static uint16_t obvious_narrow_float(const struct small_format *format, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (isnan(value))
        return (uint16_t)((bits >> 16 & 0x8000) | format->infinity | format->quiet |
                          (bits & 0x7fffff) >> (23 - format->fraction_bits));
    return obvious_narrow(format, (double)value);
}

// a < b, of the lower bits of integers that were loaded into 64 bits.
static bool obvious_less(enum dtype dtype, uint64_t a, uint64_t b)
{
    const unsigned unused = 64 - 8 * (unsigned)dtype_size(dtype);
    const bool has_sign =
        dtype == DTYPE_INT8 || dtype == DTYPE_INT16 || dtype == DTYPE_INT32 || dtype == DTYPE_INT64;
    return has_sign ? (int64_t)(a << unused) < (int64_t)(b << unused) : a < b;
}

static uint64_t obvious_bool(enum reduce_op op, bool a, bool b)
{
    if (op == REDUCE_SUM || op == REDUCE_MAX || op == REDUCE_OR)
        return a || b;
    if (op == REDUCE_PRODUCT || op == REDUCE_MIN || op == REDUCE_AND)
        return a && b;
    return a != b;
}

static uint64_t obvious_integer(enum dtype dtype, enum reduce_op op, uint64_t a, uint64_t b)
{
    if (dtype == DTYPE_BOOL)
        return obvious_bool(op, a != 0, b != 0);
    switch (op) {
    case REDUCE_MIN:
        return obvious_less(dtype, b, a) ? b : a;
    case REDUCE_MAX:
        return obvious_less(dtype, a, b) ? b : a;
    case REDUCE_OR:
        return a | b;
    case REDUCE_AND:
        return a & b;
    case REDUCE_XOR:
        return a ^ b;
    case REDUCE_PRODUCT:
        return a * b;
    case REDUCE_SUM:
    case REDUCE_MEAN:
        break;
    }
    return a + b;
}

// acc = acc op in, for one element at at.
static void obvious_element(enum dtype dtype, enum reduce_op op, unsigned char *acc,
                            const unsigned char *in)
{
    union {
        float f;
        double d;
        uint64_t l; // Integers of all sizes, in the lower bytes.
        uint16_t half;
    } a = {.l = 0}, b = {.l = 0};
    const struct small_format *small = small_format(dtype);
    memcpy(&a, acc, dtype_size(dtype));
    memcpy(&b, in, dtype_size(dtype));
    if (small)
        a.half = obvious_narrow_float(
            small, obvious_float(op, obvious_widen(small, a.half), obvious_widen(small, b.half)));
    else if (dtype == DTYPE_FLOAT32)
        a.f = obvious_float(op, a.f, b.f);
    else if (dtype == DTYPE_FLOAT64)
        a.d = obvious_double(op, a.d, b.d);
    else
        a.l = obvious_integer(dtype, op, a.l, b.l);
    memcpy(acc, &a, dtype_size(dtype));
}

// The operation of a loop with a factor: 'a'dds weighted, 's'cales, 'd'ivides or multiplies by a
// 'p'ower.
struct factor {
    char what;
    uint64_t weight;
    int exponent;
};

static void obvious_factor_element(enum dtype dtype, const struct factor *factor,
                                   unsigned char *out, const unsigned char *in)
{
    const char what = factor->what;
    const uint64_t weight = factor->weight;
    const struct small_format *small = small_format(dtype);
    float af, bf;
    double ad, bd;
    uint16_t a, b;
    if (small) {
        memcpy(&a, out, sizeof(a));
        memcpy(&b, in, sizeof(b));
        af = obvious_widen(small, a);
        bf = obvious_widen(small, b);
        if (what == 'p' && !isnan(bf))
            a = obvious_narrow(small, ldexp((double)bf, factor->exponent));
        else if (what == 'p')
            a = obvious_narrow_float(small, bf);
        else
            a = obvious_narrow_float(small, obvious_weighted_float(what, af, bf, weight));
        memcpy(out, &a, sizeof(a));
    } else if (dtype == DTYPE_FLOAT32) {
        memcpy(&af, out, sizeof(af));
        memcpy(&bf, in, sizeof(bf));
        af = what == 'p' ? ldexpf(bf, factor->exponent)
                         : obvious_weighted_float(what, af, bf, weight);
        memcpy(out, &af, sizeof(af));
    } else {
        memcpy(&ad, out, sizeof(ad));
        memcpy(&bd, in, sizeof(bd));
        ad = what == 'p' ? ldexp(bd, factor->exponent)
                         : obvious_weighted_double(what, ad, bd, weight);
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

static const uint16_t hostile_float16[] = {0x7e00, 0xfd23, 0x7c01, 0xffff, 0x7c00, 0xfc00,
                                           0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0xfbff,
                                           0x0400, 0x3c00, 0x0200, 0x8401};
static const uint16_t hostile_bfloat16[] = {0x7fc0, 0xffd3, 0x7f81, 0xffff, 0x7f80, 0xff80,
                                            0x0000, 0x8000, 0x0001, 0x807f, 0x7f7f, 0xff7f,
                                            0x0080, 0x3f80, 0x0040, 0x8081};

// Every second element is hostile, the others are ordinary numbers.
static void fill(enum dtype dtype, unsigned char *bytes, size_t count)
{
    size_t size = dtype_size(dtype);
    const struct small_format *small = small_format(dtype);
    const uint16_t *hostile16 = dtype == DTYPE_FLOAT16 ? hostile_float16 : hostile_bfloat16;
    for (size_t i = 0; i < count; i++) {
        uint64_t word = random_word();
        float f = ldexpf((float)(int32_t)word, (int)(word >> 60) - 31);
        double d = ldexp((double)(int64_t)word, (int)(word & 15) - 63);
        uint16_t half = !small ? 0 : obvious_narrow(small, (double)f);
        if (word >> 32 & 1)
            memcpy(bytes + i * size,
                   size == 2   ? (const void *)&hostile16[word >> 33 & 15]
                   : size == 4 ? (const void *)&hostile32[word >> 33 & 15]
                               : (const void *)&hostile64[word >> 33 & 15],
                   size);
        else if (small)
            memcpy(bytes + i * size, &half, size);
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
    const struct small_format *small = small_format(dtype);
    float f;
    double d;
    uint16_t half;
    if (!dtype_is_float(dtype))
        return false;
    memcpy(&half, at, sizeof(half));
    if (small)
        return small_is_nan(small, half);
    memcpy(&f, at, sizeof(f));
    if (dtype == DTYPE_FLOAT32)
        return isnan(f);
    memcpy(&d, at, sizeof(d));
    return isnan(d);
}

// True if the 16-bit value is no NaN, or a quiet one.
static bool is_quiet(enum dtype dtype, const unsigned char *at)
{
    const struct small_format *small = small_format(dtype);
    uint16_t half;
    if (!small || !is_nan(dtype, at))
        return true;
    memcpy(&half, at, sizeof(half));
    return (half & small->quiet) != 0;
}

// Same bits; where arithmetic made a NaN (free_nan), any NaN.
static void assert_same(enum dtype dtype, const unsigned char *got, const unsigned char *want,
                        size_t count, bool free_nan, const char *what)
{
    size_t size = dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        const unsigned char *x = got + i * size, *y = want + i * size;
        if (free_nan && is_nan(dtype, x) && is_nan(dtype, y) && is_quiet(dtype, x))
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
                op == REDUCE_SUM || op == REDUCE_MEAN || op == REDUCE_PRODUCT, table->name);
    assert_memory_equal(memory.acc, memory.want, at);
    assert_memory_equal(memory.acc + at + count * size, memory.want + at + count * size,
                        BYTES - at - count * size);
}

static void run_factor(const struct kernel_table *table, enum dtype dtype,
                       const struct factor *factor, void *out, const void *in, size_t count)
{
    if (factor->what == 'p')
        table->scale_power[dtype](out, in, ldexp(1, factor->exponent), count);
    else if (factor->what == 'a')
        table->add_weighted[dtype](out, in, factor->weight, count);
    else if (factor->what == 's')
        table->scale[dtype](out, in, factor->weight, count);
    else
        table->divide[dtype](out, in, factor->weight, count);
}

static void compare_factor(const struct kernel_table *table, enum dtype dtype,
                           const struct factor *factor, size_t count, size_t offset, bool in_place)
{
    static struct memory memory;
    size_t size = dtype_size(dtype), at = offset * size;
    memory_fill(&memory, dtype);
    if (in_place)
        memcpy(memory.in, memory.acc, BYTES);
    for (size_t i = 0; i < count; i++)
        obvious_factor_element(dtype, factor, memory.want + at + i * size,
                               memory.in + at + i * size);
    run_factor(table, dtype, factor, memory.acc + at, (in_place ? memory.acc : memory.in) + at,
               count);
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
            bool fits = dtype != DTYPE_NONE &&
                        (dtype_is_float(dtype) ? !kernel_is_bitwise(op) : op != REDUCE_MEAN);
            assert_int_equal(kernel_supported(dtype, op), fits);
            for (unsigned l = 0; kernel_level(l); l++)
                assert_int_equal(kernel_level(l)->reduce[dtype][op] != NULL, fits);
        }
    assert_false(kernel_supported((enum dtype)99, REDUCE_SUM));
    assert_false(kernel_supported(DTYPE_FLOAT32, (enum reduce_op)99));
}

static void test_dtypes(void **state)
{
    static const size_t sizes[] = {0, 4, 8, 4, 8, 2, 2, 1, 1, 2, 2, 4, 8, 1};
    static const char *const names[] = {"none",    "float32",  "float64", "int32", "int64",
                                        "float16", "bfloat16", "uint8",   "int8",  "int16",
                                        "uint16",  "uint32",   "uint64",  "bool"};
    (void)state;
    for (size_t d = 0; d < LENGTH(all_dtypes); d++)
        assert_int_equal(dtype_size(all_dtypes[d]), sizes[all_dtypes[d]]);
    for (size_t d = 0; d < LENGTH(all_dtypes); d++)
        assert_string_equal(dtype_name(all_dtypes[d]), names[all_dtypes[d]]);
    assert_true(dtype_is_float(DTYPE_FLOAT16));
    assert_false(dtype_is_float(DTYPE_UINT8));
    assert_true(dtype_is_small(DTYPE_BFLOAT16));
    assert_false(dtype_is_small(DTYPE_INT16));
    assert_int_equal(LENGTH(all_dtypes), DTYPE_LAST + 1);
    assert_int_equal(LENGTH(all_ops), REDUCE_LAST + 1);
    assert_int_equal(dtype_size((enum dtype)99), 0);
    assert_string_equal(dtype_name((enum dtype)99), "unknown");
}

static void test_reduce_equals_obvious(void **state)
{
    (void)state;
    for (unsigned l = 0; kernel_level(l); l++)
        for (size_t d = 0; d < LENGTH(all_dtypes); d++)
            for (size_t o = 0; o < LENGTH(all_ops); o++)
                for (size_t c = 0; c < LENGTH(counts); c++)
                    for (size_t offset = 0; offset < OFFSET_MAX; offset++)
                        if (kernel_level(l)->reduce[all_dtypes[d]][all_ops[o]])
                            compare_reduce(kernel_level(l), all_dtypes[d], all_ops[o], counts[c],
                                           offset);
}

static void test_factors_equal_obvious(void **state)
{
    static const enum dtype floats[] = {DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPE_FLOAT16,
                                        DTYPE_BFLOAT16};
    (void)state;
    for (unsigned l = 0; kernel_level(l); l++)
        for (size_t d = 0; d < LENGTH(floats); d++)
            for (size_t w = 0; w < LENGTH(weights); w++)
                for (size_t c = 0; c < LENGTH(counts); c++)
                    for (int what = 0; what < 7; what++) {
                        const struct factor factor = {"asdpsdp"[what], weights[w],
                                                      exponents[(c + w) % LENGTH(exponents)]};
                        compare_factor(kernel_level(l), floats[d], &factor, counts[c],
                                       (c + w) % OFFSET_MAX, what >= 4);
                    }
}

// 3 * (1 + 2^-23) rounds to 3 + 2^-21, which is 2^-23 too much; a fused multiply-add keeps the
// exact product, and after the addition of -3 - 2^-21 it would leave -2^-23 and not zero.
static void test_product_is_rounded_first(void **state)
{
    float acc[37], in[37];
    double acc64[37], in64[37];
    (void)state;
    for (unsigned l = 0; kernel_level(l); l++) {
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
    // 0xffff squared exceeds an int.
    uint16_t d = 0xffff, most16 = 0xffff;
    int16_t e = 0x4000, four16 = 4;
    int64_t f = INT64_MAX, most64 = INT64_MAX;
    kernel_reduce(DTYPE_UINT16, REDUCE_PRODUCT, &d, &most16, 1);
    kernel_reduce(DTYPE_INT16, REDUCE_PRODUCT, &e, &four16, 1);
    kernel_reduce(DTYPE_INT64, REDUCE_PRODUCT, &f, &most64, 1);
    assert_true(d == 1 && e == 0 && f == 1);
}

// The same bits are another number with and without a sign.
static void test_signs(void **state)
{
    int8_t a = -1, one8 = 1;
    uint8_t b = 255, one = 1;
    uint64_t c = UINT64_MAX, one64 = 1;
    (void)state;
    kernel_reduce(DTYPE_INT8, REDUCE_MIN, &a, &one8, 1);
    kernel_reduce(DTYPE_UINT8, REDUCE_MIN, &b, &one, 1);
    kernel_reduce(DTYPE_UINT64, REDUCE_MAX, &c, &one64, 1);
    assert_true(a == -1 && b == 1 && c == UINT64_MAX);
}

static void test_booleans(void **state)
{
    const uint8_t in[4] = {0, 0, 2, 127};
    uint8_t got[4] = {0, 7, 0, 128};
    const uint8_t either[4] = {0, 1, 1, 1}, both[4] = {0, 0, 0, 1}, one_of[4] = {0, 1, 1, 0};
    const uint8_t before[4] = {0, 7, 0, 128}, alone[4] = {0, 1, 0, 1};
    const struct {
        enum reduce_op op;
        const uint8_t *result;
    } facts[] = {{REDUCE_SUM, either},   {REDUCE_MAX, either}, {REDUCE_OR, either},
                 {REDUCE_PRODUCT, both}, {REDUCE_MIN, both},   {REDUCE_AND, both},
                 {REDUCE_XOR, one_of}};
    uint32_t number = 7;
    (void)state;
    for (size_t i = 0; i < LENGTH(facts); i++) {
        memcpy(got, before, sizeof(got));
        kernel_reduce(DTYPE_BOOL, facts[i].op, got, in, 4);
        assert_memory_equal(got, facts[i].result, sizeof(got));
    }
    memcpy(got, before, sizeof(got));
    kernel_reduce_alone(DTYPE_BOOL, got, 4);
    assert_memory_equal(got, alone, sizeof(got));
    kernel_reduce_alone(DTYPE_UINT32, &number, 1);
    assert_int_equal(number, 7);
}

static void test_names_of_ops(void **state)
{
    static const char *const names[] = {"sum", "mean", "min", "max", "or", "product", "and", "xor"};
    (void)state;
    for (size_t o = 0; o < LENGTH(all_ops); o++)
        assert_string_equal(kernel_op_name(all_ops[o]), names[all_ops[o]]);
    assert_string_equal(kernel_op_name((enum reduce_op)99), "unknown");
}

// ---- Tests of 16-bit floats ------------------------------------------------------------------

static const enum dtype smalls[] = {DTYPE_FLOAT16, DTYPE_BFLOAT16};

enum {
    VALUES = 65536,
    STRIDE = 127, // A prime: remainders of all kinds, and NaNs, denormals and both signs.
    STRIDED = VALUES / STRIDE
};

// Known numbers, so that the obvious functions are not merely believed.
static void test_obvious_is_right(void **state)
{
    static const struct {
        const struct small_format *format;
        float value;
        uint16_t half;
    } facts[] = {
        {&float16, 1.0f, 0x3c00},
        {&float16, -2.0f, 0xc000},
        {&float16, 0x1p-14f, 0x0400},
        {&float16, 65504.0f, 0x7bff},
        {&float16, 65519.99f, 0x7bff},
        {&float16, 65520.0f, 0x7c00},
        {&float16, 0x1p-24f, 0x0001},
        {&float16, -0x1p-25f, 0x8000},
        {&float16, 0x1.000002p-25f, 0x0001},
        {&float16, 0x1.8p-24f, 0x0002},
        {&float16, 0x1.ffep-15f, 0x0400},
        {&float16, 0x1.002p0f, 0x3c00},
        {&float16, 0x1.006p0f, 0x3c02},
        {&float16, -INFINITY, 0xfc00},
        {&bfloat16, 1.0f, 0x3f80},
        {&bfloat16, 0x1.01p0f, 0x3f80},
        {&bfloat16, 0x1.03p0f, 0x3f82},
        {&bfloat16, 0x1.fep127f, 0x7f7f},
        {&bfloat16, 0x1.ffp127f, 0x7f80},
        {&bfloat16, 0x1p-133f, 0x0001},
        {&bfloat16, -0x1p-134f, 0x8000},
        {&bfloat16, 0x1.02p-134f, 0x0001},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(facts); i++)
        assert_int_equal(obvious_narrow_float(facts[i].format, facts[i].value), facts[i].half);
    assert_true(obvious_widen(&float16, 0x3555) == 0x1.554p-2f);
    assert_true(obvious_widen(&float16, 0x83ff) == -0x1.ff8p-15f);
    assert_true(obvious_widen(&bfloat16, 0x0001) == 0x1p-133f);
    for (int half = 0; half < VALUES; half++)
        for (size_t d = 0; d < LENGTH(smalls); d++) {
            const struct small_format *format = small_format(smalls[d]);
            const bool nan = small_is_nan(format, (uint16_t)half);
            const float wide = obvious_widen(format, (uint16_t)half);
            assert_int_equal(isnan(wide) != 0, nan);
            assert_int_equal(obvious_narrow_float(format, wide), half | (nan ? format->quiet : 0));
        }
}

static void every_value(const struct kernel_table *table, enum dtype dtype,
                        const struct factor *factor)
{
    static uint16_t in[VALUES], got[VALUES], want[VALUES];
    for (int i = 0; i < VALUES; i++) {
        in[i] = (uint16_t)i;
        got[i] = want[i] = (uint16_t)(i * 25173 + 13849); // Another value for each.
        obvious_factor_element(dtype, factor, (unsigned char *)&want[i], (unsigned char *)&in[i]);
    }
    run_factor(table, dtype, factor, got, in, VALUES);
    assert_same(dtype, (unsigned char *)got, (unsigned char *)want, VALUES, true, table->name);
}

static void test_every_value(void **state)
{
    static const uint64_t some_weights[] = {1, 3, 1000, UINT64_MAX};
    (void)state;
    for (unsigned l = 0; kernel_level(l); l++)
        for (size_t d = 0; d < LENGTH(smalls); d++) {
            for (size_t w = 0; w < LENGTH(some_weights); w++)
                for (int what = 0; what < 3; what++)
                    every_value(kernel_level(l), smalls[d],
                                &(struct factor){"asd"[what], some_weights[w], 0});
            for (size_t e = 0; e < LENGTH(exponents); e++)
                every_value(kernel_level(l), smalls[d], &(struct factor){'p', 0, exponents[e]});
        }
}

// The reference is dear: all levels are compared with one.
static void one_with_many(enum dtype dtype, enum reduce_op op, const uint16_t *acc,
                          const uint16_t *in, size_t count)
{
    static uint16_t got[VALUES], want[VALUES];
    memcpy(want, acc, count * sizeof(*acc));
    for (size_t i = 0; i < count; i++)
        obvious_element(dtype, op, (unsigned char *)&want[i], (const unsigned char *)&in[i]);
    for (unsigned l = 0; kernel_level(l); l++) {
        memcpy(got, acc, count * sizeof(*acc));
        kernel_level(l)->reduce[dtype][op](got, in, count);
        assert_same(dtype, (unsigned char *)got, (unsigned char *)want, count,
                    op == REDUCE_SUM || op == REDUCE_PRODUCT, kernel_level(l)->name);
    }
}

static void test_pairs_of_values(void **state)
{
    static const enum reduce_op ops[] = {REDUCE_SUM, REDUCE_MIN, REDUCE_MAX, REDUCE_PRODUCT};
    static uint16_t acc[VALUES], in[VALUES];
    (void)state;
    for (size_t d = 0; d < LENGTH(smalls); d++)
        for (size_t o = 0; o < LENGTH(ops); o++) {
            for (int row = 0; row < STRIDED; row++) {
                for (int i = 0; i < STRIDED; i++) {
                    acc[i] = (uint16_t)(row * STRIDE + row % STRIDE);
                    in[i] = (uint16_t)(i * STRIDE + row % STRIDE);
                }
                one_with_many(smalls[d], ops[o], acc, in, STRIDED);
            }
            for (int i = 0; i < VALUES; i++) {
                const uint64_t word = random_word();
                acc[i] = (uint16_t)word;
                // Random in all, near in magnitude, or opposite: sums that cancel and that round.
                in[i] = (uint16_t)(i % 3 == 0   ? word >> 16
                                   : i % 3 == 1 ? acc[i] ^ (word >> 20 & 0x0fff)
                                                : acc[i] ^ (0x8000 | (word >> 20 & 0x3ff)));
            }
            one_with_many(smalls[d], ops[o], acc, in, VALUES);
        }
}

// Every 16 bits with a float32's lower ones around the places where rounding changes; of float16
// those that are its bits and more below.
static void fill_to_narrow(enum dtype dtype, uint16_t lower, float *in)
{
    for (uint32_t i = 0; i < VALUES; i++) {
        uint32_t bits = i << 16 | lower;
        if (dtype == DTYPE_FLOAT16) {
            const float value = obvious_widen(&float16, (uint16_t)i);
            memcpy(&bits, &value, sizeof(bits));
            bits += (uint32_t)lower >> 3;
        }
        memcpy(&in[i], &bits, sizeof(bits));
    }
}

static void expect_narrowed(enum dtype dtype, const float *in, const uint16_t *got)
{
    const struct small_format *format = small_format(dtype);
    const double least = ldexp(1, format->exponent_min);
    const double unit = ldexp(1, -format->fraction_bits - 1);
    for (int i = 0; i < VALUES - 1; i++) {
        const double x = fabs((double)in[i]);
        const double error = fabs((double)obvious_widen(format, got[i]) - (double)in[i]);
        assert_int_equal(got[i], obvious_narrow_float(format, in[i]));
        assert_true(isnan(x) || x >= format->limit || error <= (x < least ? least : x) * unit);
    }
    assert_int_equal(got[VALUES - 1], 0xa5a5);
}

static void test_narrowed(void **state)
{
    static const uint16_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0x9abc};
    static float in[VALUES];
    static uint16_t got[VALUES];
    (void)state;
    for (unsigned l = 0; kernel_level(l); l++)
        for (size_t d = 0; d < LENGTH(smalls); d++)
            for (size_t low = 0; low < LENGTH(lower); low++) {
                fill_to_narrow(smalls[d], lower[low], in);
                memset(got, 0xa5, sizeof(got));
                kernel_level(l)->narrow[smalls[d]](got, in, VALUES - 1);
                expect_narrowed(smalls[d], in, got);
                // Starts that are not a vector's.
                kernel_level(l)->narrow[smalls[d]](got + 3, in + 3, 37);
                expect_narrowed(smalls[d], in, got);
            }
}

static void test_widened(void **state)
{
    static uint16_t in[VALUES];
    static uint32_t got[VALUES]; // Bits: a copy of a signalling NaN as a float might quiet it.
    (void)state;
    for (int i = 0; i < VALUES; i++)
        in[i] = (uint16_t)i;
    for (unsigned l = 0; kernel_level(l); l++)
        for (size_t d = 0; d < LENGTH(smalls); d++) {
            memset(got, 0xa5, sizeof(got));
            kernel_level(l)->widen[smalls[d]]((float *)(void *)got, in, VALUES - 1);
            for (uint32_t i = 0; i < VALUES - 1; i++) {
                const float wide = obvious_widen(small_format(smalls[d]), (uint16_t)i);
                uint32_t bits = i << 16;
                if (smalls[d] == DTYPE_FLOAT16)
                    memcpy(&bits, &wide, sizeof(bits));
                assert_int_equal(got[i], bits);
            }
            assert_int_equal(got[VALUES - 1], 0xa5a5a5a5);
        }
}

// Through the functions that choose a level: a mean of two ranks that overflows as a sum.
static void test_small_by_name(void **state)
{
    uint16_t acc[3] = {0x7800, 0x3c00, 0x7bff}, in[3] = {0x7800, 0x4000, 0x7bff}, wire[3];
    const uint16_t infinite = 0x7c00, halved[3] = {0x7800, 0x3e00, 0x7bff};
    const uint16_t zeros[3] = {0, 0, 0};
    float wide[3] = {1.0f, -INFINITY, 0x1.03p0f};
    (void)state;
    memcpy(wire, acc, sizeof(acc));
    kernel_reduce(DTYPE_FLOAT16, REDUCE_SUM, wire, in, 3);
    assert_int_equal(wire[0], infinite);
    kernel_scale_power(DTYPE_FLOAT16, acc, acc, -1, 3);
    kernel_scale_power(DTYPE_FLOAT16, in, in, -1, 3);
    kernel_reduce(DTYPE_FLOAT16, REDUCE_MEAN, acc, in, 3);
    assert_memory_equal(acc, halved, sizeof(acc));
    kernel_divide(DTYPE_FLOAT16, acc, acc, 3, 3);
    kernel_add_weighted(DTYPE_FLOAT16, acc, in, 0, 3);
    kernel_scale(DTYPE_BFLOAT16, acc, in, 0, 3);
    assert_memory_equal(acc, zeros, sizeof(acc));
    kernel_narrow(DTYPE_BFLOAT16, wire, wide, 3);
    assert_true(wire[0] == 0x3f80 && wire[1] == 0xff80 && wire[2] == 0x3f82);
    kernel_widen(DTYPE_BFLOAT16, wide, wire, 3);
    assert_true(wide[0] == 1.0f && wide[1] == -INFINITY && wide[2] == 0x1.04p0f);
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
        cmocka_unit_test(test_factors_equal_obvious),
        cmocka_unit_test(test_obvious_is_right),
        cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_pairs_of_values),
        cmocka_unit_test(test_narrowed),
        cmocka_unit_test(test_widened),
        cmocka_unit_test(test_small_by_name),
        cmocka_unit_test(test_product_is_rounded_first),
        cmocka_unit_test(test_weight_zero_contributes_nothing),
        cmocka_unit_test(test_weighted_mean),
        cmocka_unit_test(test_integers_wrap),
        cmocka_unit_test(test_signs),
        cmocka_unit_test(test_booleans),
        cmocka_unit_test(test_names_of_ops),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
