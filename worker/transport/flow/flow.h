// SPDX-License-Identifier: Apache-2.0
//
// Collectives in flight: how a collective is found by its tag, launched and completed. Engine
// thread.

#ifndef WORKER_TRANSPORT_FLOW_FLOW_H
#define WORKER_TRANSPORT_FLOW_FLOW_H

#include "protos/frame.h"

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct collective_tag;
struct flow;
struct peer_link;
struct stream;
struct flows;

// Returns the header of a frame of this flow. The fields of the frame's kind are 0.
struct frame_header flow_header(const struct flows *flows, const struct flow *flow,
                                enum frame_kind kind);
void flow_launch(struct flows *flows, struct collective *collective);
// True if the collective can be launched while only a part of its memory may be used
// (collective.landed).
bool flow_follows(const struct flows *flows, const struct collective *collective);
// Called when *collective->landed of a launched collective has grown.
void flow_landed(struct flows *flows, const struct collective *collective);
// Returns how many elements of a launched collective, from the first, are final on this rank. The
// number grows while the collective runs by stripes of a ring or by pieces; otherwise it is 0 until
// the end.
uint64_t flow_final_elements(const struct collective *collective);
// Called at the launch of a collective that uses neither ring nor pair frames: reports a mismatch
// if a peer has sent such frames or credit for it, because that peer runs another algorithm.
void flow_meet_others(struct flows *flows, struct flow *flow);
// Launches an allreduce on the ring between hosts, as a part of another collective.
void flow_launch_between_hosts(struct flows *flows, struct collective *collective);
// Marks a launched collective as mismatched: ranks disagree about it. Nothing more happens to it
// except the event `mismatch`. The text is copied.
void flow_mismatch(struct flows *flows, struct flow *flow, uint32_t rank, const char *text);
// Returns the flow of a frame, and makes it if this frame is the first of its collective. NULL: not
// possible, *text says why.
struct flow *flow_of(struct peer_link *peer, const struct frame_header *header, const char **text);
// Returns the flow of a frame. NULL: no frame of its collective has come, and it is not launched
// here.
struct flow *flow_known(struct flows *flows, const struct frame_header *header);
// Calls take for each collective that a peer has begun and that this rank has not launched, in the
// order in which their first frames arrived, until take returns true. Returns true if it did. Else
// the event `arrived` follows once.
bool flow_arrivals(struct flows *flows,
                   bool (*take)(void *context, uint32_t rank, const struct collective_tag *tag),
                   void *context);
// Handles a CREDIT frame: the peer has room for more frames. Returns NULL, or what is impossible
// about the frame.
const char *flow_credit(struct peer_link *peer, const struct frame_header *header);
// Queues new frames where links have room. True if it queued any.
bool flow_feed(struct flows *flows);
// Called when a frame of a collective has arrived whole. Returns NULL, or what is impossible about
// the frame.
const char *flow_end(struct peer_link *peer, struct stream *stream);
// Hands a whole, checked frame to its algorithm: way.take.
void flow_give(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
               void *block);
// Returns the next collective that is done, which belongs to the caller again; NULL: none.
struct collective *flow_next_done(struct flows *flows);
struct flow *flow_next_mismatch(struct flows *flows);
bool flow_needs(struct flows *flows, const struct peer_link *peer);
// Forgets all collectives, without events.
void flow_forget(struct flows *flows);

#endif
