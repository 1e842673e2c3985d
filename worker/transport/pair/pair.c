// SPDX-License-Identifier: Apache-2.0
//
// Allreduces by recursive doubling and halving. This file decides when a frame may be sent, where
// an arriving frame goes, and what it triggers. The schedule is in schedule.c, the arithmetic in
// sum.c, the value of a stripe in value.c, the bytes of a frame in worker/link/stream.c. Engine
// thread.
//
// Words: stripe and move as in schedule.h. Each stripe makes the moves of this rank in order,
// independently of other stripes. A move is *over* when the frame of its peer has arrived and, if
// this rank sends partial sums, the link has taken them, because the next move changes their
// memory. A peer may be several moves ahead, so arriving frames wait in the stripe, one block of
// scratch per move. A stripe is *complete* when all moves are over and the link has taken all
// frames; `base` is the lowest stripe that is not complete, and [base, base + window) are *open*.
//
// A result may be received into user memory only after this rank no longer needs the input there. A
// peer can have a result only after this rank has sent its input for it: pair_given says in which
// move. A result that arrives before that move is over is impossible, and its sender is lost.
//
// Credit is as in worker/transport/ring/ring.c, but for each peer: a rank sends frames of a stripe
// only to peers that have it open. The lowest stripe that is not complete on some rank is open on
// all ranks, its frames wait only for one another in the order of rounds, and receivers never stop
// reading: so it completes. A rank holds at most a window of stripes, each with one block per
// round.
//
// Units: as in worker/transport/ring/ring.c. A frame carries the used bits of the units that its
// elements meet, as far as its sender knows them. If no bit is set, the frame has no payload and
// stands for zeros, or for no result.

#include "worker/transport/pair/pair.h"

#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/park.h"
#include "worker/transport/flow/reduce.h"
#include "worker/transport/pair/finals.h"
#include "worker/transport/pair/value.h"

#include "base/clock.h"
#include "worker/kernels/kernels.h"

#include <assert.h>
#include <string.h>

static_assert(PAIR_MAX_MOVES <= 32, "a bit for each move");

static void pair_advance(struct flows *flows, struct flow *flow, uint64_t index);

// ---- sending ------------------------------------------------------------------------------------

// Sets the source of the payload of a move's frame.
static void pair_source(const struct flow *flow, const struct pair_run *run, uint64_t index,
                        struct out_frame *frame)
{
    const struct pair_stripe *stripe = &run->stripes[index % run->pair.window];
    const struct ring_span span = pair_sent_span(&run->pair, index, stripe->move);
    const struct ring_span held = pair_held(run, index, stripe->move);
    const uint64_t before = (span.first - held.first) * dtype_size(flow->partial);
    frame->source = SOURCE_BUFFER;
    if (stripe->value == VALUE_RESULT && run->pair.halves && stripe->direct)
        frame->source = SOURCE_OUT;
    else if (stripe->value == VALUE_RESULT && run->pair.halves)
        frame->buffer = pair_result_at(flow, run, index, span);
    else if (stripe->value == VALUE_RESULT)
        frame->buffer = stripe->sum;
    else if (stripe->value == VALUE_INPUT)
        frame->source = SOURCE_IN;
    else
        frame->buffer = stripe->sum + before;
    if (frame->source != SOURCE_BUFFER)
        frame->cursor = extent_seek(&flow->map, span.first);
}

// Queues the frame of the stripe's present move. False: no memory.
static bool pair_send(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index)
{
    struct pair_stripe *stripe = pair_stripe_of(run, index);
    const struct pair_turn *turn = &run->turns[stripe->move];
    const struct ring_span span = pair_sent_span(&run->pair, index, stripe->move);
    const struct unit_range units = pair_units(flow, span);
    if (!turn->move.final &&
        !pair_value_ready(flows, flow, stripe, pair_held(run, index, stripe->move)))
        return false;
    struct frame_header header = flow_header(flows, flow, FRAME_PAIR);
    header.dtype = pair_dtype(flow, &turn->move);
    header.used_bytes = units_bytes(units.count);
    header.part = turn->move.round;
    header.chunk = flows->world.rank;
    header.credit = (uint32_t)index;
    header.weight = stripe->weight;
    if (turn->move.final ? pair_results(flow, span, stripe->weight)
                         : units_usage(flow->collective->used, units) != USAGE_NONE)
        header.payload_bytes = (uint32_t)(span.count * dtype_size(header.dtype));
    struct out_frame *frame = flows_frame(flows, &header);
    if (!frame)
        return false;
    units_pack(flow->collective->used, units, frame->head + LOCKSTEP_FRAME_HEADER_BYTES);
    frame->urgent = false;
    frame->flow = flow;
    frame->stripe = index * PAIR_MAX_MOVES + stripe->move;
    if (header.payload_bytes > 0)
        pair_source(flow, run, index, frame);
    stripe->queued = true;
    flows->pairs_queued = true;
    stream_queue(&turn->peer->stream, frame);
    return true;
}

