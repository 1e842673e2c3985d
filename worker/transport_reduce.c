// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of collectives over extents: what this rank contributes to a chunk, and what its
// owner makes of it. It writes scratch, and user memory with final bytes only. Knows no frames.
// Engine thread.
//
// A rank's contribution to an element is w g for a mean (g when the input is a sum already, or the
// weight is 1), else g. It is nothing for a mean of weight 0. Where the input is NULL it is zero:
// sums and ORs skip it, minima and maxima meet a zero.

#include "worker/kernels.h"
#include "worker/transport_parts.h"

#include <assert.h>
#include <string.h>

static bool reduce_contributes(const struct collective *collective)
{
    return collective->op != REDUCE_MEAN || collective->weight > 0;
}

static bool reduce_scales(const struct collective *collective)
{
    return collective->op == REDUCE_MEAN && !collective->input_is_sum && collective->weight != 1;
}

static bool reduce_meets_zero(const struct collective *collective)
{
    return collective->op == REDUCE_MIN || collective->op == REDUCE_MAX;
}

bool reduce_is_plain(const struct collective *collective)
{
    return reduce_contributes(collective) && !reduce_scales(collective);
}

static struct extent_cursor reduce_seek(const struct flow *flow, struct ring_span span)
{
    if (span.count == 0)
        return (struct extent_cursor){.element_bytes = flow->map.element_bytes};
    return extent_seek(&flow->map, span.first);
}

void reduce_start(const struct flow *flow, struct ring_span span, uint8_t *acc)
{
    const struct collective *collective = flow->collective;
    const uint32_t element = flow->map.element_bytes;
    struct extent_cursor cursor = reduce_seek(flow, span);
    uint64_t left = span.count * element;
    if (!reduce_contributes(collective)) {
        memset(acc, 0, left);
        return;
    }
    while (left > 0) {
        uint8_t *in = NULL;
        const uint64_t run = extent_run(&cursor, EXTENT_IN, left, &in);
        if (!in)
            memset(acc, 0, run);
        else if (reduce_scales(collective))
            kernel_scale(collective->dtype, acc, in, collective->weight, run / element);
        else
            memcpy(acc, in, run);
        acc += run;
        left -= run;
    }
}

static void reduce_add_zeros(const struct collective *collective, uint8_t *acc, uint64_t bytes,
                             uint32_t element)
{
    if (!reduce_meets_zero(collective))
        return;
    while (bytes > 0) {
        const uint64_t part = bytes < EXTENT_ZERO_BYTES ? bytes : EXTENT_ZERO_BYTES;
        kernel_reduce(collective->dtype, collective->op, acc, extent_zeros, part / element);
        acc += part;
        bytes -= part;
    }
}

uint64_t reduce_add(const struct flow *flow, struct ring_span span, uint8_t *acc)
{
    const struct collective *collective = flow->collective;
    const uint32_t element = flow->map.element_bytes;
    struct extent_cursor cursor = reduce_seek(flow, span);
    uint64_t left = span.count * element;
    if (!reduce_contributes(collective))
        return 0;
    while (left > 0) {
        uint8_t *in = NULL;
        const uint64_t run = extent_run(&cursor, EXTENT_IN, left, &in);
        if (!in)
            reduce_add_zeros(collective, acc, run, element);
        else if (reduce_scales(collective))
            kernel_add_weighted(collective->dtype, acc, in, collective->weight, run / element);
        else
            kernel_reduce(collective->dtype, collective->op, acc, in, run / element);
        acc += run;
        left -= run;
    }
    return collective->op == REDUCE_MEAN ? collective->weight : 0;
}

// out = acc, or acc / total.
static void reduce_write(const struct collective *collective, uint32_t element, uint8_t *out,
                         const uint8_t *acc, uint64_t total, uint64_t bytes)
{
    if (collective->op == REDUCE_MEAN && total != 1)
        kernel_divide(collective->dtype, out, acc, total, bytes / element);
    else if (out != acc)
        memcpy(out, acc, bytes);
}

