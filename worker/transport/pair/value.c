// SPDX-License-Identifier: Apache-2.0
//
// The value of a stripe of an allreduce by pairs on this rank, from input to result, and where it
// is stored. Frames are in pair.c. Engine thread.
//
// The value of a stripe is one of three: this rank's input in user memory (nothing is added yet,
// and frames have the same bytes), a block of scratch, or zero without memory (no rank so far has
// used a unit). Only results are written to user memory. Doubling copies them from scratch. Halving
// writes them there directly, each owner its part and the others as they arrive. If that is not
// possible (unused units, missing outputs, another dtype), halving collects results in
// stripe->results first.

#include "worker/transport/pair/value.h"

#include "worker/kernels/kernels.h"
#include "worker/transport/flow/reduce.h"
#include "worker/transport/pair/pair.h"
#include "worker/transport/pair/sum.h"

#include <string.h>

#define PAIR_PIECE 2048 // Elements of a piece of a sum.

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

// Gives the value a block of scratch. span: the elements that this rank holds. False: no memory.
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

bool pair_value_ready(struct flows *flows, struct flow *flow, struct pair_stripe *stripe,
                      struct ring_span held)
{
    if (stripe->value == VALUE_INPUT || stripe->value == VALUE_RESULT)
        return true;
    if (stripe->value == VALUE_ZERO && pair_usage(flow, held) == USAGE_NONE)
        return true;
    return pair_value_make(flows, flow, stripe, held);
}

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

// True if all results of the span can be kept in user memory alone.
static bool pair_is_direct(const struct flow *flow, struct ring_span span)
{
    return flow->final == flow->collective->dtype && pair_usage(flow, span) == USAGE_ALL &&
           pair_is_backed(flow, span);
}

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
    if (stripe->results) // Unused units are sent as zeros.
        memset(stripe->results, 0, span.count * dtype_size(flow->final));
    return stripe->results;
}

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

bool pair_results(const struct flow *flow, struct ring_span span, uint64_t weight)
{
    return (!pair_is_mean(flow) || weight > 0) && pair_usage(flow, span) != USAGE_NONE;
}

// ---- sums ---------------------------------------------------------------------------------------

// The operands of a sum. `lower` is overwritten with the sum.
struct pair_operands {
    uint8_t *lower;
    uint8_t *upper; // NULL: this operand is this rank's input in user memory.
};

// Orders the received block and the value as operands of a sum. False: no memory.
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

// Keeps the block with the sum as the value, and frees the other block.
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

// Turns a piece of the sum over all ranks into the result.
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

// Turns the sum over all ranks into the result, by pieces that stay in the first cache from the sum
// to the copy in user memory. Doubling leaves the result in scratch, too, to send it to an extra.
// Halving writes it next to the results of other ranks.
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

// One move of three steps: the weight and the place of the value change; the received block is
// added, unless there is nothing to add (both sides are zero) or the result is not wanted (the last
// sum, of which no unit is used or which has no weight); the received block is kept or freed.
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
    if (stripe->sum) // Moves to the half that this rank keeps.
        stripe->sum += (span.first - held.first) * dtype_size(flow->partial);
    if (last && pair_is_mean(flow))
        flow->collective->weight_total = stripe->weight;
    const bool zero = stripe->value == VALUE_ZERO && !received;
    const bool unwanted = last && !pair_results(flow, span, stripe->weight);
    if (!zero && !unwanted) {
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
