// SPDX-License-Identifier: Apache-2.0
//
// Functions for one element of float16 (IEEE 754 binary16: 5 bits of exponent, 10 bits of fraction)
// or bfloat16 (the upper half of a float32: 8 and 7 bits): conversion to and from float32, minimum
// and maximum. For loops.h only. Pure; any thread.
//
// Widening is exact. Narrowing rounds once, to nearest even; values that exceed the format become
// infinite, denormals are kept. A NaN stays a NaN, quieted, with the top bits of its payload. Every
// function computes all cases and then selects one without a branch, so that compilers can
// vectorize the loops around it. The vectors consist of 32-bit words, with a 16-bit element in the
// lower half. Words that are compared are signed, because SSE2 compares signed words.

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

// Loads two elements, at any alignment.
static inline uint32_t small_pair(const uint16_t *elements)
{
    uint32_t pair;
    memcpy(&pair, elements, sizeof(pair));
    return pair;
}

// Returns x < limit ? yes : no, for positive x and limit. It is meant for a `yes` that takes
// floating-point arithmetic: gcc would compute such a value behind a branch, because the arithmetic
// might raise a flag, and then would not vectorize.
static inline int32_t small_if_below(int32_t x, int32_t limit, int32_t yes, int32_t no)
{
    const int32_t mask = (x - limit) >> 31;
    return (yes & mask) | (no & ~mask);
}

static inline float widen_bfloat16(uint32_t half)
{
    return small_float(half << 16);
}

// Adding just under half a unit of the upper half, plus one if the upper half is odd, carries into
// the upper half exactly when rounding to nearest even rounds up. A carry out of the fraction into
// the exponent is correct, too.
static inline uint32_t narrow_bfloat16(float value)
{
    const uint32_t bits = small_bits(value);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    const uint32_t nan = bits | 0x400000;
    return (value != value ? nan : rounded) >> 16;
}

// The bias of the exponent grows by 112. The largest exponent (infinities and NaNs) must become the
// largest exponent of float32, so it grows by another 112. A denormal is a fraction without a
// leading one: with the exponent of 2^-14 its value is 2^-14 + value, from which 2^-14 is
// subtracted exactly.
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

// Normal results are rounded as in narrow_bfloat16, by 13 bits instead of 16. For denormal results,
// below 2^-14, the processor's addition rounds: the last bit of the float32 number 0.5 is 2^-24,
// which is also the last bit of a denormal float16, so the fraction of 0.5 + value is the result.
// Values from 2^16 on become infinite; just below 2^16 the rounding carries into the exponent,
// which also gives infinity.
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

// Returns an integer whose order is the order of the values, in either format, with -0 before +0:
// negative values get their lower bits inverted.
static inline int16_t small_order(uint16_t half)
{
    return (int16_t)(half ^ ((uint16_t)((int16_t)half >> 15) & 0x7fff));
}

// Returns `chosen`; if a or b is a NaN, returns that NaN, quieted, and a's NaN if both are. The
// quiet bit of a format is the top bit of its fraction, which is the bit below the lowest bit of
// its infinity.
static inline uint16_t small_unless_nan(uint16_t chosen, uint16_t a, uint16_t b, int16_t infinity)
{
    const uint16_t quiet = (uint16_t)((infinity & -infinity) >> 1);
    const uint16_t quiet_a = a | quiet;
    const uint16_t quiet_b = b | quiet;
    const uint16_t second = (int16_t)(b & 0x7fff) > infinity ? quiet_b : chosen;
    return (int16_t)(a & 0x7fff) > infinity ? quiet_a : second;
}

// The same result as computing in float32, because a minimum or maximum needs no rounding.
static inline uint16_t small_minimum(uint16_t a, uint16_t b, int16_t infinity)
{
    return small_unless_nan(small_order(a) < small_order(b) ? a : b, a, b, infinity);
}

static inline uint16_t small_maximum(uint16_t a, uint16_t b, int16_t infinity)
{
    return small_unless_nan(small_order(a) > small_order(b) ? a : b, a, b, infinity);
}

#endif
