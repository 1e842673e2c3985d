// SPDX-License-Identifier: Apache-2.0
//
// Leaves. With config.virtual_ranks a job has a fixed number of leaves, which are dealt to its
// ranks. A rank makes one step of a window for each of its leaves. worker/kernels/tree.h has the
// tree, and why the number of ranks does not show in the bits.
//
// A leaf is to its rank what a rank is to the job otherwise: it has a weight of its own, and if it
// does not call a module it has no weight there. A gradient that a leaf has not reported is +0.
//
// For each module there are rooms, each as large as the gradients in the format that travels. The
// blocks that have not merged yet lie in the first rooms, in the order of leaves. When a leaf ends,
// its gradients merge with the last blocks as far as the tree allows, in one pass over memory, and
// their own memory becomes zero, so that the next backward pass may add to it. The last leaf of a
// window is added when its bucket is launched: then each block of the bucket is one contiguous run
// of a room, and the transport sends it from there.
//
// A room has the elements bucket by bucket, in the order of the layout. The layout does not change
// inside a window.

#include "worker/session/module/leaves.h"

#include "worker/kernels/kernels.h"
#include "worker/session/module/contribution.h"
#include "worker/session/session.h"
#include "worker/support/error.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/reduce.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEAVES_ALIGN 64 // Every bucket begins at such a multiple.
#define LEAVES_PAGE 4096

// ---- The leaves of a rank -----------------------------------------------------------------------

struct tree_block leaves_of(struct lockstep_session *session, uint32_t *total)
{
    struct tree_block own;
    mutex_lock(&session->mutex);
    const uint32_t rank = session->world.rank;
    *total = session->config.virtual_ranks;
    if (*total > 0) {
        own = session->world.deal.ranks[rank];
    } else {
        *total = session->world.size;
        own = (struct tree_block){rank, rank + 1};
    }
    mutex_unlock(&session->mutex);
    return own;
}

int leaves_check(struct lockstep_session *session, uint64_t weight, bool accumulates)
{
    uint32_t total;
    const struct tree_block own = leaves_of(session, &total);
    const uint32_t before = session->step.window_open ? session->step.leaf : 0;
    const uint64_t heavy = session->step.window_open ? session->step.leaf_weight : 0;
    if (session->config.virtual_ranks == 0)
        return 0;
    if (accumulates != (before + 1 < own.end - own.first))
        return error_set(LOCKSTEP_E_INVALID,
                         "this rank has leaves %" PRIu32 " to %" PRIu32 " of %" PRIu32
                         ", each of which is a step: leaf %" PRIu32 " is %s, so accumulate is %d",
                         own.first, own.end - 1, total, own.first + before,
                         accumulates ? "the last" : "not the last", accumulates ? 0 : 1);
    if (weight > LOCKSTEP_MAX_WEIGHT - heavy)
        return error_set(LOCKSTEP_E_INVALID,
                         "the leaves of a rank have a weight of at most %llu together, which is "
                         "2^%d; those before this one have %" PRIu64 ", and it has %" PRIu64,
                         LOCKSTEP_MAX_WEIGHT, LOCKSTEP_MAX_WEIGHT_BITS, heavy, weight);
    return 0;
}

// ---- Rooms --------------------------------------------------------------------------------------

static struct tree_format leaves_format(const struct lockstep_module *module, enum dtype dtype)
{
    struct collective like = {.dtype = dtype};
    contribution_wire(module, &like);
    return (struct tree_format){dtype, flow_partial(&like), flow_final_dtype(&like), like.exponent};
}