static bool pair_feed(struct flows *flows)
{
    const bool queued = flows->pairs_queued;
    flows->pairs_queued = false;
    return queued;
}

static void pair_grant_to(struct flows *flows, struct flow *flow, const struct pair_run *run,
                          struct peer_link *peer)
{
    struct frame_header header = flow_header(flows, flow, FRAME_CREDIT);
    header.part = FRAME_CREDIT_PAIR;
    header.credit = (uint32_t)run->opened;
    struct out_frame *frame = flows_frame(flows, &header);
    if (!frame) {
        peer_lose(peer, peer_no_memory);
        return;
    }
    flows->pairs_queued = true;
    stream_queue(&peer->stream, frame);
}

// Sends the peers a credit with `opened`: at the launch, then each time half a window has opened.
static void pair_grant(struct flows *flows, struct flow *flow, struct pair_run *run)
{
    const uint64_t news = run->opened - run->credited;
    uint32_t told = 0;
    if (run->pair.eager || news == 0)
        return;
    if (run->credited > 0 && news < run->pair.window / 2 && run->opened < run->pair.stripes)
        return;
    run->credited = run->opened;
    for (uint32_t i = 0; i < run->moves; i++) {
        const uint32_t bit = 1u << pair_index(run->turns[i].peer);
        if (run->turns[i].move.receives && !(told & bit))
            pair_grant_to(flows, flow, run, run->turns[i].peer);
        if (run->turns[i].move.receives)
            told |= bit;
    }
}

// ---- stripes ------------------------------------------------------------------------------------

static bool pair_is_complete(const struct pair_run *run, const struct pair_stripe *stripe)
{
    return stripe->move == run->moves && stripe->taken == run->sends;
}

static void pair_open(struct flows *flows, struct flow *flow, struct pair_run *run)
{
    const uint64_t end = run->base + run->pair.window;
    const uint64_t limit = end < run->pair.stripes ? end : run->pair.stripes;
    for (; run->opened < limit; run->opened++)
        pair_value_init(flow, pair_stripe_of(run, run->opened),
                        pair_stripe(&run->pair, run->opened));
    pair_grant(flows, flow, run);
}

static void pair_close(struct flows *flows, struct pair_stripe *stripe)
{
    pair_put(flows, stripe->block);
    pair_put(flows, stripe->results);
    stripe->block = stripe->sum = stripe->results = NULL;
}

static void pair_end_run(struct flows *flows, struct flow *flow)
{
    flow->collective->last_received_us = clock_now_us();
    scratch_put(&flows->pools.parts, flow->part);
    flow->part = NULL;
    flow->receives_left = flow->sends_left = 0;
    list_remove(&flow->turn);
    list_push_back(&flows->done, &flow->turn);
}

// Called when the stripe at `base` is complete: closes complete stripes and opens the next ones.
static void pair_completed(struct flows *flows, struct flow *flow, struct pair_run *run)
{
    const uint64_t before = run->opened;
    while (run->base < run->opened && pair_is_complete(run, pair_stripe_of(run, run->base))) {
        pair_close(flows, pair_stripe_of(run, run->base));
        run->base++;
    }
    if (run->base == run->pair.stripes) {
        pair_end_run(flows, flow);
        return;
    }
    pair_open(flows, flow, run);
    for (uint64_t i = before; flow->part && i < run->opened; i++)
        pair_advance(flows, flow, i);
}

// Makes all moves of a stripe that are possible now. False: no memory.
static bool pair_make_moves(struct flows *flows, struct flow *flow, struct pair_run *run,
                            uint64_t index)
{
    struct pair_stripe *stripe = pair_stripe_of(run, index);
    while (stripe->move < run->moves) {
        const struct pair_turn *turn = &run->turns[stripe->move];
        const uint32_t bit = 1u << stripe->move;
        if (turn->move.sends && !stripe->queued) {
            if (!run->pair.eager && index >= run->granted[pair_index(turn->peer)])
                return true;
            if (!pair_send(flows, flow, run, index))
                return false;
        }
        if (turn->move.sends && !turn->move.final && !(stripe->taken & bit))
            return true;
        if (turn->move.receives && !(stripe->arrived & bit))
            return true;
        if (turn->move.receives &&
            !(turn->move.final ? pair_result : pair_sum)(flows, flow, run, index))
            return false;
        stripe->queued = false;
        stripe->move++;
    }
    return true;
}

