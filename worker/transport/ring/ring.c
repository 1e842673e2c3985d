// SPDX-License-Identifier: Apache-2.0
//
// Collectives on their way round the ring. The schedule is schedule.c's, the arithmetic
// worker/transport/flow/reduce.c's, the bytes are worker/link/stream.c's; here is when a frame may
// be sent, where one that arrives goes, and what it sets off. Engine thread.
//
// Words: stripe, chunk, owner, reduce and gather as in schedule.h. A stripe is *open* here when its
// frames may arrive, *granted* when the successor has it open, *started* when this rank has sent
// the frame that needs no other, *complete* when all its frames have arrived here and all that this
// rank sends of it were taken by the link. `base` is the lowest stripe not complete; open are
// [base, base + window), as far as they have *landed*.
//
// Landed. A collective may be launched while a part of its memory is still on its way to the host
// (collective.landed): the last stripe in it opens only when all of it is there, so nothing of this
// rank's is read or written before.
//
// Credit. A rank sends frames of a stripe only when its successor has that stripe open; CREDIT
// frames say so, cumulatively, at the launch and as base moves on. So what a slow rank makes its
// predecessor's link hold is nothing, and what it holds itself is at most window * (n - 1) chunks
// of scratch for each collective that it has launched. Eager collectives (ring_eager) need no
// credit: what arrives before the launch is parked in a block of LOCKSTEP_EAGER_BYTES for each.
//
// Why it cannot deadlock, for one collective that all ranks have launched. Let s be the lowest
// stripe that is not complete on some rank. Every rank has base >= s, so has s open, and has told
// its predecessor so or will in this very call (the credit of a stripe is at most half a window
// late, and never for the stripe at base), or does so when it has landed, for which no other rank
// does anything. So every rank may send its frames of s. A frame waits for nothing but
// its predecessor frame in the chunk's chain of 2 (n - 1) hops, for memory (scratch grows), and for
// the link, whose receiver never stops reading: whatever is in front of it in the queue has a place
// to go. So s completes, and by induction all stripes do. Collectives share nothing but links.
//
// Units (worker/memory/units.h). Every frame of a collective with units carries the used bits of
// those that its chunk meets: a reduce frame what its ranks so far have, a gather frame what all
// have, before the payload. What is learned is kept in collective->used, which only grows and never
// holds a bit that no rank has: so a rank's next frame is the OR of what it was told and what it
// has itself, and the owner, told by all others, has the final bits. When all units of a chunk are
// used it travels as if there were none. When none is, its frames have no payload and memory stays
// as it is: a reduce frame that says of no unit that it is used stands for zeros, and a gather
// frame for nothing. Else the final bytes stay in scratch, and are copied to the used units only,
// on every rank.
//
// Formats. Where frames are of another dtype than memory, chunks are cut by the largest element
// that travels, so that a frame and the scratch it is computed in have at most chunk_bytes.
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
#include "worker/transport/ring/schedule.h"

#include <assert.h>
#include <string.h>

#define RING_OWNER_WORDS (LOCKSTEP_MAX_WORLD / 64)
#define FLOW_SWIFT_BYTES_PER_S UINT64_C(2000000000) // About what a core copies to a socket.
#define FLOW_SLOW_CHUNK_BYTES (384 * 1024) // Between two ranks over any other link, at most.

static const char *flow_neighbour_text = "it runs this collective on another ring";

struct stripe {
    uint32_t receives_left;
    uint32_t sends_left;
    uint64_t reduced[RING_OWNER_WORDS]; // By owner: its reduce frame has begun to arrive.
    uint64_t gathered[RING_OWNER_WORDS];
};

// What is kept of a launched collective: its flow's part.
struct ring_run {
    struct ring ring; // Its elements are the largest that travel.
    uint64_t base; // Stripes below are complete here.
    uint64_t opened; // Stripes below may be received: base + window at most.
    uint64_t started; // Stripes below have sent their first frame, if they have one.
    uint64_t credited; // What the predecessor was told of `opened`.
    struct stripe stripes[LOCKSTEP_STRIPES_IN_FLIGHT]; // By index modulo the window.
};

