// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of collectives: element-wise loops over plain memory, no knowledge of ranks or
// frames. Pure; any thread. Buffers may be unaligned for vectors but are aligned for their dtype,
// and never overlap but where out == in is said.
//
// The caller's thread must round to nearest and must not flush denormals (kernels_environment);
// no expression is contracted to a fused multiply-add, so every machine gives the same bits. One
// exception: IEEE 754 leaves the sign and payload of a NaN that addition, multiplication or
// division returns to the machine (one of the NaN operands, quieted; a fixed one for inf - inf).
// Code that needs the same NaN on all ranks sends the bytes, as transports do.

#ifndef WORKER_KERNELS_KERNELS_H
#define WORKER_KERNELS_KERNELS_H

struct kernel_table;

#include "protos/types.h"
#include "worker/kernels/dtype.h"

#include <fenv.h>
#include <stddef.h>

// Exponents of kernel_scale_power: their powers are normal numbers of float32.
#define KERNELS_POWER_MIN (-126)
#define KERNELS_POWER_MAX 127

// True if collectives reduce this dtype with this op; false if one of the two does not exist. The
// caller of the functions below makes sure that the pair exists: a mean or a weight for floats, OR
// for integers.
bool kernel_supported(enum dtype dtype, enum reduce_op op);

// 16-bit floats are widened to float32, which is exact; operations are those of float32, and only
// the result that is stored is rounded to 16 bits, once, to nearest even. What exceeds float16
// (65,520 and above) becomes infinite; denormals are kept, never flushed; a NaN stays one, quieted,
// with the top bits of its payload.

// acc[i] = acc[i] op in[i]. REDUCE_MEAN adds, like REDUCE_SUM. Integers wrap (two's complement).
// MIN and MAX of floats: a NaN in either operand gives that NaN, bit by bit (but quieted in 16
// bits), acc's before in's; and -0 is below +0.
void kernel_reduce(enum dtype dtype, enum reduce_op op, void *acc, const void *in, size_t count);

// Weights, for dtypes with REDUCE_MEAN. A weight is first rounded to the dtype (of 16 bits: to
// float32), to nearest even: exact up to 2^24 in float32 and 2^53 in float64, above that within
// 2^-24 and 2^-53 of its value. A weight of 0 contributes nothing, also where in is infinite or
// NaN; in is not read.

// acc[i] = acc[i] + weight * in[i]: the product is rounded first.
void kernel_add_weighted(enum dtype dtype, void *acc, const void *in, uint64_t weight,
                         size_t count);
// out[i] = weight * in[i], +0 for a weight of 0. out == in is allowed.
void kernel_scale(enum dtype dtype, void *out, const void *in, uint64_t weight, size_t count);
// out[i] = in[i] / total, one division. out == in is allowed. total > 0.
void kernel_divide(enum dtype dtype, void *out, const void *in, uint64_t total, size_t count);

// out[i] = in[i] * 2^exponent, rounded once; for float16 that would overflow as a sum, before it
// and back after it. Exact unless the result is denormal or overflows. out == in is allowed.
// exponent from KERNELS_POWER_MIN to KERNELS_POWER_MAX. For dtypes with REDUCE_MEAN.
void kernel_scale_power(enum dtype dtype, void *out, const void *in, int exponent, size_t count);

// float32 to a 16-bit dtype and back. Narrowing r rounds to nearest even, once. bfloat16:
// |x - r(x)| is at most 2^-8 |x| (half a unit of 8 significant bits) for 2^-126 <= |x| < 2^128 -
// 2^119, at most 2^-134 below, and above r(x) is infinite. float16: at most 2^-11 |x| for 2^-14 <=
// |x| < 65,520, at most 2^-25 below. Infinities and signs of zeros are kept; a NaN as above.
// Widening is exact, bit by bit in bfloat16, with NaNs quieted in float16; and so is narrowing what
// was widened, but that NaNs are quieted. No overlap, also not out == in.
void kernel_narrow(enum dtype dtype, uint16_t *out, const float *in, size_t count);
void kernel_widen(enum dtype dtype, float *out, const uint16_t *in, size_t count);

// ---- many sources at once -----------------------------------------------------------------------

#define KERNELS_MAX_SOURCES LOCKSTEP_MAX_MATES

struct kernel_combination {
    enum dtype dtype;
    enum reduce_op op;
    uint32_t count; // Sources: 1 to KERNELS_MAX_SOURCES.
    const void *const *sources; // [count]. NULL stands for zeros.
    const uint64_t *weights; // [count], REDUCE_MEAN only. NULL: all are 1.
    uint64_t total; // REDUCE_MEAN: divides the sum; at least 1.
    // For sums of float32, DTYPE_BFLOAT16 rounds the result to that dtype, and widens it again.
    // DTYPE_NONE or dtype: the result is not rounded.
    enum dtype rounded;
    bool streams; // True if stores go past the caches; they are done when the function returns.
    // A second place for the result, written through the caches. It may be one of the sources.
    // NULL: none. Neither place is all final before the other one is begun.
    void *also;
};

// Sets the calling thread's floating-point environment to round-to-nearest without flush-to-zero.
void kernels_environment(void);
// The same for a while: kernels_leave gives the thread back what it had, sticky flags included.
struct kernels_before {
#if defined(__x86_64__)
    uint32_t control; // MXCSR: no kernel uses the x87 unit.
#else
    fenv_t environment;
#endif
};
void kernels_enter(struct kernels_before *before);
void kernels_leave(const struct kernels_before *before);

// The table of one level, from 0 (portable) upwards; NULL if this machine does not have the level.
const struct kernel_table *kernel_level(unsigned level);
// The table that is fastest for a dtype on this machine.
const struct kernel_table *kernel_chosen(enum dtype dtype);

#endif
