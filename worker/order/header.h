// SPDX-License-Identifier: Apache-2.0
//
// The functions of header.c that other files call.

#ifndef WORKER_ORDER_HEADER_H
#define WORKER_ORDER_HEADER_H

struct order;
struct step_header;

// lockstep_start was called, for the first time or again; no step is open.
void order_start_begun(struct order *order);
void order_header_received(struct order *order, const struct step_header *header);
// The step begins: its header may have come earlier.
void order_take_early_header(struct order *order);

#endif
