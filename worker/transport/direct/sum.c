// SPDX-License-Identifier: Apache-2.0
//
// The owner of a piece adds the inputs of all members in the order of members, divides once, and
// rounds once. An input that is not there counts as zeros, explicitly: so the bits of an element do
// not depend on which other elements travel in the same piece. An input travels as it is, with its
// weight beside it, and the owner multiplies; a frame then holds nothing that was rounded, except
// float32 that travels as bfloat16. There the owner rounds its own input, too.
//
// If memory and frames have one dtype, and a kernel takes that many sources, kernel_combine does it
// in one pass. Otherwise the sum is made tile by tile: in float32 where elements have 16 bits, else
// in groups of sources, which gives the same bits as one pass.
//
// Over a tree of leaves (collective.tree), worker/kernels/tree.c adds. Engine thread.

#include "worker/transport/direct/sum.h"

#include "worker/kernels/combine.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/direct/direct.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/reduce.h"

#include <string.h>

#define SUM_TILE 2048 // Elements that are summed at a time.
#define SUM_ELEMENT_MOST 8

bool direct_contributes(const struct flow *flow)
{
    const struct collective *collective = flow->collective;
    return collective->op != REDUCE_MEAN || collective->weight > 0 || collective->input_counts;
}

static bool sum_is_narrow(const struct flow *flow)
{
    return direct_dtype(flow) != flow->collective->dtype;
}

bool direct_is_plain(const struct flow *flow)
{
    return !sum_is_narrow(flow) && !flow->collective->tree;
}

// The input or output of own elements: one run of contiguous memory.
struct sum_run {
    const uint8_t *in; // NULL: zeros.
    uint8_t *out; // NULL: none.
    uint64_t count;
};

// Walks through this rank's memory of a span.
struct sum_walk {
    const struct flow *flow;
    const struct collective_parts *parts; // REDUCE_SCATTER, else NULL.
    struct extent_cursor cursor;
    uint64_t at;
    uint64_t end;
};

static struct sum_walk sum_begin(const struct flow *flow, struct ring_span span)
{
    const struct collective *collective = flow->collective;
    struct sum_walk walk = {.flow = flow, .at = span.first, .end = span.first + span.count};
    if (collective->kind == COLLECTIVE_REDUCE_SCATTER)
        walk.parts = collective->parts;
    else if (span.count > 0)
        walk.cursor = extent_seek(&flow->map, span.first);
    return walk;
}

// Returns the next run of at most `most` elements. The walk is not at its end.
static struct sum_run sum_next(struct sum_walk *walk, uint64_t most)
{
    const uint64_t left = walk->end - walk->at;
    const uint64_t element = dtype_size(walk->flow->collective->dtype);
    struct sum_run run = {.count = left < most ? left : most};
    if (walk->parts) {
        const struct direct_run *state = walk->flow->part;
        const uint8_t *in = state->members[state->own].send->memory;
        run.in = in + walk->at * element;
        run.out = (uint8_t *)walk->parts->receives[0].memory + walk->at * element;
    } else {
        struct extent_cursor outputs = walk->cursor;
        uint8_t *in = NULL;
        run.count = extent_run(&walk->cursor, EXTENT_IN, run.count * element, &in) / element;
        (void)extent_run(&outputs, EXTENT_OUT, run.count * element, &run.out);
        run.in = in;
    }
    walk->at += run.count;
    return run;
}

// Writes this rank's blocks of the tree one behind the other.
static void sum_pack_tree(const struct flow *flow, struct ring_span span, uint8_t *block)
{
    const struct direct_run *run = flow->part;
    const uint64_t element = dtype_size(flow->partial);
    for (uint32_t i = 0; i < run->members[run->own].blocks; i++) {
        memcpy(block, flow->collective->tree->blocks[i] + span.first * element,
               span.count * element);
        block += span.count * element;
    }
}

void direct_pack(const struct flow *flow, struct ring_span span, uint8_t *block)
{
    if (flow->collective->tree) {
        sum_pack_tree(flow, span, block);
        return;
    }
    struct sum_walk walk = sum_begin(flow, span);
    while (walk.at < walk.end) {
        const struct sum_run run = sum_next(&walk, span.count);
        const uint64_t bytes = run.count * dtype_size(direct_dtype(flow));
        if (!run.in)
            memset(block, 0, bytes);
        else
            kernel_narrow(direct_dtype(flow), (void *)block, (const void *)run.in, run.count);
        block += bytes;
    }
}

bool direct_is_in_place(const struct flow *flow, struct ring_span span)
{
    const struct collective *collective = flow->collective;
    const uint64_t bytes = span.count * flow->map.element_bytes;
    if (sum_is_narrow(flow) || bytes == 0)
        return bytes == 0;
    if (collective->kind == COLLECTIVE_REDUCE_SCATTER)
        return true;
    return units_usage(collective->used, direct_units(flow, span)) == USAGE_ALL &&
           extent_backed(extent_seek(&flow->map, span.first), EXTENT_OUT, bytes);
}

