// SPDX-License-Identifier: Apache-2.0
//
// Frames that arrive on a ring: which may arrive now, where their payload goes, and what they
// trigger. The rules are in ring.c, which also finds the collective of a frame. Engine thread.

#include "worker/transport/ring/receive.h"

#include "base/bits.h"
#include "base/clock.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/flow/reduce.h"
#include "worker/transport/ring/ring.h"

#include <string.h>

// True if final bytes of a chunk are received directly into user memory. Its used bits must be
// final.
static bool ring_is_direct(const struct flow *flow, struct ring_span span)
{
    const uint64_t bytes = span.count * flow->map.element_bytes;
    if (bytes == 0)
        return true;
    return flow->final == flow->collective->dtype &&
           units_usage(flow->collective->used, ring_units(flow, span)) == USAGE_ALL &&
           extent_backed(extent_seek(&flow->map, span.first), EXTENT_OUT, bytes);
}

// Finishes a chunk on its owner. acc: the sum of all other ranks.
static void ring_finish(struct flows *flows, struct flow *flow, const struct frame_header *header,
                        struct ring_span span, uint8_t *acc)
{
    const bool direct = ring_is_direct(flow, span);
    struct ring_message message = {.kind = FRAME_GATHER,
                                   .stripe = header->part,
                                   .owner = header->chunk,
                                   .span = span,
                                   .source = direct ? SOURCE_OUT : SOURCE_BUFFER,
                                   .block = direct ? NULL : acc};
    message.weight = reduce_finish(flow, span, acc, header->weight, direct);
    if (!direct)
        flows->totals.bytes_copied += span.count * flow->map.element_bytes;
    if (ring_is_mean(flow)) {
        flow->collective->weight_total = message.weight;
        if (message.weight == 0) {
            message.source = SOURCE_NONE;
            message.block = NULL;
        }
    }
    if (acc && !message.block)
        scratch_put(&flows->pools.chunks, acc);
    ring_send(flows, flow, &message);
}

// Passes on a chunk of which no unit is used so far, by this rank either. Its weights still add up.
static void ring_pass_empty(struct flows *flows, struct flow *flow,
                            const struct frame_header *header, struct ring_span span)
{
    const bool owner = header->chunk == ring_run(flow)->ring.rank;
    const struct ring_message message = {
        .kind = owner ? FRAME_GATHER : FRAME_REDUCE,
        .stripe = header->part,
        .owner = header->chunk,
        .weight = header->weight + (ring_is_mean(flow) ? flow->collective->weight : 0),
        .span = span,
        .source = SOURCE_NONE};
    if (owner && ring_is_mean(flow))
        flow->collective->weight_total = message.weight;
    ring_send(flows, flow, &message);
}

static void ring_reduced(struct flows *flows, struct flow *flow, const struct frame_header *header,
                         uint8_t *acc)
{
    const struct ring_span span = ring_chunk(&ring_run(flow)->ring, header->part, header->chunk);
    if (ring_is_empty(flow, span)) {
        ring_pass_empty(flows, flow, header, span);
        return;
    }
    if (!acc && span.count > 0) {
        acc = scratch_get(&flows->pools.chunks);
        if (!acc) {
            // The chunk is not final: it counts as not arrived.
            bits_remove(ring_stripe(flow, header->part)->reduced, header->chunk);
            peer_lose(flow->group->successor, peer_no_memory);
            return;
        }
        memset(acc, 0, span.count * dtype_size(header->dtype));
    }
    if (header->chunk == ring_run(flow)->ring.rank) {
        ring_finish(flows, flow, header, span, acc);
        return;
    }
    const struct ring_message message = {.kind = FRAME_REDUCE,
                                         .stripe = header->part,
                                         .owner = header->chunk,
                                         .weight = header->weight + reduce_add(flow, span, acc),
                                         .span = span,
                                         .source = SOURCE_BUFFER,
                                         .block = acc};
    ring_send(flows, flow, &message);
}

// Final bytes have arrived: in user memory, or in `block` if not all of them may be written.
static void ring_gathered(struct flows *flows, struct flow *flow, const struct frame_header *header,
                          uint8_t *block)
{
    const struct ring_span span = ring_chunk(&ring_run(flow)->ring, header->part, header->chunk);
    if (ring_is_mean(flow))
        flow->collective->weight_total = header->weight;
    if (block) {
        reduce_store(flow, span, block);
        flows->totals.bytes_copied += span.count * flow->map.element_bytes;
    }
    if (ring_sends_gather(&ring_run(flow)->ring, header->chunk)) {
        const struct ring_message message = {.kind = header->kind,
                                             .stripe = header->part,
                                             .owner = header->chunk,
                                             .weight = header->weight,
                                             .span = span,
                                             .source = header->payload_bytes == 0 ? SOURCE_NONE
                                                       : block                    ? SOURCE_BUFFER
                                                                                  : SOURCE_OUT,
                                             .block = block};
        ring_send(flows, flow, &message);
    } else if (block) {
        scratch_put(&flows->pools.chunks, block);
    }
}

