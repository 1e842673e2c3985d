// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a chunk: this rank's contribution to it, and its final bytes. Engine thread.

#ifndef WORKER_TRANSPORT_FLOW_REDUCE_H
#define WORKER_TRANSPORT_FLOW_REDUCE_H

#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct flow;
struct frame_header;

// True if this rank's contribution is its input unchanged, so that a frame can be sent from user
// memory.
bool reduce_is_plain(const struct flow *flow);
// Writes this rank's contribution to the elements of `span` into acc.
void reduce_start(const struct flow *flow, struct ring_span span, uint8_t *acc);
// acc = acc op this rank's contribution. Returns the weight that it adds.
uint64_t reduce_add(const struct flow *flow, struct ring_span span, uint8_t *acc);
// The owner's last step: adds this rank's contribution to acc, divides, and writes final bytes to
// the outputs. direct: true only if all outputs have memory and all units are used; false: the
// final bytes also stay in acc. `weight` is the weight of acc; returns the total weight. Returns 0
// for a mean to which no rank contributed; then nothing is written.
uint64_t reduce_finish(const struct flow *flow, struct ring_span span, uint8_t *acc,
                       uint64_t weight, bool direct);
// Copies final bytes to the outputs of the used units; without units, to all outputs.
void reduce_store(const struct flow *flow, struct ring_span span, const uint8_t *bytes);
// Adds the used bits of a frame that carries the elements of `span` to collective->used. final: the
// frame has final bytes. Returns NULL, or what is impossible about the bits.
const char *reduce_learn(struct flow *flow, const struct frame_header *header, const uint8_t *used,
                         struct ring_span span, bool final);
// Writes the sum over a tree of leaves in a world of one. The weight is above 0.
void reduce_local_tree(const struct collective *collective);
// Computes a collective in a world of one, and copies the input to the output on the root of a
// broadcast.
void reduce_local(struct collective *collective, uint32_t element_bytes);

#endif
