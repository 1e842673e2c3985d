// SPDX-License-Identifier: Apache-2.0
//
// Collectives on a ring. This file decides when a frame may be sent. Where an arriving frame goes,
// and what it triggers, is in receive.c; the schedule in schedule.c, the arithmetic in
// worker/transport/flow/reduce.c, the bytes of a frame in worker/link/stream.c. Engine thread.
//
// Words: stripe, chunk, owner, reduce and gather as in schedule.h. A stripe is *open* when its
// frames may arrive here, *granted* when the successor has opened it, *started* when this rank has
// queued its first frame, which waits for no other frame, and *complete* when all its frames have
// arrived here and the link has taken all its frames that this rank sends. `base` is the lowest
// stripe that is not complete; the stripes [base, base + window) are open, as far as they have
// *landed*.
//
// Landed. A collective may be launched while a device still copies a part of its memory to the host
// (collective.landed). A stripe opens only when all its elements are on the host, so this rank
// reads and writes no element before.
//
// Credit. A rank sends frames of a stripe only when its successor has that stripe open; CREDIT
// frames carry the number of open stripes, at the launch and as `base` moves on. So no frame for a
// slow rank waits in the link of its predecessor, and a rank holds at most window * (n - 1) chunks
// of scratch for each collective that it has launched. Eager collectives (ring_eager) need no
// credit: frames that arrive before the launch are parked in a block of LOCKSTEP_EAGER_BYTES per
// collective.
//
// Why it cannot deadlock, for one collective that all ranks have launched. Let s be the lowest
// stripe that is not complete on some rank. Every rank has base >= s. So it has opened s, or opens
// it when s has landed, which depends on no other rank. Its predecessor has the credit for s or
// gets it in this very call: a credit is at most half a window late, and never for the stripe at
// base. So every rank may send its frames of s. A frame waits only for the frame before it in the
// chunk's chain of 2 (n - 1) hops, for memory (scratch grows), and for the link. The receiver of
// the link never stops reading, so every frame ahead in the queue has a place to go. So s
// completes, and by induction all stripes do. Collectives share nothing but links.
//
// Units (worker/memory/units.h). Every frame of a collective with units carries, before the
// payload, the used bits of the units that its chunk meets. A reduce frame carries the bits of the
// ranks that it has passed, a gather frame those of all ranks. A rank adds received bits to
// collective->used, which only grows and only has bits that some rank has set. So each frame
// carries the OR of received and own bits, and the owner, which hears of all other ranks, has the
// final bits. A chunk of which all units are used travels as if there were no units. If no unit is
// used, its frames have no payload and memory stays as it is: such a reduce frame stands for zeros,
// and such a gather frame for no result. Otherwise the final bytes stay in scratch, and are copied
// to the used units only, on every rank.
//
// Formats. If frames have another dtype than memory, the size of a chunk is computed with the
// larger of the two dtypes in frames, so that a frame and its scratch have at most chunk_bytes.
//
// Cost of E elements of b bytes in a world of n: 2 (n - 1) / n * E * b bytes sent by each rank and
// as many received; one pass over them to add and one to write; 2 (n - 1) hops until the first
// stripe is complete, later ones overlap with it.

#include "worker/transport/ring/ring.h"

#include "base/clock.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/park.h"
#include "worker/transport/flow/reduce.h"
#include "worker/transport/ring/finals.h"
#include "worker/transport/ring/receive.h"
#include "worker/transport/ring/schedule.h"

#include <assert.h>
#include <string.h>

// About the bandwidth at which a core copies to a socket.
#define RING_SWIFT_BYTES_PER_S UINT64_C(2000000000)
// The largest chunk between two ranks whose link is slower than RING_SWIFT_BYTES_PER_S.
#define RING_SLOW_CHUNK_BYTES (384 * 1024)

static const char *ring_neighbour_text = "it runs this collective on another ring";

// ---- sending ------------------------------------------------------------------------------------

static struct frame_header ring_header(const struct flows *flows, const struct flow *flow,
                                       enum frame_kind kind)
{
    struct frame_header header = flow_header(flows, flow, kind);
    header.dtype = ring_dtype(flow, kind);
    return header;
}