static inline struct ring_run *ring_run(const struct flow *flow)
{
    return flow->part;
}

static struct stripe *flow_stripe(struct flow *flow, uint64_t stripe)
{
    return &ring_run(flow)->stripes[stripe % ring_run(flow)->ring.window];
}

static struct unit_range flow_units(const struct flow *flow, struct ring_span span)
{
    return units_met(flow->collective->unit_ends, flow->collective->unit_count, span);
}

// The dtype of the payload of a frame.
static enum dtype flow_dtype(const struct flow *flow, enum frame_kind kind)
{
    return kind == FRAME_REDUCE ? flow->partial : flow->final;
}

static bool flow_is_mean(const struct flow *flow)
{
    return ring_run(flow)->ring.reduces && flow->collective->op == REDUCE_MEAN;
}

// ---- sending ------------------------------------------------------------------------------------

// What a frame is made of, but for what its collective says.
struct flow_message {
    enum frame_kind kind;
    uint64_t stripe;
    uint32_t owner;
    uint64_t weight;
    enum frame_source source;
    struct ring_span span;
    void *block; // SOURCE_BUFFER: the bytes, to be given back when they were sent. Else NULL.
};

// Whether nobody that this rank knows of has an input for any unit of the chunk.
static bool flow_is_empty(const struct flow *flow, struct ring_span span)
{
    return units_usage(flow->collective->used, flow_units(flow, span)) == USAGE_NONE;
}

static struct frame_header flow_header(const struct flows *flows, const struct flow *flow,
                                       enum frame_kind kind)
{
    return (struct frame_header){
        .kind = kind,
        .dtype = flow_dtype(flow, kind),
        .generation = flows->world.generation,
        .step = flow->tag.step,
        .space = flow->tag.space,
        .slot = flow->tag.slot,
        .signature = flow->collective->signature,
    };
}

static void flow_send(struct flows *flows, struct flow *flow, const struct flow_message *message)
{
    struct frame_header header = flow_header(flows, flow, message->kind);
    const struct unit_range units = flow_units(flow, message->span);
    header.used_bytes = units_bytes(units.count);
    header.part = (uint32_t)message->stripe;
    header.chunk = message->owner;
    header.weight = message->weight;
    assert(message->kind != FRAME_REDUCE ||
           (message->source == SOURCE_NONE) == flow_is_empty(flow, message->span));
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

// The frame of a stripe that needs no other: the reduce that begins here, or the root's bytes.
static void flow_start(struct flows *flows, struct flow *flow, uint64_t stripe)
{
    const struct collective *collective = flow->collective;
    struct flow_message message = {.stripe = stripe, .source = SOURCE_IN};
    if (!ring_first(&ring_run(flow)->ring, stripe, &message.owner))
        return;
    message.span = ring_chunk(&ring_run(flow)->ring, stripe, message.owner);
    message.kind = ring_run(flow)->ring.reduces ? FRAME_REDUCE : FRAME_BROADCAST;
    if (flow_is_mean(flow))
        message.weight = collective->weight;
    if (ring_run(flow)->ring.reduces && flow_is_empty(flow, message.span)) {
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
    flow_send(flows, flow, &message);
}

static void flow_stripe_open(struct flow *flow, uint64_t index)
{
    struct stripe *stripe = flow_stripe(flow, index);
    const size_t words = ((size_t)ring_run(flow)->ring.world + 63) / 64;
    stripe->receives_left = ring_receives(&ring_run(flow)->ring, index);
    stripe->sends_left = ring_sends(&ring_run(flow)->ring, index);
    memset(stripe->reduced, 0, words * sizeof(stripe->reduced[0]));
    memset(stripe->gathered, 0, words * sizeof(stripe->gathered[0]));
}

// Tells the predecessor what is open here: the first time, then half a window at a time.
static void flow_grant(struct flows *flows, struct flow *flow)
{
    const uint64_t news = ring_run(flow)->opened - ring_run(flow)->credited;
    const uint64_t step = ring_run(flow)->ring.window / 2;
    if (ring_run(flow)->ring.eager || news == 0 || ring_receives_total(&ring_run(flow)->ring) == 0)
        return;
    if (ring_run(flow)->credited > ring_run(flow)->base && news < step &&
        ring_run(flow)->opened < ring_run(flow)->ring.stripes)
        return;
    struct frame_header header = flow_header(flows, flow, FRAME_CREDIT);
    header.credit = (uint32_t)ring_run(flow)->opened;
    struct out_frame *frame = flows_frame(flows, &header);
    if (!frame) {
        peer_lose(flow->group->predecessor, peer_no_memory);
        return;
    }
    ring_run(flow)->credited = ring_run(flow)->opened;
    stream_queue(&flow->group->predecessor->stream, frame);
}

// First frames are made when the link is about to run dry, and not before: frames that other ranks
// wait for are not behind them, and what was just received and added is sent while it is in the
// cache. Collectives are fed in the order of their launch.
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
            flow_start(flows, flow, ring_run(flow)->started++);
            any = true;
        }
        if (ring_run(flow)->started == ring_run(flow)->ring.stripes)
            list_remove(&flow->feed);
    }
    return any;
}