// ---- a tile -------------------------------------------------------------------------------------

// The sources of a tile, by member. No source is NULL.
struct sum_tile {
    const uint8_t *sources[LOCKSTEP_MAX_WORLD];
    uint64_t weights[LOCKSTEP_MAX_WORLD]; // What the source is multiplied by.
    uint32_t count;
    uint64_t total;
    uint64_t elements;
};

// For elements of 16 bits: adds in float32 and rounds once.
static void sum_wide(const struct flow *flow, const struct sum_tile *tile, uint8_t *out)
{
    const enum reduce_op op = flow->collective->op;
    const enum dtype dtype = direct_dtype(flow);
    float sum[SUM_TILE];
    float source[SUM_TILE];
    kernel_widen(dtype, sum, (const void *)tile->sources[0], tile->elements);
    if (tile->weights[0] != 1)
        kernel_scale(DTYPE_FLOAT32, sum, sum, tile->weights[0], tile->elements);
    for (uint32_t i = 1; i < tile->count; i++) {
        kernel_widen(dtype, source, (const void *)tile->sources[i], tile->elements);
        if (tile->weights[i] != 1)
            kernel_add_weighted(DTYPE_FLOAT32, sum, source, tile->weights[i], tile->elements);
        else
            kernel_reduce(DTYPE_FLOAT32, op, sum, source, tile->elements);
    }
    if (op == REDUCE_MEAN && tile->total != 1)
        kernel_divide(DTYPE_FLOAT32, sum, sum, tile->total, tile->elements);
    kernel_narrow(dtype, (void *)out, sum, tile->elements);
}

// In one pass, or in groups of as many sources as a kernel takes.
static void sum_same(const struct flow *flow, const struct sum_tile *tile, uint8_t *out)
{
    _Alignas(64) uint8_t sums[2][SUM_TILE * SUM_ELEMENT_MOST];
    const bool mean = flow->collective->op == REDUCE_MEAN;
    uint32_t next = 0;
    for (uint32_t pass = 0; next < tile->count; pass++) {
        const void *sources[KERNELS_MAX_SOURCES];
        uint64_t weights[KERNELS_MAX_SOURCES];
        uint32_t count = 0;
        if (pass > 0) {
            sources[0] = sums[(pass - 1) % 2];
            weights[count++] = 1;
        }
        while (count < KERNELS_MAX_SOURCES && next < tile->count) {
            sources[count] = tile->sources[next];
            weights[count++] = tile->weights[next++];
        }
        const bool last = next == tile->count;
        const struct kernel_combination what = {.dtype = flow->collective->dtype,
                                                .op = flow->collective->op,
                                                .count = count,
                                                .sources = sources,
                                                .weights = mean ? weights : NULL,
                                                .total = mean && last ? tile->total : 1,
                                                .rounded = DTYPE_NONE};
        kernel_combine(&what, last ? out : sums[pass % 2], tile->elements);
    }
}

// ---- a piece ------------------------------------------------------------------------------------

// What each member gives to a piece.
struct sum_piece {
    const struct direct_run *run;
    uint32_t entry; // In the window.
    uint64_t total;
};

// Sets the sources of a tile. offset: elements of the piece before the tile.
static void sum_sources(const struct flow *flow, const struct sum_piece *piece, const uint8_t *own,
                        uint64_t offset, struct sum_tile *tile)
{
    const uint64_t element = dtype_size(direct_dtype(flow));
    const bool mean = direct_is_mean(flow);
    tile->count = piece->run->count;
    tile->total = piece->total;
    for (uint32_t i = 0; i < tile->count; i++) {
        const struct direct_member *member = &piece->run->members[i];
        const uint8_t *source = member->inputs[piece->entry];
        source = i == piece->run->own ? own : source ? source + offset * element : NULL;
        tile->sources[i] = source ? source : extent_zeros;
        tile->weights[i] =
            !mean || !source || member->sums[piece->entry] ? 1 : member->weights[piece->entry];
    }
}

// Returns this rank's own source of a tile. NULL: zeros. narrow: memory for a tile.
static const uint8_t *sum_own(const struct flow *flow, const struct sum_run *run, uint16_t *narrow)
{
    if (!run->in || !direct_contributes(flow))
        return NULL;
    if (!sum_is_narrow(flow))
        return run->in;
    kernel_narrow(direct_dtype(flow), narrow, (const void *)run->in, run->count);
    return (const uint8_t *)narrow;
}

static bool sum_in_one_pass(const struct flow *flow, const struct sum_piece *piece)
{
    return !sum_is_narrow(flow) &&
           (piece->run->count <= KERNELS_MAX_SOURCES || !dtype_is_small(direct_dtype(flow)));
}

// ---- a tree of leaves ---------------------------------------------------------------------------