static void pair_advance(struct flows *flows, struct flow *flow, uint64_t index)
{
    struct pair_run *run = flow->part;
    if (flow->mismatched || index < run->base || index >= run->opened)
        return;
    struct pair_stripe *stripe = pair_stripe_of(run, index);
    if (!pair_make_moves(flows, flow, run, index))
        peer_lose(run->turns[stripe->move].peer, peer_no_memory);
    else if (index == run->base && pair_is_complete(run, stripe))
        pair_completed(flows, flow, run);
}

static void pair_sent(struct flows *flows, struct out_frame *frame, bool dropped)
{
    struct flow *flow = frame->flow;
    const uint64_t index = frame->stripe / PAIR_MAX_MOVES;
    const uint32_t move = (uint32_t)(frame->stripe % PAIR_MAX_MOVES);
    const uint32_t payload_bytes = frame->payload_bytes;
    if (frame->head != frame->bytes)
        scratch_put(&flows->pools.heads, frame->head);
    scratch_put(&flows->pools.frames, frame);
    if (dropped)
        return;
    flows->totals.payload_bytes_sent += payload_bytes;
    if (flow->collective->first_sent_us == 0)
        flow->collective->first_sent_us = clock_now_us();
    pair_stripe_of(flow->part, index)->taken |= 1u << move;
    pair_advance(flows, flow, index);
}

// ---- what arrives -------------------------------------------------------------------------------

// Payload size in bytes that a frame with these used bits must have.
static uint64_t pair_payload(const struct flow *flow, const struct frame_header *header,
                             const uint8_t *used, struct ring_span span, bool final)
{
    if (final && pair_is_mean(flow) && header->weight == 0)
        return 0;
    if (units_none(used, pair_units(flow, span).count))
        return 0;
    return span.count * dtype_size(header->dtype);
}

// Checks whether a frame with the right signature may arrive now, and finds its move. Returns NULL,
// or what is impossible about the frame.
static const char *pair_check(const struct peer_link *peer, struct flow *flow,
                              const struct frame_header *header, const uint8_t *used,
                              uint32_t *move)
{
    struct pair_run *run = flow->part;
    if (!run)
        return "its collective is complete";
    const uint64_t open = run->pair.eager ? run->opened : run->credited;
    *move = pair_expects(&run->pair, peer->rank, header->part);
    if (*move == PAIR_MAX_MOVES)
        return "it is no round between these ranks";
    const struct pair_move *expected = &run->turns[*move].move;
    if (header->dtype != pair_dtype(flow, expected))
        return "its dtype is not the collective's";
    if (header->weight > LOCKSTEP_MAX_WEIGHT_SUM)
        return "its weight is more than all ranks together can have";
    if (header->credit < run->base || header->credit >= open)
        return "its stripe is not open";
    struct pair_stripe *stripe = pair_stripe_of(run, header->credit);
    if (stripe->begun & 1u << *move)
        return "it comes twice";
    if (expected->final && stripe->move <= pair_given(&run->pair, *move))
        return "it is final before this rank took part";
    const struct ring_span span = pair_received_span(&run->pair, header->credit, *move);
    const char *text = reduce_learn(flow, header, used, span, expected->final);
    if (text)
        return text;
    if (header->payload_bytes != pair_payload(flow, header, used, span, expected->final))
        return "its length is not the round's";
    stripe->begun |= 1u << *move;
    stripe->weights[*move] = header->weight;
    return NULL;
}

// Sets stream->target to where the payload of a checked frame goes. Returns NULL, or
// peer_no_memory.
static const char *pair_target(struct flows *flows, struct flow *flow, uint32_t move,
                               struct stream *stream)
{
    struct pair_run *run = flow->part;
    const uint64_t index = stream->header.credit;
    const struct ring_span span = pair_received_span(&run->pair, index, move);
    struct pair_stripe *stripe = pair_stripe_of(run, index);
    if (stream->header.payload_bytes == 0)
        return NULL;
    stream->target.kind = TARGET_BUFFER;
    if (!run->turns[move].move.final) {
        stream->block = scratch_get(&flows->pools.chunks);
        stream->target.buffer = stream->block;
        return stream->block ? NULL : peer_no_memory;
    }
    if (!pair_settle(flows, flow, run, index))
        return peer_no_memory;
    stream->target.buffer = pair_result_at(flow, run, index, span);
    if (stripe->direct) {
        stream->target.kind = TARGET_OUT;
        stream->target.cursor = extent_seek(&flow->map, span.first);
    }
    return NULL;
}

