// SPDX-License-Identifier: Apache-2.0
//
// The loops of the kernels, to be compiled once for each level of instruction set. Not a header to
// include elsewhere: kernels_portable.c and kernels_avx2.c define KERNEL_TARGET (attributes of
// every loop) and KERNEL_TABLE (the name of the table at the end) and include it. Pure; any thread.
//
// Each loop is the plain one, one operation for each element in the order of the definition, and
// the compiler makes vectors of it: no level may give other bits than another. So nothing here may
// be reassociated, approximated or contracted. Clang obeys the pragma below. gcc ignores it, but
// does not contract in a strict ISO mode (-std=c11), which the check below insists on.
//
// All are bound by memory beyond L2: an addition moves 12 bytes for 4 of float32, so what counts is
// the width of loads and stores, and that nothing runs scalar.

#ifdef __FAST_MATH__
#error "the kernels promise the same bits everywhere: no -ffast-math"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#pragma clang diagnostic ignored "-Wpass-failed" // Sanitizers and -O0 make no vectors: no matter.
// True for out == in as well: no element depends on another one.
#define KERNEL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#if !defined(__STRICT_ANSI__)
#error "gcc contracts a * b + c unless it compiles a strict standard: use -std=c11"
#endif
#define KERNEL_INDEPENDENT _Pragma("GCC ivdep")
#endif

#include "worker/kernels_table.h"

#include <string.h>

// A comparison is always made, never behind another one: gcc turns only such choices into selects.
// Equal operands may be zeros of both signs: the minimum is then the negative one, which is the OR
// of their bits, and the maximum the AND. Where they are equal and not zero, both give the operand.
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

// One loop over acc and in, where expression makes the new element of a (acc's) and b (in's).
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

// Likewise with a weight, rounded once to the element's type w; a is out's element, b is in's.
#define KERNEL_WEIGHT(name, type, expression) \
    KERNEL_TARGET static void name##_##type(void *out, const void *in, uint64_t weight, \
                                            size_t count) \
    { \
        type *into = out; \
        const type *from = in; \
        const type w = (type)weight; \
        KERNEL_INDEPENDENT \
        for (size_t i = 0; i < count; i++) { \
            type b = from[i]; \
            into[i] = (expression); \
        } \
    }

#define KERNEL_FLOAT(type) \
    KERNEL_REDUCE(sum_##type, type, a + b) \
    KERNEL_REDUCE(min_##type, type, minimum_##type(a, b)) \
    KERNEL_REDUCE(max_##type, type, maximum_##type(a, b)) \
    KERNEL_WEIGHT(add_weighted, type, into[i] + w * b) \
    KERNEL_WEIGHT(scale, type, w *b) \
    KERNEL_WEIGHT(divide, type, b / w)

// Sums are made of unsigned words, which wrap; the conversion back keeps the bits.
#define KERNEL_INTEGER(type, word) \
    KERNEL_REDUCE(sum_##type, type, (word)a + (word)b) \
    KERNEL_REDUCE(min_##type, type, a < b ? a : b) \
    KERNEL_REDUCE(max_##type, type, a > b ? a : b) \
    KERNEL_REDUCE(or_##type, type, (word)a | (word)b)

KERNEL_FLOAT(float)
KERNEL_FLOAT(double)
KERNEL_INTEGER(int32_t, uint32_t)
KERNEL_INTEGER(int64_t, uint64_t)
KERNEL_INTEGER(uint8_t, uint8_t)

#define KERNEL_FLOAT_ROW(type) \
    { \
        [REDUCE_SUM] = reduce_sum_##type, [REDUCE_MEAN] = reduce_sum_##type, \
        [REDUCE_MIN] = reduce_min_##type, [REDUCE_MAX] = reduce_max_##type \
    }
#define KERNEL_INTEGER_ROW(type) \
    { \
        [REDUCE_SUM] = reduce_sum_##type, [REDUCE_MIN] = reduce_min_##type, \
        [REDUCE_MAX] = reduce_max_##type, [REDUCE_OR] = reduce_or_##type \
    }
#define KERNEL_WEIGHT_ROW(name) \
    { \
        [DTYPE_FLOAT32] = name##_float, [DTYPE_FLOAT64] = name##_double \
    }
#define KERNEL_STRING(name) #name
#define KERNEL_NAME(name) KERNEL_STRING(name)

const struct kernel_table KERNEL_TABLE = {
    .name = KERNEL_NAME(KERNEL_TABLE),
    .reduce = {[DTYPE_FLOAT32] = KERNEL_FLOAT_ROW(float),
               [DTYPE_FLOAT64] = KERNEL_FLOAT_ROW(double),
               [DTYPE_INT32] = KERNEL_INTEGER_ROW(int32_t),
               [DTYPE_INT64] = KERNEL_INTEGER_ROW(int64_t),
               [DTYPE_UINT8] = KERNEL_INTEGER_ROW(uint8_t)},
    .add_weighted = KERNEL_WEIGHT_ROW(add_weighted),
    .scale = KERNEL_WEIGHT_ROW(scale),
    .divide = KERNEL_WEIGHT_ROW(divide),
};
