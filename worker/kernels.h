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
// Whoever needs one NaN on all ranks sends the bytes, as transports do.

#ifndef WORKER_KERNELS_H
#define WORKER_KERNELS_H

#include "protos/types.h"
#include "worker/transport.h"

#include <stddef.h>

size_t dtype_size(enum dtype dtype); // Bytes of one element; 0: unknown.
const char *dtype_name(enum dtype dtype); // "float32"; "unknown" of no dtype.
bool dtype_is_float(enum dtype dtype);
// Whether collectives of this build reduce this dtype with this op; false for no dtype or op. The
// functions below want a supported pair: that is the caller's to check.
bool kernel_supported(enum dtype dtype, enum reduce_op op);

// acc[i] = acc[i] op in[i]. REDUCE_MEAN adds, like REDUCE_SUM. Integers wrap (two's complement).
// MIN and MAX of floats: a NaN in either operand gives that NaN, bit by bit, acc's before in's; and
// -0 is below +0.
void kernel_reduce(enum dtype dtype, enum reduce_op op, void *acc, const void *in, size_t count);

// Weights, for dtypes with REDUCE_MEAN. A weight is first rounded to the dtype, to nearest even:
// exact up to 2^24 in float32 and 2^53 in float64, above that within 2^-24 and 2^-53 of its value.
// A weight of 0 contributes nothing, also where in is infinite or NaN; in is not read.

// acc[i] = acc[i] + weight * in[i]: the product is rounded first.
void kernel_add_weighted(enum dtype dtype, void *acc, const void *in, uint64_t weight,
                         size_t count);
// out[i] = weight * in[i], +0 for a weight of 0. out == in is allowed.
void kernel_scale(enum dtype dtype, void *out, const void *in, uint64_t weight, size_t count);
// out[i] = in[i] / total, one division. out == in is allowed. total > 0.
void kernel_divide(enum dtype dtype, void *out, const void *in, uint64_t total, size_t count);

// Sets the calling thread's floating-point environment to round-to-nearest without flush-to-zero.
void kernels_environment(void);

#endif
