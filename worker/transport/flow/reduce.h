// SPDX-License-Identifier: Apache-2.0
//
// This rank's contribution to a run of elements, and the final bytes. Engine thread.

#ifndef WORKER_TRANSPORT_FLOW_REDUCE_H
#define WORKER_TRANSPORT_FLOW_REDUCE_H

#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct flow;

// True if the first hop can be sent from user memory as it is.
bool reduce_is_plain(const struct flow *flow);
// Writes this rank's contribution to `count` elements from `first` into acc.
void reduce_start(const struct flow *flow, struct ring_span span, uint8_t *acc);
// acc = acc op this rank's contribution. Returns the weight that it adds.
uint64_t reduce_add(const struct flow *flow, struct ring_span span, uint8_t *acc);
// The owner's last step: adds this rank's contribution to acc, divides, and writes what is final to
// the outputs: directly, when all of them have memory and all units are used, else by way of acc.
// Returns the weight in all, `weight` being that of acc. Returns 0 for a mean to which no rank
// contributed; then nothing is written.
uint64_t reduce_finish(const struct flow *flow, struct ring_span span, uint8_t *acc,
                       uint64_t weight, bool direct);
// Copies final bytes to the outputs of the units that are used; to all when there are no units.
void reduce_store(const struct flow *flow, struct ring_span span, const uint8_t *bytes);
// A collective of a world of one, or the root's own copy.
void reduce_local(struct collective *collective, uint32_t element_bytes);

#endif
