// SPDX-License-Identifier: Apache-2.0
//
// Frames that arrive on a ring. Engine thread.

#ifndef WORKER_TRANSPORT_RING_RECEIVE_H
#define WORKER_TRANSPORT_RING_RECEIVE_H

#include <stdint.h>

struct flow;
struct flows;
struct frame_header;
struct peer_link;
struct stream;

// Checks whether a frame whose signature agrees may arrive now. NULL, or what is impossible.
const char *ring_check(struct flow *flow, const struct frame_header *header, const uint8_t *used);
// Says where the payload of a frame that may arrive goes. NULL, or why it goes nowhere.
const char *ring_target(struct flows *flows, struct flow *flow, struct stream *stream);
// These two are struct way's functions of these names.
void ring_take(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
               void *block);
const char *ring_unpark(const struct peer_link *peer, struct flow *flow,
                        const struct frame_header *header, const uint8_t *used);

#endif
