// SPDX-License-Identifier: Apache-2.0
//
// Parking: keeps frames that arrive before their collective is launched here. Engine thread.

#ifndef WORKER_TRANSPORT_FLOW_PARK_H
#define WORKER_TRANSPORT_FLOW_PARK_H

#include "protos/frame.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

struct flow;
struct flows;
struct peer_link;
struct stream;

// One frame that arrived before its collective was launched here.
struct parked_frame {
    struct frame_header header;
    uint32_t offset; // Place of the payload in `bytes`.
    uint32_t used_offset; // Place of the used bits in `used`.
    bool complete;
};

// Two neighbouring chunks may meet the same unit, and the used bits of each chunk fill whole bytes.
#define PARKING_USED_BYTES LOCKSTEP_USED_BYTES
static_assert(PARKING_USED_BYTES >=
                  (LOCKSTEP_BUCKET_PARAMETERS + LOCKSTEP_EAGER_FRAMES) / 8 + LOCKSTEP_EAGER_FRAMES,
              "the used bits of the eager frames of one collective fit");

// The parked frames of one collective and one peer.
struct parking {
    struct parking *next; // The parking of another peer for the same collective.
    struct peer_link *peer;
    uint32_t count;
    uint32_t consumed;
    uint32_t bytes_filled;
    uint32_t used_filled;
    struct parked_frame frames[LOCKSTEP_EAGER_FRAMES];
    uint8_t used[PARKING_USED_BYTES];
    _Alignas(8) uint8_t bytes[LOCKSTEP_EAGER_BYTES + 8 * LOCKSTEP_EAGER_FRAMES];
};

// The header of a frame has arrived whose flow is not launched here. Returns NULL, or what is
// impossible about the frame.
const char *park_begin(struct peer_link *peer, struct flow *flow, struct stream *stream);
// Called when a parked frame has arrived whole. If the flow was launched meanwhile, takes all whole
// frames of this parking in order. Returns NULL, or what is impossible about a frame.
const char *park_end(struct peer_link *peer, struct flow *flow, struct stream *stream);
// Called after the launch: takes all parked frames that are whole. A peer that sent an impossible
// frame is lost.
void park_catch_up(struct flows *flows, struct flow *flow);

// Texts of the event `mismatch`.
extern const char *const flow_signature_text;
extern const char *const flow_algorithm_text;

#endif