void ring_send(struct flows *flows, struct flow *flow, const struct ring_message *message)
{
    struct frame_header header = ring_header(flows, flow, message->kind);
    const struct unit_range units = ring_units(flow, message->span);
    header.used_bytes = units_bytes(units.count);
    header.part = (uint32_t)message->stripe;
    header.chunk = message->owner;
    header.weight = message->weight;
    assert(message->kind != FRAME_REDUCE ||
           (message->source == SOURCE_NONE) == ring_is_empty(flow, message->span));
    if (message->source != SOURCE_NONE)
        header.payload_bytes = (uint32_t)(message->span.count * dtype_size(header.dtype));
    struct out_frame *frame = flows_frame(flows, &header);
    if (!frame) {
        peer_lose(flow->group->successor, peer_no_memory);
        return;
    }
    units_pack(flow->collective->used, units, frame->head + LOCKSTEP_FRAME_HEADER_BYTES);
    frame->urgent = false;
    frame->flow = flow;
    frame->stripe = message->stripe;
    frame->block = message->block;
    frame->source = header.payload_bytes > 0 ? message->source : SOURCE_NONE;
    frame->buffer = message->block;
    if (frame->source == SOURCE_IN || frame->source == SOURCE_OUT)
        frame->cursor = extent_seek(&flow->map, message->span.first);
    if (ring_run(flow)->ring.eager || message->stripe < flow->granted)
        stream_queue(&flow->group->successor->stream, frame);
    else
        list_push_back(&flow->held, &frame->queue);
}

// Sends the frame of a stripe that waits for no other frame: the reduce frame that begins here, or
// the bytes of the root.
static void ring_start(struct flows *flows, struct flow *flow, uint64_t stripe)
{
    const struct collective *collective = flow->collective;
    struct ring_message message = {.stripe = stripe, .source = SOURCE_IN};
    if (!ring_first(&ring_run(flow)->ring, stripe, &message.owner))
        return;
    message.span = ring_chunk(&ring_run(flow)->ring, stripe, message.owner);
    message.kind = ring_run(flow)->ring.reduces ? FRAME_REDUCE : FRAME_BROADCAST;
    if (ring_is_mean(flow))
        message.weight = collective->weight;
    if (ring_run(flow)->ring.reduces && ring_is_empty(flow, message.span)) {
        message.source = SOURCE_NONE;
    } else if (ring_run(flow)->ring.reduces && !reduce_is_plain(flow)) {
        message.block = scratch_get(&flows->pools.chunks);
        message.source = SOURCE_BUFFER;
        if (!message.block) {
            peer_lose(flow->group->successor, peer_no_memory);
            return;
        }
        reduce_start(flow, message.span, message.block);
    }
    ring_send(flows, flow, &message);
}

static void ring_open_stripe(struct flow *flow, uint64_t index)
{
    struct stripe *stripe = ring_stripe(flow, index);
    const size_t words = ((size_t)ring_run(flow)->ring.world + 63) / 64;
    stripe->receives_left = ring_receives(&ring_run(flow)->ring, index);
    stripe->sends_left = ring_sends(&ring_run(flow)->ring, index);
    memset(stripe->reduced, 0, words * sizeof(stripe->reduced[0]));
    memset(stripe->gathered, 0, words * sizeof(stripe->gathered[0]));
}

// Sends the predecessor a credit with `opened`: at the launch, then each time half a window has
// opened.
static void ring_grant(struct flows *flows, struct flow *flow)
{
    const uint64_t news = ring_run(flow)->opened - ring_run(flow)->credited;
    const uint64_t step = ring_run(flow)->ring.window / 2;
    if (ring_run(flow)->ring.eager || news == 0 || ring_receives_total(&ring_run(flow)->ring) == 0)
        return;
    if (ring_run(flow)->credited > ring_run(flow)->base && news < step &&
        ring_run(flow)->opened < ring_run(flow)->ring.stripes)
        return;
    struct frame_header header = ring_header(flows, flow, FRAME_CREDIT);
    header.credit = (uint32_t)ring_run(flow)->opened;
    struct out_frame *frame = flows_frame(flows, &header);
    if (!frame) {
        peer_lose(flow->group->predecessor, peer_no_memory);
        return;
    }
    ring_run(flow)->credited = ring_run(flow)->opened;
    stream_queue(&flow->group->predecessor->stream, frame);
}

