// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of allreduces by pairs: adds two partial sums of the same elements, and turns the
// last sum into the result. Frames are in pair.c, the schedule in schedule.c. Engine thread.
//
// In doubling both ranks of a pair compute the same sum, and must get the same bits. So both
// operands are rounded to the dtype of partial sums in frames before they are added. In minima and
// maxima of floats the first of two NaNs wins, so the operand of the lower ranks comes first.
// Additions and multiplications commute except for NaNs, of which the machine chooses one. So a sum
// or product that several ranks have computed gets one fixed NaN at the end.
//
// If frames have another dtype than memory, the last sum is not rounded before it is divided.

#include "worker/transport/pair/sum.h"

#include "worker/kernels/kernels.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/reduce.h"

#include <math.h>
#include <string.h>

#define SUM_PIECE 1024 // Elements of float32 that are computed at a time, in the first cache.

static bool sum_is_wide(const struct flow *flow)
{
    const struct collective *collective = flow->collective;
    return flow->partial != collective->dtype || flow->final != collective->dtype ||
           collective->exponent != 0;
}

bool pair_sum_is_plain(const struct flow *flow, struct ring_span span)
{
    const uint64_t bytes = span.count * flow->map.element_bytes;
    if (!reduce_is_plain(flow))
        return false;
    return bytes == 0 || extent_backed(extent_seek(&flow->map, span.first), EXTENT_IN, bytes);
}

bool pair_sum_is_ordered(const struct flow *flow)
{
    const enum reduce_op op = flow->collective->op;
    return dtype_is_float(flow->collective->dtype) && (op == REDUCE_MIN || op == REDUCE_MAX);
}

void pair_sum_add(const struct flow *flow, uint64_t count, uint8_t *lower, const uint8_t *upper)
{
    kernel_reduce(flow->partial, flow->collective->op, lower, upper, count);
}

// ---- the result ---------------------------------------------------------------------------------

// out = in, or in / weight.
static void sum_write(const struct collective *collective, uint8_t *out, const uint8_t *in,
                      uint64_t weight, uint64_t count)
{
    if (collective->op == REDUCE_MEAN && weight != 1)
        kernel_divide(collective->dtype, out, in, weight, count);
    else if (out != in)
        memcpy(out, in, count * dtype_size(collective->dtype));
}

static void sum_widen(enum dtype dtype, float *into, const uint8_t *from, uint64_t count)
{
    if (dtype == DTYPE_FLOAT32)
        memcpy(into, from, count * sizeof(*into));
    else
        kernel_widen(dtype, into, (const void *)from, count);
}

static void sum_narrow(enum dtype dtype, uint8_t *into, const float *from, uint64_t count)
{
    if (dtype == DTYPE_FLOAT32)
        memcpy(into, from, count * sizeof(*from));
    else
        kernel_narrow(dtype, (void *)into, from, count);
}

// out may be lower: each piece is read before it is written, and does not grow.
static void sum_finish_wide(const struct flow *flow, uint8_t *lower, const uint8_t *upper,
                            uint64_t count, uint64_t weight, uint8_t *out)
{
    const struct collective *collective = flow->collective;
    for (uint64_t at = 0; at < count;) {
        float sum[SUM_PIECE];
        float other[SUM_PIECE];
        const uint64_t part = count - at < SUM_PIECE ? count - at : SUM_PIECE;
        sum_widen(flow->partial, sum, lower + at * dtype_size(flow->partial), part);
        if (upper) {
            sum_widen(flow->partial, other, upper + at * dtype_size(flow->partial), part);
            kernel_reduce(DTYPE_FLOAT32, REDUCE_SUM, sum, other, part);
        }
        if (collective->op == REDUCE_MEAN && weight != 1)
            kernel_divide(DTYPE_FLOAT32, sum, sum, weight, part);
        if (collective->exponent != 0)
            kernel_scale_power(DTYPE_FLOAT32, sum, sum, -collective->exponent, part);
        sum_narrow(flow->final, out + at * dtype_size(flow->final), sum, part);
        at += part;
    }
}

void pair_sum_finish(const struct flow *flow, struct ring_span span, uint8_t *lower,
                     const uint8_t *upper, uint64_t weight, uint8_t *out)
{
    const struct collective *collective = flow->collective;
    const uint32_t element = flow->map.element_bytes;
    if (sum_is_wide(flow) && out) {
        sum_finish_wide(flow, lower, upper, span.count, weight, out);
        return;
    }
    if (sum_is_wide(flow)) {
        sum_finish_wide(flow, lower, upper, span.count, weight, lower);
        reduce_store(flow, span, lower);
        return;
    }
    if (upper)
        pair_sum_add(flow, span.count, lower, upper);
    if (out) {
        sum_write(collective, out, lower, weight, span.count);
        return;
    }
    if (span.count == 0)
        return;
    struct extent_cursor cursor = extent_seek(&flow->map, span.first);
    for (uint64_t left = span.count * element; left > 0;) {
        const uint64_t run = extent_run(&cursor, EXTENT_OUT, left, &out);
        sum_write(collective, out, lower, weight, run / element);
        lower += run;
        left -= run;
    }
}

// ---- NaNs ---------------------------------------------------------------------------------------

#define SUM_QUIET_BLOCK 64 // Elements.

// Searches for a NaN first, because there is hardly ever one. Blocks have a constant length, so the
// compiler vectorizes the search; without that 32 KiB took 2 us.
#define SUM_QUIET(name, type, is_nan, quiet) \
    static void name(void *bytes, uint64_t count) \
    { \
        type *elements = bytes; \
        uint32_t found = 0; \
        uint64_t at = 0; \
        for (; count - at >= SUM_QUIET_BLOCK; at += SUM_QUIET_BLOCK) { \
            for (uint32_t i = 0; i < SUM_QUIET_BLOCK; i++) { \
                const type x = elements[at + i]; \
                found |= (uint32_t)(is_nan); \
            } \
        } \
        for (; at < count; at++) { \
            const type x = elements[at]; \
            found |= (uint32_t)(is_nan); \
        } \
        for (uint64_t i = 0; i < count && found != 0; i++) { \
            const type x = elements[i]; \
            if (is_nan) \
                elements[i] = (quiet); \
        } \
    }

SUM_QUIET(sum_quiet_float32, float, x != x, NAN)
SUM_QUIET(sum_quiet_float64, double, x != x, (double)NAN)
SUM_QUIET(sum_quiet_float16, uint16_t, (x & 0x7fff) > 0x7c00, 0x7e00)
SUM_QUIET(sum_quiet_bfloat16, uint16_t, (x & 0x7fff) > 0x7f80, 0x7fc0)

static bool sum_may_make_nan(const struct flow *flow)
{
    const enum reduce_op op = flow->collective->op;
    return op == REDUCE_SUM || op == REDUCE_MEAN || op == REDUCE_PRODUCT;
}

void pair_sum_quiet(const struct flow *flow, uint8_t *bytes, uint64_t count)
{
    if (!sum_may_make_nan(flow))
        return;
    if (flow->final == DTYPE_FLOAT32)
        sum_quiet_float32(bytes, count);
    else if (flow->final == DTYPE_FLOAT64)
        sum_quiet_float64(bytes, count);
    else if (flow->final == DTYPE_FLOAT16)
        sum_quiet_float16(bytes, count);
    else if (flow->final == DTYPE_BFLOAT16)
        sum_quiet_bfloat16(bytes, count);
}
