// SPDX-License-Identifier: Apache-2.0
//
// The final elements of a collective on a ring: all of each complete stripe, and of an open stripe
// the chunks whose final bytes are written. A rank finishes its own chunk in one go, when the
// reduce frame has arrived whole. The final bytes of another chunk are written as they arrive, or,
// if they go through scratch, all at once. Engine thread.

#include "worker/transport/ring/finals.h"

#include "base/bits.h"
#include "worker/transport/flow/finals.h"
#include "worker/transport/ring/ring.h"

static void finals_add_chunk(const struct flow *flow, const struct stripe *stripe, uint64_t index,
                             uint32_t owner, struct finals *finals)
{
    const struct ring *ring = &ring_run(flow)->ring;
    const struct ring_span span = ring_chunk(ring, index, owner);
    const bool own = ring->reduces && owner == ring->rank;
    const struct peer_link *before = flow->group->predecessor;
    if (!bits_has(own ? stripe->reduced : stripe->gathered, owner))
        return;
    const struct frame_header *header = &before->stream.header;
    const bool arrives = finals_arrives(before, flow) && header->part == index &&
                         header->chunk == owner && (header->kind == FRAME_REDUCE) == own;
    if (!arrives)
        finals_add(finals, span);
    else if (!own)
        finals_add_arriving(finals, before, span);
}

void ring_finals(const struct flows *flows, const struct flow *flow, struct finals *finals)
{
    const struct ring_run *run = ring_run(flow);
    const struct ring *ring = &run->ring;
    (void)flows;
    finals_weigh(finals, flow->collective->weight_total);
    if (!ring->reduces && ring->rank == ring->root) {
        finals_add(finals, (struct ring_span){0, ring->elements});
        return;
    }
    finals_add(finals, (struct ring_span){0, flow->final_elements});
    for (uint64_t i = run->base; i < run->opened; i++) {
        const struct stripe *stripe = &run->stripes[i % ring->window];
        for (uint32_t owner = 0; owner < ring->world; owner++) {
            if (ring_present(ring, i, owner))
                finals_add_chunk(flow, stripe, i, owner, finals);
        }
    }
}
