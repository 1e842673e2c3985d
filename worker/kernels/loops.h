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

#define KERNEL_FLOAT(type) \
    KERNEL_REDUCE(sum_##type, type, a + b) \
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
    KERNEL_REDUCE(min_##type, uint16_t, small_minimum(a, b, infinity)) \
    KERNEL_REDUCE(max_##type, uint16_t, small_maximum(a, b, infinity)) \
    KERNEL_SMALL_LOOP(add_weighted_##type, type, uint64_t, into, a + w * b) \
    KERNEL_SMALL_LOOP(scale_##type, type, uint64_t, from, w *b) \
    KERNEL_SMALL_LOOP(divide_##type, type, uint64_t, from, b / w) \
    KERNEL_SMALL_LOOP(scale_power_##type, type, double, from, w *b)

// Sums are computed in unsigned words, which wrap; the conversion back keeps the bits.
#define KERNEL_INTEGER(type, word) \
    KERNEL_REDUCE(sum_##type, type, (word)a + (word)b) \
    KERNEL_REDUCE(min_##type, type, a < b ? a : b) \
    KERNEL_REDUCE(max_##type, type, a > b ? a : b) \
    KERNEL_REDUCE(or_##type, type, (word)a | (word)b)

KERNEL_FLOAT(float)
KERNEL_FLOAT(double)
KERNEL_SMALL(float16, FLOAT16_INFINITY)
KERNEL_SMALL(bfloat16, BFLOAT16_INFINITY)
KERNEL_INTEGER(int32_t, uint32_t)
KERNEL_INTEGER(int64_t, uint64_t)
KERNEL_INTEGER(uint8_t, uint8_t)

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
#define KERNEL_FLOAT_ROW(adds, chooses) \
    { \
        [REDUCE_SUM] = KERNEL_LOOP(reduce_sum, adds), \
        [REDUCE_MEAN] = KERNEL_LOOP(reduce_sum, adds), [REDUCE_MIN] = reduce_min_##chooses, \
        [REDUCE_MAX] = reduce_max_##chooses \
    }
#define KERNEL_INTEGER_ROW(type) \
    { \
        [REDUCE_SUM] = reduce_sum_##type, [REDUCE_MIN] = reduce_min_##type, \
        [REDUCE_MAX] = reduce_max_##type, [REDUCE_OR] = reduce_or_##type \
    }
#define KERNEL_FACTOR_ROW(name) \
    { \
        [DTYPE_FLOAT32] = name##_float, [DTYPE_FLOAT64] = name##_double, \
        [DTYPE_FLOAT16] = KERNEL_LOOP(name, KERNEL_FLOAT16), [DTYPE_BFLOAT16] = name##_bfloat16 \
    }
#define KERNEL_COMBINE_ROW(adds, chooses) \
    { \
        [REDUCE_SUM] = (adds), [REDUCE_MEAN] = (adds), [REDUCE_MIN] = combine_min_##chooses, \
        [REDUCE_MAX] = combine_max_##chooses \
    }
#define KERNEL_COMBINE_INTEGER_ROW(type) \
    { \
        [REDUCE_SUM] = combine_sum_##type, [REDUCE_MIN] = combine_min_##type, \
        [REDUCE_MAX] = combine_max_##type, [REDUCE_OR] = combine_or_##type \
    }
#define KERNEL_STRING(name) #name
#define KERNEL_NAME(name) KERNEL_STRING(name)

const struct kernel_table KERNEL_TABLE = {
    .name = KERNEL_NAME(KERNEL_TABLE),
    .reduce = {[DTYPE_FLOAT32] = KERNEL_FLOAT_ROW(float, float),
               [DTYPE_FLOAT64] = KERNEL_FLOAT_ROW(double, double),
               [DTYPE_INT32] = KERNEL_INTEGER_ROW(int32_t),
               [DTYPE_INT64] = KERNEL_INTEGER_ROW(int64_t),
               [DTYPE_FLOAT16] = KERNEL_FLOAT_ROW(KERNEL_FLOAT16, float16),
               [DTYPE_BFLOAT16] = KERNEL_FLOAT_ROW(bfloat16, bfloat16),
               [DTYPE_UINT8] = KERNEL_INTEGER_ROW(uint8_t)},
    .add_weighted = KERNEL_FACTOR_ROW(add_weighted),
    .scale = KERNEL_FACTOR_ROW(scale),
    .divide = KERNEL_FACTOR_ROW(divide),
    .scale_power = KERNEL_FACTOR_ROW(scale_power),
    .narrow = {[DTYPE_FLOAT16] = narrow_float16_vectors, [DTYPE_BFLOAT16] = narrow_bfloat16s},
    .widen = {[DTYPE_FLOAT16] = widen_float16_vectors, [DTYPE_BFLOAT16] = widen_bfloat16s},
    .combine = {[DTYPE_FLOAT32] = KERNEL_COMBINE_ROW(combine_sum_float, float),
                [DTYPE_FLOAT64] = KERNEL_COMBINE_ROW(combine_sum_double, double),
                [DTYPE_INT32] = KERNEL_COMBINE_INTEGER_ROW(int32_t),
                [DTYPE_INT64] = KERNEL_COMBINE_INTEGER_ROW(int64_t),
                [DTYPE_FLOAT16] =
                    KERNEL_COMBINE_ROW(KERNEL_LOOP(combine_weighted, KERNEL_FLOAT16), float16),
                [DTYPE_BFLOAT16] = KERNEL_COMBINE_ROW(combine_weighted_bfloat16, bfloat16),
                [DTYPE_UINT8] = KERNEL_COMBINE_INTEGER_ROW(uint8_t)},
    .combine_weighted = KERNEL_FACTOR_ROW(combine_weighted),
    .combine_divided = KERNEL_FACTOR_ROW(combine_divided),
#if defined(__x86_64__)
    .stream_weighted =
        {[DTYPE_FLOAT32] = stream_weighted_float, [DTYPE_FLOAT64] = stream_weighted_double},
    .stream_divided =
        {[DTYPE_FLOAT32] = stream_divided_float, [DTYPE_FLOAT64] = stream_divided_double},
#endif
    .copy = copy_bytes,
    .stream = stream_bytes,
};
