// SPDX-License-Identifier: Apache-2.0
//
// The frames that ranks exchange when one of them ends. LEAVE is the goodbye: the last frame on a
// link, with the reason of the sender. LOST is the news that a rank was lost: each rank passes it
// on to all its neighbours when it hears that news for the first time. So every rank knows which
// rank was lost before the ranks that saw the loss close their links. Engine thread.
//
// A member that lies can name any rank and so end the job; it could also end the job by ending its
// own link. Its statement is shown as its own ("rank 1 says: ..."). The loss of one rank is passed
// on once, and a rank passes on LOCKSTEP_LOSSES losses at most. A peer that sends an impossible
// farewell is lost.

#include "worker/transport/farewell.h"

#include "worker/transport/flow/flows.h"
#include "worker/transport/form.h"
#include "worker/transport/state.h"
#include "worker/transport/transport.h"

#include <string.h>

static_assert(FAREWELL_BYTES <= LOCKSTEP_NOTE_BYTES, "it fits in a note");

// ---- saying -------------------------------------------------------------------------------------

// Makes a LEAVE or LOST frame. farewell NULL: the frame has no payload. NULL: no memory.
static struct out_frame *farewell_frame(const struct peer_link *peer, enum frame_kind kind,
                                        const struct farewell *farewell)
{
    struct transport *transport = transport_of(peer);
    struct frame_header header = {.kind = kind,
                                  .generation = transport->flows.world.generation,
                                  .chunk = transport->flows.world.rank};
    uint8_t *block = farewell ? scratch_get(&transport->flows.pools.notes) : NULL;
    if (block)
        header.payload_bytes = (uint32_t)farewell_encode(farewell, block);
    struct out_frame *frame = flows_frame(&transport->flows, &header);
    if (!frame) {
        if (block)
            scratch_put(&transport->flows.pools.notes, block);
        return NULL;
    }
    frame->urgent = kind == FRAME_LOST; // LEAVE waits behind all frames that are queued.
    frame->block = block;
    frame->pool = &transport->flows.pools.notes;
    frame->buffer = block;
    frame->source = block ? SOURCE_BUFFER : SOURCE_NONE;
    return frame;
}

static void farewell_queue(struct peer_link *peer, enum frame_kind kind,
                           const struct farewell *farewell)
{
    struct out_frame *frame = farewell_frame(peer, kind, farewell);
    if (frame)
        stream_queue(&peer->stream, frame);
}

void farewell_goodbye(struct peer_link *peer)
{
    const struct transport *transport = transport_of(peer);
    farewell_queue(peer, FRAME_LEAVE,
                   transport->farewells.has_goodbye ? &transport->farewells.goodbye : NULL);
}

void farewell_part(struct peer_link *peer)
{
    const struct transport *transport = transport_of(peer);
    stream_part(
        &peer->stream,
        farewell_frame(peer, FRAME_LEAVE,
                       transport->farewells.has_goodbye ? &transport->farewells.goodbye : NULL));
    if (!peer->stream.link)
        return;
    peer->stream.link->ops->shut(peer->stream.link);
    // A link that is closed with unread bytes is reset, and the peer may lose the goodbye.
    (void)stream_discard(&peer->stream);
}

void transport_goodbye(struct transport *transport, const struct farewell *farewell)
{
    thread_assert(&transport->flows.thread);
    transport->farewells.has_goodbye = true;
    transport->farewells.goodbye = *farewell;
}

// Records the loss. True if this rank had not told or heard of that loss before, and has passed on
// fewer than LOCKSTEP_LOSSES.
static bool farewell_is_news(struct transport *transport, const struct farewell *farewell)
{
    uint64_t *word = &transport->farewells.losses_known[farewell->rank / 64];
    const uint64_t bit = UINT64_C(1) << farewell->rank % 64;
    if ((*word & bit) != 0 || transport->farewells.losses_told == LOCKSTEP_LOSSES)
        return false;
    *word |= bit;
    transport->farewells.losses_told++;
    return true;
}

