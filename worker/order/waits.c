// SPDX-License-Identifier: Apache-2.0
//
// Threads of the trainer that wait for a call before the end of the step. The file decides when
// such a thread may go on, which slots the rank gives up, and what it tells the coordinator, so
// that the coordinator finds ranks that wait for each other. Pure; part of the order core, whose
// rules stand in order.h (R9).
//
// Words: a wait *counts* from its begin until it is released or withdrawn. The rank is *blocked*
// when at least as many waits count as the trainer has threads. A planned slot is *lacking* when it
// is not ready on this rank, unless its call is open and wait_while_open is set.

#include "worker/order/waits.h"

#include "worker/order/order.h"
#include "worker/order/parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool call_equal(const struct call_id *a, const struct call_id *b)
{
    return a->module == b->module && a->call == b->call;
}

void order_waits_reset(struct order *order)
{
    order->waits.count = order->waits.open_call_count = order->waits.unanswered = 0;
    order->waits.changed = false;
    order->waits.said.wait_count = 0;
    order->waits.said_wait.step = 0;
}

// ---- Releasing waits ---------------------------------------------------------------------------

static void wait_answer(struct order *order, const struct call_id *call, enum order_release release)
{
    order_emit(order,
               &(struct order_action){
                   .kind = ORDER_RELEASE, .call = *call, .release = release, .step = order->step});
}

static void wait_release(struct order *order, uint32_t index, enum order_release release)
{
    const struct call_id call = order->waits.held[index].call;
    order->waits.count--;
    memmove(&order->waits.held[index], &order->waits.held[index + 1],
            (order->waits.count - index) * sizeof(order->waits.held[0]));
    order->waits.changed = true;
    wait_answer(order, &call, release);
}

// Slots become final in any order; wait->finals counts each slot once. Slots of the call that have
// no place in the order yet are not counted, so the call is not final.
static bool wait_is_final(const struct order *order, struct order_wait *wait)
{
    for (; wait->at < order->slot_count; wait->at++) {
        const struct order_slot *slot = &order->slots[wait->at];
        if (!order_of_call(&slot->id, &wait->call))
            continue;
        if (slot->state != SLOT_FINAL)
            return false;
        wait->finals++;
    }
    return wait->finals >= order->buckets[wait->call.module];
}

static void waits_go_on(struct order *order)
{
    for (uint32_t i = 0; i < order->waits.count;) {
        if (order->waits.held[i].deferred)
            wait_release(order, i, RELEASE_DEFERRED);
        else if (wait_is_final(order, &order->waits.held[i]))
            wait_release(order, i, RELEASE_FINAL);
        else
            i++;
    }
}

void order_waits_settled(struct order *order)
{
    while (order->waits.count > 0)
        wait_release(order, 0, RELEASE_FINAL);
}

static void waits_withdraw(struct order *order)
{
    for (uint32_t i = 0; i < order->waits.count;) {
        if (order->waits.held[i].withdrawn)
            wait_release(order, i, RELEASE_WITHDRAWN);
        else
            i++;
    }
}

// ---- Giving up ---------------------------------------------------------------------------------

void order_waits_forfeited(struct order *order, const struct slot_id *slot)
{
    for (uint32_t i = 0; i < order->waits.count; i++) {
        if (order_of_call(slot, &order->waits.held[i].call))
            order->waits.held[i].deferred = true;
    }
}

static bool slot_lacking(const struct order *order, const struct order_slot *slot)
{
    if (slot->state != SLOT_UNREADY)
        return false;
    for (uint32_t i = 0; order->options.wait_while_open && i < order->waits.open_call_count; i++) {
        if (order_of_call(&slot->id, &order->waits.open_calls[i]))
            return false;
    }
    return true;
}

