// SPDX-License-Identifier: Apache-2.0
//
// Collectives in which any rank sends to any other. This file decides when a frame may be sent.
// Who takes part is in launch.c, what arriving frames trigger in receive.c, the arithmetic in
// sum.c. Engine thread.
//
// Words. A reduction has *members* in the order of summation. Each member *owns* a run of elements,
// which is cut into *pieces*. For each piece a member sends its *input* to the owner. The owner
// sums the piece when all inputs have arrived. In an allreduce it then sends the *final* bytes to
// all. A reduce-scatter ends with the sum. An exchange has only final bytes: the parts, which are
// cut into pieces of their own.
//
// Over a tree of leaves (collective.tree) a member has several sums for each piece: its blocks.
// They travel in one frame, one behind the other, and the owner merges the blocks of all members by
// the rule of worker/kernels/tree.h. Nothing else differs; pieces are smaller, so that the largest
// input fits in a frame.
//
// Cost. A rank sends and receives the bytes of a ring, in two hops instead of 2(n - 1), over n - 1
// links. Every element is rounded once (not over a tree). Its bits depend on the inputs and the
// order of the members, not on the owner, the piece or the timing.
//
// Credit. A part of at most LOCKSTEP_EAGER_BYTES in one piece is sent at once; it may arrive before
// the launch, and is parked. For other inputs the owner grants its *window* of pieces, and grants
// further ones as its lowest pieces complete. A piece is *complete* when it is summed and the links
// have taken its final bytes. So an owner holds at most window * (n - 1) inputs. For parts of an
// exchange the receiver grants whole parts, to DIRECT_SENDERS members at a time. The sender of such
// a part announces it at its launch, so ranks that disagree about its length find out although no
// byte of it may be sent. Short parts that go one way have a bound of their own: ahead.c. Final
// bytes of an allreduce need no credit: their receiver has launched, and they go to user memory.
//
// Why it cannot deadlock, for one collective that all members have launched. Frames wait for
// credit and for links only, receivers never stop reading, and no link waits for another. In a
// reduction let p be the lowest piece that is not complete on its owner. The owner has granted it,
// so all its inputs arrive; it is summed, and its final bytes wait for no credit. In an exchange a
// granted part waits for its link, so it arrives, and the next part is granted; on fast links it
// also waits for a part that comes in return and is granted, too, and neither of the two runs more
// than DIRECT_AHEAD pieces ahead of the other, so one of them always may be sent.
//
// Rule R1 (intact or final): partial sums stay in tiles and blocks. The owner writes an element
// only with its final bytes. Another member receives final bytes of a piece into user memory only
// after it has sent its own input of the piece; the owner has it then, and no one else needs it. So
// every element is an intact input on every member, or final on its owner.

#include "worker/transport/direct/direct.h"

#include "base/clock.h"
#include "worker/kernels/dtype.h"
#include "worker/transport/direct/ahead.h"
#include "worker/transport/direct/finals.h"
#include "worker/transport/direct/launch.h"
#include "worker/transport/direct/pull.h"
#include "worker/transport/direct/receive.h"
#include "worker/transport/direct/sum.h"
#include "worker/transport/flow/flow.h"

#include <assert.h>
#include <string.h>

#define DIRECT_SENDERS 8 // Parts that one rank receives at a time, besides eager ones.
// On links that are about as fast as a core copies, two ranks that exchange parts send so many
// pieces ahead of what they receive. Otherwise each first fills the socket, and what arrives has
// left the cache.
#define DIRECT_AHEAD 2
#define DIRECT_SWIFT_BYTES_PER_S UINT64_C(2000000000)
// A rank copies its own part in blocks of this size. The C library's memcpy bypasses the cache for
// large sizes: one copy of 12.5 MiB took 1.25 times as long as its blocks.
#define DIRECT_KEEP_BYTES (512 * 1024)