static void farewell_pass_on(struct transport *transport, const struct farewell *farewell,
                             const struct peer_link *from)
{
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        struct peer_link *peer = transport->flows.links.all[i];
        if (peer != from && peer->rank != farewell->rank && peer->state == PEER_PROVEN &&
            !peer->lost)
            farewell_queue(peer, FRAME_LOST, farewell);
    }
}

void transport_tell(struct transport *transport, const struct farewell *farewell)
{
    thread_assert(&transport->flows.thread);
    if (farewell_is_news(transport, farewell))
        farewell_pass_on(transport, farewell, NULL);
}

// ---- hearing ------------------------------------------------------------------------------------

const char *farewell_begins(struct peer_link *peer)
{
    struct stream *stream = &peer->stream;
    if (stream->header.payload_bytes == 0)
        return stream->header.kind == FRAME_LEAVE ? NULL : "its length is wrong";
    if (stream->header.payload_bytes > FAREWELL_BYTES)
        return "its length is wrong";
    stream->target.kind = TARGET_BUFFER;
    stream->target.buffer = peer->farewell_bytes;
    return NULL;
}

static void farewell_hear_loss(struct peer_link *peer, const struct farewell *farewell)
{
    struct transport *transport = transport_of(peer);
    if (!farewell_is_news(transport, farewell))
        return;
    transport->farewells.told[transport->farewells.told_count].from = peer->rank;
    transport->farewells.told[transport->farewells.told_count++].farewell = *farewell;
    farewell_pass_on(transport, farewell, peer);
}

const char *farewell_ended(struct peer_link *peer)
{
    const struct frame_header *header = &peer->stream.header;
    const bool leaves = header->kind == FRAME_LEAVE;
    struct farewell *farewell = &peer->farewell;
    if (header->payload_bytes > 0) {
        const char *wrong = farewell_decode(peer->farewell_bytes, header->payload_bytes,
                                            peer->flows->world.world_size, farewell);
        if (wrong)
            return wrong;
        if (!leaves && farewell->kind != FAREWELL_LOST)
            return "it tells of no loss";
        if ((farewell->kind == FAREWELL_CLOSED || farewell->kind == FAREWELL_FROZEN) &&
            farewell->rank != peer->rank)
            return "it says goodbye for another rank";
        peer->frozen = leaves && farewell->kind == FAREWELL_FROZEN;
        if (farewell->kind == FAREWELL_LOST)
            farewell_hear_loss(peer, farewell);
    }
    transport_of(peer)->farewells.goodbyes += leaves && !peer->left;
    peer->left = leaves;
    peer->flows->early.changed |= leaves;
    return NULL;
}

bool farewell_report(struct transport *transport)
{
    const struct transport_events *events = &transport->flows.events;
    if (transport->farewells.told_count == 0)
        return false;
    const struct farewell farewell = transport->farewells.told[0].farewell;
    const uint32_t from = transport->farewells.told[0].from;
    transport->farewells.told_count--;
    memmove(&transport->farewells.told[0], &transport->farewells.told[1],
            transport->farewells.told_count * sizeof(transport->farewells.told[0]));
    if (events->told)
        events->told(events->context, from, &farewell);
    return true;
}

const struct farewell *transport_farewell(struct transport *transport, uint32_t rank)
{
    const struct peer_link *peer = peer_of_rank(&transport->flows, rank);
    return peer && peer->left ? &peer->farewell : NULL;
}

uint32_t transport_goodbyes(const struct transport *transport)
{
    return transport->farewells.goodbyes;
}

void farewell_forget(struct transport *transport)
{
    transport->farewells.has_goodbye = false;
    transport->farewells.told_count = transport->farewells.losses_told = 0;
    transport->farewells.goodbyes = 0;
    memset(transport->farewells.losses_known, 0, sizeof(transport->farewells.losses_known));
}

void transport_miss(struct transport *transport, uint32_t rank)
{
    struct peer_link *peer = peer_of_rank(&transport->flows, rank);
    if (peer && peer->left)
        peer_lose(peer, "it has left");
}
