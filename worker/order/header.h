// SPDX-License-Identifier: Apache-2.0
//
// Headers of the ring predecessor (R1, start again). Pure; part of the order core, see order.h.

#ifndef WORKER_ORDER_HEADER_H
#define WORKER_ORDER_HEADER_H

#include <stdint.h>

struct order;
struct step_header;

// The trainer called lockstep_start, for the first time or again. No step is open.
void order_start_begun(struct order *order);
// The ring predecessor sent a header.
void order_header_received(struct order *order, const struct step_header *header);
// What this rank does when ranks run out of data (enum lockstep_uneven), from the next step on.
void order_uneven(struct order *order, uint32_t uneven);
// A step is opened or begins: compares what the predecessor does, if its header came earlier.
void order_take_early_uneven(struct order *order);
// A step begins: compares the header of this step, if the header came earlier.
void order_take_early_header(struct order *order);

// The rank goes on in a new generation: compares the headers of that generation that came while it
// was frozen.
void order_take_kept_headers(struct order *order);

#endif
