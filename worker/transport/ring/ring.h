// SPDX-License-Identifier: Apache-2.0
//
// The functions of ring.c that other files call.

#ifndef WORKER_TRANSPORT_RING_RING_H
#define WORKER_TRANSPORT_RING_RING_H

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct flow;
struct frame_header;
struct out_frame;
struct peer_link;
struct ring_group;
struct stream;
struct transport;

// The flow goes round this ring, and what its neighbours have said about it is taken.
void flow_launch_ring(struct transport *transport, struct flow *flow,
                      const struct ring_group *group);
// Whether it would need no credit on the ring of the world. A small one may be sent to this rank
// before it takes part, and is in one piece anyway.
bool flow_is_eager(const struct transport *transport, const struct collective *collective);
// Opens stripes as far as the window and what has landed allow, and says so.
void flow_pump(struct transport *transport, struct flow *flow);
// Starts stripes as far as the successor's link has little to do. Returns whether it started any.
bool flow_feed(struct transport *transport);
const char *flow_begin(struct peer_link *peer, struct stream *stream);
// A frame that may arrive is whole. Its payload is where it belongs, or in the block, which is
// taken over; NULL: it has none.
void flow_take(struct transport *transport, struct flow *flow, const struct frame_header *header,
               void *block);
const char *flow_credit(struct peer_link *peer, const struct frame_header *header);
// Whether a frame that was parked may arrive now. NULL, or what is impossible about it.
const char *flow_unpark(struct flow *flow, const struct frame_header *header, const uint8_t *used);
// The link has taken a frame, or has dropped it.
void flow_sent(struct transport *transport, struct out_frame *frame, bool dropped);

#endif
