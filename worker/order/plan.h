// SPDX-License-Identifier: Apache-2.0
//
// The plans that a rank holds (R13). Pure; part of the order core, see order.h.

#ifndef WORKER_ORDER_PLAN_H
#define WORKER_ORDER_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct down_plan_part;
struct order;
struct order_plan;

// A step that learns costs as much as some 50 steps with a plan. A job that displaces what it has
// learned more often than once in so many steps goes round more phases or sets than there is room
// for. It counts as such a job after the 16th time, as phases may also come and go once.
enum {
    ORDER_DISPLACED_STEPS = 64,
    ORDER_CROWDED = 16 * ORDER_DISPLACED_STEPS
};

// A learned layout makes room for another one. Forgets all plans, so all phases are learned again.
// Called while no step is open. Every rank calls this before the same step.
void order_forget_plans(struct order *order);
// True if steps learn again and again, because there are more phases and sets than there is room
// for.
bool order_is_crowded(const struct order *order);
// A step with a plan begins.
void order_plan_used(struct order *order);
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
