// SPDX-License-Identifier: Apache-2.0
//
// Sums over a fixed tree of leaves (config.virtual_ranks): the shape of the tree, the leaves of a
// rank, and the arithmetic. Pure; any thread. The caller's thread has kernels_environment.
//
// Words. The tree has `leaves` leaves, numbered from 0. A *block* is a run of leaves that the tree
// sums before it adds anything else. A block of one leaf is the leaf. Two adjacent blocks of the
// same size s merge into one block if the first leaf of the left block is a multiple of 2s. Blocks
// that are left over when all leaves are there merge from the last to the first. So the shape
// follows from the number of leaves alone: with 6 leaves it is ((0 1) (2 3)) (4 5).
//
// Why the bits do not depend on the number of ranks. A rank has a run of leaves, and merges them
// as far as the rule above allows without other leaves: what it gets are blocks of the tree. The
// owner of an element pushes the blocks of all ranks in the order of leaves and merges by the same
// rule. Each merge has the same two operands, whichever rank does it, and is rounded by the same
// function.
//
// A leaf that contributes nothing counts as +0, in every merge. Each leaf and each merge is rounded
// to the format `partial`; the quotient is rounded to the format `final`.

#ifndef WORKER_KERNELS_TREE_H
#define WORKER_KERNELS_TREE_H

#include "protos/limits.h"
#include "worker/kernels/dtype.h"

#include <stdint.h>

// Blocks of one rank at most: in the longest run that begins and ends odd, 1, 2, 4, 8, 16 leaves on
// either side of the middle.
#define TREE_BLOCKS 10
static_assert(LOCKSTEP_MAX_LEAVES <= 64, "TREE_BLOCKS is for so many leaves");

struct tree_block {
    uint32_t first;
    uint32_t end; // The leaf after the last one.
};

// Blocks that could not merge yet, from the first leaf to the last.
struct tree_stack {
    struct tree_block blocks[TREE_BLOCKS + 1];
    uint32_t count;
};

// Returns the leaves of a rank: floor(rank leaves / ranks) up to floor((rank + 1) leaves / ranks).
// With ranks <= leaves each rank has at least one.
struct tree_block tree_dealt(uint32_t leaves, uint32_t ranks, uint32_t rank);
// Pushes the next block, and merges as often as the rule allows: returns how often.
uint32_t tree_push(struct tree_stack *stack, struct tree_block block);
// Sets *stack to the blocks into which a run of leaves merges without other leaves.
void tree_blocks(struct tree_block run, struct tree_stack *stack);
// Returns the most blocks that any rank has.
uint32_t tree_most_blocks(uint32_t leaves, uint32_t ranks);

// ---- arithmetic ---------------------------------------------------------------------------------

struct tree_format {
    enum dtype dtype; // Of gradients.
    enum dtype partial; // Of blocks.
    enum dtype final; // Of final bytes.
    int exponent; // Leaves are multiplied by 2^exponent, and quotients by 2^-exponent.
};

// The blocks of all ranks, in the order of leaves. NULL: zeros.
struct tree_inputs {
    uint32_t count;
    struct tree_block blocks[LOCKSTEP_MAX_LEAVES];
    const uint8_t *memory[LOCKSTEP_MAX_LEAVES]; // Elements of the format `partial`.
};

// Adds zeros for the leaves before `end` that no block has: those of a rank that is lost.
void tree_fill(struct tree_inputs *inputs, uint32_t end);

// into = the leaf weight * in, merged with `merges` blocks: blocks[0] is the one that merges last,
// blocks[merges - 1] first. in NULL: the leaf is +0. into may be blocks[0]. clear: memory of `in`
// becomes +0 after it was read.
struct tree_leaf {
    const struct tree_format *format;
    uint64_t weight; // 1: nothing is multiplied.
    uint8_t *const *blocks;
    uint32_t merges;
    bool clear;
};
void tree_fold(const struct tree_leaf *leaf, void *in, uint8_t *into, uint64_t count);

// out[count] = the sum of all blocks, divided by total, as final bytes. from: the elements before
// out[0] in the memory of each block. total > 0.
void tree_sum(const struct tree_format *format, const struct tree_inputs *inputs, uint64_t total,
              uint64_t from, void *out, uint64_t count);

#endif