// Stripes that have landed.
static uint64_t flow_landed_stripes(const struct flow *flow)
{
    const uint64_t landed = flow_landed_elements(flow);
    return landed == ring_run(flow)->ring.elements ? ring_run(flow)->ring.stripes
                                                   : landed / ring_run(flow)->ring.stripe_elements;
}

static void ring_pump(struct flows *flows, struct flow *flow)
{
    const struct ring *ring = &ring_run(flow)->ring;
    const uint64_t landed = flow_landed_stripes(flow);
    uint64_t limit = ring_run(flow)->base + ring->window;
    if (limit > landed)
        limit = landed;
    while (ring_run(flow)->opened < limit)
        flow_stripe_open(flow, ring_run(flow)->opened++);
    flow_grant(flows, flow);
}

// After a frame of a stripe has arrived or was sent.
static void flow_advance(struct flows *flows, struct flow *flow)
{
    const uint64_t before = ring_run(flow)->base;
    while (ring_run(flow)->base < ring_run(flow)->opened) {
        const struct stripe *stripe = flow_stripe(flow, ring_run(flow)->base);
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
    flow_stripe(flow, stripe)->sends_left--;
    flow->sends_left--;
    flow_advance(flows, flow);
}

// ---- what arrives -------------------------------------------------------------------------------

// Whether final bytes of a chunk are written to user memory as they come. Its used bits are final.
static bool flow_is_direct(const struct flow *flow, struct ring_span span)
{
    const uint64_t bytes = span.count * flow->map.element_bytes;
    if (bytes == 0)
        return true;
    return flow->final == flow->collective->dtype &&
           units_usage(flow->collective->used, flow_units(flow, span)) == USAGE_ALL &&
           extent_backed(extent_seek(&flow->map, span.first), EXTENT_OUT, bytes);
}

// This rank is the owner and has the sum of all others in acc.
static void flow_finish(struct flows *flows, struct flow *flow, const struct frame_header *header,
                        struct ring_span span, uint8_t *acc)
{
    const bool direct = flow_is_direct(flow, span);
    struct flow_message message = {.kind = FRAME_GATHER,
                                   .stripe = header->part,
                                   .owner = header->chunk,
                                   .span = span,
                                   .source = direct ? SOURCE_OUT : SOURCE_BUFFER,
                                   .block = direct ? NULL : acc};
    message.weight = reduce_finish(flow, span, acc, header->weight, direct);
    if (!direct)
        flows->totals.bytes_copied += span.count * flow->map.element_bytes;
    if (flow_is_mean(flow)) {
        flow->collective->weight_total = message.weight;
        if (message.weight == 0) {
            message.source = SOURCE_NONE;
            message.block = NULL;
        }
    }
    if (acc && !message.block)
        scratch_put(&flows->pools.chunks, acc);
    flow_send(flows, flow, &message);
}

// A chunk of which no unit is used so far, not by this rank either: its weights add up all the
// same.
static void flow_pass_empty(struct flows *flows, struct flow *flow,
                            const struct frame_header *header, struct ring_span span)
{
    const bool owner = header->chunk == ring_run(flow)->ring.rank;
    const struct flow_message message = {
        .kind = owner ? FRAME_GATHER : FRAME_REDUCE,
        .stripe = header->part,
        .owner = header->chunk,
        .weight = header->weight + (flow_is_mean(flow) ? flow->collective->weight : 0),
        .span = span,
        .source = SOURCE_NONE};
    if (owner && flow_is_mean(flow))
        flow->collective->weight_total = message.weight;
    flow_send(flows, flow, &message);
}

static void flow_reduced(struct flows *flows, struct flow *flow, const struct frame_header *header,
                         uint8_t *acc)
{
    const struct ring_span span = ring_chunk(&ring_run(flow)->ring, header->part, header->chunk);
    if (flow_is_empty(flow, span)) {
        flow_pass_empty(flows, flow, header, span);
        return;
    }
    if (!acc && span.count > 0) {
        acc = scratch_get(&flows->pools.chunks);
        if (!acc) {
            peer_lose(flow->group->successor, peer_no_memory);
            return;
        }
        memset(acc, 0, span.count * dtype_size(header->dtype));
    }
    if (header->chunk == ring_run(flow)->ring.rank) {
        flow_finish(flows, flow, header, span, acc);
        return;
    }
    const struct flow_message message = {.kind = FRAME_REDUCE,
                                         .stripe = header->part,
                                         .owner = header->chunk,
                                         .weight = header->weight + reduce_add(flow, span, acc),
                                         .span = span,
                                         .source = SOURCE_BUFFER,
                                         .block = acc};
    flow_send(flows, flow, &message);
}

// Final bytes have arrived: in user memory, or in a block where not all of it is to be written.
static void flow_final(struct flows *flows, struct flow *flow, const struct frame_header *header,
                       uint8_t *block)
{
    const struct ring_span span = ring_chunk(&ring_run(flow)->ring, header->part, header->chunk);
    if (flow_is_mean(flow))
        flow->collective->weight_total = header->weight;
    if (block) {
        reduce_store(flow, span, block);
        flows->totals.bytes_copied += span.count * flow->map.element_bytes;
    }
    if (ring_sends_gather(&ring_run(flow)->ring, header->chunk)) {
        const struct flow_message message = {.kind = header->kind,
                                             .stripe = header->part,
                                             .owner = header->chunk,
                                             .weight = header->weight,
                                             .span = span,
                                             .source = header->payload_bytes == 0 ? SOURCE_NONE
                                                       : block                    ? SOURCE_BUFFER
                                                                                  : SOURCE_OUT,
                                             .block = block};
        flow_send(flows, flow, &message);
    } else if (block) {
        scratch_put(&flows->pools.chunks, block);
    }
}

static void ring_take(const struct peer_link *peer, struct flow *flow,
                      const struct frame_header *header, void *block)
{
    struct flows *flows = peer->flows;
    flow->collective->last_received_us = clock_now_us();
    flow_stripe(flow, header->part)->receives_left--;
    flow->receives_left--;
    if (header->kind == FRAME_REDUCE)
        flow_reduced(flows, flow, header, block);
    else
        flow_final(flows, flow, header, block);
    flow_advance(flows, flow);
}

static bool flow_mark(uint64_t *words, uint32_t owner)
{
    const uint64_t bit = (uint64_t)1 << (owner % 64);
    if (words[owner / 64] & bit)
        return false;
    words[owner / 64] |= bit;
    return true;
}

// The used bits of a frame whose chunk exists: learned, or refused. NULL, or what is impossible.
static const char *flow_learn(struct flow *flow, const struct frame_header *header,
                              const uint8_t *used)
{
    uint64_t *known = flow->collective->used;
    const struct unit_range units =
        flow_units(flow, ring_chunk(&ring_run(flow)->ring, header->part, header->chunk));
    if (header->used_bytes != units_bytes(units.count))
        return "its used bits are not as many as the chunk's units";
    if (!units_are_clean(used, units.count))
        return "it has used bits of units that do not exist";
    if (header->kind == FRAME_GATHER && !units_include(used, units, known))
        return "it says of a unit that is used that it is not";
    units_merge(known, units, used);
    return NULL;
}

// Payload bytes of a frame with these used bits.
static uint64_t flow_payload(const struct flow *flow, const struct frame_header *header,
                             const uint8_t *used)
{
    const struct ring_span span = ring_chunk(&ring_run(flow)->ring, header->part, header->chunk);
    if (header->kind == FRAME_GATHER && flow_is_mean(flow) && header->weight == 0)
        return 0;
    if (header->kind != FRAME_BROADCAST && units_none(used, flow_units(flow, span).count))
        return 0;
    return span.count * dtype_size(header->dtype);
}

// Whether a frame whose signature agrees may arrive now. NULL, or what is impossible.
static const char *flow_check(struct flow *flow, const struct frame_header *header,
                              const uint8_t *used)
{
    const struct ring *ring = &ring_run(flow)->ring;
    const bool reduce = header->kind == FRAME_REDUCE;
    const uint64_t open = ring->eager ? ring_run(flow)->opened : ring_run(flow)->credited;
    if ((header->kind == FRAME_BROADCAST) == ring->reduces)
        return "it is of another kind of collective";
    if (header->weight > LOCKSTEP_MAX_WEIGHT_SUM)
        return "its weight is more than all ranks together can have";
    if (header->dtype != flow_dtype(flow, header->kind))
        return "its dtype is not the collective's";
    if (header->part < ring_run(flow)->base || header->part >= open)
        return "its stripe is not open";
    if (!ring_present(ring, header->part, header->chunk))
        return "its chunk does not exist";
    if (reduce ? !ring_receives_reduce(ring, header->chunk)
               : !ring_receives_gather(ring, header->chunk))
        return "its chunk begins at the receiver";
    const char *text = flow_learn(flow, header, used);
    if (text)
        return text;
    if (header->payload_bytes != flow_payload(flow, header, used))
        return "its length is not the chunk's";
    struct stripe *stripe = flow_stripe(flow, header->part);
    if (!flow_mark(reduce ? stripe->reduced : stripe->gathered, header->chunk))
        return "it comes twice";
    return NULL;
}

// Where the payload of a frame that may arrive goes.
static const char *flow_target(struct flows *flows, struct flow *flow, struct stream *stream)
{
    const struct frame_header *header = &stream->header;
    if (header->payload_bytes == 0)
        return NULL;
    if (header->kind != FRAME_REDUCE) {
        const struct ring_span span =
            ring_chunk(&ring_run(flow)->ring, header->part, header->chunk);
        stream->target.cursor = extent_seek(&flow->map, span.first);
        stream->target.kind = TARGET_OUT;
        if (flow_is_direct(flow, span))
            return NULL;
    }
    stream->block = scratch_get(&flows->pools.chunks);
    stream->target.kind = TARGET_BUFFER;
    stream->target.buffer = stream->block;
    return stream->block ? NULL : peer_no_memory;
}

static const char *ring_unpark(const struct peer_link *peer, struct flow *flow,
                               const struct frame_header *header, const uint8_t *used)
{
    (void)peer;
    return ring_run(flow)->ring.eager ? flow_check(flow, header, used) : "it has no credit";
}

// ---- frames -------------------------------------------------------------------------------------

// Whether a frame may come from this peer: it is the neighbour that a launch has fixed, or becomes
// the one that the launch will have to agree with.
static bool flow_is_from(struct peer_link *peer, const struct flow *flow,
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
    if (!flow_is_from(peer, flow, &flow->before))
        return "it does not come from the predecessor of its collective";
    if (!flow->collective && stream->header.kind == FRAME_GATHER)
        return "it is final before this rank took part";
    if (!flow->collective)
        return park_begin(peer, flow, stream);
    if (stream->header.signature != flow->collective->signature)
        flow_mismatch(flows, flow, peer->rank, flow_signature_text);
    if (flow->mismatched)
        return NULL;
    text = flow_check(flow, &stream->header, stream->used);
    if (text)
        return text;
    stream->flow = flow;
    return flow_target(flows, flow, stream);
}

static const char *flow_granted(struct flows *flows, struct flow *flow, uint64_t granted)
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
    if (!flow_is_from(peer, flow, &flow->behind))
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
    return flow_granted(flows, flow, header->credit);
}

