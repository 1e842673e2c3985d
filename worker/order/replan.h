// SPDX-License-Identifier: Apache-2.0
//
// What a plan should be, when steps differ from it time and again (R13). Pure; part of the order
// core, see order.h.

#ifndef WORKER_ORDER_REPLAN_H
#define WORKER_ORDER_REPLAN_H

struct order;

// A step is settled. If it differed from its plan in the same way as earlier steps, the coordinator
// is told what the plan should be.
void order_replan(struct order *order);

#endif
