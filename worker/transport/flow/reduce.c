// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of collectives over extents: this rank's contribution to a chunk, and the final
// bytes that the owner of the chunk computes. Partial sums are in scratch; only final bytes are
// written to user memory. Engine thread.
//
// A rank's contribution to an element is w g for a mean (g when the input is a sum already, or the
// weight is 1), else g. A mean with weight 0 has no contribution, unless collective.input_counts.
// Where the input is NULL the contribution is zero: sums, ORs and XORs skip it, the other
// operations use a zero.
//
// If frames have another dtype than memory, or the collective has an exponent, sums are computed in
// float32, by pieces that fit in the first cache. Each piece is rounded once, when it is written
// back.

#include "worker/transport/flow/reduce.h"

#include "worker/kernels/combine.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/flow/flows.h"

#include <assert.h>
#include <string.h>

#define REDUCE_PIECE_BYTES (16 * 1024) // Three such pieces fit in the first cache.

static bool reduce_contributes(const struct collective *collective)
{
    return collective->op != REDUCE_MEAN || collective->weight > 0 || collective->input_counts;
}

static bool reduce_scales(const struct collective *collective)
{
    return collective->op == REDUCE_MEAN && !collective->input_is_sum && collective->weight != 1;
}

// True if sums are computed in float32, by pieces.
static bool reduce_is_wide(const struct flow *flow)
{
    const struct collective *collective = flow->collective;
    return flow->partial != collective->dtype || flow->final != collective->dtype ||
           collective->exponent != 0;
}

bool reduce_is_plain(const struct flow *flow)
{
    return reduce_contributes(flow->collective) && !reduce_scales(flow->collective) &&
           !reduce_is_wide(flow);
}

static struct extent_cursor reduce_seek(const struct flow *flow, struct ring_span span)
{
    if (span.count == 0)
        return (struct extent_cursor){.element_bytes = flow->map.element_bytes};
    return extent_seek(&flow->map, span.first);
}

// ---- by pieces of float32 -----------------------------------------------------------------------

#define REDUCE_PIECE 1024 // Elements.

// Returns the length of the next run of contiguous elements, at most one piece, and its memory.
static uint64_t reduce_piece(struct extent_cursor *cursor, uint64_t left, uint8_t **in,
                             uint8_t **out)
{
    const uint64_t most = left < REDUCE_PIECE ? left : REDUCE_PIECE;
    struct extent_cursor outputs = *cursor;
    const uint64_t run = extent_run(cursor, EXTENT_IN, most * cursor->element_bytes, in);
    (void)extent_run(&outputs, EXTENT_OUT, run, out); // The same extent, so the run is as long.
    return run / cursor->element_bytes;
}

static void reduce_widen(enum dtype dtype, float *into, const void *from, uint64_t count)
{
    if (dtype == DTYPE_FLOAT32)
        memcpy(into, from, count * sizeof(*into));
    else
        kernel_widen(dtype, into, from, count);
}

static void reduce_narrow(enum dtype dtype, void *into, const float *from, uint64_t count)
{
    if (dtype == DTYPE_FLOAT32)
        memcpy(into, from, count * sizeof(*from));
    else
        kernel_narrow(dtype, into, from, count);
}

// own = the input as float32, multiplied by 2^exponent.
static void reduce_own(const struct collective *collective, float *own, const uint8_t *in,
                       uint64_t count)
{
    reduce_widen(collective->dtype, own, in, count);
    if (collective->exponent != 0)
        kernel_scale_power(DTYPE_FLOAT32, own, own, collective->exponent, count);
}

static void reduce_start_wide(const struct flow *flow, struct ring_span span, uint8_t *acc)
{
    const struct collective *collective = flow->collective;
    struct extent_cursor cursor = reduce_seek(flow, span);
    for (uint64_t left = span.count; left > 0;) {
        float own[REDUCE_PIECE];
        uint8_t *in = NULL;
        uint8_t *out = NULL;
        const uint64_t count = reduce_piece(&cursor, left, &in, &out);
        memset(own, 0, count * sizeof(own[0]));
        if (in)
            reduce_own(collective, own, in, count);
        if (in && reduce_scales(collective))
            kernel_scale(DTYPE_FLOAT32, own, own, collective->weight, count);
        reduce_narrow(flow->partial, acc, own, count);
        acc += count * dtype_size(flow->partial);
        left -= count;
    }
}

// sum = the partial sums in acc + this rank's contribution.
static void reduce_sum_wide(const struct flow *flow, float *sum, const uint8_t *acc,
                            const uint8_t *in, uint64_t count)
{
    const struct collective *collective = flow->collective;
    float own[REDUCE_PIECE];
    reduce_widen(flow->partial, sum, acc, count);
    if (!in || !reduce_contributes(collective))
        return;
    reduce_own(collective, own, in, count);
    if (reduce_scales(collective))
        kernel_add_weighted(DTYPE_FLOAT32, sum, own, collective->weight, count);
    else
        kernel_reduce(DTYPE_FLOAT32, REDUCE_SUM, sum, own, count);
}

