// SPDX-License-Identifier: Apache-2.0
//
// One element of float16 (IEEE 754 binary16: 5 bits of exponent, 10 of fraction) or bfloat16 (the
// upper half of a float32: 8 and 7): its conversions to and from float32, its minimum and maximum.
// For loops.h only. Pure; any thread.
//
// Widening is exact. Narrowing rounds once, to nearest even; what exceeds the format becomes an
// infinity, denormals are kept. A NaN stays one: the top bits of its payload stay, and it is
// quieted. In every function all ways are computed and then one is selected, without a branch, so
// that compilers make vectors of the loops around it: of words of 32 bits, with a 16-bit element in
// the lower half, and signed where they are compared, as SSE2 compares them.

#ifndef WORKER_KERNELS_LOOPS_SMALL_H
#define WORKER_KERNELS_LOOPS_SMALL_H

#include <stdint.h>
#include <string.h>

#define FLOAT16_INFINITY 0x7c00
#define BFLOAT16_INFINITY 0x7f80

static inline uint32_t small_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float small_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// Two elements, at any alignment.
static inline uint32_t small_pair(const uint16_t *elements)
{
    uint32_t pair;
    memcpy(&pair, elements, sizeof(pair));
    return pair;
}

// x < limit ? yes : no, of positive x and limit, for a yes that took floating-point arithmetic: gcc
// would put that behind a branch, because it might raise a flag, and then make no vectors.
static inline int32_t small_if_below(int32_t x, int32_t limit, int32_t yes, int32_t no)
{
    const int32_t mask = (x - limit) >> 31;
    return (yes & mask) | (no & ~mask);
}

static inline float widen_bfloat16(uint32_t half)
{
    return small_float(half << 16);
}

// Adding just under half a unit of the upper half, and one more if that is odd, carries into it
// exactly when nearest-even rounds up; a carry out of the fraction is right in the exponent, too.
static inline uint32_t narrow_bfloat16(float value)
{
    const uint32_t bits = small_bits(value);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    const uint32_t nan = bits | 0x400000;
    return (value != value ? nan : rounded) >> 16;
}

// The exponent's bias grows by 112. The largest exponent, of infinities and NaNs, must become the
// largest again: 112 more. A denormal is a fraction without its leading one: with the exponent of
// 2^-14 it counts as 2^-14 + value, from which 2^-14 is subtracted exactly.
static inline float widen_float16(uint32_t half)
{
    const uint32_t sign = (half & 0x8000) << 16;
    const int32_t shifted = (int32_t)((half & 0x7fff) << 13);
    const int32_t normal = shifted + (112 << 23);
    const int32_t special = shifted + (224 << 23);
    const float as_normal = small_float((uint32_t)shifted + (113u << 23));
    const int32_t denormal = (int32_t)small_bits(as_normal - 0x1p-14f);
    int32_t bits = small_if_below(shifted, 1 << 23, denormal, normal);
    bits = small_if_below(shifted, FLOAT16_INFINITY << 13, bits, special);
    return small_float(sign | (uint32_t)bits);
}

// Normal results are rounded as in narrow_bfloat16, 13 bits instead of 16. For denormal ones, below
// 2^-14, the processor rounds: a unit of 0.5 is 2^-24, that of denormal float16, so 0.5 + value has
// the result in its fraction. From 2^16 on all is infinite; just below, rounding itself gives
// infinity by its carry into the exponent.
static inline uint32_t narrow_float16(float value)
{
    const uint32_t sign = small_bits(value) >> 16 & 0x8000;
    const int32_t bits = (int32_t)(small_bits(value) & 0x7fffffff);
    const int32_t normal = (bits - (112 << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    const float shifted = small_float((uint32_t)bits) + 0.5f;
    const int32_t denormal = (int32_t)(small_bits(shifted) - small_bits(0.5f));
    const int32_t nan = (bits >> 13 & 0x3ff) | 0x7e00;
    int32_t half = small_if_below(bits, 113 << 23, denormal, normal);
    half = small_if_below(bits, 143 << 23, half, FLOAT16_INFINITY);
    half = small_if_below(bits, 0x7f800001, half, nan);
    return sign | (uint32_t)half;
}

// Bits of either format in an order of integers that is the order of their values, -0 before +0:
// negative ones get their lower bits inverted.
static inline int16_t small_order(uint16_t half)
{
    return (int16_t)(half ^ ((uint16_t)((int16_t)half >> 15) & 0x7fff));
}

// chosen, or where a or b is a NaN that one, a's before b's. A format's quiet bit is the top one of
// its fraction, which lies below the lowest of its infinity.
static inline uint16_t small_unless_nan(uint16_t chosen, uint16_t a, uint16_t b, int16_t infinity)
{
    const uint16_t quiet = (uint16_t)((infinity & -infinity) >> 1);
    const uint16_t quiet_a = a | quiet;
    const uint16_t quiet_b = b | quiet;
    const uint16_t second = (int16_t)(b & 0x7fff) > infinity ? quiet_b : chosen;
    return (int16_t)(a & 0x7fff) > infinity ? quiet_a : second;
}

// The same as by way of float32: a minimum or maximum needs no rounding.
static inline uint16_t small_minimum(uint16_t a, uint16_t b, int16_t infinity)
{
    return small_unless_nan(small_order(a) < small_order(b) ? a : b, a, b, infinity);
}

static inline uint16_t small_maximum(uint16_t a, uint16_t b, int16_t infinity)
{
    return small_unless_nan(small_order(a) > small_order(b) ? a : b, a, b, infinity);
}

#endif