// Starts stripes only when the link has few queued bytes. So first frames do not delay frames that
// other ranks wait for, and data that was just received and added is sent while it is in the cache.
// Collectives are fed in the order of their launch.
static bool ring_feed(struct flows *flows)
{
    bool any = false;
    list_for_each_safe (node, &flows->feed) {
        struct flow *flow = list_entry(node, struct flow, feed);
        uint64_t end = ring_run(flow)->opened;
        if (!ring_run(flow)->ring.eager && flow->granted < end)
            end = flow->granted;
        while (ring_run(flow)->started < end &&
               flow->group->successor->stream.queued_bytes < STREAM_CALL_BYTES) {
            ring_start(flows, flow, ring_run(flow)->started++);
            any = true;
        }
        if (ring_run(flow)->started == ring_run(flow)->ring.stripes)
            list_remove(&flow->feed);
    }
    return any;
}

// Number of stripes that have landed.
static uint64_t ring_landed_stripes(const struct flow *flow)
{
    const uint64_t landed = flow_landed_elements(flow);
    return landed == ring_run(flow)->ring.elements ? ring_run(flow)->ring.stripes
                                                   : landed / ring_run(flow)->ring.stripe_elements;
}

static void ring_pump(struct flows *flows, struct flow *flow)
{
    const struct ring *ring = &ring_run(flow)->ring;
    const uint64_t landed = ring_landed_stripes(flow);
    uint64_t limit = ring_run(flow)->base + ring->window;
    if (limit > landed)
        limit = landed;
    while (ring_run(flow)->opened < limit)
        ring_open_stripe(flow, ring_run(flow)->opened++);
    ring_grant(flows, flow);
}

void ring_advance(struct flows *flows, struct flow *flow)
{
    const uint64_t before = ring_run(flow)->base;
    while (ring_run(flow)->base < ring_run(flow)->opened) {
        const struct stripe *stripe = ring_stripe(flow, ring_run(flow)->base);
        if (stripe->receives_left + stripe->sends_left > 0)
            break;
        ring_run(flow)->base++;
    }
    const uint64_t final = ring_run(flow)->base * ring_run(flow)->ring.stripe_elements;
    flow->final_elements =
        final < ring_run(flow)->ring.elements ? final : ring_run(flow)->ring.elements;
    if (ring_run(flow)->base != before)
        ring_pump(flows, flow);
    if (flow->receives_left + flow->sends_left == 0 && !flow->mismatched) {
        list_remove(&flow->turn);
        list_push_back(&flows->done, &flow->turn);
    }
}

static void ring_sent(struct flows *flows, struct out_frame *frame, bool dropped)
{
    struct flow *flow = frame->flow;
    const uint64_t stripe = frame->stripe;
    const uint32_t payload_bytes = frame->payload_bytes;
    if (frame->block)
        scratch_put(&flows->pools.chunks, frame->block);
    if (frame->head != frame->bytes)
        scratch_put(&flows->pools.heads, frame->head);
    scratch_put(&flows->pools.frames, frame);
    if (dropped)
        return;
    flows->totals.payload_bytes_sent += payload_bytes;
    if (flow->collective->first_sent_us == 0)
        flow->collective->first_sent_us = clock_now_us();
    ring_stripe(flow, stripe)->sends_left--;
    flow->sends_left--;
    ring_advance(flows, flow);
}

// ---- frames -------------------------------------------------------------------------------------

// True if a frame may come from this peer. After the launch it must be the neighbour of the flow.
// Before the launch the first sender is recorded as the neighbour, and the launch checks it.
static bool ring_is_from(struct peer_link *peer, const struct flow *flow,
                         struct peer_link **neighbour)
{
    if (!flow->collective && !*neighbour)
        *neighbour = peer;
    return *neighbour == peer;
}

