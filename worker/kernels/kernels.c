// SPDX-License-Identifier: Apache-2.0
//
// Chooses the table of loops that this machine runs. The loops themselves are in loops.h. Any
// thread.

#include "worker/kernels/kernels.h"

#include "base/processor.h"
#include "worker/kernels/table.h"

#include <assert.h>
#include <fenv.h>
#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

const struct kernel_table *kernel_level(unsigned level)
{
    if (level > (unsigned)processor_vectors())
        return NULL;
#if defined(__x86_64__)
    if (level == PROCESSOR_AVX2)
        return &kernel_table_avx2;
    if (level == PROCESSOR_AVX512)
        return &kernel_table_avx512;
#endif
    return &kernel_table_portable;
}

// Returns the level at which a dtype is fastest, as measured (docs/numbers.md). AVX-512 makes the
// loops of bfloat16 a quarter faster. It does not make the other loops faster, and beyond the
// caches it makes them a tenth slower.
static unsigned kernel_level_wanted(enum dtype dtype)
{
    return dtype == DTYPE_BFLOAT16 ? 2 : 1;
}

// Returns the table of the highest level of this machine, up to the wanted level. If two threads
// choose at once, both choose the same table.
const struct kernel_table *kernel_chosen(enum dtype dtype)
{
    static _Atomic(const struct kernel_table *) chosen[KERNEL_DTYPES];
    const struct kernel_table *table = atomic_load_explicit(&chosen[dtype], memory_order_relaxed);
    if (table)
        return table;
    for (unsigned l = 0; l <= kernel_level_wanted(dtype) && kernel_level(l); l++)
        table = kernel_level(l);
    atomic_store_explicit(&chosen[dtype], table, memory_order_relaxed);
    return table;
}

static bool kernel_exists(enum dtype dtype, enum reduce_op op)
{
    return (unsigned)dtype < KERNEL_DTYPES && (unsigned)op < KERNEL_OPS &&
           kernel_table_portable.reduce[dtype][op];
}

bool kernel_supported(enum dtype dtype, enum reduce_op op)
{
    return kernel_exists(dtype, op);
}

const char *kernel_op_name(enum reduce_op op)
{
    static const char *const names[KERNEL_OPS] = {
        [REDUCE_SUM] = "sum", [REDUCE_MEAN] = "mean", [REDUCE_MIN] = "min",
        [REDUCE_MAX] = "max", [REDUCE_OR] = "or",     [REDUCE_PRODUCT] = "product",
        [REDUCE_AND] = "and", [REDUCE_XOR] = "xor"};
    return (unsigned)op < KERNEL_OPS ? names[op] : "unknown";
}

bool kernel_is_bitwise(enum reduce_op op)
{
    return op == REDUCE_OR || op == REDUCE_AND || op == REDUCE_XOR;
}

void kernel_reduce(enum dtype dtype, enum reduce_op op, void *acc, const void *in, size_t count)
{
    assert(kernel_exists(dtype, op));
    kernel_chosen(dtype)->reduce[dtype][op](acc, in, count);
}

void kernel_reduce_alone(enum dtype dtype, void *data, size_t count)
{
    const struct kernel_operands one = {.sources = {data}, .weights = {1}, .count = 1};
    if (dtype == DTYPE_BOOL)
        kernel_chosen(dtype)->combine[dtype][REDUCE_OR](data, &one, count);
}

void kernel_add_weighted(enum dtype dtype, void *acc, const void *in, uint64_t weight, size_t count)
{
    assert(kernel_exists(dtype, REDUCE_MEAN));
    if (weight == 0)
        return;
    kernel_chosen(dtype)->add_weighted[dtype](acc, in, weight, count);
}

void kernel_scale(enum dtype dtype, void *out, const void *in, uint64_t weight, size_t count)
{
    assert(kernel_exists(dtype, REDUCE_MEAN));
    if (weight > 0)
        kernel_chosen(dtype)->scale[dtype](out, in, weight, count);
    else if (count > 0)
        memset(out, 0, count * dtype_size(dtype));
}

void kernel_divide(enum dtype dtype, void *out, const void *in, uint64_t total, size_t count)
{
    assert(kernel_exists(dtype, REDUCE_MEAN));
    assert(total > 0);
    kernel_chosen(dtype)->divide[dtype](out, in, total, count);
}

// In float32, too, 2^exponent is normal and the product is rounded once. For bfloat16 that product
// is rounded again. The first rounding matters only below 2^-141, and such a product becomes zero
// in the second rounding.
void kernel_scale_power(enum dtype dtype, void *out, const void *in, int exponent, size_t count)
{
    assert(kernel_exists(dtype, REDUCE_MEAN));
    assert(exponent >= KERNELS_POWER_MIN && exponent <= KERNELS_POWER_MAX);
    const uint64_t bits = (uint64_t)(1023 + exponent) << 52;
    double power;
    memcpy(&power, &bits, sizeof(power));
    kernel_chosen(dtype)->scale_power[dtype](out, in, power, count);
}

#define KERNEL_SQUARES_TILE 1024 // A multiple of KERNEL_LANES.

double kernel_squares(enum dtype dtype, const void *data, size_t count)
{
    const struct kernel_table *table = kernel_chosen(dtype);
    const uint16_t *small = data;
    double lanes[KERNEL_LANES] = {0};
    float tile[KERNEL_SQUARES_TILE];
    assert(kernel_exists(dtype, REDUCE_MEAN));
    if (!dtype_is_small(dtype))
        table->squares[dtype](lanes, data, count);
    for (size_t at = 0; dtype_is_small(dtype) && at < count; at += KERNEL_SQUARES_TILE) {
        const size_t part = count - at < KERNEL_SQUARES_TILE ? count - at : KERNEL_SQUARES_TILE;
        table->widen[dtype](tile, small + at, part);
        kernel_chosen(DTYPE_FLOAT32)->squares[DTYPE_FLOAT32](lanes, tile, part);
    }
    for (size_t apart = KERNEL_LANES / 2; apart > 0; apart /= 2) {
        for (size_t lane = 0; lane < apart; lane++)
            lanes[lane] += lanes[lane + apart];
    }
    return lanes[0];
}

void kernel_narrow(enum dtype dtype, uint16_t *out, const float *in, size_t count)
{
    assert(dtype_is_small(dtype));
    kernel_chosen(dtype)->narrow[dtype](out, in, count);
}

void kernel_widen(enum dtype dtype, float *out, const uint16_t *in, size_t count)
{
    assert(dtype_is_small(dtype));
    kernel_chosen(dtype)->widen[dtype](out, in, count);
}

// fesetenv is the portable way; on aarch64 it also clears flush-to-zero. But C does not define
// flush-to-zero, so on x86 MXCSR is set as well. 0x1f80 is the state of MXCSR after a reset: all
// exceptions masked, round to nearest, denormals kept.
void kernels_environment(void)
{
    fesetenv(FE_DFL_ENV);
#if defined(__x86_64__)
    _mm_setcsr(0x1f80);
#endif
}

void kernels_enter(struct kernels_before *before)
{
#if defined(__x86_64__)
    before->control = _mm_getcsr();
    _mm_setcsr(0x1f80);
#else
    fegetenv(&before->environment);
    fesetenv(FE_DFL_ENV);
#endif
}

void kernels_leave(const struct kernels_before *before)
{
#if defined(__x86_64__)
    _mm_setcsr(before->control);
#else
    fesetenv(&before->environment);
#endif
}
