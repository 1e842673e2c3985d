// SPDX-License-Identifier: Apache-2.0
//
// The plans that a rank holds: one in force for each phase, and at most one newer plan, which all
// ranks put into force before the same step. Pure; part of the order core, see order.h.

#include "worker/order/plan.h"

#include "worker/order/order.h"
#include "worker/order/parts.h"

void order_forget_plans(struct order *order)
{
    order->plans.count = 0;
    order->plans.crowd += ORDER_DISPLACED_STEPS;
}

bool order_is_crowded(const struct order *order)
{
    return order->plans.crowd >= ORDER_CROWDED;
}

void order_plan_used(struct order *order)
{
    if (order->plans.crowd > 0)
        order->plans.crowd--;
}

// Returns the index of the plan of a phase; plans.count if there is none.
static uint32_t order_plan_index(const struct order *order, uint64_t phase)
{
    uint32_t i = 0;
    while (i < order->plans.count && order->plans.held[i].phase != phase)
        i++;
    return i;
}

struct order_plan *order_find_plan(struct order *order, uint64_t phase)
{
    const uint32_t index = order_plan_index(order, phase);
    return index < order->plans.count ? &order->plans.held[index] : NULL;
}

const struct order_plan *order_plan_of(const struct order *order, uint64_t phase)
{
    const uint32_t index = order_plan_index(order, phase);
    return index < order->plans.count ? &order->plans.held[index] : NULL;
}

// Returns the plan whose phase was begun longest ago. A step has one phase, so no two plans were
// used last in the same step.
static struct order_plan *order_oldest_plan(struct order *order)
{
    struct order_plan *oldest = &order->plans.held[0];
    for (uint32_t i = 1; i < order->plans.count; i++) {
        if (order->plans.held[i].used < oldest->used)
            oldest = &order->plans.held[i];
    }
    return oldest;
}

// The older plan, from which the newer plan was made, may have been forgotten or learned again;
// then the newer plan is dropped. Which plans are in force depends only on the steps, not on when a
// plan arrived, so all ranks decide alike.
void order_switch_plans(struct order *order, uint64_t number)
{
    struct order_plan *newer = &order->plans.newer;
    struct order_plan *old;
    if (number > order->plans.in_force)
        order->plans.in_force = number;
    if (newer->number == 0 || newer->number > order->plans.in_force)
        return;
    old = order_find_plan(order, newer->phase);
    if (old && old->number == newer->replaces) {
        newer->used = old->used;
        *old = *newer;
    }
    newer->number = 0;
}

static void order_install_learned(struct order *order)
{
    struct order_plan *plan = order_find_plan(order, order->plans.incoming.phase);
    if (!plan && order->plans.count < order->plans.room)
        plan = &order->plans.held[order->plans.count++];
    if (!plan) {
        plan = order_oldest_plan(order);
        order->plans.crowd += ORDER_DISPLACED_STEPS;
    }
    *plan = order->plans.incoming;
    plan->used = order->step;
}

void order_unlearn(struct order *order)
{
    struct order_plan *plan = order_find_plan(order, order->phase);
    if (!order->open || !order->learning || !order->closed || !plan)
        return;
    order->closed = false;
    order->plans.number = plan->number - 1;
    *plan = order->plans.held[--order->plans.count];
}

// True if a slot is in the plan twice. Such a slot would be launched twice, with the same memory.
static bool order_plan_repeats(const struct order_plan *plan)
{
    for (uint32_t i = 1; i < plan->count; i++) {
        const struct slot_id *id = &plan->slots[i];
        for (uint32_t j = 0; j < i; j++) {
            if (plan->slots[j].bucket == id->bucket && plan->slots[j].module == id->module &&
                plan->slots[j].call == id->call)
                return true;
        }
    }
    return false;
}

static void order_plan_complete(struct order *order, const struct down_plan_part *part)
{
    if (order_plan_repeats(&order->plans.incoming)) {
        order_fail(order, HALT_PROTOCOL, "the coordinator sent a plan that has a slot twice");
        return;
    }
    if (part->number <= order->plans.number ||
        (!part->closes_step && order->plans.newer.number != 0)) {
        order_fail(order, HALT_PROTOCOL, "the coordinator sent a plan that nobody waits for");
        return;
    }
    order->plans.number = part->number;
    if (!part->closes_step) {
        order->plans.newer = order->plans.incoming;
        return;
    }
    if (part->number > order->plans.in_force)
        order->plans.in_force = part->number;
    order->plans.newer.number = 0;
    order_install_learned(order);
    if (order->open && order->learning && part->step == order->step)
        order->closed = true;
}

void order_plan_received(struct order *order, const struct down_plan_part *part)
{
    struct order_plan *plan = &order->plans.incoming;
    if (order->failed)
        return;
    if (part->slot_first == 0) {
        plan->phase = part->phase;
        plan->number = part->number;
        plan->replaces = part->replaces;
        plan->hash = part->hash;
        plan->strict = part->strict;
        plan->count = 0;
    }
    if (part->number != plan->number || part->slot_first != plan->count ||
        plan->count + part->slot_count > LOCKSTEP_MAX_SLOTS) {
        order_fail(order, HALT_PROTOCOL, "the coordinator sent parts of a plan out of order");
        return;
    }
    for (uint32_t i = 0; i < part->slot_count; i++) {
        plan->algorithms[plan->count] = (uint8_t)part->slots[i].algorithm;
        plan->slots[plan->count++] = part->slots[i].id;
    }
    if (part->last)
        order_plan_complete(order, part);
    order_advance(order);
}
