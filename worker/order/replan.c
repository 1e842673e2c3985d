// SPDX-License-Identifier: Apache-2.0
//
// Tells the coordinator what the plan should be, if successive steps differ from their plan in the
// same way (R13). Pure; part of the order core, see order.h.
//
// A step can differ from its plan in two ways. First, calls outside the plan were appended. All
// ranks know that from the close wave, so rank 0 reports it. Second, this rank gave up planned
// calls in favour of a call that it waited for. No other rank knows that. The rank reports when the
// step is settled, because then all ranks know which plans the close wave has put into force. In
// the proposed plan the appended calls come after all other calls, and the calls that were given up
// come right after the call that was waited for.

#include "worker/order/replan.h"

#include "worker/order/order.h"
#include "worker/order/parts.h"
#include "worker/order/plan.h"

static uint64_t deviation_add(uint64_t deviation, uint64_t first, uint64_t second)
{
    deviation = (deviation ^ first) * UINT64_C(0x9e3779b97f4a7c15);
    deviation = (deviation ^ deviation >> 29 ^ second) * UINT64_C(0xbf58476d1ce4e5b9);
    return (deviation ^ deviation >> 32) | 1; // A deviation is never 0.
}

// Returns a hash of the deviation that this rank reports; 0 if the step followed the plan.
static uint64_t deviation_of(const struct order *order)
{
    uint64_t deviation = 0;
    for (uint32_t i = 0; order->options.zero_defer && i < order->planned; i++) {
        if (order->slots[i].forfeited)
            deviation = deviation_add(deviation, i, order->slots[i].behind);
    }
    for (uint32_t i = 0; order->rank == 0 && i < order->verdict.extra_total; i++) {
        const struct call_id *call = &order->verdict.extras[i];
        deviation = deviation_add(deviation, LOCKSTEP_MAX_SLOTS + call->module, call->call);
    }
    return deviation;
}

// True after LOCKSTEP_REPLAN_STEPS steps with the same deviation, then after twice as many steps,
// and so on, because the coordinator may leave the plan as it is.
static bool replan_due(uint32_t alike)
{
    const uint32_t turns = alike / LOCKSTEP_REPLAN_STEPS;
    return alike % LOCKSTEP_REPLAN_STEPS == 0 && (turns & (turns - 1)) == 0;
}

// ---- The calls ---------------------------------------------------------------------------------

// Adds a call if the list does not have it. Returns false if there is no room.
static bool replan_add(struct up_replan *replan, uint32_t module, uint32_t call)
{
    for (uint32_t i = 0; i < replan->call_count; i++) {
        if (replan->calls[i].module == module && replan->calls[i].call == call)
            return true;
    }
    if (replan->call_count == LOCKSTEP_REPLAN_CALLS)
        return false;
    replan->calls[replan->call_count++] = (struct call_id){.module = module, .call = call};
    return true;
}

static bool replan_add_slot(struct up_replan *replan, const struct order_slot *slot)
{
    return replan_add(replan, slot->id.module, slot->id.call);
}

// Adds the calls that were given up for a wait whose last slot is at position `behind`.
static bool replan_add_behind(const struct order *order, uint32_t behind, struct up_replan *replan)
{
    bool fits = true;
    for (uint32_t i = 0; fits && i < behind; i++) {
        if (order->slots[i].forfeited && order->slots[i].behind == behind)
            fits = replan_add_slot(replan, &order->slots[i]);
    }
    return fits;
}

static bool replan_calls(const struct order *order, struct up_replan *replan)
{
    bool fits = true;
    for (uint32_t i = 0; fits && i < order->planned; i++) {
        if (!order->slots[i].forfeited)
            fits = replan_add_slot(replan, &order->slots[i]);
        if (fits && order->options.zero_defer)
            fits = replan_add_behind(order, i, replan);
    }
    for (uint32_t i = 0; fits && i < order->verdict.extra_total; i++)
        fits = replan_add(replan, order->verdict.extras[i].module, order->verdict.extras[i].call);
    return fits;
}

// Apart from order_replan: the message is 8 KiB, and most steps send none.
static void replan_send(struct order *order, const struct order_plan *plan)
{
    struct up_message message = {.kind = UP_REPLAN};
    struct up_replan *replan = &message.u.replan;
    replan->step = order->step;
    replan->phase = order->phase;
    replan->replaces = plan->number;
    replan->in_force = order->plans.in_force;
    if (replan_calls(order, replan))
        order_send(order, &message);
}

void order_replan(struct order *order)
{
    struct order_plan *plan = order_find_plan(order, order->phase);
    if (order->learning || order->alone || !plan || plan->hash != order->space)
        return; // The step had no plan, or the step's plan is no longer in force.
    const uint64_t deviation = deviation_of(order);
    plan->alike = deviation == plan->deviation ? plan->alike + 1 : 1;
    plan->deviation = deviation;
    if (deviation != 0 && replan_due(plan->alike))
        replan_send(order, plan);
}
