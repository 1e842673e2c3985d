// SPDX-License-Identifier: Apache-2.0
//
// Collectives in flight: how one is found, launched and ends. Engine thread.

#ifndef WORKER_TRANSPORT_FLOW_FLOW_H
#define WORKER_TRANSPORT_FLOW_FLOW_H

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct flow;
struct frame_header;
struct peer_link;
struct stream;
struct flows;

void flow_launch(struct flows *flows, struct collective *collective);
// True if it can be launched when only a part of its memory may be used (collective.landed).
bool flow_follows(const struct flows *flows, const struct collective *collective);
// More of what is launched may be used.
void flow_landed(struct flows *flows, const struct collective *collective);
// Elements of what is launched, from the first, that are final here: more and more of them where it
// runs by stripes of a ring or by pieces, else none before it is done.
uint64_t flow_final_elements(const struct collective *collective);
// A collective that uses no ring was launched: a peer that has sent frames of a ring for it runs
// another algorithm.
void flow_meet_others(struct flows *flows, struct flow *flow);
// An allreduce between hosts, as a part of another one.
void flow_launch_between_hosts(struct flows *flows, struct collective *collective);
// Ranks disagree on a collective that is launched here: nothing more happens to it but the event.
// The text is copied.
void flow_mismatch(struct flows *flows, struct flow *flow, uint32_t rank, const char *text);
// The collective of a frame, made if this is the first that is heard of it. NULL; *text: why not.
struct flow *flow_of(struct peer_link *peer, const struct frame_header *header, const char **text);
// A CREDIT frame: the peer has room for more. NULL, or what is impossible about it.
const char *flow_credit(struct peer_link *peer, const struct frame_header *header);
// Starts what the links have room for. True if it started anything.
bool flow_feed(struct flows *flows);
// A frame of a collective is whole, of whichever algorithm. NULL, or what is impossible about it.
const char *flow_end(struct peer_link *peer, struct stream *stream);
// Does what its algorithm does with such a frame, which may arrive; see flow_take.
void flow_give(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
               void *block);
// The next collective that is done, or NULL. It is the caller's again.
struct collective *flow_next_done(struct flows *flows);
struct flow *flow_next_mismatch(struct flows *flows);
bool flow_needs(struct flows *flows, const struct peer_link *peer);
// Without events.
void flow_forget(struct flows *flows);

#endif