// ---- launching ----------------------------------------------------------------------------------

// Two ranks whose link is faster than they copy: there every chunk costs system calls, and there is
// nothing to hide behind another one. A sum of two is the same whoever makes it, if all formats
// are: so no result depends on how fast the link was found to be.
static bool flow_is_swift(const struct flows *flows, const struct collective *collective,
                          const struct ring_group *group)
{
    return group->size == 2 && flows->agreed_bytes_per_s >= FLOW_SWIFT_BYTES_PER_S &&
           flow_partial(collective) == collective->dtype &&
           flow_final_dtype(collective) == collective->dtype && collective->exponent == 0;
}

// element: the largest that travels.
static void flow_cut(const struct flows *flows, const struct collective *collective,
                     const struct ring_group *group, uint32_t element, struct ring *ring)
{
    const bool swift = flow_is_swift(flows, collective, group);
    uint32_t chunk_bytes = flows->world.chunk_bytes;
    if (group->size == 2 && !swift && chunk_bytes > FLOW_SLOW_CHUNK_BYTES)
        chunk_bytes = FLOW_SLOW_CHUNK_BYTES;
    if (collective->kind == COLLECTIVE_BROADCAST)
        ring_init_broadcast(ring, group->size, group->rank, collective->root, collective->elements,
                            element, chunk_bytes);
    else
        ring_init_allreduce(ring, group->size, group->rank, collective->elements, element,
                            chunk_bytes, swift ? RING_SPLIT_NEVER : RING_SPLIT_BYTES);
}

