// SPDX-License-Identifier: Apache-2.0
//
// See receive.h. The rules are in direct.c. Engine thread.
//
// Pieces of one kind come from a member in order, so a piece is checked by counting.

#include "worker/transport/direct/receive.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/kernels/dtype.h"
#include "worker/transport/direct/ahead.h"
#include "worker/transport/direct/direct.h"
#include "worker/transport/direct/pull.h"
#include "worker/transport/direct/sum.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/park.h"
#include "worker/transport/flow/reduce.h"

#include <inttypes.h>
#include <string.h>

// ---- checks -------------------------------------------------------------------------------------

// True if a frame of a reduction has no payload.
static bool receive_is_empty(const struct flow *flow, const struct frame_header *header,
                             const uint8_t *used, struct ring_span span)
{
    if (units_none(used, direct_units(flow, span).count))
        return true;
    return direct_is_mean(flow) && header->weight == 0 && header->part != DIRECT_SUM;
}

static const char *receive_check_piece(struct flow *flow, const struct frame_header *header,
                                       const uint8_t *used, struct direct_row *row,
                                       struct ring_span span, uint32_t blocks)
{
    if (header->credit != row->begun || header->credit >= row->granted)
        return "its piece is not the next one, or has no credit";
    if (header->weight > LOCKSTEP_MAX_WEIGHT_SUM)
        return "its weight is more than all ranks together can have";
    const char *text = reduce_learn(flow, header, used, span, header->part == DIRECT_FINAL);
    if (text)
        return text;
    const uint64_t bytes = receive_is_empty(flow, header, used, span)
                               ? 0
                               : blocks * span.count * dtype_size(header->dtype);
    if (header->payload_bytes != bytes)
        return "its length is not the piece's";
    row->begun++;
    return NULL;
}

// Two ranks disagree about the elements of a part.
static void receive_differs(struct flows *flows, struct flow *flow, uint32_t rank, uint64_t sent,
                            uint64_t awaited, bool sends)
{
    char buffer[TRANSPORT_TEXT_BYTES];
    struct text text;
    text_init(&text, buffer, sizeof(buffer));
    text_append(&text,
                sends ? "this rank sends %" PRIu64 " elements to it, which awaits %" PRIu64
                      : "it sends %" PRIu64 " elements to this rank, which awaits %" PRIu64,
                sent, awaited);
    flow_mismatch(flows, flow, rank, buffer);
}

// Checks a frame of an exchange. Returns NULL, or what is impossible about the frame. A frame that
// shows that ranks disagree makes the flow mismatched.
static const char *receive_check_part(struct flows *flows, struct flow *flow,
                                      struct direct_member *member,
                                      const struct frame_header *header)
{
    struct direct_row *row = &member->finals_in;
    if (!member->receive)
        return "this rank awaits no part from it";
    if (header->weight != member->receive->elements) {
        receive_differs(flows, flow, member->peer->rank, header->weight, member->receive->elements,
                        false);
        return NULL;
    }
    if (header->part == DIRECT_ANNOUNCE)
        return pull_check_announcement(member, header);
    if (header->credit != row->begun || header->credit >= row->granted)
        return "its piece is not the next one, or has no credit";
    uint64_t bytes = 0;
    if (header->weight > 0)
        bytes = direct_piece((struct ring_span){0, header->weight}, member->piece, header->credit)
                    .count *
                dtype_size(header->dtype);
    if (header->payload_bytes != bytes || header->used_bytes != 0)
        return "its length is not the piece's";
    row->begun++;
    return NULL;
}

static const char *receive_check_grant(struct direct_row *row, const struct frame_header *header)
{
    if (header->payload_bytes > 0 || header->credit <= row->granted || header->credit > row->count)
        return "its credit is not of this collective";
    return NULL;
}

// A part that is sent without credit is gone at once, and the exchange may be complete here. If the
// peer awaits a longer part, its credit comes after that. The peer reports the difference itself,
// because it gets fewer elements than it awaits.
static bool receive_is_late_credit(const struct flow *flow, const struct frame_header *header)
{
    return !flow->part && direct_is_exchange(flow) && header->part == DIRECT_GRANT_FINALS &&
           header->payload_bytes == 0 && header->used_bytes == 0;
}

