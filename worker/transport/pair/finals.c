// SPDX-License-Identifier: Apache-2.0
//
// The final elements of an allreduce by pairs. A rank makes its last sum final in one go: all of
// the stripe by doubling, its own part by halving. Final bytes of a peer are written as they
// arrive, or, if they go through scratch, when the stripe makes their move. Engine thread.

#include "worker/transport/pair/finals.h"

#include "worker/transport/flow/finals.h"
#include "worker/transport/pair/pair.h"

// Adds the final bytes that a peer has sent in one move.
static void finals_add_move(const struct flow *flow, const struct pair_run *run, uint64_t index,
                            uint32_t move, struct finals *finals)
{
    const struct pair_stripe *stripe = &run->stripes[index % run->pair.window];
    const struct pair_turn *turn = &run->turns[move];
    const struct ring_span span = pair_received_span(&run->pair, index, move);
    const struct frame_header *header = &turn->peer->stream.header;
    if (!(stripe->begun >> move & 1))
        return;
    const bool arrives = finals_arrives(turn->peer, flow) && header->credit == index &&
                         header->part == turn->move.round;
    if (arrives)
        finals_add_arriving(finals, turn->peer, span);
    else if (stripe->move > move || (stripe->settled && stripe->direct)) {
        finals_add(finals, span);
        finals_weigh(finals, stripe->weights[move]);
    }
}

static void finals_add_stripe(const struct flow *flow, const struct pair_run *run, uint64_t index,
                              struct finals *finals)
{
    const struct pair_stripe *stripe = &run->stripes[index % run->pair.window];
    if (run->last_sum != PAIR_MAX_MOVES && stripe->move > run->last_sum)
        finals_add(finals, pair_received_span(&run->pair, index, run->last_sum));
    for (uint32_t i = 0; i < run->moves; i++) {
        if (run->turns[i].move.final && run->turns[i].move.receives)
            finals_add_move(flow, run, index, i, finals);
    }
}

void pair_finals(const struct flows *flows, const struct flow *flow, struct finals *finals)
{
    const struct pair_run *run = flow->part;
    (void)flows;
    if (!run) {
        finals->unknown = "this rank had no memory for it";
        return;
    }
    finals_weigh(finals, flow->collective->weight_total);
    for (uint64_t i = 0; i < run->base; i++)
        finals_add(finals, pair_stripe(&run->pair, i));
    for (uint64_t i = run->base; i < run->opened; i++)
        finals_add_stripe(flow, run, i, finals);
}
