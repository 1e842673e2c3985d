// SPDX-License-Identifier: Apache-2.0
//
// The levels of the instruction set that the kernels are compiled for; each level is one table of
// loops. kernels.c chooses a table for each dtype, once in a process; tests run all tables that the
// machine supports. Pure: constant after linking; any thread.
//
// Tables of pointers instead of ifuncs: the resolver of an ifunc runs before a sanitizer is ready
// and before its library is relocated, and clang 14 and gcc 12 treat target_clones differently.

#ifndef WORKER_KERNELS_TABLE_H
#define WORKER_KERNELS_TABLE_H

#include "worker/kernels/kernels.h"

#define KERNEL_DTYPES (DTYPE_LAST + 1)
#define KERNEL_OPS (REDUCE_LAST + 1)

typedef void kernel_reduce_loop(void *acc, const void *in, size_t count);
typedef void kernel_weight_loop(void *out, const void *in, uint64_t weight, size_t count);
typedef void kernel_power_loop(void *out, const void *in, double power, size_t count);
typedef void kernel_narrow_loop(uint16_t *out, const float *in, size_t count);
typedef void kernel_widen_loop(float *out, const uint16_t *in, size_t count);

#define KERNEL_LANES 16 // Sums of kernel_squares that go side by side.
#define KERNEL_OPERANDS 4 // Most sources of one loop.

struct kernel_operands {
    const void *sources[KERNEL_OPERANDS]; // [count]; the other entries are not read.
    uint64_t weights[KERNEL_OPERANDS]; // [count]; the other entries do not matter.
    unsigned count; // 1 to KERNEL_OPERANDS.
    double factor; // The factor of loops that multiply at the end; a power of two.
    uint64_t total; // The divisor of loops that divide at the end; at least 1.
    // For the loops stream_*:
    void *also; // A second place for the result. NULL: none.
    bool streams; // True if stores to out go past the caches. Without `also` they always do.
};

// out may be one of the sources.
typedef void kernel_combine_loop(void *out, const struct kernel_operands *from, size_t count);
// lanes[i % KERNEL_LANES] += in[i] * in[i], in float64 and in the order of i.
typedef void kernel_squares_loop(double *lanes, const void *in, size_t count);
// Every store writes whole elements, of every dtype for which the memory is aligned. No overlap.
typedef void kernel_copy_loop(void *out, const void *in, size_t bytes);

// A loop that is NULL does not exist in any level. The parameters are those of the functions in
// kernels.h.
struct kernel_table {
    const char *name;
    kernel_reduce_loop *reduce[KERNEL_DTYPES][KERNEL_OPS];
    kernel_weight_loop *add_weighted[KERNEL_DTYPES];
    kernel_weight_loop *scale[KERNEL_DTYPES];
    kernel_weight_loop *divide[KERNEL_DTYPES];
    kernel_power_loop *scale_power[KERNEL_DTYPES]; // power is 2^exponent.
    kernel_narrow_loop *narrow[KERNEL_DTYPES]; // 16-bit floats only.
    kernel_widen_loop *widen[KERNEL_DTYPES];
    // Sums, multiplied by the factor; all other ops without it.
    kernel_combine_loop *combine[KERNEL_DTYPES][KERNEL_OPS];
    // Weighted sums, multiplied by the factor.
    kernel_combine_loop *combine_weighted[KERNEL_DTYPES];
    kernel_combine_loop *combine_divided[KERNEL_DTYPES]; // Weighted sums, divided by the total.
    // As combine_weighted and combine_divided, but past the caches or to two places, in whole cache
    // lines.
    kernel_combine_loop *stream_weighted[KERNEL_DTYPES];
    kernel_combine_loop *stream_divided[KERNEL_DTYPES];
    kernel_squares_loop *squares[KERNEL_DTYPES]; // float32 and float64 only.
    kernel_copy_loop *copy;
    kernel_copy_loop *stream; // Copies past the caches; the caller runs _mm_sfence.
};

extern const struct kernel_table kernel_table_portable;
#if defined(__x86_64__)
extern const struct kernel_table kernel_table_avx2;
extern const struct kernel_table kernel_table_avx512;
#endif

#endif