// Checks whether a frame with the right signature may arrive now. Returns NULL, or what is
// impossible about the frame.
static const char *receive_check(const struct peer_link *peer, struct flow *flow,
                                 const struct frame_header *header, const uint8_t *used)
{
    struct direct_run *run = flow->part;
    const bool exchange = direct_is_exchange(flow);
    const uint32_t index = run ? direct_member_of(run, peer) : DIRECT_NO_MEMBER;
    if (index == DIRECT_NO_MEMBER)
        return run ? "it is no member of this collective" : "its collective is complete";
    struct direct_member *member = &run->members[index];
    const bool input = header->part == DIRECT_INPUT || header->part == DIRECT_SUM;
    if (header->dtype != (input ? direct_input_dtype(flow) : direct_dtype(flow)))
        return "its dtype is not the collective's";
    switch ((enum direct_part)header->part) {
    case DIRECT_INPUT:
    case DIRECT_SUM:
        if (exchange)
            return "an exchange has no inputs";
        return receive_check_piece(flow, header, used, &member->inputs_in,
                                   direct_span(&run->members[run->own], header->credit),
                                   member->blocks);
    case DIRECT_FINAL:
        if (exchange)
            return receive_check_part(peer->flows, flow, member, header);
        // The owner has this rank's input, although the link may not have said so yet.
        if (header->credit >= member->inputs_out.begun)
            return "it is final before this rank took part";
        return receive_check_piece(flow, header, used, &member->finals_in,
                                   direct_span(member, header->credit), 1);
    case DIRECT_ANNOUNCE:
        return exchange ? receive_check_part(peer->flows, flow, member, header)
                        : "a reduction has no announcements";
    case DIRECT_GRANT_INPUTS:
        return receive_check_grant(&member->inputs_out, header);
    case DIRECT_TAKEN:
    case DIRECT_ASK:
    case DIRECT_GRANT_FINALS:
        if (!exchange || !member->send)
            return "nothing here needs this credit";
        if (header->weight != member->send->elements) {
            receive_differs(peer->flows, flow, peer->rank, member->send->elements, header->weight,
                            true);
            return NULL;
        }
        if (header->part == DIRECT_ASK)
            return ahead_check(member, header);
        if (header->part == DIRECT_TAKEN)
            return pull_check_taken(member, header);
        return member->paced ? "it grants a part that needs no credit"
                             : receive_check_grant(&member->finals_out, header);
    }
    return "its part is unknown";
}

// ---- begin --------------------------------------------------------------------------------------

static uint8_t *receive_place(const struct flow *flow, const struct direct_member *member,
                              uint32_t piece)
{
    return (uint8_t *)member->receive->memory +
           member->piece * piece * dtype_size(flow->collective->dtype);
}

// Sets stream->target to where the payload of a checked frame goes. Returns NULL, or
// peer_no_memory.
static const char *receive_target(struct flows *flows, struct flow *flow, struct stream *stream)
{
    const struct frame_header *header = &stream->header;
    struct direct_run *run = flow->part;
    struct direct_member *member = &run->members[direct_member_of(run, stream->context)];
    if (header->payload_bytes == 0)
        return NULL;
    stream->target.kind = TARGET_BUFFER;
    if (direct_is_exchange(flow) && header->part == DIRECT_FINAL) {
        stream->target.buffer = receive_place(flow, member, header->credit);
        return NULL;
    }
    const struct ring_span span = direct_span(member, header->credit);
    if (header->part == DIRECT_FINAL && direct_is_in_place(flow, span)) {
        stream->target.kind = TARGET_OUT;
        stream->target.cursor = extent_seek(&flow->map, span.first);
        return NULL;
    }
    stream->block = scratch_get(&flows->pools.chunks);
    stream->target.buffer = stream->block;
    return stream->block ? NULL : peer_no_memory;
}

