// SPDX-License-Identifier: Apache-2.0
//
// What the files of collectives on a ring share: ring.c (when a frame may be sent) and receive.c
// (where an arriving frame goes, and what it triggers). The words are those of ring.c. Engine
// thread.

#ifndef WORKER_TRANSPORT_RING_RING_H
#define WORKER_TRANSPORT_RING_RING_H

#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/way.h"
#include "worker/transport/ring/schedule.h"

#define RING_OWNER_WORDS (LOCKSTEP_MAX_WORLD / 64)

struct stripe {
    uint32_t receives_left;
    uint32_t sends_left;
    // One bit per owner: the reduce frame of its chunk has begun to arrive.
    uint64_t reduced[RING_OWNER_WORDS];
    uint64_t gathered[RING_OWNER_WORDS];
};

// The state of a launched collective on a ring: flow.part.
struct ring_run {
    // The schedule. Its element_bytes is that of the larger of the two dtypes in frames.
    struct ring ring;
    uint64_t base; // Stripes below this one are complete here.
    uint64_t opened; // Stripes below may be received; at most base + window.
    // Stripes below this one have queued the first frame of this rank, if they have one.
    uint64_t started;
    uint64_t credited; // The value of `opened` in the last credit to the predecessor.
    struct stripe stripes[LOCKSTEP_STRIPES_IN_FLIGHT]; // Stripe i is in entry i modulo the window.
};

static inline struct ring_run *ring_run(const struct flow *flow)
{
    return flow->part;
}

static inline struct stripe *ring_stripe(struct flow *flow, uint64_t stripe)
{
    return &ring_run(flow)->stripes[stripe % ring_run(flow)->ring.window];
}

static inline struct unit_range ring_units(const struct flow *flow, struct ring_span span)
{
    return units_met(flow->collective->unit_ends, flow->collective->unit_count, span);
}

// The dtype of the payload of a frame.
static inline enum dtype ring_dtype(const struct flow *flow, enum frame_kind kind)
{
    return kind == FRAME_REDUCE ? flow->partial : flow->final;
}

static inline bool ring_is_mean(const struct flow *flow)
{
    return ring_run(flow)->ring.reduces && flow->collective->op == REDUCE_MEAN;
}

// Describes a frame to send; the rest of its header comes from the collective.
struct ring_message {
    enum frame_kind kind;
    uint64_t stripe;
    uint32_t owner;
    uint64_t weight;
    enum frame_source source;
    struct ring_span span;
    void *block; // SOURCE_BUFFER: the payload, freed once it is sent. Else NULL.
};

// True if, as far as this rank knows, no rank has an input for any unit of the chunk.
static inline bool ring_is_empty(const struct flow *flow, struct ring_span span)
{
    return units_usage(flow->collective->used, ring_units(flow, span)) == USAGE_NONE;
}

// Queues a frame, or holds it until the successor's credit.
void ring_send(struct flows *flows, struct flow *flow, const struct ring_message *message);
// Called after a frame of a stripe has arrived or was sent: moves `base` on, and completes the
// flow.
void ring_advance(struct flows *flows, struct flow *flow);

extern const struct way ring_way;

#endif
