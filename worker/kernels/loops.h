// SPDX-License-Identifier: Apache-2.0
//
// The loops of the kernels, compiled once for each level of the instruction set. Only portable.c,
// avx2.c and avx512.c include this header. Before that they define KERNEL_TARGET (attributes of
// every loop) and KERNEL_TABLE (the name of the table at the end of this file). Pure; any thread.
//
// Each loop is plain C: for each element one operation after the other, in the order of the
// definition. The compiler vectorizes the loop. All levels must give the same bits, so nothing here
// may be reassociated, approximated or contracted. Clang obeys the pragma below. gcc ignores the
// pragma, but gcc does not contract in a strict ISO mode (-std=c11), which the check below
// enforces. Only loops_f16c.h has hand-written vector code, for levels that define
// KERNEL_F16_WIDTH, because compilers do not find the F16C instructions in the conversions of
// loops_small.h. loops_copy.h and loops_stream.h also have hand-written vector code, for stores.
//
// Beyond L2 all loops are bound by memory: an addition moves 12 bytes for 4 bytes of float32. So
// the width of loads and stores decides, and that no part runs scalar.

#ifdef __FAST_MATH__
#error "the kernels promise the same bits everywhere: no -ffast-math"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
// With sanitizers or -O0 clang does not vectorize; that is no error.
#pragma clang diagnostic ignored "-Wpass-failed"
// Also correct for out == in: no element depends on another element.
#define KERNEL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#if !defined(__STRICT_ANSI__)
#error "gcc contracts a * b + c unless it compiles a strict standard: use -std=c11"
#endif
#define KERNEL_INDEPENDENT _Pragma("GCC ivdep")
#endif

#include "worker/kernels/loops_small.h"
#include "worker/kernels/table.h"

#include <string.h>

// Every comparison is made unconditionally, because gcc turns only such choices into selects. Equal
// operands may be zeros of both signs. Then the minimum is the negative zero, which is the OR of
// the bits, and the maximum the positive zero, which is the AND. For equal operands that are not
// zero, OR and AND both give the operand.
#define KERNEL_FLOAT_CHOICE(type, word) \
    static inline type minimum_##type(type a, type b) \
    { \
        word a_bits, b_bits; \
        type lower; \
        memcpy(&a_bits, &a, sizeof(a_bits)); \
        memcpy(&b_bits, &b, sizeof(b_bits)); \
        word chosen = ((a < b) | (a != a)) ? a_bits : b_bits; \
        chosen = a == b ? a_bits | b_bits : chosen; \
        memcpy(&lower, &chosen, sizeof(lower)); \
        return lower; \
    } \
    static inline type maximum_##type(type a, type b) \
    { \
        word a_bits, b_bits; \
        type higher; \
        memcpy(&a_bits, &a, sizeof(a_bits)); \
        memcpy(&b_bits, &b, sizeof(b_bits)); \
        word chosen = ((a > b) | (a != a)) ? a_bits : b_bits; \
        chosen = a == b ? a_bits & b_bits : chosen; \
        memcpy(&higher, &chosen, sizeof(higher)); \
        return higher; \
    }

KERNEL_FLOAT_CHOICE(float, uint32_t)
KERNEL_FLOAT_CHOICE(double, uint64_t)

// A loop over acc and in. expression computes the new element from a (acc's element) and b (in's
// element).
#define KERNEL_REDUCE(name, type, expression) \
    KERNEL_TARGET static void reduce_##name(void *acc, const void *in, size_t count) \
    { \
        type *into = acc; \
        const type *from = in; \
        KERNEL_INDEPENDENT \
        for (size_t i = 0; i < count; i++) { \
            type a = into[i]; \
            type b = from[i]; \
            into[i] = (type)(expression); \
        } \
    }

// A loop with a factor w: `number`, of type `given`, rounded once to the type in which the loop
// computes. b is in's element, and into[i] is out's element.
#define KERNEL_FACTOR(name, element, computed, given, expression) \
    KERNEL_TARGET static void name(void *out, const void *in, given number, size_t count) \
    { \
        element *into = out; \
        const element *from = in; \
        const computed w = (computed)number; \
        KERNEL_INDEPENDENT \
        for (size_t i = 0; i < count; i++) { \
            element b = from[i]; \
            into[i] = (expression); \
        } \
    }