// Gives up slots even if the awaited call is already final, because the set of forfeited slots must
// not depend on time.
static void waits_forfeit(struct order *order)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < order->waits.count; i++) {
        const uint32_t own = order_call_end(order, &order->waits.held[i].call);
        end = own > end ? own : end;
    }
    for (uint32_t i = order->low; i < end; i++) {
        struct order_slot *slot = &order->slots[i];
        if (!slot_lacking(order, slot))
            continue;
        slot->state = SLOT_ZERO;
        slot->forfeited = true;
        slot->behind = end - 1;
        order_waits_forfeited(order, &slot->id);
    }
}

// ---- Reporting to the coordinator --------------------------------------------------------------

static uint32_t waits_counting(const struct order *order)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < order->waits.count; i++)
        count += !order->waits.held[i].withdrawn;
    return count;
}

// A slot is launched when it lies in the window of W slots that begins at the lowest slot that is
// neither final nor summed. So the slot needs all slots that are W or more positions before it. If
// the data plane pairs collectives by their order, the slot needs all slots before it.
void order_need(const struct order *order, struct call_id call, struct slot_set *needs)
{
    const uint32_t end = order_call_end(order, &call);
    uint32_t before = order->strict ? end : 0;
    memset(needs, 0, sizeof(*needs));
    if (!order->strict && end > order->options.window)
        before = end - order->options.window;
    for (uint32_t i = 0; i < end; i++) {
        if (i < before || order_of_call(&order->slots[i].id, &call))
            slot_set_add(needs, i);
    }
}

// Names the first lacking slot of each call. The slots of a call need not be next to each other.
static void blocked_name(struct up_blocked *blocked, uint32_t position, const struct slot_id *slot)
{
    for (uint32_t i = 0; i < blocked->lack_count; i++) {
        if (order_of_call(slot, &blocked->lacking[i].call))
            return;
    }
    if (blocked->lack_count == LOCKSTEP_LACKS_NAMED)
        return;
    blocked->lacking[blocked->lack_count++] = (struct blocked_lack){
        .position = position, .call = {.module = slot->module, .call = slot->call}};
}

// Writes the lacking slots into `blocked`. Returns the lowest lacking position; LOCKSTEP_MAX_SLOTS
// if no slot is lacking.
static uint32_t blocked_lacks(const struct order *order, struct up_blocked *blocked)
{
    uint32_t lowest = LOCKSTEP_MAX_SLOTS;
    for (uint32_t i = order->low; i < order->planned; i++) {
        if (!slot_lacking(order, &order->slots[i]))
            continue;
        lowest = i < lowest ? i : lowest;
        slot_set_add(&blocked->lacks, i);
        blocked_name(blocked, i, &order->slots[i].id);
    }
    return lowest;
}

// Reports a wait for a call outside the plan. Such a call completes only after step_end on every
// rank, this rank included.
static void waits_never_end(struct order *order, const struct call_id *call)
{
    struct up_message message = {.kind = UP_FAIL};
    if (order->fail_said)
        return;
    order->fail_said = true;
    message.u.fail.step = order->step;
    message.u.fail.kind = HALT_UNPLANNED;
    snprintf(message.u.fail.text, sizeof(message.u.fail.text),
             "this rank waits for call %" PRIu32 " of module %" PRIu32
             " before the end of step %" PRIu64
             ", but the plan does not have it: wait in lockstep_step_end, or use another phase "
             "label",
             call->call + 1, call->module, order->step);
    message.generation = order->generation;
    order_emit(order, &(struct order_action){
                          .kind = ORDER_SEND, .up = &message, .step = order->step, .call = *call});
}