static void pair_take(const struct peer_link *peer, struct flow *flow,
                      const struct frame_header *header, void *block)
{
    const struct pair_run *run = flow->part;
    const uint32_t move = pair_expects(&run->pair, peer->rank, header->part);
    struct pair_stripe *stripe = pair_stripe_of(flow->part, header->credit);
    stripe->received[move] = block;
    stripe->arrived |= 1u << move;
    pair_advance(peer->flows, flow, header->credit);
}

static const char *pair_begin(struct peer_link *peer, struct stream *stream)
{
    const char *text = NULL;
    uint32_t move = 0;
    stream->flow = NULL;
    stream->block = NULL;
    stream->parked = NULL;
    if (stream->header.chunk != peer->rank)
        return "it does not come from its sender";
    struct flow *flow = flow_of(peer, &stream->header, &text);
    if (!flow)
        return text;
    if (!flow->collective)
        return park_begin(peer, flow, stream);
    if (flow->way != &pair_way)
        flow_mismatch(peer->flows, flow, peer->rank, flow_algorithm_text);
    else if (stream->header.signature != flow->collective->signature)
        flow_mismatch(peer->flows, flow, peer->rank, flow_signature_text);
    if (flow->mismatched || flow->way != &pair_way)
        return NULL;
    text = pair_check(peer, flow, &stream->header, stream->used, &move);
    if (text)
        return text;
    stream->flow = flow;
    return pair_target(peer->flows, flow, move, stream);
}

static const char *pair_unpark(const struct peer_link *peer, struct flow *flow,
                               const struct frame_header *header, const uint8_t *used)
{
    const struct pair_run *run = flow->part;
    uint32_t move = 0;
    if (run && !run->pair.eager)
        return "it has no credit";
    const char *text = pair_check(peer, flow, header, used, &move);
    if (text)
        return text;
    if (run->turns[move].move.final)
        return "it is final before this rank took part";
    return NULL;
}

// ---- credit -------------------------------------------------------------------------------------

// Records a credit that came before the launch; the launch checks it.
static void pair_credit_early(const struct peer_link *peer, struct flow *flow,
                              const struct frame_header *header)
{
    if (flow->paired == 0) {
        flow->paired_signature = header->signature;
        flow->paired_rank = peer->rank;
    } else if (header->signature != flow->paired_signature) {
        flow->paired_odd = true;
        flow->paired_odd_rank = peer->rank;
    }
    flow->paired |= 1u << pair_index(peer);
}

static bool pair_meets(const struct pair_run *run, const struct peer_link *peer)
{
    for (uint32_t i = 0; i < run->moves; i++)
        if (run->turns[i].peer == peer)
            return true;
    return false;
}

static const char *pair_credit(struct peer_link *peer, const struct frame_header *header)
{
    struct flows *flows = peer->flows;
    const char *text = NULL;
    struct flow *flow = flow_of(peer, header, &text);
    if (!flow)
        return text;
    if (!flow->collective) {
        pair_credit_early(peer, flow, header);
        return NULL;
    }
    if (flow->way != &pair_way)
        flow_mismatch(flows, flow, peer->rank, flow_algorithm_text);
    else if (header->signature != flow->collective->signature)
        flow_mismatch(flows, flow, peer->rank, flow_signature_text);
    struct pair_run *run = flow->part;
    if (flow->mismatched || flow->way != &pair_way)
        return NULL;
    if (!run || run->pair.eager || !pair_meets(run, peer) || header->credit > run->pair.stripes ||
        header->credit <= run->granted[pair_index(peer)])
        return "its credit is not of this collective";
    run->granted[pair_index(peer)] = header->credit;
    for (uint64_t i = run->base; flow->part && i < run->opened; i++)
        pair_advance(flows, flow, i);
    return NULL;
}

// ---- launching and ending -----------------------------------------------------------------------

