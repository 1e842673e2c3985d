// SPDX-License-Identifier: Apache-2.0
//
// Parking: frames of small collectives that arrive before their collective is launched here. They
// wait in one block of LOCKSTEP_EAGER_BYTES per collective and peer, in the order of their arrival,
// and are taken at the launch as if they arrived then. The number of blocks per peer is bounded.
// Engine thread.

#include "worker/transport/flow/park.h"

#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/flows.h"

#include <assert.h>
#include <string.h>

const char *const flow_signature_text = "the frames of this collective have another signature";
const char *const flow_algorithm_text = "it runs this collective by another algorithm";

static struct parking *park_of(const struct flow *flow, const struct peer_link *peer)
{
    struct parking *parking = flow->parking;
    while (parking && parking->peer != peer)
        parking = parking->next;
    return parking;
}

// Returns the parking of this flow and peer, and makes it if there is none. NULL: not possible,
// *text says why.
static struct parking *park_open(struct flow *flow, struct peer_link *peer, const char **text)
{
    struct parking *parking = park_of(flow, peer);
    if (parking)
        return parking;
    if (peer->parkings == LOCKSTEP_PARKINGS_OF_PEER) {
        *text = "too many frames have no credit";
        return NULL;
    }
    parking = scratch_get(&peer->flows->pools.parkings);
    if (!parking) {
        *text = peer_no_memory;
        return NULL;
    }
    peer->parkings++;
    memset(parking, 0, offsetof(struct parking, frames));
    parking->peer = peer;
    parking->next = flow->parking;
    flow->parking = parking;
    return parking;
}

static void park_close(struct flows *flows, struct flow *flow, struct parking *parking)
{
    struct parking **place = &flow->parking;
    while (*place != parking)
        place = &(*place)->next;
    *place = parking->next;
    parking->peer->parkings--;
    scratch_put(&flows->pools.parkings, parking);
}

const char *park_begin(struct peer_link *peer, struct flow *flow, struct stream *stream)
{
    struct flows *flows = peer->flows;
    const struct frame_header *header = &stream->header;
    const char *text = NULL;
    struct parking *parking = park_open(flow, peer, &text);
    if (!parking)
        return text;
    if (header->payload_bytes > LOCKSTEP_EAGER_BYTES ||
        parking->bytes_filled + header->payload_bytes > sizeof(parking->bytes) ||
        parking->used_filled + header->used_bytes > sizeof(parking->used))
        return "it is above the eager limit and has no credit";
    if (parking->count == LOCKSTEP_EAGER_FRAMES)
        return "too many frames have no credit";
    struct parked_frame *parked = &parking->frames[parking->count++];
    *parked = (struct parked_frame){
        .header = *header, .offset = parking->bytes_filled, .used_offset = parking->used_filled};
    memcpy(parking->used + parking->used_filled, stream->used, header->used_bytes);
    parking->bytes_filled += (header->payload_bytes + 7) / 8 * 8;
    parking->used_filled += header->used_bytes;
    stream->flow = flow;
    stream->parked = parked;
    stream->target.kind = TARGET_BUFFER;
    stream->target.buffer = parking->bytes + parked->offset;
    if (++flows->frames_parked > flows->totals.frames_parked_max)
        flows->totals.frames_parked_max = flows->frames_parked;
    return NULL;
}

// Handles one parked frame as if it arrived now. Returns NULL, or what is impossible about the
// frame.
static const char *park_take(struct flows *flows, struct flow *flow, const struct parking *parking,
                             const struct parked_frame *parked)
{
    const uint8_t *used = parking->used + parked->used_offset;
    const struct frame_header *header = &parked->header;
    void *block = NULL;
    void *place = NULL;
    if (flow->mismatched)
        return NULL;
    if (flow->way != flows->ways->of_frame[header->kind]) {
        flow_mismatch(flows, flow, parking->peer->rank, flow_algorithm_text);
        return NULL;
    }
    if (header->signature != flow->collective->signature) {
        flow_mismatch(flows, flow, parking->peer->rank, flow_signature_text);
        return NULL;
    }
    const char *text = flow->way->unpark(parking->peer, flow, header, used);
    if (text)
        return text;
    if (header->payload_bytes > 0) {
        if (flow->way->place && !flow->mismatched)
            place = flow->way->place(parking->peer, flow, header);
        if (!place)
            place = block = scratch_get(&flows->pools.chunks);
        if (!place)
            return peer_no_memory;
        memcpy(place, parking->bytes + parked->offset, header->payload_bytes);
    }
    flow_give(parking->peer, flow, header, block);
    return NULL;
}

// Takes the whole frames in order, and frees the parking after its last frame.
static const char *park_drain(struct flows *flows, struct flow *flow, struct parking *parking)
{
    const char *text = NULL;
    while (!text && parking->consumed < parking->count &&
           parking->frames[parking->consumed].complete) {
        text = park_take(flows, flow, parking, &parking->frames[parking->consumed]);
        parking->consumed++;
        flows->frames_parked--;
    }
    if (parking->consumed == parking->count)
        park_close(flows, flow, parking);
    return text;
}

const char *park_end(struct peer_link *peer, struct flow *flow, struct stream *stream)
{
    ((struct parked_frame *)stream->parked)->complete = true;
    if (!flow->collective)
        return NULL;
    return park_drain(peer->flows, flow, park_of(flow, peer));
}

void park_catch_up(struct flows *flows, struct flow *flow)
{
    struct parking *parking = flow->parking;
    while (parking) {
        struct parking *next = parking->next;
        struct peer_link *peer = parking->peer;
        const char *text = park_drain(flows, flow, parking);
        if (text)
            peer_lose_impossible(peer, text);
        parking = next;
    }
}
