// SPDX-License-Identifier: Apache-2.0
//
// What a stripe of an allreduce by pairs is worth on this rank, from its input to its result, and
// where that lies. Knows moves, and no frames: pair.c does. Engine thread.
//
// Value. What a stripe has summed so far is this rank's input where it is (nothing was added, and
// it travels as it is in memory), or a block of scratch, or zero: of units that nobody has used
// yet, without memory. User memory is written with results only: by doubling from scratch, by
// halving by the owner of a part and as results arrive, unless they cannot be there (units that are
// not used, outputs that do not exist, another dtype): then they are gathered in a block of their
// own.

#include "worker/transport/pair/value.h"

#include "worker/kernels/kernels.h"
#include "worker/transport/flow/reduce.h"
#include "worker/transport/pair/pair.h"
#include "worker/transport/pair/sum.h"

#include <string.h>

#define PAIR_PIECE 2048 // Elements of a sum that are made final at a time.

// ---- the value of a stripe ----------------------------------------------------------------------

void pair_put(struct flows *flows, void *block)
{
    if (block)
        scratch_put(&flows->pools.chunks, block);
}

void pair_value_init(struct flow *flow, struct pair_stripe *stripe, struct ring_span span)
{
    *stripe = (struct pair_stripe){.value = VALUE_SCRATCH};
    if (pair_is_mean(flow))
        stripe->weight = flow->collective->weight;
    if (pair_usage(flow, span) == USAGE_NONE)
        stripe->value = VALUE_ZERO;
    else if (pair_sum_is_plain(flow, span))
        stripe->value = VALUE_INPUT;
}

// Gives the value memory, in scratch; span is what this rank holds. False: there is none.
static bool pair_value_make(struct flows *flows, struct flow *flow, struct pair_stripe *stripe,
                            struct ring_span span)
{
    if (stripe->block)
        return true;
    stripe->block = stripe->sum = scratch_get(&flows->pools.chunks);
    if (!stripe->block)
        return false;
    if (stripe->value == VALUE_ZERO)
        memset(stripe->sum, 0, span.count * dtype_size(flow->partial));
    else
        reduce_start(flow, span, stripe->sum);
    stripe->value = VALUE_SCRATCH;
    return true;
}

// True if a value that this rank has now can be the source of a frame.
bool pair_value_ready(struct flows *flows, struct flow *flow, struct pair_stripe *stripe,
                      struct ring_span held)
{
    if (stripe->value == VALUE_INPUT || stripe->value == VALUE_RESULT)
        return true;
    if (stripe->value == VALUE_ZERO && pair_usage(flow, held) == USAGE_NONE)
        return true;
    return pair_value_make(flows, flow, stripe, held);
}

// What this rank holds before a move.
struct ring_span pair_held(const struct pair_run *run, uint64_t index, uint32_t move)
{
    const struct pair_move *turn = &run->turns[move].move;
    const struct ring_span sent = pair_sent_span(&run->pair, index, move);
    const struct ring_span received = pair_received_span(&run->pair, index, move);
    if (!run->pair.halves || turn->final || !turn->sends || !turn->receives)
        return sent;
    return (struct ring_span){sent.first < received.first ? sent.first : received.first,
                              sent.count + received.count};
}

// ---- results ------------------------------------------------------------------------------------

static bool pair_is_backed(const struct flow *flow, struct ring_span span)
{
    const uint64_t bytes = span.count * flow->map.element_bytes;
    return bytes == 0 || extent_backed(extent_seek(&flow->map, span.first), EXTENT_OUT, bytes);
}

// True if user memory can be all that there is of the results.
static bool pair_is_direct(const struct flow *flow, struct ring_span span)
{
    return flow->final == flow->collective->dtype && pair_usage(flow, span) == USAGE_ALL &&
           pair_is_backed(flow, span);
}

// Decides where results go, once: frames are sent from there. False: there is no memory.
bool pair_settle(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index)
{
    struct pair_stripe *stripe = pair_stripe_of(run, index);
    if (stripe->settled)
        return true;
    const struct ring_span span = pair_stripe(&run->pair, index);
    stripe->settled = true;
    stripe->direct = pair_is_direct(flow, span);
    if (stripe->direct)
        return true;
    stripe->results = scratch_get(&flows->pools.chunks);
    if (stripe->results) // Where there are none, zeros travel beside others.
        memset(stripe->results, 0, span.count * dtype_size(flow->final));
    return stripe->results;
}

// Where the result of the first element of the span is to be, when not in user memory.
uint8_t *pair_result_at(const struct flow *flow, const struct pair_run *run, uint64_t index,
                        struct ring_span span)
{
    const struct pair_stripe *stripe = &run->stripes[index % run->pair.window];
    const uint64_t before = span.first - pair_stripe(&run->pair, index).first;
    return stripe->results ? stripe->results + before * dtype_size(flow->final) : NULL;
}

static void pair_store(struct flows *flows, const struct flow *flow, struct ring_span span,
                       const uint8_t *bytes)
{
    reduce_store(flow, span, bytes);
    if (!pair_is_direct(flow, span))
        flows->totals.bytes_copied += span.count * flow->map.element_bytes;
}

// True if there is a result at all.
bool pair_results(const struct flow *flow, struct ring_span span, uint64_t weight)
{
    return (!pair_is_mean(flow) || weight > 0) && pair_usage(flow, span) != USAGE_NONE;
}

// ---- sums ---------------------------------------------------------------------------------------

// The operands of a sum, the first one to be overwritten.
struct pair_operands {
    uint8_t *lower;
    uint8_t *upper; // NULL: the other one is this rank's input, where it is.
};

