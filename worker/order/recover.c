// SPDX-License-Identifier: Apache-2.0
//
// How the order core of a rank freezes, what it reports, and how it goes on. Pure; part of the
// order core. The rules stand in recover.h.

#include "worker/order/recover.h"

#include "worker/order/header.h"
#include "worker/order/parts.h"
#include "worker/order/plan.h"
#include "worker/order/waits.h"

#include <string.h>

static bool set_empty(const struct slot_set *set)
{
    uint64_t all = 0;
    for (uint32_t word = 0; word < LOCKSTEP_SLOT_WORDS; word++)
        all |= set->words[word];
    return all == 0;
}

void order_freeze(struct order *order)
{
    order->recovery.frozen = true;
    order->headers.early_count = 0;
    memset(&order->headers.early_opening, 0, sizeof(order->headers.early_opening));
}

void order_open_completed(struct order *order, const struct open_wave *result)
{
    order->recovery.opened = true;
    order->recovery.result = *result;
    order->recovery.result_step = order->opening;
}

void order_report(const struct order *order, struct order_facts *facts)
{
    memset(facts, 0, sizeof(*facts));
    facts->settled = order->settled;
    facts->step = order->opening != 0 ? order->opening : order->open ? order->step : order->settled;
    facts->opened = order->opening != 0 ? order->recovery.opened : order->open;
    facts->skipped = order->settled > 0 && order->recovery.skipped == order->settled &&
                     order->recovery.result_step == order->settled;
    if (order->opening != 0 || !order->open)
        return;
    facts->begun = true;
    facts->closed = order->closed;
    facts->all_final = order->commit_joined;
    facts->slot_count = order->slot_count;
    for (uint32_t i = 0; i < order->slot_count; i++) {
        if (order->slots[i].state >= SLOT_LAUNCHED && !order_is_absent(order, &order->slots[i].id))
            slot_set_add(&facts->contributed, i);
        if (order->slots[i].state == SLOT_FINAL)
            slot_set_add(&facts->final, i);
    }
}

// ---- Going on ----------------------------------------------------------------------------------

// Returns NULL, or the reason why the decision cannot be of this rank's job.
static const char *recover_impossible(const struct order *order,
                                      const struct order_decision *decision)
{
    if (decision->settled == order->settled)
        return NULL;
    // No rank has begun a step of this session. This rank has the number of a file's last step.
    if (decision->settled == 0 && order->headers.starts <= 1 && !order->open &&
        order->opening == 0 && set_empty(&decision->redo))
        return NULL;
    // The trainer may skip a step while the rank is frozen: then the rank is ahead of its report.
    if (decision->settled + 1 == order->settled && order->recovery.skipped == order->settled &&
        set_empty(&decision->redo))
        return NULL;
    if (decision->skipped && decision->settled == order->settled + 1 && decision->opened &&
        order->opening == decision->settled && set_empty(&decision->redo))
        return NULL;
    if (decision->settled != order->settled + 1)
        return "the decision names a settled step that no member can have settled";
    if (!order->open || !order->commit_joined)
        return "the decision settles a step whose commit wave this rank has not joined";
    // They may be of modules that this rank does not have.
    if (!set_empty(&decision->redo) && order->absent == 0)
        return "the decision repeats slots of a step that this rank has not begun";
    return NULL;
}

// What a launch of the old generation did is forgotten. The slot was ready or zero before.
static void recover_slots(struct order *order)
{
    for (uint32_t i = 0; i < order->slot_count; i++) {
        struct order_slot *slot = &order->slots[i];
        if (slot->state == SLOT_LAUNCHED || slot->state == SLOT_SUMMED)
            slot->state = slot->zero ? SLOT_ZERO : SLOT_READY;
    }
    order->low = order->front = 0;
}

// Returns false if a slot is named that this rank has not launched: then no element of the slot can
// be final.
static bool recover_redo(struct order *order, const struct slot_set *launched,
                         const struct slot_set *redo)
{
    for (uint32_t i = 0; i < LOCKSTEP_MAX_SLOTS; i++) {
        struct order_slot *slot = &order->slots[i];
        if (!slot_set_has(redo, i) || (i < order->slot_count && order_is_absent(order, &slot->id)))
            continue;
        if (i >= order->slot_count || !slot_set_has(launched, i))
            return false;
        slot->state = SLOT_LAUNCHED;
        order_emit(order, &(struct order_action){.kind = ORDER_REDO,
                                                 .slot = slot,
                                                 .index = i,
                                                 .space = order->space,
                                                 .step = order->step});
    }
    return true;
}

