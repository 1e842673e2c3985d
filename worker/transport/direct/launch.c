// SPDX-License-Identifier: Apache-2.0
//
// The launch of a flow: its members, and how many pieces go from this rank to each of them and from
// each of them to this rank. Engine thread.

#include "worker/transport/direct/launch.h"

#include "worker/kernels/dtype.h"
#include "worker/transport/direct/ahead.h"
#include "worker/transport/direct/direct.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/peers.h"
#include "worker/transport/flow/window.h"

#include <assert.h>
#include <string.h>

#define LAUNCH_KEEP_BYTES (32 * 1024) // Longer own parts are copied after frames have left.

// Sets the blocks of each member and the size of the largest input.
static void launch_blocks(const struct flow *flow, struct direct_run *run, uint32_t count)
{
    const struct collective_tree *tree = flow->collective->tree;
    uint32_t most = 1;
    for (uint32_t i = 0; i < count; i++) {
        struct tree_stack stack = {.count = 1};
        if (tree)
            tree_blocks(collective_leaves(tree, count, i), &stack);
        run->members[i].blocks = stack.count;
        most = stack.count > most ? stack.count : most;
    }
    run->element_bytes = most * (uint32_t)dtype_size(direct_input_dtype(flow));
}

// Adds a member that is not this rank. False: there can be no link to it.
static bool launch_link(struct flows *flows, struct direct_member *member, uint32_t rank)
{
    if (rank == flows->world.rank)
        return true;
    member->peer = peer_want(flows, rank);
    return member->peer != NULL;
}

static void launch_count(struct flow *flow, const struct direct_member *member)
{
    flow->sends_left += (uint64_t)member->inputs_out.count + member->finals_out.count;
    flow->receives_left += (uint64_t)member->inputs_in.count + member->finals_in.count;
}

// ---- reductions ---------------------------------------------------------------------------------

static uint32_t launch_members(const struct flows *flows, const struct collective *collective)
{
    return collective->parts ? collective->parts->send_count : flows->world.world_size;
}

// Sets what a member owns. In a reduction of nothing the first member owns one piece of no
// elements, so that every member hears of every other.
static uint32_t launch_own(const struct flows *flows, struct flow *flow, struct direct_run *run,
                           uint32_t index, bool nothing)
{
    const struct collective *collective = flow->collective;
    struct direct_member *member = &run->members[index];
    member->owned = collective->kind == COLLECTIVE_REDUCE_SCATTER
                        ? (struct ring_span){0, member->send->elements}
                        : direct_owned(collective->elements, run->count, index);
    member->piece =
        direct_piece_of_sum(member->owned.count, run->element_bytes, flows->world.chunk_bytes);
    return nothing && index == 0 ? 1 : direct_pieces(member->owned.count, member->piece);
}

static bool launch_is_nothing(const struct flow *flow, const struct direct_run *run)
{
    if (flow->collective->kind == COLLECTIVE_ALLREDUCE)
        return flow->collective->elements == 0;
    for (uint32_t i = 0; i < run->count; i++)
        if (run->members[i].send->elements > 0)
            return false;
    return true;
}

static void launch_rows(struct flow *flow, const struct direct_run *run,
                        struct direct_member *member, uint32_t pieces, uint32_t own_pieces)
{
    const struct direct_member *own = &run->members[run->own];
    member->inputs_out.count = pieces;
    member->inputs_in.count = own_pieces;
    member->finals_out.count = direct_gathers(flow) ? own_pieces : 0;
    member->finals_in.count = direct_gathers(flow) ? pieces : 0;
    member->finals_out.granted = member->finals_out.count;
    member->finals_in.granted = member->finals_in.count;
    if (pieces <= 1 && direct_is_eager(flow, member->owned.count))
        member->inputs_out.granted = pieces;
    if (own_pieces <= 1 && direct_is_eager(flow, own->owned.count))
        member->inputs_in.granted = own_pieces;
    member->announced = true;
    launch_count(flow, member);
}

static bool launch_reduction(struct flows *flows, struct flow *flow, struct direct_run *run)
{
    const struct collective_parts *parts = flow->collective->parts;
    uint32_t pieces[2] = {0, 0};
    for (uint32_t i = 0; i < run->count; i++) {
        const uint32_t rank = parts ? parts->sends[i].rank : i;
        run->members[i].send = parts ? &parts->sends[i] : NULL;
        if (rank == flows->world.rank)
            run->own = i;
        if (!launch_link(flows, &run->members[i], rank))
            return false;
    }
    assert(run->own != DIRECT_NO_MEMBER);
    const bool nothing = launch_is_nothing(flow, run);
    pieces[0] = launch_own(flows, flow, run, run->own, nothing);
    run->window = flow_window(run->count, flows->world.chunk_bytes);
    if (run->window > DIRECT_WINDOW)
        run->window = DIRECT_WINDOW;
    for (uint32_t i = 0; i < run->count; i++) {
        pieces[1] = launch_own(flows, flow, run, i, nothing);
        if (i != run->own)
            launch_rows(flow, run, &run->members[i], pieces[1], pieces[0]);
    }
    run->members[run->own].inputs_in.count = pieces[0];
    flow->receives_left += pieces[0]; // One for each sum.
    return true;
}