// Members mostly are all ranks in their order; an exchange has none for this rank.
uint32_t direct_member_of(const struct direct_run *run, const struct peer_link *peer)
{
    const uint32_t rank = peer->rank;
    if (rank < run->count && run->members[rank].peer == peer)
        return rank;
    if (rank > 0 && rank <= run->count && run->members[rank - 1].peer == peer)
        return rank - 1;
    for (uint32_t i = 0; i < run->count; i++)
        if (run->members[i].peer == peer)
            return i;
    return DIRECT_NO_MEMBER;
}

bool direct_is_eager(const struct flow *flow, uint64_t elements)
{
    const struct direct_run *run = flow->part;
    return elements <= LOCKSTEP_EAGER_BYTES / run->element_bytes;
}

static uint32_t direct_own_pieces(const struct direct_run *run)
{
    return run->own == DIRECT_NO_MEMBER ? 0 : run->members[run->own].inputs_in.count;
}

static uint32_t direct_least(uint32_t one, uint32_t other)
{
    return one < other ? one : other;
}

// ---- frames -------------------------------------------------------------------------------------

// Says which frame the link has taken: out_frame.stripe.
static uint64_t direct_label(enum direct_part part, uint32_t member, uint32_t piece)
{
    return (uint64_t)part << 56 | (uint64_t)member << 32 | piece;
}

static struct frame_header direct_header(const struct flows *flows, const struct flow *flow,
                                         enum direct_part part)
{
    const bool input = part == DIRECT_INPUT || part == DIRECT_SUM;
    struct frame_header header = flow_header(flows, flow, FRAME_DIRECT);
    header.dtype = input ? direct_input_dtype(flow) : direct_dtype(flow);
    header.part = part;
    header.chunk = flows->world.rank;
    return header;
}

bool direct_say(struct flows *flows, const struct flow *flow, struct peer_link *peer,
                struct direct_word word)
{
    struct frame_header header = direct_header(flows, flow, word.part);
    header.credit = word.credit;
    header.weight = word.weight;
    header.payload_bytes = word.address != 0 ? DIRECT_ADDRESS_BYTES : 0;
    struct out_frame *frame = flows_frame(flows, &header);
    if (!frame) {
        peer_lose(peer, peer_no_memory);
        return false;
    }
    frame->stripe = word.address; // The payload; the frame itself is its memory.
    frame->source = word.address != 0 ? SOURCE_BUFFER : SOURCE_NONE;
    frame->buffer = (const uint8_t *)&frame->stripe;
    stream_queue(&peer->stream, frame);
    return true;
}

// The contents of one frame.
struct direct_cargo {
    enum direct_part part;
    uint32_t piece;
    struct unit_range units;
    uint64_t weight;
    struct ring_span span;
    uint32_t blocks; // The payload has so many times the elements of the span.
    bool empty; // No payload.
    const uint8_t *buffer;
    enum frame_source source;
    uint8_t *block; // Freed once the frame is sent.
};

static bool direct_send(struct flows *flows, struct flow *flow, const struct direct_run *run,
                        uint32_t member, const struct direct_cargo *cargo)
{
    struct peer_link *peer = run->members[member].peer;
    struct frame_header header = direct_header(flows, flow, cargo->part);
    header.credit = cargo->piece;
    header.weight = cargo->weight;
    header.used_bytes = units_bytes(cargo->units.count);
    if (!cargo->empty)
        header.payload_bytes =
            (uint32_t)(cargo->blocks * cargo->span.count * dtype_size(header.dtype));
    struct out_frame *frame = flows_frame(flows, &header);
    if (!frame) {
        peer_lose(peer, peer_no_memory);
        return false;
    }
    units_pack(flow->collective->used, cargo->units, frame->head + LOCKSTEP_FRAME_HEADER_BYTES);
    frame->urgent = false;
    frame->flow = flow;
    frame->stripe = direct_label(cargo->part, member, cargo->piece);
    frame->block = cargo->block;
    if (header.payload_bytes > 0) {
        frame->source = cargo->source;
        frame->buffer = cargo->buffer;
        if (cargo->source != SOURCE_BUFFER)
            frame->cursor = extent_seek(&flow->map, cargo->span.first);
    }
    stream_queue(&peer->stream, frame);
    return true;
}