// The rank number in this rank's part of the wave is that of the new world.
static void recover_opening(struct order *order, const struct order_decision *decision)
{
    struct open_wave *opening = &order->recovery.opening;
    const uint64_t step = decision->settled + (decision->skipped ? 0 : 1);
    if (order->recovery.opened)
        return;
    if (decision->opened && order->opening == step) {
        order_open_completed(order, decision->opened);
        return;
    }
    if (opening->first != OPEN_NOBODY)
        opening->first = order->rank;
    order_emit(order, &(struct order_action){
                          .kind = ORDER_OPEN, .opening = opening, .step = order->opening});
}

// ---- A learning step is said again --------------------------------------------------------------

// True if this rank has made the slot, which is granted, or if the plan that it holds has it: a
// rank that has died since may have made it.
static bool recall_made(const struct order *order, const struct order_slot *slot)
{
    const struct order_plan *plan = order->closed ? order_plan_of(order, order->phase) : NULL;
    const bool zero = slot->state < SLOT_LAUNCHED ? slot->state == SLOT_ZERO : slot->zero;
    bool made = !zero && !order_is_absent(order, &slot->id);
    for (uint32_t i = 0; plan && !made && i < plan->count; i++)
        made = plan->slots[i].module == slot->id.module && plan->slots[i].call == slot->id.call;
    return made;
}

// The slots that are granted here, in the order of grants, and then those that are ready only.
static void recall_slots(struct order *order)
{
    for (uint32_t i = 0; i < order->slot_count; i++) {
        struct up_message message = {.kind = UP_READY};
        message.u.ready = (struct up_ready){.step = order->step,
                                            .phase = order->phase,
                                            .slot = order->slots[i].id,
                                            .granted = i + 1,
                                            .grants = order->slot_count,
                                            .unmade = !recall_made(order, &order->slots[i])};
        order_send(order, &message);
    }
    for (uint32_t i = 0; i < order->unplaced_count; i++)
        order_send_ready(order, &order->unplaced[i]);
}

static void recover_learning(struct order *order)
{
    recall_slots(order);
    if (order->ended)
        order_send_end(order);
}

bool order_learns(const struct order *order)
{
    return order->open && order->learning && !order->closed;
}

void order_learn_again(struct order *order)
{
    recall_slots(order);
    order->waits.said_wait.step = 0;
    order->waits.changed = true;
    if (!order->ended)
        order_advance(order);
}

// The algorithms of plans were chosen for the world before.
static void recover_algorithms(struct order *order)
{
    for (uint32_t i = 0; i < order->slot_count; i++)
        order->slots[i].algorithm = ALGORITHM_BY_SIZE;
    for (uint32_t i = 0; i < order->plans.count; i++)
        memset(order->plans.held[i].algorithms, ALGORITHM_BY_SIZE,
               sizeof(order->plans.held[i].algorithms));
    memset(order->plans.newer.algorithms, ALGORITHM_BY_SIZE, sizeof(order->plans.newer.algorithms));
}

static void recover_world(struct order *order, const struct order_decision *decision)
{
    order->generation = decision->generation;
    order->rank = decision->rank;
    order->world_size = decision->world_size;
    order->header_equal = order->world_size == 1;
    order->fail_said = false;
    order->given_up = 0;
    order->close_joined = order->closed;
    order->commit_joined = false;
}

void order_recover(struct order *order, const struct order_decision *decision)
{
    const char *impossible = recover_impossible(order, decision);
    struct order_facts facts;
    if (order->failed)
        return;
    if (impossible) {
        order_fail(order, HALT_PROTOCOL, impossible);
        return;
    }
    if (decision->settled == order->settled + 1 && !decision->skipped)
        order_commit_completed(order);
    else if (decision->closed && order->opening == 0 && !order->learning)
        order_close_completed(order, decision->closed);
    if (order->failed)
        return;
    order_unlearn(order);
    order_report(order, &facts);
    recover_world(order, decision);
    recover_algorithms(order);
    order->recovery.frozen = false;
    order_waits_recover(order);
    if (order->opening != 0)
        recover_opening(order, decision);
    if (order->opening != 0 || order->open)
        order_send_header(order);
    order_take_kept_headers(order);
    if (order->open) {
        recover_slots(order);
        if (!recover_redo(order, &facts.contributed, &decision->redo)) {
            order_fail(order, HALT_PROTOCOL, "the decision repeats a slot that was not launched");
            return;
        }
        if (order->learning)
            recover_learning(order);
    }
    order_advance(order);
}
