// SPDX-License-Identifier: Apache-2.0
//
// Elements of the kernels: the formats (how bits are widened and narrowed), and what pack, finish and
// copies do with one element. kernels.cu moves the elements. Compiled by nvcc as a part of kernels.cu,
// and by tests for the host.

#ifndef LOCKSTEP_WORKER_DEVICE_FORMATS_CUH
#define LOCKSTEP_WORKER_DEVICE_FORMATS_CUH

#include "worker/device/kernels.h"

#include <stddef.h>

typedef unsigned char byte;

// What lockstep_add reads and writes, and what only moves, by its width.
template <int BYTES> struct bits_of;
template <> struct bits_of<1> {
    typedef uint8_t type;
};
template <> struct bits_of<2> {
    typedef uint16_t type;
};
template <> struct bits_of<4> {
    typedef uint32_t type;
};
template <> struct bits_of<8> {
    typedef uint64_t type;
};

// ---- formats ------------------------------------------------------------------------------------

// The arithmetic of what a format is computed in.
__device__ inline float times(float a, float b)
{
    return __fmul_rn(a, b);
}

__device__ inline double times(double a, double b)
{
    return __dmul_rn(a, b);
}

__device__ inline float plus(float a, float b)
{
    return __fadd_rn(a, b);
}

__device__ inline double plus(double a, double b)
{
    return __dadd_rn(a, b);
}

__device__ inline float over(float a, float b)
{
    return __fdiv_rn(a, b);
}

__device__ inline double over(double a, double b)
{
    return __ddiv_rn(a, b);
}

// over(a, b), given inverse = over(1, b), without the many instructions of a division: the product
// with the inverse is at most one unit off, and what is left of `a` corrects it (Markstein). Where
// that remainder could be too small to be exact, or where nothing is finite, it divides.
__device__ inline float quotient(float a, float b, float inverse)
{
    const float near = times(a, inverse);
    const float size = fabsf(near);
    if (size >= 0x1p-90f && size <= __uint_as_float(0x7f7fffff))
        return __fmaf_rn(__fmaf_rn(-near, b, a), inverse, near);
    return a == 0 ? near : over(a, b);
}

__device__ inline double quotient(double a, double b, double inverse)
{
    const double near = times(a, inverse);
    const double size = fabs(near);
    if (size >= 0x1p-900 && size <= __longlong_as_double(0x7fefffffffffffff))
        return __fma_rn(__fma_rn(-near, b, a), inverse, near);
    return a == 0 ? near : over(a, b);
}

// value, or of a NaN the other one.
__device__ inline float unless_nan(float value, float other)
{
    return value != value ? other : value;
}

__device__ inline double unless_nan(double value, double other)
{
    return value != value ? other : value;
}

// Each format: its bits, what it is computed in, and the conversions of worker/kernels/kernels.h.
struct float32 {
    enum { BYTES = 4 };
    typedef uint32_t bits;
    typedef float value;
    __device__ static value widen(bits from) { return __uint_as_float(from); }
    __device__ static bits narrow(value from) { return __float_as_uint(from); }
    __device__ static value nan() { return __uint_as_float(0x7fc00000); }
    __device__ static value of(uint64_t number) { return __ull2float_rn(number); }
    __device__ static value power(int exponent)
    {
        return __uint_as_float((uint32_t)(127 + exponent) << 23);
    }
};

struct float64 {
    enum { BYTES = 8 };
    typedef uint64_t bits;
    typedef double value;
    __device__ static value widen(bits from) { return __longlong_as_double((long long)from); }
    __device__ static bits narrow(value from) { return (bits)__double_as_longlong(from); }
    __device__ static value nan() { return __longlong_as_double(0x7ff8000000000000); }
    __device__ static value of(uint64_t number) { return __ull2double_rn(number); }
    __device__ static value power(int exponent)
    {
        return __longlong_as_double((long long)(1023 + exponent) << 52);
    }
};