void ring_take(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
               void *block)
{
    struct flows *flows = peer->flows;
    flow->collective->last_received_us = clock_now_us();
    ring_stripe(flow, header->part)->receives_left--;
    flow->receives_left--;
    if (header->kind == FRAME_REDUCE)
        ring_reduced(flows, flow, header, block);
    else
        ring_gathered(flows, flow, header, block);
    ring_advance(flows, flow);
}

static bool ring_mark(uint64_t *words, uint32_t owner)
{
    if (bits_has(words, owner))
        return false;
    bits_add(words, owner);
    return true;
}

// Adds the used bits of a frame to collective->used. The chunk of the frame must exist. Returns
// NULL, or what is impossible about the bits.
static const char *ring_learn(struct flow *flow, const struct frame_header *header,
                              const uint8_t *used)
{
    uint64_t *known = flow->collective->used;
    const struct unit_range units =
        ring_units(flow, ring_chunk(&ring_run(flow)->ring, header->part, header->chunk));
    if (header->used_bytes != units_bytes(units.count))
        return "its used bits are not as many as the chunk's units";
    if (!units_are_clean(used, units.count))
        return "it has used bits of units that do not exist";
    if (header->kind == FRAME_GATHER && !units_include(used, units, known))
        return "it says of a unit that is used that it is not";
    units_merge(known, units, used);
    return NULL;
}

// Payload size in bytes that a frame with these used bits must have.
static uint64_t ring_payload(const struct flow *flow, const struct frame_header *header,
                             const uint8_t *used)
{
    const struct ring_span span = ring_chunk(&ring_run(flow)->ring, header->part, header->chunk);
    if (header->kind == FRAME_GATHER && ring_is_mean(flow) && header->weight == 0)
        return 0;
    if (header->kind != FRAME_BROADCAST && units_none(used, ring_units(flow, span).count))
        return 0;
    return span.count * dtype_size(header->dtype);
}

const char *ring_check(struct flow *flow, const struct frame_header *header, const uint8_t *used)
{
    const struct ring *ring = &ring_run(flow)->ring;
    const bool reduce = header->kind == FRAME_REDUCE;
    const uint64_t open = ring->eager ? ring_run(flow)->opened : ring_run(flow)->credited;
    if ((header->kind == FRAME_BROADCAST) == ring->reduces)
        return "it is of another kind of collective";
    if (header->weight > LOCKSTEP_MAX_WEIGHT_SUM)
        return "its weight is more than all ranks together can have";
    if (header->dtype != ring_dtype(flow, header->kind))
        return "its dtype is not the collective's";
    if (header->part < ring_run(flow)->base || header->part >= open)
        return "its stripe is not open";
    if (!ring_present(ring, header->part, header->chunk))
        return "its chunk does not exist";
    if (reduce ? !ring_receives_reduce(ring, header->chunk)
               : !ring_receives_gather(ring, header->chunk))
        return "its chunk begins at the receiver";
    const char *text = ring_learn(flow, header, used);
    if (text)
        return text;
    if (header->payload_bytes != ring_payload(flow, header, used))
        return "its length is not the chunk's";
    struct stripe *stripe = ring_stripe(flow, header->part);
    if (!ring_mark(reduce ? stripe->reduced : stripe->gathered, header->chunk))
        return "it comes twice";
    return NULL;
}

const char *ring_target(struct flows *flows, struct flow *flow, struct stream *stream)
{
    const struct frame_header *header = &stream->header;
    if (header->payload_bytes == 0)
        return NULL;
    if (header->kind != FRAME_REDUCE) {
        const struct ring_span span =
            ring_chunk(&ring_run(flow)->ring, header->part, header->chunk);
        stream->target.cursor = extent_seek(&flow->map, span.first);
        stream->target.kind = TARGET_OUT;
        if (ring_is_direct(flow, span))
            return NULL;
    }
    stream->block = scratch_get(&flows->pools.chunks);
    stream->target.kind = TARGET_BUFFER;
    stream->target.buffer = stream->block;
    return stream->block ? NULL : peer_no_memory;
}

const char *ring_unpark(const struct peer_link *peer, struct flow *flow,
                        const struct frame_header *header, const uint8_t *used)
{
    (void)peer;
    return ring_run(flow)->ring.eager ? ring_check(flow, header, used) : "it has no credit";
}
