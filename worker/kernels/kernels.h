// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of collectives: element-wise loops over plain memory, without knowledge of ranks
// or frames. Pure; any thread. A buffer is aligned for its dtype but need not be aligned for
// vectors. Buffers do not overlap, except where out == in is allowed.
//
// The caller's thread must round to nearest and must not flush denormals (kernels_environment). No
// expression is contracted to a fused multiply-add, so every machine gives the same bits. One
// exception: when an addition, a multiplication or a division returns a NaN, IEEE 754 lets the
// machine choose the sign and payload (one of the NaN operands, quieted; a fixed NaN for inf -
// inf). Code that needs the same NaN on all ranks sends the bytes, as the transports do.

#ifndef WORKER_KERNELS_KERNELS_H
#define WORKER_KERNELS_KERNELS_H

struct kernel_table;

#include "protos/types.h"
#include "worker/kernels/dtype.h"

#include <fenv.h>
#include <stddef.h>

// Exponents of kernel_scale_power: 2^exponent is a normal number of float32.
#define KERNELS_POWER_MIN (-126)
#define KERNELS_POWER_MAX 127

// True if collectives reduce this dtype with this op; false if the dtype or the op does not exist,
// or if they do not go together. The caller of the functions below ensures that the pair is
// supported: a mean or a weight needs a float; OR, AND and XOR need an integer or DTYPE_BOOL.
bool kernel_supported(enum dtype dtype, enum reduce_op op);
const char *kernel_op_name(enum reduce_op op); // "sum"; "unknown" for no op.
bool kernel_is_bitwise(enum reduce_op op); // OR, AND and XOR.

// True if zeros change no result of the op. A missing input counts as zeros, so these ops skip it.
static inline bool kernel_skips_zeros(enum reduce_op op)
{
    return op == REDUCE_SUM || op == REDUCE_MEAN || op == REDUCE_OR || op == REDUCE_XOR;
}

// 16-bit floats are widened to float32, which is exact. Operations are those of float32, and only
// the stored result is rounded to 16 bits, once, to nearest even. Values that exceed float16
// (65,520 and above) become infinite; denormals are kept, never flushed; a NaN stays a NaN,
// quieted, with the top bits of its payload.

// acc[i] = acc[i] op in[i]. REDUCE_MEAN adds, like REDUCE_SUM. Integers wrap (two's complement).
// DTYPE_BOOL: a byte that is not 0 is true, and results are 0 or 1. SUM, MAX and OR are a logical
// OR; PRODUCT, MIN and AND are a logical AND. MIN and MAX of floats: if an operand is a NaN, the
// result is that NaN, bit by bit (quieted in 16 bits); if both are NaNs, acc's NaN. -0 is below +0.
void kernel_reduce(enum dtype dtype, enum reduce_op op, void *acc, const void *in, size_t count);
// Makes data the result of a reduction that has no other input: DTYPE_BOOL becomes 0 or 1, other
// dtypes stay as they are.
void kernel_reduce_alone(enum dtype dtype, void *data, size_t count);

// Weights, for dtypes with REDUCE_MEAN. A weight is first rounded to the dtype (to float32 for
// 16-bit floats), to nearest even. That is exact up to 2^24 in float32 and 2^53 in float64; larger
// weights are within 2^-24 or 2^-53 of their value. A contribution with weight 0 adds nothing, even
// if in is infinite or NaN; in is not read.

// acc[i] = acc[i] + weight * in[i]; the product is rounded before the addition.
void kernel_add_weighted(enum dtype dtype, void *acc, const void *in, uint64_t weight,
                         size_t count);
// out[i] = weight * in[i], +0 for a weight of 0. out == in is allowed.
void kernel_scale(enum dtype dtype, void *out, const void *in, uint64_t weight, size_t count);
// out[i] = in[i] / total, one division. out == in is allowed. total > 0.
void kernel_divide(enum dtype dtype, void *out, const void *in, uint64_t total, size_t count);

// out[i] = in[i] * 2^exponent, rounded once. It keeps float16 sums from overflowing: the values are
// scaled down before the sum and back after it. Exact unless the result is denormal or overflows.
// out == in is allowed. exponent from KERNELS_POWER_MIN to KERNELS_POWER_MAX. For dtypes with
// REDUCE_MEAN.
void kernel_scale_power(enum dtype dtype, void *out, const void *in, int exponent, size_t count);

// Convert float32 to a 16-bit dtype and back. Narrowing x to r(x) rounds to nearest even, once.
// bfloat16: |x - r(x)| is at most 2^-8 |x| (half a unit of 8 significant bits) for 2^-126 <= |x| <
// 2^128 - 2^119, at most 2^-134 for smaller |x|, and r(x) is infinite for larger |x|. float16: at
// most 2^-11 |x| for 2^-14 <= |x| < 65,520, and at most 2^-25 for smaller |x|. Infinities and the
// signs of zeros are kept; a NaN as above. Widening is exact; it keeps the bits of a NaN in
// bfloat16 and quiets a NaN in float16. Narrowing a widened value gives that value back, except
// that a NaN is quieted. No overlap, and out == in is not allowed either.
void kernel_narrow(enum dtype dtype, uint16_t *out, const float *in, size_t count);
void kernel_widen(enum dtype dtype, float *out, const uint16_t *in, size_t count);

// Returns the sum of the squares of all elements, in float64, for dtypes with REDUCE_MEAN. 16 sums
// go side by side: element i belongs to sum i % 16. Then sums are added in pairs. So every machine
// gives the same bits, except for those of a NaN.
double kernel_squares(enum dtype dtype, const void *data, size_t count);

// ---- many sources at once -----------------------------------------------------------------------

#define KERNELS_MAX_SOURCES LOCKSTEP_MAX_MATES

struct kernel_combination {
    enum dtype dtype;
    enum reduce_op op;
    uint32_t count; // Number of sources: 1 to KERNELS_MAX_SOURCES.
    const void *const *sources; // [count]; a source that is NULL stands for zeros.
    const uint64_t *weights; // [count], REDUCE_MEAN only. NULL: all weights are 1.
    uint64_t total; // REDUCE_MEAN only: the divisor of the sum, at least 1.
    // Sums of float32 only: DTYPE_BFLOAT16 rounds the result to bfloat16 and widens it again.
    // DTYPE_NONE or dtype: the result is not rounded.
    enum dtype rounded;
    // True if stores go past the caches; the stores are complete when the function returns.
    bool streams;
    // A second place for the result, written through the caches; it may be one of the sources.
    // NULL: none. The two places are written in turns, so neither is complete before the other is
    // begun.
    void *also;
};

// Sets the calling thread's floating-point environment to round-to-nearest without flush-to-zero.
void kernels_environment(void);
// kernels_enter sets that environment for a while; kernels_leave restores the thread's earlier
// environment, sticky flags included.
struct kernels_before {
#if defined(__x86_64__)
    uint32_t control; // MXCSR. The x87 unit is not saved, because no kernel uses it.
#else
    fenv_t environment;
#endif
};
void kernels_enter(struct kernels_before *before);
void kernels_leave(const struct kernels_before *before);

// Returns the table of one level, from 0 (portable) upwards; NULL if this machine does not have the
// level.
const struct kernel_table *kernel_level(unsigned level);
// Returns the table that is fastest for a dtype on this machine.
const struct kernel_table *kernel_chosen(enum dtype dtype);

#endif