static const char *ring_begin(struct peer_link *peer, struct stream *stream)
{
    struct flows *flows = peer->flows;
    const char *text = NULL;
    stream->flow = NULL;
    stream->block = NULL;
    stream->parked = NULL;
    if (peer != flows->ring.predecessor && peer != flows->hosts.predecessor)
        return "it does not come from the ring predecessor";
    struct flow *flow = flow_of(peer, &stream->header, &text);
    if (!flow)
        return text;
    if (flow->collective && flow->way != &ring_way) {
        flow_mismatch(flows, flow, peer->rank, flow_algorithm_text);
        return NULL;
    }
    if (!ring_is_from(peer, flow, &flow->before))
        return "it does not come from the predecessor of its collective";
    if (!flow->collective && stream->header.kind == FRAME_GATHER)
        return "it is final before this rank took part";
    if (!flow->collective)
        return park_begin(peer, flow, stream);
    if (stream->header.signature != flow->collective->signature)
        flow_mismatch(flows, flow, peer->rank, flow_signature_text);
    if (flow->mismatched)
        return NULL;
    text = ring_check(flow, &stream->header, stream->used);
    if (text)
        return text;
    stream->flow = flow;
    return ring_target(flows, flow, stream);
}

static const char *ring_granted(struct flows *flows, struct flow *flow, uint64_t granted)
{
    if (ring_run(flow)->ring.eager || granted > ring_run(flow)->ring.stripes ||
        granted <= flow->granted)
        return "its credit is not of this collective";
    flow->granted = granted;
    list_for_each_safe (node, &flow->held) {
        struct out_frame *frame = list_entry(node, struct out_frame, queue);
        if (frame->stripe >= granted)
            continue;
        list_remove(&frame->queue);
        stream_queue(&flow->group->successor->stream, frame);
    }
    ring_pump(flows, flow);
    return NULL;
}

static const char *ring_credit(struct peer_link *peer, const struct frame_header *header)
{
    struct flows *flows = peer->flows;
    const char *text = NULL;
    if (peer != flows->ring.successor && peer != flows->hosts.successor)
        return "it does not come from the ring successor";
    struct flow *flow = flow_of(peer, header, &text);
    if (!flow)
        return text;
    if (flow->collective && flow->way != &ring_way) {
        flow_mismatch(flows, flow, peer->rank, flow_algorithm_text);
        return NULL;
    }
    if (!ring_is_from(peer, flow, &flow->behind))
        return "it does not come from the successor of its collective";
    if (!flow->collective) {
        flow->granted = header->credit;
        flow->granted_signature = header->signature;
        return NULL;
    }
    if (header->signature != flow->collective->signature)
        flow_mismatch(flows, flow, peer->rank, flow_signature_text);
    if (flow->mismatched)
        return NULL;
    return ring_granted(flows, flow, header->credit);
}

// ---- launching ----------------------------------------------------------------------------------

// True for two ranks whose link is faster than a core copies. There a second stripe only costs
// system calls, because no transfer has to be hidden behind the sum. Without conversions the sum of
// two ranks has the same bits on either rank, so the measured speed does not change results.
static bool ring_is_swift(const struct flows *flows, const struct collective *collective,
                          const struct ring_group *group)
{
    return group->size == 2 && flows->agreed_bytes_per_s >= RING_SWIFT_BYTES_PER_S &&
           flow_partial(collective) == collective->dtype &&
           flow_final_dtype(collective) == collective->dtype && collective->exponent == 0;
}

// Cuts the collective into stripes. element: size of the larger of the two dtypes in frames.
static void ring_cut(const struct flows *flows, const struct collective *collective,
                     const struct ring_group *group, uint32_t element, struct ring *ring)
{
    const bool swift = ring_is_swift(flows, collective, group);
    uint32_t chunk_bytes = flows->world.chunk_bytes;
    if (group->size == 2 && !swift && chunk_bytes > RING_SLOW_CHUNK_BYTES)
        chunk_bytes = RING_SLOW_CHUNK_BYTES;
    if (collective->kind == COLLECTIVE_BROADCAST)
        ring_init_broadcast(ring, group->size, group->rank, collective->root, collective->elements,
                            element, chunk_bytes);
    else
        ring_init_allreduce(ring, group->size, group->rank, collective->elements, element,
                            chunk_bytes, swift ? RING_SPLIT_NEVER : RING_SPLIT_BYTES);
}