// ---- inputs -------------------------------------------------------------------------------------

// Sets where the payload of an input comes from. False: no memory.
static bool direct_load_input(struct flows *flows, const struct flow *flow,
                              const struct direct_member *member, struct direct_cargo *cargo)
{
    const struct collective *collective = flow->collective;
    cargo->source = SOURCE_BUFFER;
    if (cargo->empty)
        return true;
    if (collective->kind == COLLECTIVE_REDUCE_SCATTER) {
        cargo->buffer = (const uint8_t *)member->send->memory +
                        cargo->span.first * dtype_size(collective->dtype);
        return true;
    }
    if (collective->tree && cargo->blocks == 1) {
        cargo->buffer = collective->tree->blocks[0] + cargo->span.first * dtype_size(flow->partial);
        return true;
    }
    if (direct_is_plain(flow)) {
        cargo->source = SOURCE_IN;
        return true;
    }
    cargo->buffer = cargo->block = scratch_get(&flows->pools.chunks);
    if (!cargo->block)
        return false;
    direct_pack(flow, cargo->span, cargo->block);
    return true;
}

// Sends this rank's input for the next piece of a member. False: no memory.
static bool direct_send_input(struct flows *flows, struct flow *flow, struct direct_run *run,
                              uint32_t index)
{
    struct direct_member *member = &run->members[index];
    const struct collective *collective = flow->collective;
    struct direct_cargo cargo = {.part = DIRECT_INPUT, .piece = member->inputs_out.begun};
    cargo.span = direct_span(member, cargo.piece);
    cargo.units = direct_units(flow, cargo.span);
    if (direct_is_mean(flow)) {
        cargo.weight = collective->weight;
        if (collective->input_is_sum && direct_contributes(flow))
            cargo.part = DIRECT_SUM;
    }
    cargo.empty = cargo.span.count == 0 || !direct_contributes(flow) ||
                  units_usage(collective->used, cargo.units) == USAGE_NONE;
    cargo.blocks = run->members[run->own].blocks;
    if (!direct_load_input(flows, flow, member, &cargo)) {
        peer_lose(member->peer, peer_no_memory);
        return false;
    }
    member->inputs_out.begun++;
    return direct_send(flows, flow, run, index, &cargo);
}

// Grants further inputs: at the launch, then each time half a window has opened.
static bool direct_grant_inputs(struct flows *flows, const struct flow *flow,
                                const struct direct_run *run, struct direct_member *member)
{
    struct direct_row *row = &member->inputs_in;
    const uint32_t opened = direct_least(run->base + run->window, row->count);
    if (row->granted >= opened)
        return false;
    if (row->granted > 0 && opened - row->granted < run->window / 2 && opened < row->count)
        return false;
    row->granted = opened;
    return direct_say(flows, flow, member->peer,
                      (struct direct_word){.part = DIRECT_GRANT_INPUTS, .credit = opened});
}

// ---- final bytes --------------------------------------------------------------------------------

// The next piece of the part that goes to a member.
static void direct_part_cargo(const struct flow *flow, const struct direct_member *member,
                              struct direct_cargo *cargo)
{
    const struct ring_span part = {0, member->send->elements};
    cargo->weight = part.count;
    cargo->source = SOURCE_BUFFER;
    cargo->empty = part.count == 0;
    if (cargo->empty)
        return;
    cargo->span = direct_piece(part, member->piece, cargo->piece);
    cargo->buffer = (const uint8_t *)member->send->memory +
                    cargo->span.first * dtype_size(flow->collective->dtype);
}