static uint32_t flow_element(enum dtype partial, enum dtype final)
{
    const size_t one = dtype_size(partial);
    const size_t other = dtype_size(final);
    return (uint32_t)(one > other ? one : other);
}

static void flow_ring(const struct flows *flows, struct flow *flow)
{
    flow_cut(flows, flow->collective, flow->group, flow_element(flow->partial, flow->final),
             &ring_run(flow)->ring);
    flow->receives_left = ring_receives_total(&ring_run(flow)->ring);
    flow->sends_left = ring_sends_total(&ring_run(flow)->ring);
}

// Whether those that have spoken of it before the launch are its neighbours; they are from now on.
static bool flow_joins(struct flows *flows, struct flow *flow)
{
    struct peer_link *const before = flow->group->predecessor;
    struct peer_link *const behind = flow->group->successor;
    const bool joins =
        (!flow->before || flow->before == before) && (!flow->behind || flow->behind == behind);
    if (flow->before && flow->before != before)
        flow_mismatch(flows, flow, flow->before->rank, flow_neighbour_text);
    else if (flow->behind && flow->behind != behind)
        flow_mismatch(flows, flow, flow->behind->rank, flow_neighbour_text);
    flow->before = before;
    flow->behind = behind;
    return joins;
}

// What the neighbours have said about it before the launch.
static void flow_catch_up(struct flows *flows, struct flow *flow)
{
    if (!flow_joins(flows, flow))
        return;
    if (flow->paired != 0)
        flow_mismatch(flows, flow, flow->paired_rank, flow_algorithm_text);
    const uint64_t granted = flow->granted;
    const char *text = NULL;
    flow->granted = 0;
    if (granted > 0 && flow->granted_signature != flow->collective->signature)
        flow_mismatch(flows, flow, flow->group->successor->rank, flow_signature_text);
    else if (granted > 0)
        text = flow_granted(flows, flow, granted);
    if (text)
        peer_lose_impossible(flow->group->successor, text);
    park_catch_up(flows, flow);
}

static void ring_launch(struct flows *flows, struct flow *flow)
{
    flow->part = flow->room;
    memset(flow->part, 0, offsetof(struct ring_run, stripes));
    flow_ring(flows, flow);
    list_push_back(&flows->feed, &flow->feed);
    ring_pump(flows, flow);
    flow_catch_up(flows, flow);
}

// A small collective may be sent to this rank before it takes part, and is in one piece anyway.
static bool ring_follows(const struct flows *flows, const struct collective *collective)
{
    struct ring ring;
    flow_cut(flows, collective, &flows->ring,
             flow_element(flow_partial(collective), flow_final_dtype(collective)), &ring);
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
};