static void pair_schedule(struct flows *flows, struct flow *flow, struct pair_run *run)
{
    const struct collective *collective = flow->collective;
    const size_t partial = dtype_size(flow->partial);
    const size_t final = dtype_size(flow->final);
    pair_init(&run->pair, flow->algorithm == ALGORITHM_HALVING, flows->world.world_size,
              flows->world.rank, collective->elements,
              (uint32_t)(partial > final ? partial : final), flows->world.chunk_bytes);
    run->moves = pair_moves(&run->pair);
    run->last_sum = pair_last_sum(&run->pair);
    for (uint32_t i = 0; i < run->moves; i++) {
        run->turns[i].move = pair_move(&run->pair, i);
        run->turns[i].peer = peer_of_rank(flows, run->turns[i].move.peer);
        if (run->turns[i].move.sends)
            run->sends |= 1u << i;
    }
}

// Handles frames and credit that came before the launch. A credit from before the launch is for the
// peer's first window.
static void pair_catch_up(struct flows *flows, struct flow *flow, struct pair_run *run)
{
    const uint64_t signature = flow->collective->signature;
    const uint64_t stripes = run->pair.stripes;
    if (flow->granted > 0)
        flow_mismatch(flows, flow, flow->behind->rank, flow_algorithm_text);
    else if (flow->paired != 0 && flow->paired_signature != signature)
        flow_mismatch(flows, flow, flow->paired_rank, flow_signature_text);
    else if (flow->paired_odd)
        flow_mismatch(flows, flow, flow->paired_odd_rank, flow_signature_text);
    for (uint32_t i = 0; i < flows->peer_count; i++) {
        if ((flow->paired & 1u << i) == 0)
            continue;
        if (run->pair.eager && !flow->mismatched)
            peer_lose_impossible(&flows->peers[i], "its credit is not of this collective");
        run->granted[i] = stripes < run->pair.window ? stripes : run->pair.window;
    }
    park_catch_up(flows, flow);
}

static void pair_launch(struct flows *flows, struct flow *flow)
{
    assert(flow->collective->kind == COLLECTIVE_ALLREDUCE);
    struct pair_run *run = scratch_get(&flows->pools.parts);
    if (!run) {
        peer_lose(flows->ring.successor, peer_no_memory);
        return;
    }
    memset(run, 0, offsetof(struct pair_run, stripes));
    flow->part = run;
    flow->receives_left = flow->sends_left = 1; // Both stay 1 until all stripes are complete.
    pair_schedule(flows, flow, run);
    pair_open(flows, flow, run);
    pair_catch_up(flows, flow, run);
    for (uint64_t i = run->base; flow->part && i < run->opened; i++)
        pair_advance(flows, flow, i);
}

static bool pair_stripe_needs(const struct pair_run *run, const struct pair_stripe *stripe,
                              const struct peer_link *peer)
{
    for (uint32_t i = 0; i < run->moves; i++) {
        const struct pair_turn *turn = &run->turns[i];
        const uint32_t bit = 1u << i;
        if (turn->peer == peer && ((turn->move.receives && !(stripe->arrived & bit)) ||
                                   (turn->move.sends && !(stripe->taken & bit))))
            return true;
    }
    return false;
}

static bool pair_flow_needs(const struct flow *flow, const struct peer_link *peer)
{
    const struct pair_run *run = flow->part;
    if (flow->way != &pair_way || !run || !pair_meets(run, peer))
        return false;
    if (run->opened < run->pair.stripes || flow->mismatched)
        return true;
    for (uint64_t i = run->base; i < run->opened; i++)
        if (pair_stripe_needs(run, &run->stripes[i % run->pair.window], peer))
            return true;
    return false;
}

static bool pair_needs(struct flows *flows, const struct peer_link *peer)
{
    list_for_each (node, &flows->active) {
        if (pair_flow_needs(list_entry(node, struct flow, turn), peer))
            return true;
    }
    list_for_each (node, &flows->mismatched) {
        if (pair_flow_needs(list_entry(node, struct flow, turn), peer))
            return true;
    }
    return false;
}

static void pair_forget(struct flows *flows)
{
    flows->pairs_queued = false;
}

const struct way pair_way = {
    .part_bytes = sizeof(struct pair_run),
    .launch = pair_launch,
    .begin = pair_begin,
    .take = pair_take,
    .unpark = pair_unpark,
    .credit = pair_credit,
    .sent = pair_sent,
    .feed = pair_feed,
    .needs = pair_needs,
    .finals = pair_finals,
    .forget = pair_forget,
};
