// SPDX-License-Identifier: Apache-2.0
//
// The float16 loops that add, multiply, divide or convert, with the conversion instructions of
// F16C. Each loop handles vectors of KERNEL_F16_WIDTH elements, 8 (AVX2) or 16 (AVX-512), and then
// calls the plain loop of loops.h for the rest. loops.h includes this file. The results have the
// same bits, because the instructions convert as loops_small.h does, denormals and quieted NaNs
// included. Pure; any thread.

#include <immintrin.h>

#define F16_ROUNDING (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#if KERNEL_F16_WIDTH == 16
#define F16(operation) _mm512_##operation
#define F16_LOAD(from) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(from)))
#define F16_STORE(into, values) \
    _mm256_storeu_si256((__m256i *)(void *)(into), _mm512_cvtps_ph(values, F16_ROUNDING))
typedef __m512 f16_vector;
#else
#define F16(operation) _mm256_##operation
#define F16_LOAD(from) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from)))
#define F16_STORE(into, values) \
    _mm_storeu_si128((__m128i *)(void *)(into), _mm256_cvtps_ph(values, F16_ROUNDING))
typedef __m256 f16_vector;
#endif

#define KERNEL_REDUCE_VECTORS(name, joins) \
    KERNEL_TARGET static void name##_float16_vectors(void *acc, const void *in, size_t count) \
    { \
        uint16_t *into = acc; \
        const uint16_t *from = in; \
        size_t i = 0; \
        for (; i + KERNEL_F16_WIDTH <= count; i += KERNEL_F16_WIDTH) \
            F16_STORE(into + i, F16(joins)(F16_LOAD(into + i), F16_LOAD(from + i))); \
        name##_float16(into + i, from + i, count - i); \
    }

KERNEL_REDUCE_VECTORS(reduce_sum, add_ps)
KERNEL_REDUCE_VECTORS(reduce_product, mul_ps)

// As KERNEL_FACTOR, for whole vectors.
#define KERNEL_FACTOR_VECTORS(name, given, expression) \
    KERNEL_TARGET static void name##_float16_vectors(void *out, const void *in, given number, \
                                                     size_t count) \
    { \
        uint16_t *into = out; \
        const uint16_t *from = in; \
        const f16_vector w = F16(set1_ps)((float)number); \
        size_t i = 0; \
        for (; i + KERNEL_F16_WIDTH <= count; i += KERNEL_F16_WIDTH) { \
            f16_vector b = F16_LOAD(from + i); \
            F16_STORE(into + i, (expression)); \
        } \
        name##_float16(into + i, from + i, number, count - i); \
    }

KERNEL_FACTOR_VECTORS(add_weighted, uint64_t, F16(add_ps)(F16_LOAD(into + i), F16(mul_ps)(w, b)))
KERNEL_FACTOR_VECTORS(scale, uint64_t, F16(mul_ps)(w, b))
KERNEL_FACTOR_VECTORS(divide, uint64_t, F16(div_ps)(b, w))
KERNEL_FACTOR_VECTORS(scale_power, double, F16(mul_ps)(w, b))

KERNEL_TARGET static void narrow_float16_vectors(uint16_t *out, const float *in, size_t count)
{
    size_t i = 0;
    for (; i + KERNEL_F16_WIDTH <= count; i += KERNEL_F16_WIDTH)
        F16_STORE(out + i, F16(loadu_ps)(in + i));
    narrow_float16s(out + i, in + i, count - i);
}

KERNEL_TARGET static void widen_float16_vectors(float *out, const uint16_t *in, size_t count)
{
    size_t i = 0;
    for (; i + KERNEL_F16_WIDTH <= count; i += KERNEL_F16_WIDTH)
        F16(storeu_ps)(out + i, F16_LOAD(in + i));
    widen_float16s(out + i, in + i, count - i);
}

// A sum or product of n sources; n is a constant. The plain loop combines the elements after the
// last whole vector.
#define F16_COMBINE_CASE(n, joins, finish) \
    for (; i + KERNEL_F16_WIDTH <= count; i += KERNEL_F16_WIDTH) { \
        f16_vector sum = F16(mul_ps)(weights[0], F16_LOAD(sources[0] + i)); \
        for (unsigned s = 1; s < (n); s++) \
            sum = F16(joins)(sum, F16(mul_ps)(weights[s], F16_LOAD(sources[s] + i))); \
        F16_STORE(into + i, F16(finish)(sum, last)); \
    }

#define F16_COMBINE(name, joins, finish, constant) \
    KERNEL_TARGET static void name##_float16_vectors( \
        void *out, const struct kernel_operands *from, size_t count) \
    { \
        uint16_t *into = out; \
        const uint16_t *const sources[KERNEL_OPERANDS] = {from->sources[0], from->sources[1], \
                                                          from->sources[2], from->sources[3]}; \
        const f16_vector weights[KERNEL_OPERANDS] = { \
            F16(set1_ps)((float)from->weights[0]), F16(set1_ps)((float)from->weights[1]), \
            F16(set1_ps)((float)from->weights[2]), F16(set1_ps)((float)from->weights[3])}; \
        const f16_vector last = F16(set1_ps)((float)(constant)); \
        struct kernel_operands rest = *from; \
        size_t i = 0; \
        switch (from->count) { \
        case 1: \
            F16_COMBINE_CASE(1, joins, finish) \
            break; \
        case 2: \
            F16_COMBINE_CASE(2, joins, finish) \
            break; \
        case 3: \
            F16_COMBINE_CASE(3, joins, finish) \
            break; \
        default: \
            F16_COMBINE_CASE(4, joins, finish) \
            break; \
        } \
        for (unsigned s = 0; s < from->count; s++) \
            rest.sources[s] = sources[s] + i; \
        name##_float16(into + i, &rest, count - i); \
    }

F16_COMBINE(combine_weighted, add_ps, mul_ps, from->factor)
F16_COMBINE(combine_divided, add_ps, div_ps, from->total)
F16_COMBINE(combine_product, mul_ps, mul_ps, from->factor)
