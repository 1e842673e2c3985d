// SPDX-License-Identifier: Apache-2.0
//
// The float16 loops that add, multiply or divide, with the conversions of F16C: vectors of 8, then
// the plain loop of kernels_loops.h, which includes this, for the rest. The same bits: the
// instructions convert as kernels_small.h does, denormals and quieted NaNs included. Pure; any
// thread.

#include <immintrin.h>

KERNEL_TARGET static inline __m256 load_8(const uint16_t *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
}

KERNEL_TARGET static inline void store_8(uint16_t *into, __m256 values)
{
    _mm_storeu_si128((__m128i *)(void *)into,
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

KERNEL_TARGET static void reduce_sum_float16_by_8(void *acc, const void *in, size_t count)
{
    uint16_t *into = acc;
    const uint16_t *from = in;
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        store_8(into + i, _mm256_add_ps(load_8(into + i), load_8(from + i)));
    reduce_sum_float16(into + i, from + i, count - i);
}

// As KERNEL_FACTOR, of whole vectors.
#define KERNEL_FACTOR_BY_8(name, given, expression) \
    KERNEL_TARGET static void name##_float16_by_8(void *out, const void *in, given number, \
                                                  size_t count) \
    { \
        uint16_t *into = out; \
        const uint16_t *from = in; \
        const __m256 w = _mm256_set1_ps((float)number); \
        size_t i = 0; \
        for (; i + 8 <= count; i += 8) { \
            __m256 b = load_8(from + i); \
            store_8(into + i, (expression)); \
        } \
        name##_float16(into + i, from + i, number, count - i); \
    }

KERNEL_FACTOR_BY_8(add_weighted, uint64_t, _mm256_add_ps(load_8(into + i), _mm256_mul_ps(w, b)))
KERNEL_FACTOR_BY_8(scale, uint64_t, _mm256_mul_ps(w, b))
KERNEL_FACTOR_BY_8(divide, uint64_t, _mm256_div_ps(b, w))
KERNEL_FACTOR_BY_8(scale_power, double, _mm256_mul_ps(w, b))
