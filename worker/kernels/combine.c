// SPDX-License-Identifier: Apache-2.0
//
// kernel_combine: many sources, weights and one division, made of loops that take at most four
// sources. Intermediate values stay in a tile on the stack, which fits into the first-level cache;
// the last loop of a tile stores the final values. Pure; any thread.
//
// A sum of more than four sources takes four sources first, and then three at a time; the sum so
// far is the first operand of the next loop. Many sources of 16-bit floats are instead added up as
// float32, one by one.
//
// If there is a loop that stores past the caches or to a second place (sums of float32 and
// float64), the last loop of a tile is that loop. Otherwise the values are copied from a tile to
// out, or from the second place to out.

#include "worker/kernels/combine.h"

#include "worker/kernels/kernels.h"
#include "worker/kernels/table.h"

#include <assert.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define COMBINE_TILE_BYTES 8192
#define COMBINE_LINE_BYTES 64

// Elements of a tile. A tile also has room for as many elements of float32.
static size_t combine_tile(enum dtype dtype)
{
    const size_t size = dtype_size(dtype);
    return COMBINE_TILE_BYTES / (size > sizeof(float) ? size : sizeof(float));
}

static const uint8_t combine_zeros[COMBINE_TILE_BYTES];

// The sources and weights that take part in one combination.
struct combine {
    const struct kernel_table *table;
    const struct kernel_combination *what;
    const uint8_t *sources[KERNELS_MAX_SOURCES];
    uint64_t weights[KERNELS_MAX_SOURCES];
    unsigned count;
    bool has_zeros; // True if some sources are combine_zeros.
    bool weighted;
    bool divided; // True if the last loop divides by a total that is no power of two.
    // True while the last loop stores whole cache lines: past the caches, or to two places.
    bool lines;
    uint8_t *also; // As in struct kernel_combination.
    double factor; // 1, or 1 / total if the total is a power of two.
    size_t size;
};

// Sets only the fields that are used: setting all fields would take a tenth of the time for blocks
// of a few KiB, which are common.
static void combine_choose(struct combine *combine)
{
    const struct kernel_combination *what = combine->what;
    combine->count = 0;
    combine->has_zeros = combine->weighted = combine->lines = false;
    combine->size = dtype_size(what->dtype);
    for (uint32_t s = 0; s < what->count; s++) {
        const uint64_t weight = what->weights ? what->weights[s] : 1;
        const void *source = weight > 0 ? what->sources[s] : NULL;
        if (!source && kernel_skips_zeros(what->op))
            continue;
        combine->has_zeros |= !source;
        combine->weighted |= weight != 1;
        combine->weights[combine->count] = weight;
        combine->sources[combine->count++] = source ? source : combine_zeros;
    }
}

static void combine_finish_choose(struct combine *combine)
{
    const uint64_t total = combine->what->op == REDUCE_MEAN ? combine->what->total : 1;
    combine->divided = (total & (total - 1)) != 0;
    combine->factor = combine->divided ? 1.0 : 1.0 / (double)total;
}

static bool combine_is_rounded(const struct kernel_combination *what)
{
    return what->dtype == DTYPE_FLOAT32 && what->rounded == DTYPE_BFLOAT16;
}

static const uint8_t *combine_source(const struct combine *combine, unsigned source, size_t offset)
{
    const uint8_t *at = combine->sources[source];
    return at == combine_zeros ? at : at + offset;
}

// ---- one tile -----------------------------------------------------------------------------------

// Fills in the operands of one loop: the sum so far, if there is one, and sources from `next` on.
// Returns the number of sources taken.
static unsigned combine_operands(const struct combine *combine, const void *sum, unsigned next,
                                 size_t offset, struct kernel_operands *operands)
{
    const unsigned free = KERNEL_OPERANDS - (sum != NULL);
    const unsigned left = combine->count - next;
    const unsigned taken = left < free ? left : free;
    operands->sources[0] = sum;
    operands->weights[0] = 1;
    operands->count = sum != NULL;
    operands->factor = 1.0;
    operands->total = 1;
    operands->also = NULL;
    for (unsigned s = next; s < next + taken; s++) {
        operands->sources[operands->count] = combine_source(combine, s, offset);
        operands->weights[operands->count++] = combine->weights[s];
    }
    for (unsigned s = operands->count; s < KERNEL_OPERANDS; s++) {
        operands->sources[s] = operands->sources[0];
        operands->weights[s] = 1;
    }
    return taken;
}

static kernel_combine_loop *combine_loop(const struct combine *combine, bool last)
{
    const struct kernel_combination *what = combine->what;
    if (last && combine->lines && combine->divided)
        return combine->table->stream_divided[what->dtype];
    if (last && combine->lines)
        return combine->table->stream_weighted[what->dtype];
    if (last && combine->divided)
        return combine->table->combine_divided[what->dtype];
    if (combine->weighted)
        return combine->table->combine_weighted[what->dtype];
    return combine->table->combine[what->dtype][what->op];
}