static void reduce_add_wide(const struct flow *flow, struct ring_span span, uint8_t *acc)
{
    struct extent_cursor cursor = reduce_seek(flow, span);
    for (uint64_t left = span.count; left > 0;) {
        float sum[REDUCE_PIECE];
        uint8_t *in = NULL;
        uint8_t *out = NULL;
        const uint64_t count = reduce_piece(&cursor, left, &in, &out);
        if (in) {
            reduce_sum_wide(flow, sum, acc, in, count);
            reduce_narrow(flow->partial, acc, sum, count);
        }
        acc += count * dtype_size(flow->partial);
        left -= count;
    }
}

// Final bytes go to the outputs, or to the beginning of acc. Writing into acc is safe: final bytes
// are not longer than partial sums, and each piece is read before it is written.
static void reduce_finish_wide(const struct flow *flow, struct ring_span span, uint8_t *acc,
                               uint64_t total, bool direct)
{
    const struct collective *collective = flow->collective;
    struct extent_cursor cursor = reduce_seek(flow, span);
    uint8_t *bytes = acc;
    for (uint64_t left = span.count; left > 0;) {
        float sum[REDUCE_PIECE];
        uint8_t *in = NULL;
        uint8_t *out = NULL;
        const uint64_t count = reduce_piece(&cursor, left, &in, &out);
        reduce_sum_wide(flow, sum, acc, in, count);
        if (collective->op == REDUCE_MEAN && total != 1)
            kernel_divide(DTYPE_FLOAT32, sum, sum, total, count);
        if (collective->exponent != 0)
            kernel_scale_power(DTYPE_FLOAT32, sum, sum, -collective->exponent, count);
        reduce_narrow(flow->final, direct ? out : bytes, sum, count);
        acc += count * dtype_size(flow->partial);
        bytes += count * dtype_size(flow->final);
        left -= count;
    }
}

// ---- used bits ----------------------------------------------------------------------------------

const char *reduce_learn(struct flow *flow, const struct frame_header *header, const uint8_t *used,
                         struct ring_span span, bool final)
{
    const struct collective *collective = flow->collective;
    const struct unit_range units = units_met(collective->unit_ends, collective->unit_count, span);
    if (header->used_bytes != units_bytes(units.count))
        return "its used bits are not as many as its units";
    if (!units_are_clean(used, units.count))
        return "it has used bits of units that do not exist";
    if (final && !units_include(used, units, collective->used))
        return "it says of a unit that is used that it is not";
    units_merge(collective->used, units, used);
    return NULL;
}

// ---- a chunk ------------------------------------------------------------------------------------

