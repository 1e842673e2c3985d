// SPDX-License-Identifier: Apache-2.0

#include "base/processor.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>

// The compiler's builtin also checks that the system saves vector registers, which F16C needs too.
// The builtin of clang 14 does not know F16C, so this function reads that bit itself.
static enum processor_vectors processor_ask(void)
{
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx2") || !__get_cpuid(1, &a, &b, &c, &d) || (c & bit_F16C) == 0)
        return PROCESSOR_PORTABLE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return PROCESSOR_AVX512;
    return PROCESSOR_AVX2;
}
#else
static enum processor_vectors processor_ask(void)
{
    return PROCESSOR_PORTABLE;
}
#endif

enum processor_vectors processor_vectors(void)
{
    // The answer plus 1; 0: not asked yet. If two threads ask at once, both store the same answer.
    static atomic_int known;
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == 0) {
        answer = (int)processor_ask() + 1;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return (enum processor_vectors)(answer - 1);
}

const char *processor_vectors_name(enum processor_vectors vectors)
{
    switch (vectors) {
    case PROCESSOR_PORTABLE:
        return "portable";
    case PROCESSOR_AVX2:
        return "avx2";
    case PROCESSOR_AVX512:
        return "avx512";
    }
    return "unknown";
}
