// SPDX-License-Identifier: Apache-2.0
//
// See tree.h. Pure.

#include "worker/kernels/tree.h"

#include "worker/kernels/kernels.h"

#include <assert.h>
#include <string.h>

#define TREE_TILE 512 // Elements that are summed at a time.
#define TREE_ELEMENT_MOST 8

static const uint8_t tree_zeros[TREE_TILE * TREE_ELEMENT_MOST];

// ---- shape --------------------------------------------------------------------------------------

struct tree_block tree_dealt(uint32_t leaves, uint32_t ranks, uint32_t rank)
{
    return (struct tree_block){(uint32_t)((uint64_t)rank * leaves / ranks),
                               (uint32_t)(((uint64_t)rank + 1) * leaves / ranks)};
}

static bool tree_merges(struct tree_block left, struct tree_block right)
{
    const uint32_t size = left.end - left.first;
    return left.end == right.first && right.end - right.first == size &&
           left.first % (2 * size) == 0;
}

uint32_t tree_push(struct tree_stack *stack, struct tree_block block)
{
    uint32_t merges = 0;
    assert(stack->count <= TREE_BLOCKS && block.end > block.first);
    stack->blocks[stack->count++] = block;
    while (stack->count > 1 &&
           tree_merges(stack->blocks[stack->count - 2], stack->blocks[stack->count - 1])) {
        stack->blocks[stack->count - 2].end = stack->blocks[stack->count - 1].end;
        stack->count--;
        merges++;
    }
    return merges;
}

void tree_blocks(struct tree_block run, struct tree_stack *stack)
{
    stack->count = 0;
    for (uint32_t leaf = run.first; leaf < run.end; leaf++)
        (void)tree_push(stack, (struct tree_block){leaf, leaf + 1});
}

uint32_t tree_most_blocks(uint32_t leaves, uint32_t ranks)
{
    struct tree_stack stack;
    uint32_t most = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        tree_blocks(tree_dealt(leaves, ranks, rank), &stack);
        if (stack.count > most)
            most = stack.count;
    }
    return most;
}

// ---- formats ------------------------------------------------------------------------------------

// True if nothing is ever rounded to another format than that of the gradients.
static bool tree_is_plain(const struct tree_format *format)
{
    return format->partial == format->dtype && format->final == format->dtype &&
           format->exponent == 0;
}

static void tree_widen(enum dtype dtype, float *into, const void *from, uint64_t count)
{
    if (dtype == DTYPE_FLOAT32)
        memcpy(into, from, count * sizeof(*into));
    else
        kernel_widen(dtype, into, from, count);
}

static void tree_narrow(enum dtype dtype, void *into, const float *from, uint64_t count)
{
    if (dtype == DTYPE_FLOAT32)
        memcpy(into, from, count * sizeof(*from));
    else
        kernel_narrow(dtype, into, from, count);
}

// ---- a leaf -------------------------------------------------------------------------------------

// tile = weight * in, in the format `partial`.
static void tree_start(const struct tree_leaf *leaf, uint8_t *tile, const void *in, uint64_t count)
{
    const struct tree_format *format = leaf->format;
    float wide[TREE_TILE];
    if (!in) {
        memset(tile, 0, count * dtype_size(format->partial));
    } else if (tree_is_plain(format) && leaf->weight == 1) {
        memcpy(tile, in, count * dtype_size(format->dtype));
    } else if (tree_is_plain(format)) {
        kernel_scale(format->dtype, tile, in, leaf->weight, count);
    } else {
        tree_widen(format->dtype, wide, in, count);
        if (format->exponent != 0)
            kernel_scale_power(DTYPE_FLOAT32, wide, wide, format->exponent, count);
        if (leaf->weight != 1)
            kernel_scale(DTYPE_FLOAT32, wide, wide, leaf->weight, count);
        tree_narrow(format->partial, tile, wide, count);
    }
}