static void direct_sum_cargo(const struct flow *flow, const struct direct_run *run,
                             struct direct_cargo *cargo)
{
    const struct direct_sum *sum = &run->sums[cargo->piece % run->window];
    cargo->span = direct_span(&run->members[run->own], cargo->piece);
    cargo->units = direct_units(flow, cargo->span);
    cargo->weight = sum->weight;
    cargo->empty = sum->empty || cargo->span.count == 0;
    cargo->source = sum->block ? SOURCE_BUFFER : SOURCE_OUT;
    cargo->buffer = sum->block;
}

static bool direct_send_final(struct flows *flows, struct flow *flow, struct direct_run *run,
                              uint32_t index)
{
    struct direct_member *member = &run->members[index];
    struct direct_cargo cargo = {
        .part = DIRECT_FINAL, .piece = member->finals_out.begun, .blocks = 1};
    if (direct_is_exchange(flow))
        direct_part_cargo(flow, member, &cargo);
    else
        direct_sum_cargo(flow, run, &cargo);
    member->finals_out.begun++;
    return direct_send(flows, flow, run, index, &cargo);
}

// Grants the whole part of a member of an exchange, if few others are on their way. A part that
// this rank may read itself is granted only once that has failed.
static bool direct_grant_part(struct flows *flows, const struct flow *flow, struct direct_run *run,
                              struct direct_member *member)
{
    struct direct_row *row = &member->finals_in;
    if (row->granted == row->count || run->grants == DIRECT_SENDERS || pull_may_come(member))
        return false;
    row->granted = row->count;
    member->counted = true;
    run->grants++;
    return direct_say(flows, flow, member->peer,
                      (struct direct_word){.part = DIRECT_GRANT_FINALS,
                                           .credit = row->count,
                                           .weight = member->receive->elements});
}

// ---- feeding ------------------------------------------------------------------------------------

// Returns the end of the final pieces that may go to a member now. The bound by what has arrived
// from it holds only where this rank has granted that member its part: then the member waits for
// nothing but this rank's pieces, or for nothing at all.
static uint32_t direct_finals_end(const struct flows *flows, const struct flow *flow,
                                  const struct direct_run *run, const struct direct_member *member)
{
    const struct direct_row *in = &member->finals_in;
    if (!direct_is_exchange(flow))
        return direct_least(member->finals_out.granted, run->summed);
    if (flows->agreed_bytes_per_s < DIRECT_SWIFT_BYTES_PER_S || in->done == in->count ||
        in->granted < in->count)
        return member->finals_out.granted;
    return direct_least(member->finals_out.granted, in->done + DIRECT_AHEAD);
}

// Queues what may go to one member now. True if it queued any frame.
static bool direct_feed_member(struct flows *flows, struct flow *flow, struct direct_run *run,
                               uint32_t index)
{
    struct direct_member *member = &run->members[index];
    const struct stream *stream = member->peer ? &member->peer->stream : NULL;
    if (!stream || member->peer->state != PEER_PROVEN || member->peer->lost)
        return false;
    bool any = member->paced ? ahead_feed(flows, flow, member)
                             : !member->announced && pull_announce(flows, flow, member);
    any |= direct_is_exchange(flow) ? direct_grant_part(flows, flow, run, member)
                                    : direct_grant_inputs(flows, flow, run, member);
    const uint32_t inputs = direct_least(member->inputs_out.granted, member->inputs_out.count);
    const uint32_t finals = direct_finals_end(flows, flow, run, member);
    while (member->finals_out.begun < finals && stream->queued_bytes < STREAM_CALL_BYTES) {
        if (!direct_send_final(flows, flow, run, index))
            return any;
        any = true;
    }
    while (member->inputs_out.begun < inputs && stream->queued_bytes < STREAM_CALL_BYTES) {
        if (!direct_send_input(flows, flow, run, index))
            return any;
        any = true;
    }
    return any;
}

// True if nothing is left to queue for a member: no announcement, no piece and no grant.
static bool direct_is_fed(const struct direct_member *member)
{
    return !member->peer || (member->announced && !member->waits && !member->asks &&
                             member->inputs_out.begun == member->inputs_out.count &&
                             member->finals_out.begun == member->finals_out.count &&
                             member->inputs_in.granted == member->inputs_in.count &&
                             member->finals_in.granted == member->finals_in.count);
}

