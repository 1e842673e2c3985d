// SPDX-License-Identifier: Apache-2.0
//
// Frames that arrive: which may arrive now, where their payload goes, and what they trigger. Engine
// thread.

#ifndef WORKER_TRANSPORT_DIRECT_RECEIVE_H
#define WORKER_TRANSPORT_DIRECT_RECEIVE_H

#include <stdint.h>

struct flow;
struct frame_header;
struct peer_link;
struct stream;

// The functions of struct way.
const char *direct_begin(struct peer_link *peer, struct stream *stream);
const char *direct_unpark(const struct peer_link *peer, struct flow *flow,
                          const struct frame_header *header, const uint8_t *used);
void *direct_place(const struct peer_link *peer, const struct flow *flow,
                   const struct frame_header *header);
void direct_take(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
                 void *block);

#endif
