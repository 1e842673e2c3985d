// SPDX-License-Identifier: Apache-2.0
//
// The functions of plan.c that other files call.

#ifndef WORKER_ORDER_PLAN_H
#define WORKER_ORDER_PLAN_H

#include <stdint.h>

struct down_plan_part;
struct order;
struct order_plan;

// No step is open, and every rank does it before the same step: all phases are learned again.
void order_forget_plans(struct order *order);
// The plan of a phase, or NULL: its next step is a learning step.
const struct order_plan *order_plan_of(const struct order *order, uint64_t phase);
void order_plan_received(struct order *order, const struct down_plan_part *part);
struct order_plan *order_find_plan(struct order *order, uint64_t phase);
// Every rank holds the plans up to this number: they are in force from the next step on.
void order_switch_plans(struct order *order, uint64_t number);

#endif