void reduce_start(const struct flow *flow, struct ring_span span, uint8_t *acc)
{
    const struct collective *collective = flow->collective;
    const uint32_t element = flow->map.element_bytes;
    struct extent_cursor cursor = reduce_seek(flow, span);
    uint64_t left = span.count * element;
    if (!reduce_contributes(collective)) {
        memset(acc, 0, span.count * dtype_size(flow->partial));
        return;
    }
    if (reduce_is_wide(flow)) {
        reduce_start_wide(flow, span, acc);
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
    // Booleans become 0 or 1 by the operation, even by one that zeros do not change.
    if (kernel_skips_zeros(collective->op) && collective->dtype != DTYPE_BOOL)
        return;
    while (bytes > 0) {
        const uint64_t part = bytes < EXTENT_ZERO_BYTES ? bytes : EXTENT_ZERO_BYTES;
        kernel_reduce(collective->dtype, collective->op, acc, extent_zeros, part / element);
        acc += part;
        bytes -= part;
    }
}

// acc = acc op input, for `bytes` bytes. in NULL: zeros.
static void reduce_add_run(const struct collective *collective, uint32_t element, uint8_t *acc,
                           const uint8_t *in, uint64_t bytes)
{
    if (!in)
        reduce_add_zeros(collective, acc, bytes, element);
    else if (reduce_scales(collective))
        kernel_add_weighted(collective->dtype, acc, in, collective->weight, bytes / element);
    else
        kernel_reduce(collective->dtype, collective->op, acc, in, bytes / element);
}

static void reduce_add_inputs(const struct flow *flow, struct ring_span span, uint8_t *acc)
{
    const uint32_t element = flow->map.element_bytes;
    struct extent_cursor cursor = reduce_seek(flow, span);
    uint64_t left = span.count * element;
    while (left > 0) {
        uint8_t *in = NULL;
        const uint64_t run = extent_run(&cursor, EXTENT_IN, left, &in);
        reduce_add_run(flow->collective, element, acc, in, run);
        acc += run;
        left -= run;
    }
}

static uint64_t reduce_weight(const struct collective *collective)
{
    return collective->op == REDUCE_MEAN ? collective->weight : 0;
}

uint64_t reduce_add(const struct flow *flow, struct ring_span span, uint8_t *acc)
{
    if (!reduce_contributes(flow->collective))
        return 0;
    if (reduce_is_wide(flow))
        reduce_add_wide(flow, span, acc);
    else
        reduce_add_inputs(flow, span, acc);
    return reduce_weight(flow->collective);
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

// Copies or widens the final bytes of the next elements to the outputs.
static void reduce_put(const struct flow *flow, struct extent_cursor *cursor, const uint8_t *bytes,
                       uint64_t elements)
{
    const uint32_t element = flow->map.element_bytes;
    if (flow->final == flow->collective->dtype) {
        extent_store(cursor, bytes, elements * element);
        return;
    }
    while (elements > 0) {
        uint8_t *out = NULL;
        const uint64_t run = extent_run(cursor, EXTENT_OUT, elements * element, &out) / element;
        if (out)
            kernel_widen(flow->final, (void *)out, (const void *)bytes, run);
        bytes += run * dtype_size(flow->final);
        elements -= run;
    }
}

void reduce_store(const struct flow *flow, struct ring_span span, const uint8_t *bytes)
{
    const struct collective *collective = flow->collective;
    struct extent_cursor cursor = reduce_seek(flow, span);
    const struct unit_range met = units_met(collective->unit_ends, collective->unit_count, span);
    if (met.count == 0) {
        reduce_put(flow, &cursor, bytes, span.count);
        return;
    }
    uint64_t at = span.first;
    for (uint32_t unit = met.first; unit < met.first + met.count; unit++) {
        const uint64_t end = collective->unit_ends[unit] < span.first + span.count
                                 ? collective->unit_ends[unit]
                                 : span.first + span.count;
        if (units_is_used(collective->used, unit))
            reduce_put(flow, &cursor, bytes, end - at);
        else
            extent_skip(&cursor, (end - at) * flow->map.element_bytes);
        bytes += (end - at) * dtype_size(flow->final);
        at = end;
    }
}

// out = (acc op in) / total, in one pass that does not write acc.
static void reduce_combine(const struct collective *collective, uint8_t *out, const uint8_t *in,
                           const uint8_t *acc, uint64_t total, uint64_t elements)
{
    const void *const sources[] = {acc, in};
    const uint64_t weights[] = {1, collective->weight};
    const struct kernel_combination sum = {.dtype = collective->dtype,
                                           .op = collective->op,
                                           .count = 2,
                                           .sources = sources,
                                           .weights = reduce_scales(collective) ? weights : NULL,
                                           .total = total,
                                           .rounded = DTYPE_NONE};
    kernel_combine(&sum, out, elements);
}

// out = (acc op this rank's contribution) / total. acc is overwritten; out may be acc.
static void reduce_finish_run(const struct collective *collective, uint32_t element, uint8_t *out,
                              const uint8_t *in, uint8_t *acc, uint64_t total, uint64_t bytes)
{
    // 16-bit floats must be rounded after each operation; the kernel that does all in one pass does
    // not round in between.
    if (reduce_contributes(collective) && in && !dtype_is_small(collective->dtype)) {
        reduce_combine(collective, out, in, acc, total, bytes / element);
        return;
    }
    if (reduce_contributes(collective))
        reduce_add_run(collective, element, acc, in, bytes);
    reduce_write(collective, element, out, acc, total, bytes);
}

// Works by pieces: each sum is divided and written while it is in the first cache.
static void reduce_finish_same(const struct flow *flow, struct ring_span span, uint8_t *acc,
                               uint64_t total, bool direct)
{
    const uint32_t element = flow->map.element_bytes;
    struct extent_cursor cursor = reduce_seek(flow, span);
    for (uint64_t left = span.count * element; left > 0;) {
        const uint64_t most = left < REDUCE_PIECE_BYTES ? left : REDUCE_PIECE_BYTES;
        struct extent_cursor outputs = cursor;
        uint8_t *in = NULL;
        uint8_t *out = NULL;
        const uint64_t run = extent_run(&cursor, EXTENT_IN, most, &in);
        (void)extent_run(&outputs, EXTENT_OUT, run,
                         &out); // The same extent, so the run is as long.
        reduce_finish_run(flow->collective, element, direct ? out : acc, in, acc, total, run);
        acc += run;
        left -= run;
    }
}

uint64_t reduce_finish(const struct flow *flow, struct ring_span span, uint8_t *acc,
                       uint64_t weight, bool direct)
{
    const uint64_t total = weight + reduce_weight(flow->collective);
    if (flow->collective->op == REDUCE_MEAN && total == 0)
        return 0;
    if (reduce_is_wide(flow))
        reduce_finish_wide(flow, span, acc, total, direct);
    else
        reduce_finish_same(flow, span, acc, total, direct);
    if (!direct)
        reduce_store(flow, span, acc);
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
    if (collective->kind == COLLECTIVE_ALLREDUCE)
        kernel_reduce_alone(collective->dtype, extent->out, extent->elements);
}

// Computes the next `elements`, which are one unit. An unused unit stays as it is.
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

// Copies the parts of a world of one: there is at most one, which goes from this rank to itself.
static void reduce_local_parts(const struct collective_parts *parts, uint32_t element_bytes)
{
    if (parts->send_count == 1 && parts->sends->elements > 0 &&
        parts->sends->memory != parts->receives->memory)
        memcpy(parts->receives->memory, parts->sends->memory,
               parts->sends->elements * element_bytes);
}

// ---- a world of one over a tree of leaves -------------------------------------------------------

struct reduce_alone {
    const struct collective *collective;
    struct tree_format format;
    struct tree_inputs inputs;
};

// Writes the result of a run of elements that lies at `out`. at: the elements before it.
static void reduce_alone_run(const struct reduce_alone *alone, uint8_t *out, uint64_t at,
                             uint64_t elements)
{
    const enum dtype dtype = alone->collective->dtype;
    const enum dtype final = alone->format.final;
    const uint64_t total = alone->collective->weight;
    if (final == dtype) {
        tree_sum(&alone->format, &alone->inputs, total, at, out, elements);
        return;
    }
    for (uint64_t done = 0; done < elements; done += REDUCE_PIECE) {
        uint16_t narrow[REDUCE_PIECE];
        const uint64_t now = elements - done < REDUCE_PIECE ? elements - done : REDUCE_PIECE;
        tree_sum(&alone->format, &alone->inputs, total, at + done, narrow, now);
        kernel_widen(final, (float *)(void *)(out + done * dtype_size(dtype)), narrow, now);
    }
}

void reduce_local_tree(const struct collective *collective)
{
    struct reduce_alone alone = {.collective = collective,
                                 .format = {collective->dtype, flow_partial(collective),
                                            flow_final_dtype(collective), collective->exponent}};
    const uint32_t element = (uint32_t)dtype_size(collective->dtype);
    struct extent_cursor cursor = {.extent = collective->extents, .element_bytes = element};
    const struct tree_block own = collective_leaves(collective->tree, 1, 0);
    struct tree_stack stack;
    uint64_t at = 0;
    tree_fill(&alone.inputs, own.first);
    tree_blocks(own, &stack);
    for (uint32_t i = 0; i < stack.count; i++) {
        alone.inputs.blocks[alone.inputs.count] = stack.blocks[i];
        alone.inputs.memory[alone.inputs.count++] = collective->tree->blocks[i];
    }
    tree_fill(&alone.inputs, collective->tree->leaves);
    for (uint32_t u = 0; u < collective->unit_count; u++) {
        const uint64_t end = collective->unit_ends[u];
        const bool used = units_is_used(collective->used, u);
        while (used && at < end) {
            uint8_t *out = NULL;
            const uint64_t run =
                extent_run(&cursor, EXTENT_OUT, (end - at) * element, &out) / element;
            if (out)
                reduce_alone_run(&alone, out, at, run);
            at += run;
        }
        extent_skip(&cursor, (end - at) * element);
        at = end;
    }
}

void reduce_local(struct collective *collective, uint32_t element_bytes)
{
    if (collective->kind == COLLECTIVE_EXCHANGE || collective->kind == COLLECTIVE_REDUCE_SCATTER) {
        reduce_local_parts(collective->parts, element_bytes);
        return;
    }
    const bool reduces = collective->kind == COLLECTIVE_ALLREDUCE;
    struct extent_cursor cursor = {.extent = collective->extents, .element_bytes = element_bytes};
    uint64_t at = 0;
    if (reduces && collective->op == REDUCE_MEAN)
        collective->weight_total = collective->weight;
    if (reduces && !reduce_contributes(collective))
        return;
    if (collective->tree) {
        reduce_local_tree(collective);
        return;
    }
    for (uint32_t u = 0; u < collective->unit_count; u++) {
        reduce_local_unit(collective, &cursor, collective->unit_ends[u] - at,
                          units_is_used(collective->used, u));
        at = collective->unit_ends[u];
    }
    for (uint32_t i = 0; i < collective->extent_count && collective->unit_count == 0; i++)
        reduce_local_extent(collective, &collective->extents[i], element_bytes);
}
