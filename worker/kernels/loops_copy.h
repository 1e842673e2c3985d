// SPDX-License-Identifier: Apache-2.0
//
// The loops that copy. loops.h includes this file once for each level. The loops are written with
// explicit stores, because a compiler turns a plain loop into a call of memcpy, and memcpy may use
// a string instruction, which the death of the process can interrupt in the middle of an element.
// Pure; any thread.
//
// Every store writes 1, 2, 4 or 8 bytes or a whole vector, at an address that is a multiple of its
// size. So a store that is at least as large as an element writes whole elements. The first stores
// grow until the address is aligned for vectors; no element begins before the address is aligned
// for elements.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Keeps the compiler from turning the loop into a call of memcpy.
#define COPY_BARRIER() __asm__ volatile("" : : : "memory")

#if defined(__x86_64__) && KERNEL_COPY_BYTES == 64
typedef __m512i copy_vector;
#define COPY_LOAD(from) _mm512_loadu_si512((const void *)(from))
#define COPY_STORE(into, vector) _mm512_store_si512((void *)(into), vector)
#define COPY_STREAM(into, vector) _mm512_stream_si512((void *)(into), vector)
#elif defined(__x86_64__) && KERNEL_COPY_BYTES == 32
typedef __m256i copy_vector;
#define COPY_LOAD(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define COPY_STORE(into, vector) _mm256_store_si256((__m256i *)(void *)(into), vector)
#define COPY_STREAM(into, vector) _mm256_stream_si256((__m256i *)(void *)(into), vector)
#elif defined(__x86_64__)
typedef __m128i copy_vector;
#define COPY_LOAD(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define COPY_STORE(into, vector) _mm_store_si128((__m128i *)(void *)(into), vector)
#define COPY_STREAM(into, vector) _mm_stream_si128((__m128i *)(void *)(into), vector)
#else
typedef uint64_t copy_vector;
static inline uint64_t copy_load(const uint8_t *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof(word));
    return word;
}
#define COPY_LOAD(from) copy_load(from)
#define COPY_STORE(into, vector) memcpy(into, &(vector), sizeof(vector))
#define COPY_STREAM(into, vector) COPY_STORE(into, vector)
#endif

#define COPY_VECTOR sizeof(copy_vector)
// Vectors past the cache are stored from the beginning of a line on: a line that is stored in two
// parts is written to memory twice.
#define COPY_LINE 64

// One store of `bytes` bytes, a constant power of two.
#define COPY_PIECE(bytes) \
    do { \
        memcpy(into, from, bytes); \
        COPY_BARRIER(); \
        into += (bytes); \
        from += (bytes); \
        left -= (bytes); \
    } while (0)

// Copies `left` bytes. Vector stores begin at an address that is a multiple of `place`.
#define COPY_LOOP(name, store, place) \
    KERNEL_TARGET static void name(void *out, const void *in, size_t left) \
    { \
        uint8_t *into = out; \
        const uint8_t *from = in; \
        if (((uintptr_t)into & 1) != 0 && left >= 1) \
            COPY_PIECE(1); \
        if (((uintptr_t)into & 2) != 0 && left >= 2) \
            COPY_PIECE(2); \
        if (((uintptr_t)into & 4) != 0 && left >= 4) \
            COPY_PIECE(4); \
        while ((uintptr_t)into % (place) != 0 && left >= 8) \
            COPY_PIECE(8); \
        for (; left >= 4 * COPY_VECTOR; left -= 4 * COPY_VECTOR) { \
            const copy_vector a = COPY_LOAD(from); \
            const copy_vector b = COPY_LOAD(from + COPY_VECTOR); \
            const copy_vector c = COPY_LOAD(from + 2 * COPY_VECTOR); \
            const copy_vector d = COPY_LOAD(from + 3 * COPY_VECTOR); \
            store(into, a); \
            store(into + COPY_VECTOR, b); \
            store(into + 2 * COPY_VECTOR, c); \
            store(into + 3 * COPY_VECTOR, d); \
            COPY_BARRIER(); \
            into += 4 * COPY_VECTOR; \
            from += 4 * COPY_VECTOR; \
        } \
        while (left >= 8) \
            COPY_PIECE(8); \
        if (left >= 4) \
            COPY_PIECE(4); \
        if (left >= 2) \
            COPY_PIECE(2); \
        if (left >= 1) \
            COPY_PIECE(1); \
    }

COPY_LOOP(copy_bytes, COPY_STORE, COPY_VECTOR)
COPY_LOOP(stream_bytes, COPY_STREAM, COPY_LINE)