// Makes two operands of the received block and the value. False: there is no memory.
static bool pair_operands(struct flows *flows, struct flow *flow, struct pair_stripe *stripe,
                          struct ring_span span, bool peer_is_lower, uint8_t **received,
                          struct pair_operands *operands)
{
    if (!*received) {
        *received = scratch_get(&flows->pools.chunks);
        if (!*received)
            return false;
        memset(*received, 0, span.count * dtype_size(flow->partial));
    }
    if (stripe->value == VALUE_INPUT && !pair_sum_is_ordered(flow)) {
        *operands = (struct pair_operands){*received, NULL};
        return true;
    }
    if (!pair_value_make(flows, flow, stripe, span))
        return false;
    if (peer_is_lower)
        *operands = (struct pair_operands){*received, stripe->sum};
    else
        *operands = (struct pair_operands){stripe->sum, *received};
    return true;
}

// The operands are one in the block that is kept; the other one is given back.
static void pair_keep(struct flows *flows, struct pair_stripe *stripe, uint8_t *received,
                      const struct pair_operands *operands)
{
    if (operands->lower == received) {
        pair_put(flows, stripe->block);
        stripe->block = stripe->sum = received;
    } else {
        pair_put(flows, received);
    }
    stripe->value = VALUE_SCRATCH;
}

static void pair_add(const struct flow *flow, struct ring_span span,
                     const struct pair_operands *operands)
{
    if (operands->upper)
        pair_sum_add(flow, span.count, operands->lower, operands->upper);
    else
        (void)reduce_add(flow, span, operands->lower);
}

// A piece of the sum over all ranks becomes the result.
static void pair_finish_piece(const struct flow *flow, const struct pair_run *run, uint64_t index,
                              struct ring_span piece, struct pair_operands operands, uint8_t *final)
{
    const uint64_t weight = run->stripes[index % run->pair.window].weight;
    uint8_t *out = run->pair.halves ? pair_result_at(flow, run, index, piece) : final;
    if (!operands.upper)
        (void)reduce_add(flow, piece, operands.lower);
    pair_sum_finish(flow, piece, operands.lower, operands.upper, weight, out);
    if (!run->pair.halves)
        pair_sum_quiet(flow, out, piece.count);
    if (out)
        reduce_store(flow, piece, out);
}

// The sum over all ranks becomes the result, by pieces that are in the first cache from the sum to
// the copy in user memory. Doubling computes it in scratch, where it stays for an extra; halving
// writes it where the results of others will be beside it.
static bool pair_finish(struct flows *flows, struct flow *flow, struct pair_run *run,
                        uint64_t index, struct ring_span span, const struct pair_operands *operands)
{
    if (run->pair.halves && !pair_settle(flows, flow, run, index))
        return false;
    for (uint64_t at = 0; at < span.count; at += PAIR_PIECE) {
        const uint64_t before = at * dtype_size(flow->partial);
        const uint64_t left = span.count - at;
        const struct ring_span piece = {span.first + at, left < PAIR_PIECE ? left : PAIR_PIECE};
        const struct pair_operands part = {operands->lower + before,
                                           operands->upper ? operands->upper + before : NULL};
        pair_finish_piece(flow, run, index, piece, part,
                          operands->lower + at * dtype_size(flow->final));
    }
    if (!pair_is_direct(flow, span))
        flows->totals.bytes_copied += span.count * flow->map.element_bytes;
    return true;
}

// Partial sums of a peer have arrived and meet the value. False: there is no memory.
bool pair_sum(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index)
{
    struct pair_stripe *stripe = pair_stripe_of(run, index);
    const uint32_t move = stripe->move;
    const struct ring_span span = pair_received_span(&run->pair, index, move);
    const struct ring_span held = pair_held(run, index, move);
    const bool last = move == run->last_sum;
    uint8_t *received = stripe->received[move];
    struct pair_operands operands = {NULL, NULL};
    stripe->weight += stripe->weights[move];
    if (stripe->sum) // The half that is kept.
        stripe->sum += (span.first - held.first) * dtype_size(flow->partial);
    if (last && pair_is_mean(flow))
        flow->collective->weight_total = stripe->weight;
    const bool zero = stripe->value == VALUE_ZERO && !received;
    const bool none = last && !pair_results(flow, span, stripe->weight);
    if (!zero && !none) {
        if (!pair_operands(flows, flow, stripe, span,
                           run->turns[move].peer->rank < flows->world.rank, &received, &operands))
            return false;
        if (!last)
            pair_add(flow, span, &operands);
        if (last && !pair_finish(flows, flow, run, index, span, &operands))
            return false;
        pair_keep(flows, stripe, received, &operands);
    } else {
        pair_put(flows, received);
    }
    stripe->received[move] = NULL;
    if (last)
        stripe->value = VALUE_RESULT;
    return true;
}

// A result has arrived: in user memory, or to be copied there as far as it is used.
bool pair_result(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index)
{
    struct pair_stripe *stripe = pair_stripe_of(run, index);
    const struct ring_span span = pair_received_span(&run->pair, index, stripe->move);
    const uint64_t weight = stripe->weights[stripe->move];
    if (pair_is_mean(flow))
        flow->collective->weight_total = weight;
    if (!pair_settle(flows, flow, run, index))
        return false;
    if (!stripe->direct && pair_results(flow, span, weight))
        pair_store(flows, flow, span, pair_result_at(flow, run, index, span));
    stripe->weight = weight;
    stripe->value = VALUE_RESULT;
    return true;
}