// Combines elements that begin `offset` bytes into the sources. tile may be out; otherwise it has
// room for `count` elements.
static void combine_same(const struct combine *combine, void *out, void *tile, size_t offset,
                         size_t count)
{
    struct kernel_operands operands;
    unsigned next = combine_operands(combine, NULL, 0, offset, &operands);
    while (next < combine->count) {
        combine_loop(combine, false)(tile, &operands, count);
        next += combine_operands(combine, tile, next, offset, &operands);
    }
    operands.factor = combine->factor;
    operands.total = combine->what->total;
    if (combine->lines && combine->also)
        operands.also = combine->also + offset;
    operands.streams = combine->what->streams;
    combine_loop(combine, true)(out, &operands, count);
}

// Combines more sources of 16-bit floats than one loop takes. In products all weights are 1.
static void combine_wide(const struct combine *combine, void *out, float *sum, size_t offset,
                         size_t count)
{
    const enum dtype dtype = combine->what->dtype;
    const struct kernel_table *table = combine->table;
    _Alignas(COMBINE_LINE_BYTES) float wide[COMBINE_TILE_BYTES / sizeof(float)];
    for (unsigned s = 0; s < combine->count; s++) {
        const void *source = combine_source(combine, s, offset);
        table->widen[dtype](s == 0 ? sum : wide, source, count);
        if (s == 0)
            table->scale[DTYPE_FLOAT32](sum, sum, combine->weights[s], count);
        else if (combine->what->op == REDUCE_PRODUCT)
            table->reduce[DTYPE_FLOAT32][REDUCE_PRODUCT](sum, wide, count);
        else
            table->add_weighted[DTYPE_FLOAT32](sum, wide, combine->weights[s], count);
    }
    if (combine->what->op == REDUCE_MEAN)
        table->divide[DTYPE_FLOAT32](sum, sum, combine->what->total, count);
    table->narrow[dtype](out, sum, count);
}

static void combine_rounded(const struct combine *combine, void *out, void *tile, size_t offset,
                            size_t count)
{
    _Alignas(COMBINE_LINE_BYTES) uint16_t rounded[COMBINE_TILE_BYTES / sizeof(float)];
    combine_same(combine, tile, tile, offset, count);
    combine->table->narrow[DTYPE_BFLOAT16](rounded, tile, count);
    combine->table->widen[DTYPE_BFLOAT16](out, rounded, count);
}

static bool combine_is_wide(const struct combine *combine)
{
    const enum reduce_op op = combine->what->op;
    return dtype_is_small(combine->what->dtype) && combine->count > KERNEL_OPERANDS &&
           op != REDUCE_MIN && op != REDUCE_MAX;
}

static void combine_one(const struct combine *combine, void *out, void *tile, size_t offset,
                        size_t count)
{
    if (combine_is_wide(combine))
        combine_wide(combine, out, tile, offset, count);
    else if (combine_is_rounded(combine->what))
        combine_rounded(combine, out, tile, offset, count);
    else
        combine_same(combine, out, tile, offset, count);
}

// ---- all of it ----------------------------------------------------------------------------------

// True if one call of a loop can do the whole combination.
static bool combine_is_direct(const struct combine *combine)
{
    return !combine->has_zeros && combine->count <= KERNEL_OPERANDS &&
           !combine_is_rounded(combine->what);
}

// True if the stores must go past the caches or to two places, and a loop exists that does that.
static bool combine_has_lines(const struct combine *combine)
{
    const struct kernel_combination *what = combine->what;
    return (what->streams || what->also) && kernel_skips_zeros(what->op) &&
           !combine_is_rounded(what) && combine->table->stream_weighted[what->dtype];
}

// Combines elements that begin `offset` bytes into the sources and out. copies: true if the results
// go to a tile first and are then copied to out.
static void combine_tiles(const struct combine *combine, uint8_t *out, size_t offset, size_t count,
                          bool copies)
{
    _Alignas(COMBINE_LINE_BYTES) uint8_t tile[COMBINE_TILE_BYTES];
    _Alignas(COMBINE_LINE_BYTES) uint8_t final[COMBINE_TILE_BYTES];
    // The first tile ends at the end of a cache line, so no later tile begins inside a line.
    size_t part = combine_tile(combine->what->dtype) -
                  (uintptr_t)(out + offset) % COMBINE_LINE_BYTES / combine->size;
    while (count > 0) {
        if (part > count)
            part = count;
        combine_one(combine, copies ? final : out + offset, tile, offset, part);
        if (copies)
            combine->table->stream(out + offset, final, part * combine->size);
        offset += part * combine->size;
        count -= part;
        part = combine_tile(combine->what->dtype);
    }
}