struct bfloat16 : float32 {
    enum { BYTES = 2 };
    typedef uint16_t bits;
    __device__ static value widen(bits from) { return __uint_as_float((uint32_t)from << 16); }
    __device__ static bits narrow(value from)
    {
        const uint32_t whole = __float_as_uint(from);
        const uint32_t rounded = whole + 0x7fff + (whole >> 16 & 1);
        return (bits)((from != from ? whole | 0x400000 : rounded) >> 16);
    }
};

// How a device converts and waits. A host that compiles this file, to try it, brings its own.
#ifdef __CUDACC__
__device__ inline float half_widen(uint16_t from)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(from));
    return value;
}

__device__ inline uint16_t half_narrow(float from)
{
    uint16_t value;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value) : "f"(from));
    return value;
}

// A barrier that the warps of a block reach at different places.
__device__ inline void block_meet()
{
    asm volatile("barrier.sync 1, %0;" ::"n"(DEVICE_THREADS) : "memory");
}
#endif

// That is as IEEE 754 says, but for the payloads of NaNs.
struct float16 : float32 {
    enum { BYTES = 2 };
    typedef uint16_t bits;
    __device__ static value widen(bits from)
    {
        const uint32_t quiet = (uint32_t)(from & 0x8000) << 16 | 0x7fc00000 |
                               (uint32_t)(from & 0x3ff) << 13;
        return unless_nan(half_widen(from), __uint_as_float(quiet));
    }
    __device__ static bits narrow(value from)
    {
        const uint32_t whole = __float_as_uint(from);
        const bits quiet = (bits)((whole >> 16 & 0x8000) | 0x7e00 | (whole >> 13 & 0x3ff));
        return from != from ? quiet : half_narrow(from);
    }
};

// ---- what is done with an element ---------------------------------------------------------------

// Bits are moved as they are.
template <int WIDTH> struct move {
    enum { IN = WIDTH, OUT = WIDTH, MOVES = true };
    typedef typename bits_of<WIDTH>::type in;
    typedef typename bits_of<WIDTH>::type out;
    __device__ out operator()(in from) const { return from; }
};

// Of factors that are 1 the product is what it was; only a NaN has to be told from one of a
// product.
template <class FROM, class TO> struct weigh {
    enum { IN = FROM::BYTES, OUT = TO::BYTES, MOVES = false };
    typedef typename FROM::bits in;
    typedef typename TO::bits out;
    typedef typename FROM::value value;
    value power;
    value weight;
    bool computes;

    __device__ explicit weigh(const device_pack &pack)
        : power(FROM::power(pack.exponent)), weight(FROM::of(pack.weight)),
          computes(pack.weight != 1 || pack.exponent != 0)
    {
    }
    __device__ out operator()(in from) const
    {
        const value element = FROM::widen(from);
        const value product = times(times(element, power), weight);
        return TO::narrow(unless_nan(product, computes ? FROM::nan() : element));
    }
};

template <class FROM, class TO> struct divide {
    enum { IN = FROM::BYTES, OUT = TO::BYTES, MOVES = false };
    typedef typename FROM::bits in;
    typedef typename TO::bits out;
    typedef typename FROM::value value;
    value total;
    value inverse;
    value power;
    bool computes;
    bool rounds; // To bfloat16, before it is widened again.

    __device__ divide(const device_finish &finish, uint64_t number)
        : total(FROM::of(number)), inverse(over(FROM::of(1), total)),
          power(FROM::power(-finish.exponent)),
          computes(number != 1 || finish.exponent != 0), rounds(finish.final == DEVICE_BFLOAT16)
    {
    }
    __device__ out operator()(in from) const
    {
        const value element = FROM::widen(from);
        const value mean = quotient(element, total, inverse);
        value result = unless_nan(times(mean, power), computes ? FROM::nan() : element);
        if (TO::BYTES == 4 && rounds)
            result = bfloat16::widen(bfloat16::narrow((float)result));
        return TO::narrow(result);
    }
};

#endif
