// SPDX-License-Identifier: Apache-2.0
//
// The functions of replan.c that other files call.

#ifndef WORKER_ORDER_REPLAN_H
#define WORKER_ORDER_REPLAN_H

struct order;

// The step is settled: if it differed from its plan as others before it did, that is said.
void order_replan(struct order *order);

#endif