bool direct_copy_own(struct flows *flows, const struct flow *flow, struct direct_run *run)
{
    const uint64_t bytes = run->kept_from->elements * dtype_size(flow->collective->dtype);
    const uint64_t left = bytes - run->kept_bytes;
    const uint64_t block = left < DIRECT_KEEP_BYTES ? left : DIRECT_KEEP_BYTES;
    memcpy((uint8_t *)run->kept_to->memory + run->kept_bytes,
           (const uint8_t *)run->kept_from->memory + run->kept_bytes, block);
    run->kept_bytes += block;
    flows->moved_bytes += block;
    if (block < left)
        return false;
    run->kept_from = NULL;
    return true;
}

// Copies some of this rank's own part. True if there was any left. May end the flow.
static bool direct_keep(struct flows *flows, struct flow *flow, struct direct_run *run)
{
    if (!run->kept_from)
        return false;
    if (!direct_copy_own(flows, flow, run))
        return true;
    flow->receives_left--;
    direct_advance(flows, flow);
    return true;
}

// Each rank begins with the member behind it, so that not all serve the first member at once.
static uint32_t direct_turn(const struct flows *flows, const struct direct_run *run, uint32_t i)
{
    const uint32_t first = run->own == DIRECT_NO_MEMBER ? flows->world.rank : run->own + 1;
    return (first + i) % run->count;
}

static bool direct_feed_flow(struct flows *flows, struct flow *flow, struct direct_run *run)
{
    bool any = false;
    bool fed = true;
    if (run->fed)
        return false;
    for (uint32_t i = 0; i < run->count; i++) {
        const uint32_t index = direct_turn(flows, run, i);
        any |= direct_feed_member(flows, flow, run, index);
        fed = fed && direct_is_fed(&run->members[index]);
    }
    run->fed = fed;
    return any;
}

// Reads some of the part of one member, or copies this rank's own part. May end the flow.
static bool direct_move(struct flows *flows, struct flow *flow, struct direct_run *run)
{
    for (uint32_t i = 0; i < run->count; i++) {
        if (pull_some(flows, flow, &run->members[direct_turn(flows, run, i)]))
            return true;
    }
    return direct_keep(flows, flow, run);
}

// A member waits for frames, and bytes move for much longer than a frame. So the links take the
// frames of all collectives before bytes are moved, and those of a move before the next one. After
// FLOWS_MOVE_BYTES the driver looks at its links and requests.
static bool direct_feed(struct flows *flows)
{
    bool any = false;
    if (flows->directs == 0)
        return false;
    list_for_each (node, &flows->active) {
        struct flow *flow = list_entry(node, struct flow, turn);
        if (flow->way == &direct_way && flow->part)
            any |= direct_feed_flow(flows, flow, flow->part);
    }
    if (any)
        return true;
    if (flows->moved_bytes >= FLOWS_MOVE_BYTES)
        return false;
    list_for_each (node, &flows->active) {
        struct flow *flow = list_entry(node, struct flow, turn);
        if (flow->way == &direct_way && flow->part && direct_move(flows, flow, flow->part))
            return true;
    }
    return false;
}

// ---- what is complete ---------------------------------------------------------------------------

static void direct_end(struct flows *flows, struct flow *flow)
{
    flow->collective->last_received_us = clock_now_us();
    scratch_put(&flows->pools.parts, flow->part);
    flow->part = NULL;
    flows->directs--;
    list_remove(&flow->turn);
    list_push_back(&flows->done, &flow->turn);
}

static bool direct_can_sum(const struct direct_run *run)
{
    const struct direct_sum *sum = &run->sums[run->summed % run->window];
    return run->summed < direct_own_pieces(run) && run->summed < run->base + run->window &&
           sum->inputs == run->count - 1;
}