void reduce_store(const struct flow *flow, struct ring_span span, const uint8_t *bytes)
{
    const struct collective *collective = flow->collective;
    const uint32_t element = flow->map.element_bytes;
    struct extent_cursor cursor = reduce_seek(flow, span);
    const struct unit_range met = units_met(collective->unit_ends, collective->unit_count, span);
    if (met.count == 0) {
        extent_store(&cursor, bytes, span.count * element);
        return;
    }
    uint64_t at = span.first;
    for (uint32_t unit = met.first; unit < met.first + met.count; unit++) {
        const uint64_t end = collective->unit_ends[unit] < span.first + span.count
                                 ? collective->unit_ends[unit]
                                 : span.first + span.count;
        if (units_is_used(collective->used, unit))
            extent_store(&cursor, bytes, (end - at) * element);
        else
            extent_skip(&cursor, (end - at) * element);
        bytes += (end - at) * element;
        at = end;
    }
}

uint64_t reduce_finish(const struct flow *flow, struct ring_span span, uint8_t *acc,
                       uint64_t weight, bool direct)
{
    const struct collective *collective = flow->collective;
    const uint32_t element = flow->map.element_bytes;
    const uint64_t bytes = span.count * element;
    const uint64_t total = weight + reduce_add(flow, span, acc);
    struct extent_cursor cursor = reduce_seek(flow, span);
    if (collective->op == REDUCE_MEAN && total == 0)
        return 0;
    if (!direct) {
        reduce_write(collective, element, acc, acc, total, bytes);
        reduce_store(flow, span, acc);
        return total;
    }
    for (uint64_t left = bytes; left > 0;) {
        uint8_t *out = NULL;
        const uint64_t run = extent_run(&cursor, EXTENT_OUT, left, &out);
        reduce_write(collective, element, out, acc, total, run);
        acc += run;
        left -= run;
    }
    return total;
}

static void reduce_local_extent(const struct collective *collective, const struct extent *extent,
                                uint32_t element)
{
    const uint64_t bytes = extent->elements * element;
    if (!extent->out || bytes == 0)
        return;
    if (!extent->in)
        memset(extent->out, 0, bytes);
    else if (collective->kind == COLLECTIVE_ALLREDUCE && collective->op == REDUCE_MEAN &&
             collective->input_is_sum && collective->weight != 1)
        kernel_divide(collective->dtype, extent->out, extent->in, collective->weight,
                      extent->elements);
    else if (extent->out != extent->in)
        memmove(extent->out, extent->in, bytes);
}

// The next `elements` are a unit. One that is not used stays as it is.
static void reduce_local_unit(const struct collective *collective, struct extent_cursor *cursor,
                              uint64_t elements, bool used)
{
    const uint32_t element = cursor->element_bytes;
    while (elements > 0 && used) {
        struct extent_cursor outputs = *cursor;
        uint8_t *in = NULL;
        uint8_t *out = NULL;
        const uint64_t run = extent_run(cursor, EXTENT_IN, elements * element, &in);
        (void)extent_run(&outputs, EXTENT_OUT, run, &out);
        const struct extent part = {.in = in, .out = out, .elements = run / element};
        reduce_local_extent(collective, &part, element);
        elements -= part.elements;
    }
    extent_skip(cursor, elements * element);
}

void reduce_local(struct collective *collective, uint32_t element_bytes)
{
    const bool reduces = collective->kind == COLLECTIVE_ALLREDUCE;
    struct extent_cursor cursor = {.extent = collective->extents, .element_bytes = element_bytes};
    uint64_t at = 0;
    if (reduces && collective->op == REDUCE_MEAN)
        collective->weight_total = collective->weight;
    if (reduces && !reduce_contributes(collective))
        return;
    for (uint32_t u = 0; u < collective->unit_count; u++) {
        reduce_local_unit(collective, &cursor, collective->unit_ends[u] - at,
                          units_is_used(collective->used, u));
        at = collective->unit_ends[u];
    }
    for (uint32_t i = 0; i < collective->extent_count && collective->unit_count == 0; i++)
        reduce_local_extent(collective, &collective->extents[i], element_bytes);
}
