// SPDX-License-Identifier: Apache-2.0
//
// What a stripe is worth on this rank after each move. Engine thread.

#ifndef WORKER_TRANSPORT_PAIR_VALUE_H
#define WORKER_TRANSPORT_PAIR_VALUE_H

#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

struct flow;
struct pair_run;
struct pair_stripe;
struct flows;

// Gives back a block of scratch; NULL: there is none.
void pair_put(struct flows *flows, void *block);
// The stripe begins: its value is this rank's input.
void pair_value_init(struct flow *flow, struct pair_stripe *stripe, struct ring_span span);
// True if the value can be the source of a frame; held: what this rank holds of it. It has memory
// then, where it needs some. False: there is none.
bool pair_value_ready(struct flows *flows, struct flow *flow, struct pair_stripe *stripe,
                      struct ring_span held);
// What this rank holds before a move.
struct ring_span pair_held(const struct pair_run *run, uint64_t index, uint32_t move);
// Decides where results go, once: frames are sent from there. False: there is no memory.
bool pair_settle(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index);
// Where the result of the first element of the span is to be; NULL: in user memory.
uint8_t *pair_result_at(const struct flow *flow, const struct pair_run *run, uint64_t index,
                        struct ring_span span);
// True if there is a result at all.
bool pair_results(const struct flow *flow, struct ring_span span, uint64_t weight);
// What arrived in the stripe's move meets the value: of partial sums; ...
bool pair_sum(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index);
// ... of results. False: there is no memory.
bool pair_result(struct flows *flows, struct flow *flow, struct pair_run *run, uint64_t index);

#endif
