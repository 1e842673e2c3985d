// SPDX-License-Identifier: Apache-2.0
//
// A way of reducing, as one struct of functions: along a ring, by pairs, in memory of one host.
// Collectives in flight (flow.c, park.c) know no way by name: transport.c hands them the table. A
// new way is one struct like this, and one line in that table. Driver thread.

#ifndef WORKER_TRANSPORT_FLOW_WAY_H
#define WORKER_TRANSPORT_FLOW_WAY_H

#include "protos/frame.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collective;
struct flow;
struct out_frame;
struct peer_link;
struct stream;
struct flows;

// Functions that are NULL have nothing to do for this way.
struct way {
    size_t room_bytes; // What the way keeps of each collective, behind its struct flow.
    size_t part_bytes; // What it keeps in a block of pools.parts, which it takes and gives back.
    // The collective is launched here; what peers have said about it before is taken.
    void (*launch)(struct flows *flows, struct flow *flow);
    // True if it can be launched when only a part of its memory may be used.
    bool (*follows)(const struct flows *flows, const struct collective *collective);
    // More of the memory of a launched collective may be used.
    void (*landed)(struct flows *flows, struct flow *flow);
    // A frame begins: where its payload goes. NULL, or what is impossible about it.
    const char *(*begin)(struct peer_link *peer, struct stream *stream);
    // A frame that may arrive is whole. Its payload is where it belongs, or in the block, which is
    // taken over; NULL: it has none.
    void (*take)(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
                 void *block);
    // A frame was parked and may arrive now. NULL, or what is impossible about it.
    const char *(*unpark)(const struct peer_link *peer, struct flow *flow,
                          const struct frame_header *header, const uint8_t *used);
    // The peer has room for more of a collective. NULL, or what is impossible about it.
    const char *(*credit)(struct peer_link *peer, const struct frame_header *header);
    // The link has taken a frame, or has dropped it.
    void (*sent)(struct flows *flows, struct out_frame *frame, bool dropped);
    // Queues frames while the links have little to do. True if any frame was queued.
    bool (*feed)(struct flows *flows);
    // True if a launched collective waits for a frame from that peer or to it.
    bool (*needs)(struct flows *flows, const struct peer_link *peer);
    // The generation is over: nothing of it is kept.
    void (*forget)(struct flows *flows);
};

#define WAY_ALGORITHMS PLAN_ALGORITHMS
#define WAY_FRAMES 16 // At least one more than the last of enum frame_kind.
#define WAY_MOST 8 // At least one more than there are ways.

// The ways that a transport has. Constant.
struct ways {
    const struct way *of_algorithm[WAY_ALGORITHMS];
    const struct way *of_frame[WAY_FRAMES]; // By the kind of frame; NULL: of no way.
    const struct way *all[WAY_MOST]; // In the order in which they are fed; NULL behind the last.
};

#endif