static size_t leaves_round(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static int leaves_open(struct lockstep_module *module)
{
    const uint32_t buckets = contribution_bucket_room(module);
    struct leaves *leaves = calloc(1, sizeof(*leaves));
    if (!leaves)
        return -1;
    module->leaves = leaves;
    leaves->room_count = deal_rooms(&module->session->world.deal);
    leaves->trees = calloc(buckets, sizeof(*leaves->trees));
    leaves->folded = calloc(buckets, sizeof(*leaves->folded));
    leaves->offsets = calloc(buckets, sizeof(*leaves->offsets));
    leaves->room_bytes = (size_t)buckets * LEAVES_ALIGN;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        const enum dtype dtype = module->shapes[p].dtype;
        if (dtype_is_float(dtype))
            leaves->room_bytes +=
                module->shapes[p].elements * dtype_size(leaves_format(module, dtype).partial);
    }
    leaves->room_bytes = leaves_round(leaves->room_bytes, LEAVES_PAGE);
    void *memory = mmap(NULL, leaves->room_count * leaves->room_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    leaves->memory = memory == MAP_FAILED ? NULL : memory;
    return leaves->memory && leaves->trees && leaves->folded && leaves->offsets ? 0 : -1;
}

int leaves_start(struct lockstep_session *session)
{
    if (session->config.virtual_ranks == 0)
        return 0;
    for (uint32_t m = 0; m < session->module_count; m++) {
        struct lockstep_module *module = session->modules[m];
        if (module->leaves || leaves_open(module) == 0)
            continue;
        leaves_free(module->leaves);
        module->leaves = NULL;
        return error_set(LOCKSTEP_E_SYSTEM,
                         "no memory for the sums of module '%s' over the leaves of this rank",
                         module->name);
    }
    return 0;
}

void leaves_free(struct leaves *leaves)
{
    if (!leaves)
        return;
    if (leaves->memory)
        munmap(leaves->memory, leaves->room_count * leaves->room_bytes);
    free(leaves->trees);
    free(leaves->folded);
    free(leaves->offsets);
    free(leaves);
}

static uint8_t *leaves_room(const struct leaves *leaves, uint32_t room, size_t offset)
{
    return leaves->memory + room * leaves->room_bytes + offset;
}

// ---- A window -----------------------------------------------------------------------------------

static void leaves_place(const struct lockstep_module *module)
{
    struct leaves *leaves = module->leaves;
    size_t at = 0;
    for (uint32_t b = 0; b < module->layout.bucket_count; b++) {
        const struct bucket *bucket = &module->layout.buckets[b];
        const size_t size = dtype_size(leaves_format(module, bucket->dtype).partial);
        leaves->offsets[b] = at;
        leaves->folded[b] = false;
        at = leaves_round(at + bucket->elements * size, LEAVES_ALIGN);
    }
    leaves->used_bytes = at;
}

void leaves_window_begin(struct lockstep_session *session)
{
    uint32_t total;
    session->step.leaves = leaves_of(session, &total);
    session->step.leaf = 0;
    session->step.leaf_weight = 0;
    for (uint32_t m = 0; m < session->module_count; m++) {
        struct leaves *leaves = session->modules[m]->leaves;
        leaves->stack.count = 0;
        leaves->weight = 0;
        leaves->touched = false;
        atomic_store_explicit(&leaves->called, false, memory_order_relaxed);
        leaves_place(session->modules[m]);
    }
}

void leaves_called(struct lockstep_module *module)
{
    atomic_store_explicit(&module->leaves->called, true, memory_order_relaxed);
    for (uint32_t p = 0; module->shared_count > 0 && p < module->parameter_count; p++)
        atomic_store_explicit(&module->homes[p].module->leaves->called, true, memory_order_relaxed);
}

static bool leaves_is_called(const struct lockstep_module *module)
{
    return atomic_load_explicit(&module->leaves->called, memory_order_relaxed);
}

// ---- A leaf -------------------------------------------------------------------------------------

// A leaf that is about to be added.
struct leaf {
    struct tree_block block;
    bool contributes;
    bool clears; // True if the memory of its gradients becomes zero.
    // Set by leaves_push.
    uint32_t before; // Blocks of earlier leaves.
    uint32_t merges;
    uint32_t into; // The room of the merged block.
};

static struct leaf leaves_next(const struct lockstep_module *module)
{
    const struct lockstep_session *session = module->session;
    const uint32_t number = session->step.leaves.first + session->step.leaf;
    return (struct leaf){.block = {number, number + 1},
                         .contributes = leaves_is_called(module) && session->step.weight > 0};
}

static void leaves_push(struct leaf *leaf, struct tree_stack *stack)
{
    leaf->before = stack->count;
    leaf->merges = tree_push(stack, leaf->block);
    leaf->into = stack->count - 1;
}

// Adds the leaf to a bucket.
static void leaves_fold(const struct contribution *contribution, uint32_t b,
                        const struct leaf *leaf)
{
    const struct lockstep_module *module = contribution->module;
    const struct leaves *leaves = module->leaves;
    const struct bucket *bucket = &module->layout.buckets[b];
    const struct tree_format format = leaves_format(module, bucket->dtype);
    uint8_t *blocks[TREE_BLOCKS];
    size_t at = leaves->offsets[b];
    const struct tree_leaf fold = {
        .format = &format,
        .weight = module->gradient_kind == LOCKSTEP_GRADIENT_SUM ? 1 : module->session->step.weight,
        .blocks = blocks,
        .merges = leaf->merges,
        .clear = leaf->clears};
    for (uint32_t i = 0; i < bucket->count; i++) {
        const uint32_t p = module->layout.order[bucket->first + i];
        struct gradient *gradient = &contribution->gradients[p];
        const uint64_t elements = module->shapes[p].elements;
        const bool used = atomic_load_explicit(&gradient->report.used, memory_order_relaxed);
        void *memory = used ? atomic_load_explicit(&gradient->memory, memory_order_relaxed) : NULL;
        for (uint32_t m = 0; m < leaf->merges; m++)
            blocks[m] = leaves_room(leaves, leaf->into + m, at);
        tree_fold(&fold, leaf->contributes ? memory : NULL, leaves_room(leaves, leaf->into, at),
                  elements);
        if (memory && leaf->clears && !leaf->contributes)
            memset(memory, 0, elements * dtype_size(bucket->dtype));
        at += elements * dtype_size(format.partial);
    }
}

// The end of a leaf forgets which gradients it has reported.
static void leaves_forget_reports(const struct contribution *contribution)
{
    for (uint32_t p = 0; p < contribution->module->parameter_count; p++)
        atomic_store_explicit(&contribution->gradients[p].report.used, false, memory_order_relaxed);
}

static void leaves_close_module(struct lockstep_module *module)
{
    struct leaves *leaves = module->leaves;
    struct contribution *contribution = &module->contributions[0];
    struct leaf leaf = leaves_next(module);
    const bool called = leaves_is_called(module);
    leaf.clears = true;
    leaves_push(&leaf, &leaves->stack);
    atomic_store_explicit(&leaves->called, false, memory_order_relaxed);
    if (!leaves->touched && !called)
        return;
    for (uint32_t room = 0; !leaves->touched && room < leaf.before; room++)
        memset(leaves_room(leaves, room, 0), 0, leaves->used_bytes);
    leaves->touched = true;
    for (uint32_t b = 0; b < module->layout.bucket_count; b++)
        leaves_fold(contribution, b, &leaf);
    leaves_forget_reports(contribution);
    leaves->weight += leaf.contributes ? module->session->step.weight : 0;
}

void leaves_close(struct lockstep_session *session)
{
    struct kernels_before before;
    kernels_enter(&before);
    for (uint32_t m = 0; m < session->module_count; m++)
        leaves_close_module(session->modules[m]);
    kernels_leave(&before);
    session->step.leaf++;
    session->step.leaf_weight += session->step.weight;
}

// ---- The last leaf ------------------------------------------------------------------------------

uint64_t leaves_weight(const struct lockstep_module *module)
{
    return module->leaves->weight + (leaves_is_called(module) ? module->session->step.weight : 0);
}

// bytes: of the bucket in a room.
static void leaves_add_last(const struct contribution *contribution, uint32_t bucket, size_t bytes,
                            const struct leaf *leaf)
{
    struct leaves *leaves = contribution->module->leaves;
    if (leaves->folded[bucket])
        return;
    leaves->folded[bucket] = true;
    for (uint32_t room = 0; !leaves->touched && room < leaf->before; room++)
        memset(leaves_room(leaves, room, leaves->offsets[bucket]), 0, bytes);
    leaves_fold(contribution, bucket, leaf);
}

void leaves_launch(const struct contribution *contribution, uint32_t bucket, bool zero,
                   struct collective *collective)
{
    const struct lockstep_module *module = contribution->module;
    const struct leaves *leaves = module->leaves;
    struct collective_tree *tree = &leaves->trees[bucket];
    struct tree_stack stack = leaves->stack;
    struct leaf leaf = leaves_next(module);
    leaves_push(&leaf, &stack);
    collective->tree = tree;
    collective->weight = zero ? 0 : leaves_weight(module);
    collective->input_is_sum = true;
    tree->leaves = module->session->config.virtual_ranks;
    tree->dealt = module->session->world.deal.ranks;
    if (collective->weight == 0)
        return;
    const size_t bytes = collective->elements * dtype_size(flow_partial(collective));
    leaves_add_last(contribution, bucket, bytes, &leaf);
    for (uint32_t i = 0; i < stack.count; i++)
        tree->blocks[i] = leaves_room(leaves, i, leaves->offsets[bucket]);
}

void leaves_settle(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    struct kernels_before before;
    kernels_enter(&before);
    for (uint32_t b = 0; b < module->layout.bucket_count; b++) {
        struct collective *collective;
        if (atomic_load(&contribution->runs[b].missing) > 0)
            continue;
        collective = contribution_collective(contribution, b, ALGORITHM_DIRECT, false, false);
        if (collective->weight == 0)
            continue;
        reduce_local_tree(collective);
        collective->weight_total = collective->weight;
        contribution_collective_done(contribution, collective);
    }
    kernels_leave(&before);
}
