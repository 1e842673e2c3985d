// SPDX-License-Identifier: Apache-2.0
//
// What the files of this wing share: pair.c (frames: when one may be sent, and where one that
// arrives goes) and value.c (the value of a stripe: sums and results). Engine thread.

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
    uint32_t move; // That it is at.
    bool queued; // That move's frame.
    bool settled; // Where results go is decided: ...
    bool direct; // ... to user memory as they come, or to `results` first.
    uint32_t begun; // By move: its frame has begun to arrive.
    uint32_t arrived;
    uint32_t taken; // By move: its frame was taken by the link.
    enum pair_value value;
    uint8_t *block; // VALUE_SCRATCH: the block, ...
    uint8_t *sum; // ... and in it the first element of what this rank holds.
    uint8_t *results; // Results of the whole stripe. NULL: not needed so far.
    uint64_t weight; // Weight of the value.
    uint64_t weights[PAIR_MAX_MOVES]; // By move: weight of the frame that has arrived.
    void *received[PAIR_MAX_MOVES]; // Blocks of partial sums that wait. NULL: zeros.
};

// A move, and what is known of its peer.
struct pair_turn {
    struct pair_move move;
    struct peer_link *peer;
};

// flow->part of a flow that runs by pairs, from the launch until all stripes are complete.
struct pair_run {
    // set at the launch, then constant
    struct pair pair;
    uint32_t moves;
    uint32_t sends; // Bits, by move: this rank sends in it.
    uint32_t last_sum;
    struct pair_turn turns[PAIR_MAX_MOVES];
    // engine thread only
    uint64_t base;
    uint64_t opened; // Stripes below may be received.
    uint64_t credited; // What the peers were told of that.
    uint64_t granted[LOCKSTEP_MAX_NEIGHBOURS]; // By peer: stripes below may be sent to it.
    struct pair_stripe stripes[LOCKSTEP_STRIPES_IN_FLIGHT]; // By index modulo the window.
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