// The loop over the lanes has a fixed length and is one or more vectors.
#define KERNEL_SQUARES(type) \
    KERNEL_TARGET static void squares_##type(double *lanes, const void *in, size_t count) \
    { \
        const type *from = in; \
        double sums[KERNEL_LANES]; \
        memcpy(sums, lanes, sizeof(sums)); \
        for (; count >= KERNEL_LANES; count -= KERNEL_LANES, from += KERNEL_LANES) { \
            for (size_t lane = 0; lane < KERNEL_LANES; lane++) { \
                const double value = (double)from[lane]; \
                sums[lane] += value * value; \
            } \
        } \
        for (size_t lane = 0; lane < count; lane++) { \
            const double value = (double)from[lane]; \
            sums[lane] += value * value; \
        } \
        memcpy(lanes, sums, sizeof(sums)); \
    }

#define KERNEL_FLOAT(type) \
    KERNEL_SQUARES(type) \
    KERNEL_REDUCE(sum_##type, type, a + b) \
    KERNEL_REDUCE(product_##type, type, a *b) \
    KERNEL_REDUCE(min_##type, type, minimum_##type(a, b)) \
    KERNEL_REDUCE(max_##type, type, maximum_##type(a, b)) \
    KERNEL_FACTOR(add_weighted_##type, type, type, uint64_t, into[i] + w * b) \
    KERNEL_FACTOR(scale_##type, type, type, uint64_t, w *b) \
    KERNEL_FACTOR(divide_##type, type, type, uint64_t, b / w) \
    KERNEL_FACTOR(scale_power_##type, type, type, double, w *b)

// 16-bit floats are computed in float32 and rounded once to their own format. The loop takes two
// elements at a time, as the halves of a 32-bit word. So the vectors of words are as wide as the
// float32 vectors, and no instruction has to move elements between vectors, which would cost more
// than the arithmetic. It does not matter which element is the upper half. A last odd element is
// computed alone. expression uses a (an element of `first`, which is into or from), b (in's
// element) and w, all float32.
#define KERNEL_SMALL_LOOP(name, type, given, first, expression) \
    static inline uint32_t name##_of_one(uint32_t a_half, uint32_t b_half, float w) \
    { \
        const float a = widen_##type(a_half); \
        const float b = widen_##type(b_half); \
        (void)a, (void)w; \
        return narrow_##type(expression); \
    } \
    KERNEL_TARGET static void name(void *out, const void *in, given number, size_t count) \
    { \
        uint16_t *into = out; \
        const uint16_t *from = in; \
        const float w = (float)number; \
        KERNEL_INDEPENDENT \
        for (size_t i = 0; i < count / 2; i++) { \
            const uint32_t a = small_pair((first) + 2 * i); \
            const uint32_t b = small_pair(from + 2 * i); \
            const uint32_t lower = name##_of_one(a & 0xffff, b & 0xffff, w); \
            const uint32_t upper = name##_of_one(a >> 16, b >> 16, w); \
            const uint32_t pair = lower | upper << 16; \
            memcpy(into + 2 * i, &pair, sizeof(pair)); \
        } \
        if (count % 2 != 0) \
            into[count - 1] = (uint16_t)name##_of_one((first)[count - 1], from[count - 1], w); \
    }

#define KERNEL_SMALL(type, infinity) \
    KERNEL_SMALL_LOOP(add_##type, type, uint64_t, into, a + b) \
    KERNEL_TARGET static void reduce_sum_##type(void *acc, const void *in, size_t count) \
    { \
        add_##type(acc, in, 1, count); \
    } \
    KERNEL_SMALL_LOOP(multiply_##type, type, uint64_t, into, a *b) \
    KERNEL_TARGET static void reduce_product_##type(void *acc, const void *in, size_t count) \
    { \
        multiply_##type(acc, in, 1, count); \
    } \
    KERNEL_REDUCE(min_##type, uint16_t, small_minimum(a, b, infinity)) \
    KERNEL_REDUCE(max_##type, uint16_t, small_maximum(a, b, infinity)) \
    KERNEL_SMALL_LOOP(add_weighted_##type, type, uint64_t, into, a + w * b) \
    KERNEL_SMALL_LOOP(scale_##type, type, uint64_t, from, w *b) \
    KERNEL_SMALL_LOOP(divide_##type, type, uint64_t, from, b / w) \
    KERNEL_SMALL_LOOP(scale_power_##type, type, double, from, w *b)

// Sums, products and bits are the same for signed and unsigned integers of one size, so these loops
// exist once for each size, for the unsigned type, which wraps. Small words are computed in a wider
// unsigned type, because C would compute them in int, and a product of two uint16_t overflows that.
#define KERNEL_WORD(word, computed) \
    KERNEL_REDUCE(sum_##word, word, (computed)a + (computed)b) \
    KERNEL_REDUCE(product_##word, word, (computed)a *(computed)b) \
    KERNEL_REDUCE(or_##word, word, a | b) \
    KERNEL_REDUCE(and_##word, word, a &b) \
    KERNEL_REDUCE(xor_##word, word, a ^ b)
#define KERNEL_ORDER(type) \
    KERNEL_REDUCE(min_##type, type, a < b ? a : b) \
    KERNEL_REDUCE(max_##type, type, a > b ? a : b)

KERNEL_FLOAT(float)
KERNEL_FLOAT(double)
KERNEL_SMALL(float16, FLOAT16_INFINITY)
KERNEL_SMALL(bfloat16, BFLOAT16_INFINITY)
KERNEL_WORD(uint8_t, uint32_t)
KERNEL_WORD(uint16_t, uint32_t)
KERNEL_WORD(uint32_t, uint32_t)
KERNEL_WORD(uint64_t, uint64_t)
KERNEL_ORDER(int8_t)
KERNEL_ORDER(uint8_t)
KERNEL_ORDER(int16_t)
KERNEL_ORDER(uint16_t)
KERNEL_ORDER(int32_t)
KERNEL_ORDER(uint32_t)
KERNEL_ORDER(int64_t)
KERNEL_ORDER(uint64_t)
// Booleans: every byte but 0 is true, and a result is 0 or 1.
KERNEL_REDUCE(or_bool, uint8_t, (a | b) != 0)
KERNEL_REDUCE(and_bool, uint8_t, (a != 0) & (b != 0))
KERNEL_REDUCE(xor_bool, uint8_t, (a != 0) ^ (b != 0))

// As F16C does, widening quiets a NaN of float16. A NaN of bfloat16 keeps its bits.
static inline float widen_quiet_float16(uint32_t half)
{
    const float value = widen_float16(half);
    const uint32_t bits = small_bits(value);
    return small_float(value != value ? bits | 0x400000 : bits);
}

#define KERNEL_CONVERSIONS(type, widened) \
    KERNEL_TARGET static void narrow_##type##s(uint16_t *out, const float *in, size_t count) \
    { \
        KERNEL_INDEPENDENT \
        for (size_t i = 0; i < count; i++) \
            out[i] = (uint16_t)narrow_##type(in[i]); \
    } \
    KERNEL_TARGET static void widen_##type##s(float *out, const uint16_t *in, size_t count) \
    { \
        KERNEL_INDEPENDENT \
        for (size_t i = 0; i < count; i++) \
            out[i] = widened(in[i]); \
    }

KERNEL_CONVERSIONS(float16, widen_quiet_float16)
KERNEL_CONVERSIONS(bfloat16, widen_bfloat16)

#include "worker/kernels/loops_copy.h"
#include "worker/kernels/loops_sources.h"
#if defined(__x86_64__)
#include "worker/kernels/loops_stream.h"
#endif

// The suffix of the float16 loops: the plain loops above, or the loops of loops_f16c.h, which begin
// with whole vectors.
#ifdef KERNEL_F16_WIDTH
#include "worker/kernels/loops_f16c.h"
#define KERNEL_FLOAT16 float16_vectors
#else
#define KERNEL_FLOAT16 float16
#define narrow_float16_vectors narrow_float16s
#define widen_float16_vectors widen_float16s
#endif

#define KERNEL_JOINED(name, type) name##_##type
#define KERNEL_LOOP(name, type) KERNEL_JOINED(name, type)
// Rows of the tables reduce and combine; `loop` is the one or the other.
#define KERNEL_FLOAT_ROW(loop, adds, multiplies, type) \
    { \
        [REDUCE_SUM] = (adds), [REDUCE_MEAN] = (adds), [REDUCE_MIN] = loop##_min_##type, \
        [REDUCE_MAX] = loop##_max_##type, [REDUCE_PRODUCT] = (multiplies) \
    }
#define KERNEL_INTEGER_ROW(loop, type, word) \
    { \
        [REDUCE_SUM] = loop##_sum_##word, [REDUCE_MIN] = loop##_min_##type, \
        [REDUCE_MAX] = loop##_max_##type, [REDUCE_OR] = loop##_or_##word, \
        [REDUCE_PRODUCT] = loop##_product_##word, [REDUCE_AND] = loop##_and_##word, \
        [REDUCE_XOR] = loop##_xor_##word \
    }
#define KERNEL_BOOL_ROW(loop) \
    { \
        [REDUCE_SUM] = loop##_or_bool, [REDUCE_MIN] = loop##_and_bool, \
        [REDUCE_MAX] = loop##_or_bool, [REDUCE_OR] = loop##_or_bool, \
        [REDUCE_PRODUCT] = loop##_and_bool, [REDUCE_AND] = loop##_and_bool, \
        [REDUCE_XOR] = loop##_xor_bool \
    }
// All rows of the one or the other. float16_adds, bfloat16_adds: the loops that add 16-bit floats.
#define KERNEL_ROWS(loop, float16_adds, bfloat16_adds) \
    { \
        [DTYPE_FLOAT32] = KERNEL_FLOAT_ROW(loop, loop##_sum_float, loop##_product_float, float), \
        [DTYPE_FLOAT64] = \
            KERNEL_FLOAT_ROW(loop, loop##_sum_double, loop##_product_double, double), \
        [DTYPE_INT32] = KERNEL_INTEGER_ROW(loop, int32_t, uint32_t), \
        [DTYPE_INT64] = KERNEL_INTEGER_ROW(loop, int64_t, uint64_t), \
        [DTYPE_FLOAT16] = KERNEL_FLOAT_ROW(loop, float16_adds, \
                                           KERNEL_LOOP(loop##_product, KERNEL_FLOAT16), float16), \
        [DTYPE_BFLOAT16] = \
            KERNEL_FLOAT_ROW(loop, bfloat16_adds, loop##_product_bfloat16, bfloat16), \
        [DTYPE_UINT8] = KERNEL_INTEGER_ROW(loop, uint8_t, uint8_t), \
        [DTYPE_INT8] = KERNEL_INTEGER_ROW(loop, int8_t, uint8_t), \
        [DTYPE_INT16] = KERNEL_INTEGER_ROW(loop, int16_t, uint16_t), \
        [DTYPE_UINT16] = KERNEL_INTEGER_ROW(loop, uint16_t, uint16_t), \
        [DTYPE_UINT32] = KERNEL_INTEGER_ROW(loop, uint32_t, uint32_t), \
        [DTYPE_UINT64] = KERNEL_INTEGER_ROW(loop, uint64_t, uint64_t), \
        [DTYPE_BOOL] = KERNEL_BOOL_ROW(loop) \
    }
#define KERNEL_FACTOR_ROW(name) \
    { \
        [DTYPE_FLOAT32] = name##_float, [DTYPE_FLOAT64] = name##_double, \
        [DTYPE_FLOAT16] = KERNEL_LOOP(name, KERNEL_FLOAT16), [DTYPE_BFLOAT16] = name##_bfloat16 \
    }
#define KERNEL_STRING(name) #name
#define KERNEL_NAME(name) KERNEL_STRING(name)

const struct kernel_table KERNEL_TABLE = {
    .name = KERNEL_NAME(KERNEL_TABLE),
    .reduce = KERNEL_ROWS(reduce, KERNEL_LOOP(reduce_sum, KERNEL_FLOAT16), reduce_sum_bfloat16),
    .add_weighted = KERNEL_FACTOR_ROW(add_weighted),
    .scale = KERNEL_FACTOR_ROW(scale),
    .divide = KERNEL_FACTOR_ROW(divide),
    .scale_power = KERNEL_FACTOR_ROW(scale_power),
    .narrow = {[DTYPE_FLOAT16] = narrow_float16_vectors, [DTYPE_BFLOAT16] = narrow_bfloat16s},
    .widen = {[DTYPE_FLOAT16] = widen_float16_vectors, [DTYPE_BFLOAT16] = widen_bfloat16s},
    .combine = KERNEL_ROWS(combine, KERNEL_LOOP(combine_weighted, KERNEL_FLOAT16),
                           combine_weighted_bfloat16),
    .combine_weighted = KERNEL_FACTOR_ROW(combine_weighted),
    .combine_divided = KERNEL_FACTOR_ROW(combine_divided),
#if defined(__x86_64__)
    .stream_weighted =
        {[DTYPE_FLOAT32] = stream_weighted_float, [DTYPE_FLOAT64] = stream_weighted_double},
    .stream_divided =
        {[DTYPE_FLOAT32] = stream_divided_float, [DTYPE_FLOAT64] = stream_divided_double},
#endif
    .squares = {[DTYPE_FLOAT32] = squares_float, [DTYPE_FLOAT64] = squares_double},
    .copy = copy_bytes,
    .stream = stream_bytes,
};
