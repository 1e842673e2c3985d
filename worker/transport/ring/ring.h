// SPDX-License-Identifier: Apache-2.0
//
// What the files of collectives on a ring share: ring.c (when a frame may be sent) and receive.c
// (where one that arrives goes, and what it sets off). The words are those of ring.c. Engine
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
    uint64_t reduced[RING_OWNER_WORDS]; // By owner: its reduce frame has begun to arrive.
    uint64_t gathered[RING_OWNER_WORDS];
};

// What is kept of a launched collective: its flow's part.
struct ring_run {
    struct ring ring; // Its elements are the largest that travel.
    uint64_t base; // Stripes below are complete here.
    uint64_t opened; // Stripes below may be received: base + window at most.
    uint64_t started; // Stripes below have sent their first frame, if they have one.
    uint64_t credited; // What the predecessor was told of `opened`.
    struct stripe stripes[LOCKSTEP_STRIPES_IN_FLIGHT]; // By index modulo the window.
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

// What a frame is made of, but for what its collective says.
struct ring_message {
    enum frame_kind kind;
    uint64_t stripe;
    uint32_t owner;
    uint64_t weight;
    enum frame_source source;
    struct ring_span span;
    void *block; // SOURCE_BUFFER: the bytes, to be given back when they were sent. Else NULL.
};

// True if no rank that this one knows of has an input for any unit of the chunk.
static inline bool ring_is_empty(const struct flow *flow, struct ring_span span)
{
    return units_usage(flow->collective->used, ring_units(flow, span)) == USAGE_NONE;
}

// Queues a frame, or holds it until the successor's credit.
void ring_send(struct flows *flows, struct flow *flow, const struct ring_message *message);
// After a frame of a stripe has arrived or was sent.
void ring_advance(struct flows *flows, struct flow *flow);

extern const struct way ring_way;

#endif
