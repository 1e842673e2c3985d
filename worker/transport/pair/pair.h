// SPDX-License-Identifier: Apache-2.0
//
// What the files of this folder share: pair.c (when a frame may be sent, and where an arriving
// frame goes) and value.c (the value of a stripe: sums and results). Engine thread.

#ifndef WORKER_TRANSPORT_PAIR_PAIR_H
#define WORKER_TRANSPORT_PAIR_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/way.h"
#include "worker/transport/pair/schedule.h"

enum pair_value {
    VALUE_ZERO,
    VALUE_INPUT, // User memory.
    VALUE_SCRATCH,
    VALUE_RESULT,
};

struct pair_stripe {
    uint32_t move; // The move that the stripe is making now.
    bool queued; // True if the frame of this move is queued.
    bool settled; // True once `direct` is set.
    bool direct; // True if results are received into user memory, false if into `results` first.
    uint32_t begun; // One bit per move: the peer's frame has begun to arrive.
    uint32_t arrived;
    uint32_t taken; // One bit per move: the link has taken this rank's frame.
    enum pair_value value;
    uint8_t *block; // VALUE_SCRATCH: the block that holds the value.
    uint8_t *sum; // In `block`: the first element that this rank holds.
    uint8_t *results; // Block for the results of the whole stripe. NULL: not needed so far.
    uint64_t weight; // Sum of the weights in the value.
    uint64_t weights[PAIR_MAX_MOVES]; // By move: the weight in the frame that has arrived.
    // By move: the block of partial sums that has arrived. NULL: zeros.
    void *received[PAIR_MAX_MOVES];
};

// A move and its peer.
struct pair_turn {
    struct pair_move move;
    struct peer_link *peer;
};

// The state of a launched flow that runs by pairs: flow.part, until all stripes are complete.
struct pair_run {
    // set at the launch, then constant
    struct pair pair;
    uint32_t moves;
    uint32_t sends; // One bit per move: this rank sends in it.
    uint32_t last_sum;
    struct pair_turn turns[PAIR_MAX_MOVES];
    // engine thread only
    uint64_t base;
    uint64_t opened; // Stripes below may be received.
    uint64_t credited; // The value of `opened` in the last credit to the peers.
    uint64_t granted[LOCKSTEP_MAX_NEIGHBOURS]; // By peer: stripes below may be sent to it.
    // Stripe i is in entry i modulo the window.
    struct pair_stripe stripes[LOCKSTEP_STRIPES_IN_FLIGHT];
};

static inline struct pair_stripe *pair_stripe_of(struct pair_run *run, uint64_t stripe)
{
    return &run->stripes[stripe % run->pair.window];
}

static inline uint32_t pair_index(const struct peer_link *peer)
{
    return (uint32_t)(peer - peer->flows->peers);
}

static inline struct unit_range pair_units(const struct flow *flow, struct ring_span span)
{
    return units_met(flow->collective->unit_ends, flow->collective->unit_count, span);
}

static inline enum unit_usage pair_usage(const struct flow *flow, struct ring_span span)
{
    return units_usage(flow->collective->used, pair_units(flow, span));
}

static inline bool pair_is_mean(const struct flow *flow)
{
    return flow->collective->op == REDUCE_MEAN;
}

static inline enum dtype pair_dtype(const struct flow *flow, const struct pair_move *move)
{
    return move->final ? flow->final : flow->partial;
}

extern const struct way pair_way;

#endif
