// SPDX-License-Identifier: Apache-2.0
//
// The schedule of doubling and halving; see schedule.h. Pure, any thread.

#include "worker/transport/pair/schedule.h"

#include "protos/topology.h"
#include "worker/transport/flow/window.h"

#include <assert.h>

static_assert((1u << PAIR_MAX_ROUNDS) >= LOCKSTEP_MAX_WORLD, "log2 of the largest world");

static uint32_t pair_log2(uint32_t power)
{
    uint32_t log = 0;
    while (power >>= 1)
        log++;
    return log;
}

void pair_init(struct pair *pair, bool halves, uint32_t world, uint32_t rank, uint64_t elements,
               uint32_t element_bytes, uint32_t chunk_bytes)
{
    assert(rank < world && element_bytes > 0 && chunk_bytes >= element_bytes);
    *pair = (struct pair){.world = world,
                          .rank = rank,
                          .core = topology_core(world),
                          .halves = halves,
                          .window = flow_window(1, chunk_bytes),
                          .elements = elements,
                          .stripe_elements = chunk_bytes / element_bytes};
    pair->rounds = pair_log2(pair->core);
    pair->stripes = elements / pair->stripe_elements + (elements % pair->stripe_elements != 0);
    if (pair->stripes == 0)
        pair->stripes = 1;
    assert(pair->stripes <= UINT32_MAX);
    pair->eager = pair->stripes == 1 && elements * element_bytes <= LOCKSTEP_EAGER_BYTES;
}

static bool pair_folds(const struct pair *pair)
{
    return pair->rank + pair->core < pair->world;
}

static uint32_t pair_exchanges(const struct pair *pair)
{
    return pair->halves ? 2 * pair->rounds : pair->rounds;
}

uint32_t pair_moves(const struct pair *pair)
{
    if (pair->rank >= pair->core)
        return 2;
    return pair_exchanges(pair) + (pair_folds(pair) ? 2 : 0);
}

// Returns the round of halving that has the same pair as this round.
static uint32_t pair_level(const struct pair *pair, uint32_t round)
{
    return round <= pair->rounds ? round : 2 * pair->rounds + 1 - round;
}

struct pair_move pair_move(const struct pair *pair, uint32_t index)
{
    const uint32_t last = 1 + pair_exchanges(pair);
    const uint32_t round = pair_folds(pair) ? index : index + 1;
    assert(index < pair_moves(pair));
    if (pair->rank >= pair->core && index == 0)
        return (struct pair_move){.peer = pair->rank - pair->core, .round = 0, .sends = true};
    if (pair->rank >= pair->core)
        return (struct pair_move){
            .peer = pair->rank - pair->core, .round = last, .receives = true, .final = true};
    if (round == 0)
        return (struct pair_move){.peer = pair->rank + pair->core, .round = 0, .receives = true};
    if (round == last)
        return (struct pair_move){
            .peer = pair->rank + pair->core, .round = last, .sends = true, .final = true};
    return (struct pair_move){.peer = pair->rank ^ (1u << (pair_level(pair, round) - 1)),
                              .round = round,
                              .sends = true,
                              .receives = true,
                              .final = round > pair->rounds};
}

uint32_t pair_last_sum(const struct pair *pair)
{
    if (pair->rank >= pair->core)
        return PAIR_MAX_MOVES;
    return pair->rounds - 1 + (pair_folds(pair) ? 1 : 0);
}

uint32_t pair_given(const struct pair *pair, uint32_t index)
{
    const uint32_t first = pair_folds(pair) ? 1 : 0;
    if (pair->rank >= pair->core)
        return 0;
    return 2 * (first + pair->rounds) - 1 - index;
}

uint32_t pair_expects(const struct pair *pair, uint32_t peer, uint32_t round)
{
    const uint32_t moves = pair_moves(pair);
    for (uint32_t i = 0; i < moves; i++) {
        const struct pair_move move = pair_move(pair, i);
        if (move.receives && move.peer == peer && move.round == round)
            return i;
    }
    return PAIR_MAX_MOVES;
}

// ---- elements -----------------------------------------------------------------------------------

struct ring_span pair_stripe(const struct pair *pair, uint64_t stripe)
{
    const uint64_t first = stripe * pair->stripe_elements;
    const uint64_t left = pair->elements - first;
    return (struct ring_span){first, left < pair->stripe_elements ? left : pair->stripe_elements};
}

static struct ring_span pair_half(struct ring_span span, bool upper)
{
    const uint64_t lower = span.count - span.count / 2;
    if (upper)
        return (struct ring_span){span.first + lower, span.count - lower};
    return (struct ring_span){span.first, lower};
}

static bool pair_is_upper(const struct pair *pair, uint32_t level)
{
    return (pair->rank >> (level - 1) & 1) != 0;
}

// The elements that this rank holds after the first `level` rounds of halving; 0: the whole stripe.
static struct ring_span pair_kept(const struct pair *pair, uint64_t stripe, uint32_t level)
{
    struct ring_span span = pair_stripe(pair, stripe);
    for (uint32_t i = 1; i <= level; i++)
        span = pair_half(span, pair_is_upper(pair, i));
    return span;
}

static struct ring_span pair_span(const struct pair *pair, uint64_t stripe, uint32_t index,
                                  bool sent)
{
    const struct pair_move move = pair_move(pair, index);
    if (!pair->halves || !move.sends || !move.receives)
        return pair_stripe(pair, stripe);
    const uint32_t level = pair_level(pair, move.round);
    if (sent == move.final)
        return pair_kept(pair, stripe, level);
    return pair_half(pair_kept(pair, stripe, level - 1), !pair_is_upper(pair, level));
}

struct ring_span pair_sent_span(const struct pair *pair, uint64_t stripe, uint32_t index)
{
    return pair_span(pair, stripe, index, true);
}

struct ring_span pair_received_span(const struct pair *pair, uint64_t stripe, uint32_t index)
{
    return pair_span(pair, stripe, index, false);
}