static void direct_complete(struct flows *flows, struct direct_run *run)
{
    while (run->base < run->summed && run->sums[run->base % run->window].sends_left == 0) {
        struct direct_sum *sum = &run->sums[run->base++ % run->window];
        if (sum->block)
            scratch_put(&flows->pools.chunks, sum->block);
        memset(sum, 0, sizeof(*sum));
    }
}

void direct_advance(struct flows *flows, struct flow *flow)
{
    struct direct_run *run = flow->part;
    if (flow->mismatched)
        return;
    while (run->own != DIRECT_NO_MEMBER && direct_can_sum(run)) {
        if (!direct_finish(flows, flow, run, run->summed)) {
            peer_lose(flows->ring.successor, peer_no_memory);
            return;
        }
        if (direct_gathers(flow))
            run->sums[run->summed % run->window].sends_left = run->count - 1;
        run->summed++;
        flow->receives_left--;
        direct_complete(flows, run);
    }
    direct_complete(flows, run);
    if (flow->receives_left + flow->sends_left == 0)
        direct_end(flows, flow);
}

static void direct_sent(struct flows *flows, struct out_frame *frame, bool dropped)
{
    struct flow *flow = frame->flow;
    const enum direct_part part = (enum direct_part)(frame->stripe >> 56);
    const uint32_t index = (uint32_t)(frame->stripe >> 32) & 0xffffff;
    const uint32_t piece = (uint32_t)frame->stripe;
    const uint32_t payload_bytes = frame->payload_bytes;
    if (frame->block)
        scratch_put(&flows->pools.chunks, frame->block);
    if (frame->head != frame->bytes)
        scratch_put(&flows->pools.heads, frame->head);
    scratch_put(&flows->pools.frames, frame);
    if (dropped)
        return;
    struct direct_run *run = flow->part;
    flows->totals.payload_bytes_sent += payload_bytes;
    if (flow->collective->first_sent_us == 0)
        flow->collective->first_sent_us = clock_now_us();
    if (part == DIRECT_FINAL)
        run->members[index].finals_out.done++;
    else
        run->members[index].inputs_out.done++;
    if (part == DIRECT_FINAL && run->own != DIRECT_NO_MEMBER)
        run->sums[piece % run->window].sends_left--;
    flow->sends_left--;
    direct_advance(flows, flow);
}

// ---- who is needed ------------------------------------------------------------------------------

static bool direct_flow_needs(const struct flow *flow, const struct peer_link *peer)
{
    const struct direct_run *run = flow->part;
    if (flow->way != &direct_way || !run)
        return false;
    const uint32_t index = direct_member_of(run, peer);
    if (index == DIRECT_NO_MEMBER)
        return false;
    const struct direct_member *member = &run->members[index];
    return flow->mismatched || member->inputs_out.done < member->inputs_out.count ||
           member->inputs_in.done < member->inputs_in.count ||
           member->finals_out.done < member->finals_out.count ||
           member->finals_in.done < member->finals_in.count;
}

static bool direct_needs(struct flows *flows, const struct peer_link *peer)
{
    if (flows->directs == 0)
        return false;
    list_for_each (node, &flows->active) {
        if (direct_flow_needs(list_entry(node, struct flow, turn), peer))
            return true;
    }
    list_for_each (node, &flows->mismatched) {
        if (direct_flow_needs(list_entry(node, struct flow, turn), peer))
            return true;
    }
    return false;
}

static void direct_forget(struct flows *flows)
{
    flows->directs = 0;
}

const struct way direct_way = {
    .part_bytes = sizeof(struct direct_run),
    .member_bytes = sizeof(struct direct_member),
    .launch = direct_launch,
    .begin = direct_begin,
    .take = direct_take,
    .unpark = direct_unpark,
    .place = direct_place,
    .credit = ahead_credit,
    .sent = direct_sent,
    .feed = direct_feed,
    .needs = direct_needs,
    .finals = direct_finals,
    .forget = direct_forget,
};