void tree_fold(const struct tree_leaf *leaf, void *in, uint8_t *into, uint64_t count)
{
    const enum dtype partial = leaf->format->partial;
    const uint64_t size = dtype_size(partial);
    const uint64_t size_in = dtype_size(leaf->format->dtype);
    for (uint64_t at = 0; at < count; at += TREE_TILE) {
        _Alignas(64) uint8_t tile[TREE_TILE * TREE_ELEMENT_MOST];
        const uint64_t now = count - at < TREE_TILE ? count - at : TREE_TILE;
        uint8_t *from = in ? (uint8_t *)in + at * size_in : NULL;
        tree_start(leaf, tile, from, now);
        if (from && leaf->clear)
            memset(from, 0, now * size_in);
        for (uint32_t i = leaf->merges; i-- > 0;)
            kernel_reduce(partial, REDUCE_SUM, tile, leaf->blocks[i] + at * size, now);
        memcpy(into + at * size, tile, now * size);
    }
}

// ---- all leaves ---------------------------------------------------------------------------------

// The sums of a tile that have not merged yet. Each lies in an input or in a tile of its own.
struct tree_tiles {
    const uint8_t *values[TREE_BLOCKS + 1]; // NULL: zeros.
    uint8_t *rooms[TREE_BLOCKS + 1];
    uint32_t count;
};

void tree_fill(struct tree_inputs *inputs, uint32_t end)
{
    const uint32_t first = inputs->count == 0 ? 0 : inputs->blocks[inputs->count - 1].end;
    struct tree_stack stack;
    tree_blocks((struct tree_block){first, end}, &stack);
    for (uint32_t i = 0; i < stack.count; i++) {
        inputs->blocks[inputs->count] = stack.blocks[i];
        inputs->memory[inputs->count++] = NULL;
    }
}

// The last two values become their sum. The later one is the first operand, as in tree_fold.
static void tree_merge(struct tree_tiles *tiles, enum dtype partial, uint64_t elements)
{
    const uint32_t left = tiles->count - 2;
    const uint32_t right = tiles->count - 1;
    uint8_t *room = tiles->rooms[right];
    tiles->count--;
    if (!tiles->values[left] && !tiles->values[right])
        return;
    if (tiles->values[right] != room)
        memcpy(room, tiles->values[right] ? tiles->values[right] : tree_zeros,
               elements * dtype_size(partial));
    kernel_reduce(partial, REDUCE_SUM, room, tiles->values[left] ? tiles->values[left] : tree_zeros,
                  elements);
    tiles->rooms[right] = tiles->rooms[left];
    tiles->rooms[left] = room;
    tiles->values[left] = room;
}

// out = root / total, as final bytes.
static void tree_finish(const struct tree_format *format, const uint8_t *root, uint64_t total,
                        uint8_t *out, uint64_t count)
{
    float wide[TREE_TILE];
    if (tree_is_plain(format) && total == 1) {
        memcpy(out, root, count * dtype_size(format->dtype));
        return;
    }
    if (tree_is_plain(format)) {
        kernel_divide(format->dtype, out, root, total, count);
        return;
    }
    tree_widen(format->partial, wide, root, count);
    if (total != 1)
        kernel_divide(DTYPE_FLOAT32, wide, wide, total, count);
    if (format->exponent != 0)
        kernel_scale_power(DTYPE_FLOAT32, wide, wide, -format->exponent, count);
    tree_narrow(format->final, out, wide, count);
}

void tree_sum(const struct tree_format *format, const struct tree_inputs *inputs, uint64_t total,
              uint64_t from, void *out, uint64_t count)
{
    _Alignas(64) uint8_t rooms[TREE_BLOCKS + 1][TREE_TILE * TREE_ELEMENT_MOST];
    const uint64_t size = dtype_size(format->partial);
    struct tree_tiles tiles;
    for (uint32_t i = 0; i <= TREE_BLOCKS; i++)
        tiles.rooms[i] = rooms[i];
    for (uint64_t at = 0; at < count; at += TREE_TILE) {
        const uint64_t now = count - at < TREE_TILE ? count - at : TREE_TILE;
        struct tree_stack stack = {.count = 0};
        tiles.count = 0;
        for (uint32_t i = 0; i < inputs->count; i++) {
            const uint8_t *memory = inputs->memory[i];
            tiles.values[tiles.count++] = memory ? memory + (from + at) * size : NULL;
            for (uint32_t m = tree_push(&stack, inputs->blocks[i]); m > 0; m--)
                tree_merge(&tiles, format->partial, now);
        }
        while (tiles.count > 1)
            tree_merge(&tiles, format->partial, now);
        tree_finish(format, tiles.values[0] ? tiles.values[0] : tree_zeros, total,
                    (uint8_t *)out + at * dtype_size(format->final), now);
    }
}
