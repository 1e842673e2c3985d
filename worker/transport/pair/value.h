// SPDX-License-Identifier: Apache-2.0
//
// The value of a stripe on this rank after each move: input, partial sum or result. Engine thread.

#ifndef WORKER_TRANSPORT_PAIR_VALUE_H
#define WORKER_TRANSPORT_PAIR_VALUE_H

#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

struct flow;
struct pair_run;
struct pair_stripe;
struct flows;

// Frees a block of scratch; NULL: does nothing.
void pair_put(struct flows *flows, void *block);
// Begins a stripe: its value is this rank's input.
void pair_value_init(struct flow *flow, struct pair_stripe *stripe, struct ring_span span);
// Makes sure that the value can be the source of a frame, and gives it memory where needed. held:
// the elements that this rank holds. False: no memory.
bool pair_value_ready(struct flows *flows, struct flow *flow, struct pair_stripe *stripe,
                      struct ring_span held);
// The elements that this rank holds before a move.
struct ring_span pair_held(const struct pair_run *run, uint64_t index, uint32_t move);
// Decides once per stripe whether results go to user memory or to stripe->results; frames are sent
// from there. False: no memory.
bool pair_settle(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index);
// The place in stripe->results of the first element of the span; NULL: results go to user memory.
uint8_t *pair_result_at(const struct flow *flow, const struct pair_run *run, uint64_t index,
                        struct ring_span span);
// True if there is a result to write: some unit is used, and a mean has a weight.
bool pair_results(const struct flow *flow, struct ring_span span, uint64_t weight);
// Adds the partial sums that arrived in the stripe's present move to its value. False: no memory.
bool pair_sum(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index);
// Takes the results that arrived in the stripe's present move as its value. False: no memory.
bool pair_result(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index);

#endif
