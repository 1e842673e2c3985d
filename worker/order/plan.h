// SPDX-License-Identifier: Apache-2.0
//
// The plans that a rank holds (R13). Pure; part of the order core, see order.h.

#ifndef WORKER_ORDER_PLAN_H
#define WORKER_ORDER_PLAN_H

#include <stdint.h>

struct down_plan_part;
struct order;
struct order_plan;

// Forgets all plans, so all phases are learned again. Called while no step is open. Every rank
// calls this before the same step.
void order_forget_plans(struct order *order);
// Returns the plan of a phase; NULL if the next step of the phase is a learning step.
const struct order_plan *order_plan_of(const struct order *order, uint64_t phase);
// Forgets the plan that has closed the open learning step: the coordinator sends it again.
void order_unlearn(struct order *order);
// The coordinator sent a part of a plan.
void order_plan_received(struct order *order, const struct down_plan_part *part);
// As order_plan_of, for files of the order core, which may change the plan.
struct order_plan *order_find_plan(struct order *order, uint64_t phase);
// Every rank holds the plans up to this number. These plans are in force from the next step on.
void order_switch_plans(struct order *order, uint64_t number);

#endif