// Sets the blocks of one member. Their memory begins with the first element of the piece.
static void sum_add_blocks(const struct flow *flow, const struct sum_piece *piece, uint32_t index,
                           struct ring_span span, struct tree_inputs *inputs)
{
    const struct collective_tree *tree = flow->collective->tree;
    const uint64_t element = dtype_size(flow->partial);
    const struct direct_run *run = piece->run;
    const uint8_t *arrived = run->members[index].inputs[piece->entry];
    const struct tree_block own = collective_leaves(tree, run->count, index);
    struct tree_stack stack;
    tree_fill(inputs, own.first);
    tree_blocks(own, &stack);
    for (uint32_t i = 0; i < stack.count; i++) {
        const uint8_t *memory = NULL;
        if (index == run->own && direct_contributes(flow))
            memory = tree->blocks[i] + span.first * element;
        else if (index != run->own && arrived)
            memory = arrived + i * span.count * element;
        inputs->blocks[inputs->count] = stack.blocks[i];
        inputs->memory[inputs->count++] = memory;
    }
}

static void sum_make_tree(const struct flow *flow, const struct sum_piece *piece,
                          struct ring_span span, uint8_t *block)
{
    const struct collective *collective = flow->collective;
    const struct tree_format format = {collective->dtype, flow->partial, flow->final,
                                       collective->exponent};
    struct tree_inputs inputs = {.count = 0};
    struct sum_walk walk = sum_begin(flow, span);
    for (uint32_t i = 0; i < piece->run->count; i++)
        sum_add_blocks(flow, piece, i, span, &inputs);
    tree_fill(&inputs, collective->tree->leaves);
    if (block) {
        tree_sum(&format, &inputs, piece->total, 0, block, span.count);
        return;
    }
    while (walk.at < walk.end) {
        const uint64_t from = walk.at - span.first;
        const struct sum_run run = sum_next(&walk, span.count);
        tree_sum(&format, &inputs, piece->total, from, run.out, run.count);
    }
}

// ---- all inputs of a piece ----------------------------------------------------------------------

// block NULL: the result goes to the outputs.
static void sum_make(const struct flow *flow, const struct sum_piece *piece, struct ring_span span,
                     uint8_t *block)
{
    const uint64_t element = dtype_size(direct_dtype(flow));
    struct sum_walk walk = sum_begin(flow, span);
    struct sum_tile tile;
    while (walk.at < walk.end) {
        uint16_t narrow[SUM_TILE];
        const uint64_t offset = walk.at - span.first;
        const struct sum_run run = sum_next(&walk, SUM_TILE);
        uint8_t *out = block ? block + offset * element : run.out;
        tile.elements = run.count;
        sum_sources(flow, piece, sum_own(flow, &run, narrow), offset, &tile);
        if (sum_in_one_pass(flow, piece))
            sum_same(flow, &tile, out);
        else
            sum_wide(flow, &tile, out);
    }
}

// Sums the weights of a piece, this rank's included.
static uint64_t sum_weights(const struct flow *flow, struct direct_run *run, uint32_t entry)
{
    struct direct_member *own = &run->members[run->own];
    uint64_t total = 0;
    own->weights[entry] = flow->collective->weight;
    own->sums[entry] = flow->collective->input_is_sum;
    for (uint32_t i = 0; i < run->count; i++)
        total += run->members[i].weights[entry];
    return total;
}

static void sum_free(struct flows *flows, struct direct_run *run, uint32_t entry)
{
    for (uint32_t i = 0; i < run->count; i++) {
        if (run->members[i].inputs[entry])
            scratch_put(&flows->pools.chunks, run->members[i].inputs[entry]);
        run->members[i].inputs[entry] = NULL;
    }
}

bool direct_finish(struct flows *flows, struct flow *flow, struct direct_run *run, uint32_t index)
{
    const uint32_t entry = index % run->window;
    const struct ring_span span = direct_span(&run->members[run->own], index);
    struct direct_sum *sum = &run->sums[entry];
    struct sum_piece piece = {.run = run, .entry = entry};
    if (direct_is_mean(flow)) {
        piece.total = sum->weight = flow->collective->weight_total = sum_weights(flow, run, entry);
    }
    sum->empty = (direct_is_mean(flow) && sum->weight == 0) ||
                 units_usage(flow->collective->used, direct_units(flow, span)) == USAGE_NONE;
    if (!sum->empty && span.count > 0) {
        const bool in_place = direct_is_in_place(flow, span);
        if (!in_place && !(sum->block = scratch_get(&flows->pools.chunks)))
            return false;
        (flow->collective->tree ? sum_make_tree : sum_make)(flow, &piece, span, sum->block);
        if (!in_place) {
            reduce_store(flow, span, sum->block);
            flows->totals.bytes_copied += span.count * flow->map.element_bytes;
        }
    }
    sum_free(flows, run, entry);
    return true;
}
