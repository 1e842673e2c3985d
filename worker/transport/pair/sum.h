// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a reduction by pairs. Engine thread.

#ifndef WORKER_TRANSPORT_PAIR_SUM_H
#define WORKER_TRANSPORT_PAIR_SUM_H

#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

struct flow;

// True if this rank's input can be sent, and used as an operand, directly from user memory.
bool pair_sum_is_plain(const struct flow *flow, struct ring_span span);
// True if the sum of two operands may depend on which one is the first.
bool pair_sum_is_ordered(const struct flow *flow);
// lower = lower op upper, both partial sums.
void pair_sum_add(const struct flow *flow, uint64_t count, uint8_t *lower, const uint8_t *upper);
// out = the result of (lower op upper); upper NULL: of lower alone. out may be lower. out NULL:
// writes the outputs in user memory, all of which must exist. lower is overwritten in any case.
void pair_sum_finish(const struct flow *flow, struct ring_span span, uint8_t *lower,
                     const uint8_t *upper, uint64_t weight, uint8_t *out);

// Replaces every NaN of a sum by one fixed NaN.
void pair_sum_quiet(const struct flow *flow, uint8_t *bytes, uint64_t count);

#endif