static void combine_part(const struct combine *combine, uint8_t *out, size_t offset, size_t count)
{
    if (count > 0 && combine_is_direct(combine))
        combine_same(combine, out + offset, NULL, offset, count);
    else if (count > 0)
        combine_tiles(combine, out, offset, count, false);
}

// Copies elements outside the whole cache lines to the second place, too.
static void combine_again(const struct combine *combine, const uint8_t *out, size_t offset,
                          size_t count)
{
    if (combine->also && count > 0)
        combine->table->copy(combine->also + offset, out + offset, count * combine->size);
}

// Combines whole cache lines with the loops for lines, and the elements before and after them with
// the usual loops.
static void combine_by_lines(struct combine *combine, uint8_t *out, size_t count)
{
    const size_t line = COMBINE_LINE_BYTES / combine->size;
    size_t head = (COMBINE_LINE_BYTES - (uintptr_t)out % COMBINE_LINE_BYTES) % COMBINE_LINE_BYTES /
                  combine->size;
    if (head > count)
        head = count;
    const size_t body = (count - head) / line * line;
    const size_t tail = (head + body) * combine->size;
    combine_part(combine, out, 0, head);
    combine_again(combine, out, 0, head);
    combine->lines = true;
    combine_part(combine, out, head * combine->size, body);
    combine->lines = false;
    combine_part(combine, out, tail, count - head - body);
    combine_again(combine, out, tail, count - head - body);
}

static void combine_fence(bool streams)
{
#if defined(__x86_64__)
    if (streams)
        _mm_sfence();
#else
    (void)streams;
#endif
}

static void combine_zero(const struct combine *combine, uint8_t *out, size_t count)
{
    for (size_t left = count * combine->size; left > 0;) {
        const size_t part = left < COMBINE_TILE_BYTES ? left : COMBINE_TILE_BYTES;
        combine->table->copy(out, combine_zeros, part);
        out += part;
        left -= part;
    }
}

static bool combine_is_copy(const struct combine *combine)
{
    return combine->count == 1 && combine->what->dtype != DTYPE_BOOL && !combine->has_zeros &&
           !combine->weighted && !combine->divided && combine->factor == 1.0 &&
           !combine_is_rounded(combine->what);
}

static void combine_copy(const struct kernel_table *table, void *out, const void *in, size_t bytes,
                         bool streams)
{
    if (out != in)
        (streams ? table->stream : table->copy)(out, in, bytes);
}

// Used if no loop stores to both places: each tile goes to the second place, and is copied from
// there to out.
static void combine_twice(const struct combine *combine, uint8_t *out, size_t count)
{
    size_t part = combine_tile(combine->what->dtype);
    for (size_t offset = 0; count > 0; offset += part * combine->size, count -= part) {
        uint8_t *also = combine->also + offset;
        if (part > count)
            part = count;
        if (combine->count == 0)
            combine_zero(combine, also, part);
        else
            combine_part(combine, combine->also, offset, part);
        combine_copy(combine->table, out + offset, also, part * combine->size,
                     combine->what->streams);
    }
}

void kernel_combine_by(const struct kernel_table *table, const struct kernel_combination *what,
                       void *out, size_t count)
{
    struct combine combine;
    assert(kernel_supported(what->dtype, what->op));
    assert(what->count > 0 && what->count <= KERNELS_MAX_SOURCES);
    assert(what->op == REDUCE_MEAN ? what->total > 0 : !what->weights);
    combine.table = table;
    combine.what = what;
    combine_choose(&combine);
    combine_finish_choose(&combine);
    const bool plain = combine.count == 0 || combine_is_copy(&combine);
    combine.also = what->also;
    if (what->also && (plain || !combine_has_lines(&combine)))
        combine_twice(&combine, out, count);
    else if (combine.count == 0)
        combine_zero(&combine, out, count);
    else if (combine_is_copy(&combine))
        combine_copy(table, out, combine.sources[0], count * combine.size, what->streams);
    else if (combine_has_lines(&combine))
        combine_by_lines(&combine, out, count);
    else if (what->streams)
        combine_tiles(&combine, out, 0, count, true);
    else
        combine_part(&combine, out, 0, count);
    combine_fence(what->streams);
}

void kernel_combine(const struct kernel_combination *what, void *out, size_t count)
{
    kernel_combine_by(kernel_chosen(what->dtype), what, out, count);
}

void kernel_copy(void *out, const void *in, size_t bytes, bool streams)
{
    combine_copy(kernel_chosen(DTYPE_FLOAT32), out, in, bytes, streams);
    combine_fence(streams);
}

void kernel_stream(void *out, const void *in, size_t bytes)
{
    combine_copy(kernel_chosen(DTYPE_FLOAT32), out, in, bytes, true);
}

void kernel_stream_end(void)
{
    combine_fence(true);
}