// ---- exchanges ----------------------------------------------------------------------------------

// Returns the member of a rank, and adds it if there is none. `guess` is looked at first.
static struct direct_member *launch_find(struct flows *flows, struct direct_run *run, uint32_t rank,
                                         uint32_t guess)
{
    if (guess < run->count && run->members[guess].peer && run->members[guess].peer->rank == rank)
        return &run->members[guess];
    for (uint32_t i = 0; i < run->count; i++)
        if (run->members[i].peer->rank == rank)
            return &run->members[i];
    struct direct_member *member = &run->members[run->count];
    if (!launch_link(flows, member, rank))
        return NULL;
    run->count++;
    return member;
}

// Copies this rank's own part if it is short. Otherwise it is copied when nothing else is to be
// done.
static void launch_keep(struct flows *flows, struct flow *flow, struct direct_run *run,
                        const struct collective_part *from, const struct collective_part *to)
{
    if (from->elements == 0 || from->memory == to->memory)
        return;
    run->kept_from = from;
    run->kept_to = to;
    if (from->elements * dtype_size(flow->collective->dtype) > LAUNCH_KEEP_BYTES ||
        !direct_copy_own(flows, flow, run))
        flow->receives_left++;
}

static uint32_t launch_moves(const struct direct_member *member, uint64_t elements)
{
    const uint32_t pieces = direct_pieces(elements, member->piece);
    return pieces == 0 ? 1 : pieces; // A part of no elements is one frame.
}

static bool launch_exchange(struct flows *flows, struct flow *flow, struct direct_run *run)
{
    const struct collective_parts *parts = flow->collective->parts;
    const struct collective_part *own = NULL;
    for (uint32_t i = 0; i < parts->send_count; i++) {
        struct direct_member *member = NULL;
        if (parts->sends[i].rank == flows->world.rank) {
            own = &parts->sends[i];
            continue;
        }
        if (!(member = launch_find(flows, run, parts->sends[i].rank, i)))
            return false;
        member->send = &parts->sends[i];
    }
    for (uint32_t i = 0; i < parts->receive_count; i++) {
        struct direct_member *member = NULL;
        if (parts->receives[i].rank == flows->world.rank) {
            launch_keep(flows, flow, run, own, &parts->receives[i]);
            continue;
        }
        if (!(member = launch_find(flows, run, parts->receives[i].rank, i)))
            return false;
        member->receive = &parts->receives[i];
    }
    for (uint32_t i = 0; i < run->count; i++) {
        struct direct_member *member = &run->members[i];
        member->piece = direct_piece_of_move(run->element_bytes, flows->world.chunk_bytes);
        if (member->send)
            member->finals_out.count = launch_moves(member, member->send->elements);
        if (member->receive)
            member->finals_in.count = launch_moves(member, member->receive->elements);
        if (member->send && direct_is_eager(flow, member->send->elements))
            member->finals_out.granted = member->finals_out.count;
        if (member->receive && direct_is_eager(flow, member->receive->elements))
            member->finals_in.granted = member->finals_in.count;
        member->announced = !member->send;
        ahead_launch(flow, member);
        launch_count(flow, member);
    }
    return true;
}

void direct_launch(struct flows *flows, struct flow *flow)
{
    struct direct_run *run = scratch_get(&flows->pools.parts);
    if (!run) {
        peer_lose(flows->ring.successor, peer_no_memory);
        return;
    }
    const uint32_t most = launch_members(flows, flow->collective);
    memset(run, 0, sizeof(*run));
    run->own = DIRECT_NO_MEMBER;
    flow->part = run;
    if (!direct_is_exchange(flow)) {
        run->count = most;
        memset(run->members, 0, most * sizeof(run->members[0]));
    } else {
        memset(run->members, 0, flows->world.world_size * sizeof(run->members[0]));
    }
    launch_blocks(flow, run, run->count);
    if (!(direct_is_exchange(flow) ? launch_exchange : launch_reduction)(flows, flow, run))
        return; // The loss is recorded.
    flows->directs++;
    flow_meet_others(flows, flow);
    if (flow->part) // Parked frames may have ended the flow.
        direct_advance(flows, flow);
}