// A wait for a call outside the plan cannot be the first to end, so such a wait is reported only if
// no other wait counts.
static void waits_say_blocked(struct order *order)
{
    struct up_message message = {.kind = UP_BLOCKED};
    struct up_blocked *blocked = &message.u.blocked;
    const struct call_id *outside = NULL;
    uint32_t end = 0;
    for (uint32_t i = 0; i < order->waits.count; i++) {
        const struct order_wait *wait = &order->waits.held[i];
        const uint32_t own = order_call_end(order, &wait->call);
        if (wait->withdrawn)
            continue;
        if (own == 0) {
            outside = &wait->call;
            continue;
        }
        blocked->waits[blocked->wait_count].call = wait->call;
        order_need(order, wait->call, &blocked->waits[blocked->wait_count++].needs);
        end = own > end ? own : end;
    }
    if (blocked->wait_count == 0) {
        waits_never_end(order, outside);
        return;
    }
    blocked->step = order->step;
    blocked->space = order->space;
    if (blocked_lacks(order, blocked) >= end && order->waits.watched != order->step)
        return;
    if (memcmp(&order->waits.said, blocked, sizeof(*blocked)) == 0)
        return;
    order->waits.said = *blocked;
    order->waits.watched = order->step;
    order_send(order, &message);
}

// Returns the lowest bucket of a call that is ready and not granted; NULL if all are granted.
static const struct slot_id *learning_slot(const struct order *order, const struct call_id *call)
{
    const struct slot_id *lowest = NULL;
    for (uint32_t i = 0; i < order->unplaced_count; i++) {
        const struct slot_id *slot = &order->unplaced[i].id;
        if (order_of_call(slot, call) && (!lowest || slot->bucket < lowest->bucket))
            lowest = slot;
    }
    return lowest;
}

static bool said_already(const struct up_wait *said, const struct up_wait *wait)
{
    return said->step == wait->step && said->also_count == wait->also_count &&
           memcmp(&said->slot, &wait->slot, sizeof(said->slot)) == 0 &&
           memcmp(said->also, wait->also, wait->also_count * sizeof(said->also[0])) == 0;
}

// If all slots of a thread's call are granted, that thread goes on without the coordinator's help,
// and the rank reports nothing.
static void waits_say_learning(struct order *order)
{
    struct up_message message = {.kind = UP_WAIT};
    struct up_wait *wait = &message.u.wait;
    uint32_t count = 0;
    *wait = (struct up_wait){.step = order->step, .phase = order->phase};
    for (uint32_t i = 0; i < order->waits.count; i++) {
        const struct slot_id *slot = learning_slot(order, &order->waits.held[i].call);
        if (order->waits.held[i].withdrawn)
            continue;
        if (!slot)
            return;
        if (count++ == 0)
            wait->slot = *slot;
        else
            wait->also[wait->also_count++] = *slot;
    }
    if (said_already(&order->waits.said_wait, wait))
        return;
    order->waits.said_wait = *wait;
    order_send(order, &message);
}

static void waits_say(struct order *order)
{
    if (!order->waits.changed)
        return;
    order->waits.changed = false;
    if (order->alone || order->ended || waits_counting(order) < order->options.threads)
        return;
    if (order->learning)
        waits_say_learning(order);
    else
        waits_say_blocked(order);
}

void order_waits_advance(struct order *order)
{
    if (order->waits.count == 0)
        return;
    waits_go_on(order);
    waits_say(order);
}

// Takes back the report that this rank is blocked.
static void waits_unsay(struct order *order)
{
    struct up_message message = {.kind = UP_BLOCKED};
    message.u.blocked =
        (struct up_blocked){.step = order->step, .space = order->learning ? 0 : order->space};
    order->waits.said.wait_count = 0;
    order->waits.said_wait.step = 0;
    order->waits.unanswered++;
    order_send(order, &message);
}

// ---- Events ------------------------------------------------------------------------------------

void order_call_begun(struct order *order, struct call_id call)
{
    if (order->failed || !order->open || order->waits.open_call_count == LOCKSTEP_MAX_MODULES)
        return;
    order->waits.open_calls[order->waits.open_call_count++] = call;
    order->waits.changed = true;
    order_advance(order);
}

void order_call_ended(struct order *order, struct call_id call)
{
    for (uint32_t i = 0; i < order->waits.open_call_count; i++) {
        if (!call_equal(&order->waits.open_calls[i], &call))
            continue;
        order->waits.open_calls[i] = order->waits.open_calls[--order->waits.open_call_count];
        break;
    }
    order->waits.changed = true;
    if (!order->failed)
        order_advance(order);
}

