// SPDX-License-Identifier: Apache-2.0
//
// Checks frames that arrive on a ring, and handles them. Engine thread.

#ifndef WORKER_TRANSPORT_RING_RECEIVE_H
#define WORKER_TRANSPORT_RING_RECEIVE_H

#include <stdint.h>

struct flow;
struct flows;
struct frame_header;
struct peer_link;
struct stream;

// Checks whether a frame with the right signature may arrive now. Returns NULL, or what is
// impossible about it.
const char *ring_check(struct flow *flow, const struct frame_header *header, const uint8_t *used);
// Sets stream->target to where the payload of a checked frame goes. Returns NULL, or
// peer_no_memory.
const char *ring_target(struct flows *flows, struct flow *flow, struct stream *stream);
// way.take and way.unpark of the ring.
void ring_take(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
               void *block);
const char *ring_unpark(const struct peer_link *peer, struct flow *flow,
                        const struct frame_header *header, const uint8_t *used);

#endif
