// SPDX-License-Identifier: Apache-2.0
//
// A way of reducing, as one struct of functions: along a ring, by pairs, in shared memory of one
// host. flow.c and park.c call ways only through the table that transport.c gives them. A new way
// is one struct like this, and one line in that table. Driver thread.

#ifndef WORKER_TRANSPORT_FLOW_WAY_H
#define WORKER_TRANSPORT_FLOW_WAY_H

#include "protos/frame.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collective;
struct finals;
struct flow;
struct out_frame;
struct peer_link;
struct stream;
struct flows;

// A function that is NULL: this way has nothing to do there.
struct way {
    size_t room_bytes; // Bytes of state that the way keeps behind each struct flow.
    // Bytes of state that the way keeps in a block of pools.parts; the way takes and returns the
    // block.
    size_t part_bytes;
    size_t member_bytes; // Further bytes of that block for each rank of the world.
    // The collective is launched here: starts it, and takes frames and credit that peers sent
    // before.
    void (*launch)(struct flows *flows, struct flow *flow);
    // True if the collective can be launched while only a part of its memory may be used.
    bool (*follows)(const struct flows *flows, const struct collective *collective);
    // Called when *collective->landed of a launched collective has grown.
    void (*landed)(struct flows *flows, struct flow *flow);
    // The header of a frame has arrived: chooses where its payload goes. Returns NULL, or what is
    // impossible about the frame.
    const char *(*begin)(struct peer_link *peer, struct stream *stream);
    // A checked frame has arrived whole. Its payload is in its place, or in `block`, which the way
    // owns from now on. block NULL: none.
    void (*take)(const struct peer_link *peer, struct flow *flow, const struct frame_header *header,
                 void *block);
    // Checks a parked frame after the launch. Returns NULL, or what is impossible about the frame.
    const char *(*unpark)(const struct peer_link *peer, struct flow *flow,
                          const struct frame_header *header, const uint8_t *used);
    // Returns where the payload of a parked frame goes, which unpark has checked. NULL: to a block.
    void *(*place)(const struct peer_link *peer, const struct flow *flow,
                   const struct frame_header *header);
    // A CREDIT frame has arrived: the peer has room for more of a collective. Returns NULL, or what
    // is impossible about the frame.
    const char *(*credit)(struct peer_link *peer, const struct frame_header *header);
    // The link has taken a frame, or has dropped it. Frees the frame.
    void (*sent)(struct flows *flows, struct out_frame *frame, bool dropped);
    // Queues frames while the links have few queued bytes. True if it queued any frame.
    bool (*feed)(struct flows *flows);
    // True if a launched collective waits for a frame from that peer or to it.
    bool (*needs)(struct flows *flows, const struct peer_link *peer);
    // The generation is frozen: adds the elements of an active flow that are final. NULL: not
    // known.
    void (*finals)(const struct flows *flows, const struct flow *flow, struct finals *finals);
    // The generation is over: forgets all state of it.
    void (*forget)(struct flows *flows);
};

#define WAY_ALGORITHMS PLAN_ALGORITHMS
#define WAY_FRAMES 16 // Above the last value of enum frame_kind.
#define WAY_MOST 8 // Above the number of ways.

// The ways that a transport has. Constant.
struct ways {
    const struct way *of_algorithm[WAY_ALGORITHMS];
    // By kind of frame; NULL: frames of this kind belong to no way.
    const struct way *of_frame[WAY_FRAMES];
    // All ways, in the order in which they are fed; NULL after the last.
    const struct way *all[WAY_MOST];
};

#endif
