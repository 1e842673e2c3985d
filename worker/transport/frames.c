// SPDX-License-Identifier: Apache-2.0
//
// Hands each frame, by its kind, to the part of the transport that handles it: first its header,
// then the whole frame. Engine thread.

#include "worker/transport/frames.h"

#include "worker/transport/farewell.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/waves.h"
#include "worker/transport/form.h"
#include "worker/transport/headers.h"
#include "worker/transport/host/two_level.h"
#include "worker/transport/measure.h"
#include "worker/transport/state.h"

static void transport_sent(struct stream *stream, struct out_frame *frame, bool dropped)
{
    struct flows *flows = ((struct peer_link *)stream->context)->flows;
    if (frame->flow) {
        frame->flow->way->sent(flows, frame, dropped);
        return;
    }
    if (frame->block)
        scratch_put(frame->pool, frame->block);
    scratch_put(&flows->pools.frames, frame);
}

static bool transport_is_proof(enum frame_kind kind)
{
    return kind == FRAME_CHALLENGE || kind == FRAME_HELLO || kind == FRAME_WELCOME;
}

// True if only neighbours may send frames of this kind.
static bool transport_is_neighbours(const struct frame_header *header)
{
    switch (header->kind) {
    case FRAME_STEP_HEADER:
    case FRAME_REDUCE:
    case FRAME_GATHER:
    case FRAME_BROADCAST:
    case FRAME_PAIR:
    case FRAME_WAVE:
    case FRAME_MEASURE:
    case FRAME_RUN:
        return true;
    case FRAME_CREDIT:
        return header->part <= FRAME_CREDIT_PAIR;
    case FRAME_DIRECT:
    case FRAME_LEAVE:
    case FRAME_LOST:
    case FRAME_CHALLENGE:
    case FRAME_HELLO:
    case FRAME_WELCOME:
        return false;
    }
    return true;
}

static const char *transport_begin(struct stream *stream)
{
    struct peer_link *peer = stream->context;
    const struct generation_id *own = &peer->flows->world.generation;
    const struct frame_header *header = &stream->header;
    if (transport_is_proof(header->kind))
        return form_frame_begins(peer);
    if (peer->state != PEER_PROVEN)
        return "it comes before the proof of membership";
    if (header->generation.number != own->number ||
        header->generation.incarnation != own->incarnation)
        return "its generation is another one";
    if (peer->left)
        return "it comes after the goodbye";
    if (peer->further && transport_is_neighbours(header))
        return "it does not come from a neighbour";
    switch (header->kind) {
    case FRAME_STEP_HEADER:
        return headers_begin(peer);
    case FRAME_REDUCE:
    case FRAME_GATHER:
    case FRAME_BROADCAST:
    case FRAME_PAIR:
    case FRAME_DIRECT:
        return peer->flows->ways->of_frame[header->kind]->begin(peer, stream);
    case FRAME_WAVE:
        return wave_begin(peer, stream);
    case FRAME_MEASURE:
        return measure_frame_begins(peer, stream);
    case FRAME_LEAVE:
    case FRAME_LOST:
        return farewell_begins(peer);
    case FRAME_CREDIT:
    case FRAME_RUN:
        return header->payload_bytes == 0 ? NULL : "its length is wrong";
    case FRAME_CHALLENGE:
    case FRAME_HELLO:
    case FRAME_WELCOME:
        break;
    }
    return "its kind is unknown";
}

static const char *transport_end(struct stream *stream)
{
    struct peer_link *peer = stream->context;
    switch (stream->header.kind) {
    case FRAME_CHALLENGE:
    case FRAME_HELLO:
    case FRAME_WELCOME:
        return form_frame_ended(peer);
    case FRAME_STEP_HEADER:
        headers_end(peer);
        return NULL;
    case FRAME_REDUCE:
    case FRAME_GATHER:
    case FRAME_BROADCAST:
    case FRAME_PAIR:
    case FRAME_DIRECT:
        return flow_end(peer, stream);
    case FRAME_WAVE:
        return wave_end(peer, stream);
    case FRAME_MEASURE:
        return measure_frame_ended(peer);
    case FRAME_CREDIT:
        return flow_credit(peer, &stream->header);
    case FRAME_RUN:
        return two_level_hear(peer, &stream->header);
    case FRAME_LEAVE:
    case FRAME_LOST:
        return farewell_ended(peer);
    }
    return NULL;
}

const struct stream_owner transport_stream_owner = {
    .begin = transport_begin,
    .end = transport_end,
    .sent = transport_sent,
};
