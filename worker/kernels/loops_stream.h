// SPDX-License-Identifier: Apache-2.0
//
// Sums of float32 and float64 whose stores go past the caches, to two places, or both. loops.h
// includes this file once for each level of x86-64. The loops have hand-written vector code,
// because a compiler cannot make such stores from a plain loop, and does not know that the two
// places do not overlap. They give the same bits as the loops of loops_sources.h: the same
// operations in the same order. Pure; any thread.
//
// The loop alternates between loads and stores, element by element. Summing into a tile and then
// copying the tile takes a fifth longer, because memory then has only reads or only writes to do at
// a time. In the caches it is slower, too, because the copy loads again what the sum has just
// stored.
//
// out is aligned for vectors, and count is a multiple of the elements of a vector.

#if KERNEL_COPY_BYTES == 64
#define STREAM(operation) _mm512_##operation
#define STREAM_FLOAT __m512
#define STREAM_DOUBLE __m512d
#elif KERNEL_COPY_BYTES == 32
#define STREAM(operation) _mm256_##operation
#define STREAM_FLOAT __m256
#define STREAM_DOUBLE __m256d
#else
#define STREAM(operation) _mm_##operation
#define STREAM_FLOAT __m128
#define STREAM_DOUBLE __m128d
#endif

// A sum of n sources; n is a constant. store: stores the result from element i on.
#define STREAM_ROW(type, vector, kind, n, finish, store) \
    for (size_t i = 0; i < count; i += sizeof(vector) / sizeof(type)) { \
        vector sum = STREAM(mul_##kind)(weights[0], STREAM(loadu_##kind)(sources[0] + i)); \
        for (unsigned s = 1; s < (n); s++) \
            sum = STREAM(add_##kind)( \
                sum, STREAM(mul_##kind)(weights[s], STREAM(loadu_##kind)(sources[s] + i))); \
        sum = STREAM(finish##_##kind)(sum, last); \
        store; \
    }

#define STREAM_CASE(type, vector, kind, n, finish) \
    if (also && !from->streams) { \
        STREAM_ROW(type, vector, kind, n, finish, STREAM(store_##kind)(into + i, sum); \
                   STREAM(storeu_##kind)(also + i, sum)) \
    } else if (also) { \
        STREAM_ROW(type, vector, kind, n, finish, STREAM(stream_##kind)(into + i, sum); \
                   STREAM(storeu_##kind)(also + i, sum)) \
    } else { \
        STREAM_ROW(type, vector, kind, n, finish, STREAM(stream_##kind)(into + i, sum)) \
    }

#define STREAM_LOOP(name, type, vector, kind, finish, constant) \
    KERNEL_TARGET static void name(void *out, const struct kernel_operands *from, size_t count) \
    { \
        type *into = out; \
        type *also = from->also; \
        const type *const sources[KERNEL_OPERANDS] = {from->sources[0], from->sources[1], \
                                                      from->sources[2], from->sources[3]}; \
        const vector weights[KERNEL_OPERANDS] = {STREAM(set1_##kind)((type)from->weights[0]), \
                                                 STREAM(set1_##kind)((type)from->weights[1]), \
                                                 STREAM(set1_##kind)((type)from->weights[2]), \
                                                 STREAM(set1_##kind)((type)from->weights[3])}; \
        const vector last = STREAM(set1_##kind)((type)(constant)); \
        switch (from->count) { \
        case 1: \
            STREAM_CASE(type, vector, kind, 1, finish) \
            break; \
        case 2: \
            STREAM_CASE(type, vector, kind, 2, finish) \
            break; \
        case 3: \
            STREAM_CASE(type, vector, kind, 3, finish) \
            break; \
        default: \
            STREAM_CASE(type, vector, kind, 4, finish) \
            break; \
        } \
    }

STREAM_LOOP(stream_weighted_float, float, STREAM_FLOAT, ps, mul, from->factor)
STREAM_LOOP(stream_weighted_double, double, STREAM_DOUBLE, pd, mul, from->factor)
STREAM_LOOP(stream_divided_float, float, STREAM_FLOAT, ps, div, from->total)
STREAM_LOOP(stream_divided_double, double, STREAM_DOUBLE, pd, div, from->total)
