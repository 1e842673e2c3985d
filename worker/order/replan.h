// SPDX-License-Identifier: Apache-2.0
//
// Proposes a better plan when steps repeatedly differ from their plan (R13). Pure; part of the
// order core, see order.h.

#ifndef WORKER_ORDER_REPLAN_H
#define WORKER_ORDER_REPLAN_H

struct order;

// A step is settled. If the step differed from its plan in the same way as earlier steps, this
// tells the coordinator what the plan should be.
void order_replan(struct order *order);

#endif
