// SPDX-License-Identifier: Apache-2.0
//
// The owner's arithmetic, and the bytes of an input as they travel. Engine thread.

#ifndef WORKER_TRANSPORT_DIRECT_SUM_H
#define WORKER_TRANSPORT_DIRECT_SUM_H

#include "worker/memory/span.h"

#include <stdbool.h>
#include <stdint.h>

struct direct_run;
struct flow;
struct flows;

// True if this rank contributes to a reduction.
bool direct_contributes(const struct flow *flow);
// True if this rank's input travels as it is in user memory.
bool direct_is_plain(const struct flow *flow);
// Writes this rank's input of the span into `block`, as it travels.
void direct_pack(const struct flow *flow, struct ring_span span, uint8_t *block);
// True if final bytes of the span are received and written in user memory, without a block. The
// used bits of the span must be final.
bool direct_is_in_place(const struct flow *flow, struct ring_span span);
// Sums own piece `index`, whose inputs have arrived, and writes the result to the outputs. False:
// no memory.
bool direct_finish(struct flows *flows, struct flow *flow, struct direct_run *run, uint32_t index);

#endif