static uint32_t ring_element(enum dtype partial, enum dtype final)
{
    const size_t one = dtype_size(partial);
    const size_t other = dtype_size(final);
    return (uint32_t)(one > other ? one : other);
}

static void ring_schedule(const struct flows *flows, struct flow *flow)
{
    ring_cut(flows, flow->collective, flow->group, ring_element(flow->partial, flow->final),
             &ring_run(flow)->ring);
    flow->receives_left = ring_receives_total(&ring_run(flow)->ring);
    flow->sends_left = ring_sends_total(&ring_run(flow)->ring);
}

// Sets the neighbours of the flow. True if the peers that sent frames or credit before the launch
// are these neighbours; otherwise reports a mismatch.
static bool ring_joins(struct flows *flows, struct flow *flow)
{
    struct peer_link *const before = flow->group->predecessor;
    struct peer_link *const behind = flow->group->successor;
    const bool joins =
        (!flow->before || flow->before == before) && (!flow->behind || flow->behind == behind);
    if (flow->before && flow->before != before)
        flow_mismatch(flows, flow, flow->before->rank, ring_neighbour_text);
    else if (flow->behind && flow->behind != behind)
        flow_mismatch(flows, flow, flow->behind->rank, ring_neighbour_text);
    flow->before = before;
    flow->behind = behind;
    return joins;
}

// Handles frames and credit that came before the launch.
static void ring_catch_up(struct flows *flows, struct flow *flow)
{
    if (!ring_joins(flows, flow))
        return;
    if (flow->paired != 0)
        flow_mismatch(flows, flow, flow->paired_rank, flow_algorithm_text);
    const uint64_t granted = flow->granted;
    const char *text = NULL;
    flow->granted = 0;
    if (granted > 0 && flow->granted_signature != flow->collective->signature)
        flow_mismatch(flows, flow, flow->group->successor->rank, flow_signature_text);
    else if (granted > 0)
        text = ring_granted(flows, flow, granted);
    if (text)
        peer_lose_impossible(flow->group->successor, text);
    park_catch_up(flows, flow);
}

static void ring_launch(struct flows *flows, struct flow *flow)
{
    flow->part = flow->room;
    memset(flow->part, 0, offsetof(struct ring_run, stripes));
    ring_schedule(flows, flow);
    list_push_back(&flows->feed, &flow->feed);
    ring_pump(flows, flow);
    ring_catch_up(flows, flow);
}

// An eager collective cannot follow `landed`: its frames may arrive before the launch, and it is a
// single stripe.
static bool ring_follows(const struct flows *flows, const struct collective *collective)
{
    struct ring ring;
    ring_cut(flows, collective, &flows->ring,
             ring_element(flow_partial(collective), flow_final_dtype(collective)), &ring);
    return !ring.eager;
}

static bool ring_needs(struct flows *flows, const struct peer_link *peer)
{
    list_for_each (node, &flows->active) {
        const struct flow *flow = list_entry(node, struct flow, turn);
        if (flow->way != &ring_way)
            continue;
        if (peer == flow->group->predecessor && flow->receives_left > 0)
            return true;
        if (peer == flow->group->successor && flow->sends_left > 0)
            return true;
    }
    return false;
}

const struct way ring_way = {
    .room_bytes = sizeof(struct ring_run),
    .launch = ring_launch,
    .follows = ring_follows,
    .landed = ring_pump,
    .begin = ring_begin,
    .take = ring_take,
    .unpark = ring_unpark,
    .credit = ring_credit,
    .sent = ring_sent,
    .feed = ring_feed,
    .needs = ring_needs,
    .finals = ring_finals,
};
