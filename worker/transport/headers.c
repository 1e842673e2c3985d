// SPDX-License-Identifier: Apache-2.0
//
// Step headers: a rank sends the header of a step to its ring successor, with a note, and reports
// the headers that its predecessor sends. This file does not interpret headers. Engine thread.

#include "worker/transport/headers.h"

#include "worker/transport/flow/flows.h"
#include "worker/transport/state.h"
#include "worker/transport/transport.h"

#include <assert.h>
#include <string.h>

const char *headers_begin(struct peer_link *peer)
{
    struct transport *transport = transport_of(peer);
    const struct frame_header *header = &peer->stream.header;
    const bool opening = header->chunk == 1;
    if (header->chunk > 1)
        return "it neither opens nor begins a step";
    if (header->slot > 2)
        return "it has no rule for ranks without data";
    if (opening && (header->payload_bytes != 0 || header->space != 0 || header->weight != 0 ||
                    header->signature != 0))
        return "it opens a step and has a phase or a plan already";
    if (peer != transport->flows.ring.predecessor)
        return "it does not come from the ring predecessor";
    if (transport->headers.count == LOCKSTEP_EARLY_HEADERS)
        return "it is of a step too far ahead";
    peer->stream.target.kind = TARGET_BUFFER;
    peer->stream.target.buffer = transport->headers.note;
    return NULL;
}

void headers_end(struct peer_link *peer)
{
    struct transport *transport = transport_of(peer);
    const struct frame_header *header = &peer->stream.header;
    struct step_headers *headers = &transport->headers;
    struct early_header *early =
        &headers->early[(headers->first + headers->count++) % LOCKSTEP_EARLY_HEADERS];
    transport->headers.received = header->step;
    early->header = (struct step_header){
        .step = header->step,
        .phase = header->signature,
        .plan_number = header->weight,
        .plan_hash = header->space,
        .starts = header->part,
        .uneven = header->slot,
        .opening = header->chunk != 0,
    };
    early->note_bytes = header->payload_bytes;
    memcpy(early->note, transport->headers.note, header->payload_bytes);
}

bool headers_report(struct transport *transport)
{
    const struct transport_events *events = &transport->flows.events;
    if (transport->headers.count == 0 || !transport->flows.formed_reported)
        return false;
    // Its place is taken again only when another header arrives, which no event does.
    const struct early_header *early = &transport->headers.early[transport->headers.first];
    transport->headers.first = (transport->headers.first + 1) % LOCKSTEP_EARLY_HEADERS;
    transport->headers.count--;
    if (events->header)
        events->header(events->context, &early->header, early->note, early->note_bytes);
    return true;
}

bool headers_need(const struct transport *transport, const struct peer_link *peer)
{
    return peer == transport->flows.ring.predecessor &&
           transport->headers.received < transport->headers.sent;
}

// Makes the frame of a step header and its note. NULL: no memory.
static struct out_frame *headers_frame(struct transport *transport,
                                       const struct frame_header *header, const uint8_t *note)
{
    uint8_t *block = scratch_get(&transport->flows.pools.notes);
    struct out_frame *frame = block ? flows_frame(&transport->flows, header) : NULL;
    if (!frame) {
        if (block)
            scratch_put(&transport->flows.pools.notes, block);
        return NULL;
    }
    memcpy(block, note, header->payload_bytes);
    frame->block = block;
    frame->pool = &transport->flows.pools.notes;
    frame->buffer = block;
    frame->source = header->payload_bytes > 0 ? SOURCE_BUFFER : SOURCE_NONE;
    return frame;
}

void transport_header(struct transport *transport, const struct step_header *header,
                      const uint8_t *note, uint32_t note_bytes)
{
    thread_assert(&transport->flows.thread);
    assert(transport->flows.formed && note_bytes <= LOCKSTEP_NOTE_BYTES);
    if (!transport->flows.ring.successor)
        return;
    transport->headers.sent = header->step;
    const struct frame_header frame_header = {
        .kind = FRAME_STEP_HEADER,
        .generation = transport->flows.world.generation,
        .step = header->step,
        .space = header->plan_hash,
        .part = header->starts,
        .slot = header->uneven,
        .chunk = header->opening ? 1 : 0,
        .weight = header->plan_number,
        .signature = header->phase,
        .payload_bytes = note_bytes,
    };
    struct out_frame *frame = headers_frame(transport, &frame_header, note);
    if (frame)
        stream_queue(&transport->flows.ring.successor->stream, frame);
    else
        peer_lose(transport->flows.ring.successor, peer_no_memory);
}

void headers_forget(struct transport *transport)
{
    transport->headers.count = 0;
    transport->headers.sent = 0;
    transport->headers.received = 0;
}