static bool call_deferred(const struct order *order, const struct call_id *call)
{
    for (uint32_t i = 0; i < order->slot_count; i++) {
        if (order->slots[i].forfeited && order_of_call(&order->slots[i].id, call))
            return true;
    }
    return !order->learning && order->options.unplanned == UNPLANNED_DEFER &&
           order->buckets[call->module] > 0 && order_call_end(order, call) == 0;
}

void order_wait_begun(struct order *order, struct call_id call)
{
    if (order->failed)
        return;
    if (!order->open || call.module >= LOCKSTEP_MAX_MODULES) {
        wait_answer(order, &call, RELEASE_FINAL); // The step of the call is settled.
        return;
    }
    if (call_deferred(order, &call)) {
        wait_answer(order, &call, RELEASE_DEFERRED);
        return;
    }
    if (order->waits.count == LOCKSTEP_MAX_WAITS) {
        wait_answer(order, &call, RELEASE_WITHDRAWN);
        return;
    }
    order->waits.held[order->waits.count++] = (struct order_wait){.call = call};
    if (order->options.zero_defer && waits_counting(order) >= order->options.threads)
        waits_forfeit(order);
    order->waits.changed = true;
    order_advance(order);
}

enum order_release order_wait_ask(const struct order *order, struct call_id call)
{
    struct order_wait wait = {.call = call};
    if (!order->open || call.module >= LOCKSTEP_MAX_MODULES)
        return RELEASE_FINAL; // The step of the call is settled.
    if (call_deferred(order, &call))
        return RELEASE_DEFERRED;
    return wait_is_final(order, &wait) ? RELEASE_FINAL : RELEASE_WITHDRAWN;
}

// While the coordinator holds the report of a wait that is over, it may see this rank in a cycle
// that does not exist. So the thread goes on only when the coordinator has answered.
void order_wait_ended(struct order *order, struct call_id call)
{
    uint32_t i = 0;
    while (i < order->waits.count &&
           (order->waits.held[i].withdrawn || !call_equal(&order->waits.held[i].call, &call)))
        i++;
    if (order->failed || i == order->waits.count)
        return;
    order->waits.held[i].withdrawn = true;
    if (!order->alone && !order->recovery.frozen &&
        (order->waits.said.wait_count > 0 || order->waits.said_wait.step != 0))
        waits_unsay(order);
    if (order->waits.unanswered == 0)
        waits_withdraw(order);
    order_advance(order);
}

void order_queried(struct order *order, const struct down_query *query)
{
    if (order->failed || query->step > order->step + 1)
        return; // No rank can be in that step.
    if (query->withdrawn && query->step == order->step && order->waits.unanswered > 0 &&
        --order->waits.unanswered == 0)
        waits_withdraw(order);
    if (query->step > order->waits.watched)
        order->waits.watched = query->step;
    order->waits.changed = true;
    order_advance(order);
}

void order_coordinator_back(struct order *order)
{
    order->alone = false;
    order->waits.said.wait_count = 0;
    order->waits.said_wait.step = 0;
    order->waits.changed = true;
    if (!order->failed)
        order_advance(order);
}

void order_coordinator_lost(struct order *order)
{
    order->alone = true;
    order->waits.unanswered = 0;
    if (!order->failed)
        waits_withdraw(order);
}

// The coordinator has forgotten the reports of the generation before. Slots that were final may be
// repeated, so the counts of final slots begin anew.
void order_waits_recover(struct order *order)
{
    struct order_waits *waits = &order->waits;
    waits->unanswered = 0;
    waits->watched = 0;
    waits->said.wait_count = 0;
    waits->said_wait.step = 0;
    waits->changed = true;
    for (uint32_t i = 0; i < waits->count; i++)
        waits->held[i].at = waits->held[i].finals = 0;
    waits_withdraw(order);
}
