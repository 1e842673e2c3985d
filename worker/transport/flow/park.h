// SPDX-License-Identifier: Apache-2.0
//
// The functions of park.c that other files call.

#ifndef WORKER_TRANSPORT_FLOW_PARK_H
#define WORKER_TRANSPORT_FLOW_PARK_H

struct flow;
struct peer_link;
struct stream;
struct transport;

// Of a frame that begins, and its flow is not launched here. NULL, or what is impossible about it.
const char *park_begin(struct peer_link *peer, struct flow *flow, struct stream *stream);
// A parked frame is whole. Takes it, and those before it, if the flow was launched meanwhile.
const char *park_end(struct peer_link *peer, struct flow *flow, struct stream *stream);
// After the launch: takes what is parked. Whoever has parked what is impossible is lost.
void park_catch_up(struct transport *transport, struct flow *flow);

#endif