const char *direct_begin(struct peer_link *peer, struct stream *stream)
{
    struct flows *flows = peer->flows;
    const char *text = NULL;
    stream->flow = NULL;
    stream->block = NULL;
    stream->parked = NULL;
    if (stream->header.chunk != peer->rank)
        return "it does not come from its sender";
    if (stream->header.part == DIRECT_ASK && ahead_is_late(flows, &stream->header))
        return NULL;
    struct flow *flow = flow_of(peer, &stream->header, &text);
    if (!flow)
        return text;
    if (!flow->collective)
        return park_begin(peer, flow, stream);
    if (flow->way != &direct_way)
        flow_mismatch(flows, flow, peer->rank, flow_algorithm_text);
    else if (stream->header.signature != flow->collective->signature)
        flow_mismatch(flows, flow, peer->rank, flow_signature_text);
    if (flow->mismatched || flow->way != &direct_way)
        return NULL;
    if (receive_is_late_credit(flow, &stream->header))
        return NULL;
    text = receive_check(peer, flow, &stream->header, stream->used);
    if (text || flow->mismatched)
        return text;
    stream->flow = flow;
    return receive_target(flows, flow, stream);
}

const char *direct_unpark(const struct peer_link *peer, struct flow *flow,
                          const struct frame_header *header, const uint8_t *used)
{
    return receive_check(peer, flow, header, used);
}

void *direct_place(const struct peer_link *peer, const struct flow *flow,
                   const struct frame_header *header)
{
    const struct direct_run *run = flow->part;
    if (!direct_is_exchange(flow) || header->part != DIRECT_FINAL)
        return NULL;
    return receive_place(flow, &run->members[direct_member_of(run, peer)], header->credit);
}

// ---- take ---------------------------------------------------------------------------------------

static void take_input(struct direct_run *run, struct direct_member *member,
                       const struct frame_header *header, uint8_t *block)
{
    const uint32_t entry = header->credit % run->window;
    member->inputs[entry] = block;
    member->weights[entry] = header->weight;
    member->sums[entry] = header->part == DIRECT_SUM;
    member->inputs_in.done++;
    run->sums[entry].inputs++;
}

// Final bytes have arrived: in user memory, or in `block`. Those of an exchange are in user memory.
static void take_final(struct flows *flows, struct flow *flow, struct direct_member *member,
                       const struct frame_header *header, uint8_t *block)
{
    struct direct_run *run = flow->part;
    member->finals_in.done++;
    if (direct_is_exchange(flow)) {
        if (member->finals_in.done == member->finals_in.count && member->counted)
            run->grants--;
        if (member->finals_in.done == member->finals_in.count && member->paced)
            ahead_taken(flows, member);
    } else {
        if (direct_is_mean(flow))
            flow->collective->weight_total = header->weight;
        if (block) {
            const struct ring_span span = direct_span(member, header->credit);
            reduce_store(flow, span, block);
            flows->totals.bytes_copied += span.count * flow->map.element_bytes;
        }
    }
    if (block)
        scratch_put(&flows->pools.chunks, block);
}

void direct_take(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
                 void *block)
{
    struct flows *flows = peer->flows;
    struct direct_run *run = flow->part;
    if (flow->mismatched || !run) { // The frame itself has shown that ranks disagree.
        if (block)
            scratch_put(&flows->pools.chunks, block);
        return;
    }
    struct direct_member *member = &run->members[direct_member_of(run, peer)];
    switch ((enum direct_part)header->part) {
    case DIRECT_INPUT:
    case DIRECT_SUM:
        take_input(run, member, header, block);
        break;
    case DIRECT_FINAL:
        take_final(flows, flow, member, header, block);
        break;
    case DIRECT_GRANT_INPUTS:
        member->inputs_out.granted = header->credit;
        return;
    case DIRECT_GRANT_FINALS:
        member->finals_out.granted = header->credit;
        return;
    case DIRECT_ANNOUNCE:
        run->fed = false;
        pull_hear(flows, member, block);
        return;
    case DIRECT_ASK:
        ahead_asked(flow, member);
        return;
    case DIRECT_TAKEN:
        pull_end(flows, flow, member);
        return;
    }
    flow->collective->last_received_us = clock_now_us();
    flow->receives_left--;
    direct_advance(flows, flow);
}
