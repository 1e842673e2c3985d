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

// a * b + c, rounded once.
__device__ inline float fused(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

__device__ inline double fused(double a, double b, double c)
{
    return __fma_rn(a, b, c);
}

__device__ inline float over(float a, float b)
{
    return __fdiv_rn(a, b);
}

__device__ inline double over(double a, double b)
{
    return __ddiv_rn(a, b);
}

// over(a, b) of most `a`, without the many instructions of a division: the product with the inverse
// is at most two units off, and what is left of `a` corrects it (Markstein). b is a whole number of
// at least 1, inverse = over(1, b), and against = -inverse.
//
// What is left is exact, because b is whole: it is a multiple of the smallest denormal. A quotient
// that is not a denormal is never halfway between two numbers, so the correction rounds it right. An
// infinite `a` makes a NaN. A zero keeps its sign. So only those below least(b) are not for this,
// zeros aside, and a NaN wants another look.
template <class VALUE>
__device__ inline VALUE quotient(VALUE a, VALUE b, VALUE inverse, VALUE against)
{
    const VALUE near = times(a, inverse);
    return fused(fused(near, b, -a), against, near);
}

__device__ inline float least(float b)
{
    return times(b, 0x1p-124f);
}

__device__ inline double least(double b)
{
    return times(b, 0x1p-1020);
}

// In the order of magnitudes, but that zeros are above all others.
__device__ inline uint32_t height(float value)
{
    return __float_as_uint(value) * 2 - 1;
}

__device__ inline uint64_t height(double value)
{
    return (uint64_t)__double_as_longlong(value) * 2 - 1;
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

// Each format: its bits, whether what is packed in it has an exponent, what it is computed in, and the
// conversions of worker/kernels/kernels.h.
struct float32 {
    enum { BYTES = 4, SCALES = false };
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
    enum { BYTES = 8, SCALES = false };
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

// How a device converts and fetches. A host that compiles this file, to try it, brings its own.
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

// Two numbers in one word, the first in its lower half.
__device__ inline uint32_t half_narrow_two(float low, float high)
{
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(low), "f"(high));
    return word;
}

__device__ inline uint32_t bfloat16_narrow_two(float low, float high)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(low), "f"(high));
    return word;
}

// A barrier that the warps of a block reach at different places.
__device__ inline void block_meet()
{
    asm volatile("barrier.sync 1, %0;" ::"n"(DEVICE_THREADS) : "memory");
}

// The line of DEVICE_LINE bytes round `at` is fetched from memory, and nothing waits for it.
__device__ inline void line_fetch(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
#endif

struct bfloat16 : float32 {
    enum { BYTES = 2, SCALES = false };
    typedef uint16_t bits;
    __device__ static value widen(bits from) { return __uint_as_float((uint32_t)from << 16); }
    __device__ static bits narrow(value from)
    {
        const uint32_t whole = __float_as_uint(from);
        const uint32_t rounded = whole + 0x7fff + (whole >> 16 & 1);
        return (bits)((from != from ? whole | 0x400000 : rounded) >> 16);
    }
    __device__ static uint32_t narrow_two(value low, value high)
    {
        return bfloat16_narrow_two(low, high);
    }
};

// That is as IEEE 754 says, but for the payloads of NaNs.
struct float16 : float32 {
    enum { BYTES = 2, SCALES = true };
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
    __device__ static uint32_t narrow_two(value low, value high)
    {
        return half_narrow_two(low, high);
    }
};

// FORMAT::widen, but for the payloads of NaNs.
template <class FORMAT> __device__ inline typename FORMAT::value number(typename FORMAT::bits from)
{
    return FORMAT::widen(from);
}

template <> __device__ inline float number<float16>(uint16_t from)
{
    return half_widen(from);
}

// ---- what is done with an element ---------------------------------------------------------------

// A work makes an element of another. Where it computes it has a quick way, too, which is for plain
// elements: values, without a look at any NaN, that several of a unit become words together.

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
    typedef TO to;
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
    __device__ value quick(in from, bool &plain) const
    {
        const value product = times(times(number<FROM>(from), power), weight);
        plain = plain && product == product;
        return product;
    }
    __device__ void round_two(value &, value &) const {}
};

template <class FROM, class TO> struct divide {
    enum { IN = FROM::BYTES, OUT = TO::BYTES, MOVES = false };
    typedef typename FROM::bits in;
    typedef typename TO::bits out;
    typedef typename FROM::value value;
    typedef TO to;
    value total;
    value inverse;
    value against; // -inverse.
    value power;
    bool computes;
    bool rounds; // To bfloat16, before it is widened again.

    __device__ divide(const device_finish &finish, uint64_t sum)
        : total(FROM::of(sum)), inverse(over(FROM::of(1), total)), against(-inverse),
          power(FROM::power(-finish.exponent)),
          computes(sum != 1 || finish.exponent != 0), rounds(finish.final == DEVICE_BFLOAT16)
    {
    }
    __device__ out operator()(in from) const
    {
        const value element = FROM::widen(from);
        const value mean = over(element, total);
        value result = unless_nan(scaled(mean), computes ? FROM::nan() : element);
        if (TO::BYTES == 4 && rounds)
            result = bfloat16::widen(bfloat16::narrow((float)result));
        return TO::narrow(result);
    }
    __device__ value quick(in from, bool &plain) const
    {
        const value element = number<FROM>(from);
        const value result = scaled(quotient(element, total, inverse, against));
        plain = plain && height(element) >= height(least(total)) && result == result;
        return result;
    }
    __device__ value scaled(value mean) const
    {
        return (bool)FROM::SCALES || (bool)TO::SCALES ? times(mean, power) : mean;
    }
    __device__ void round_two(value &low, value &high) const
    {
        if (TO::BYTES == 4 && rounds) {
            const uint32_t word = bfloat16_narrow_two((float)low, (float)high);
            low = bfloat16::widen((uint16_t)word);
            high = bfloat16::widen((uint16_t)(word >> 16));
        }
    }
};

#endif
