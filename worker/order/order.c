// SPDX-License-Identifier: Apache-2.0
//
// The worker's order core: steps, launches, waves and halts. The rules stand in order.h. Pure.

#include "worker/order/order.h"

#include "worker/order/header.h"
#include "worker/order/parts.h"
#include "worker/order/payloads.h"
#include "worker/order/plan.h"
#include "worker/order/replan.h"
#include "worker/order/waits.h"

#include <string.h>

// ---- Actions -----------------------------------------------------------------------------------

void order_emit(struct order *order, const struct order_action *action)
{
    order->sink.action(order->sink.context, action);
}

void order_send(struct order *order, struct up_message *message)
{
    message->generation = order->generation;
    order_emit(order, &(struct order_action){.kind = ORDER_SEND, .up = message});
}

void order_fail(struct order *order, enum halt_kind halt, const char *text)
{
    if (order->failed)
        return;
    order->failed = true;
    order_emit(order, &(struct order_action){
                          .kind = ORDER_FAILED, .halt = halt, .text = text, .step = order->step});
}

static bool slot_equal(const struct slot_id *a, const struct slot_id *b)
{
    return a->module == b->module && a->call == b->call && a->bucket == b->bucket;
}

uint32_t order_call_end(const struct order *order, const struct call_id *call)
{
    uint32_t end = order->planned;
    while (end > 0 && !order_of_call(&order->slots[end - 1].id, call))
        end--;
    return end;
}

// ---- Launching, closing, committing: actions that follow from the state ------------------------

static void order_launch(struct order *order, uint32_t index)
{
    struct order_slot *slot = &order->slots[index];
    slot->zero = slot->state == SLOT_ZERO;
    slot->state = SLOT_LAUNCHED;
    order_emit(order, &(struct order_action){.kind = ORDER_LAUNCH,
                                             .slot = slot,
                                             .index = index,
                                             .space = order->space,
                                             .step = order->step});
}

static void order_launch_window(struct order *order)
{
    const bool gate = !order->options.strict || order->header_equal;
    while (order->low < order->slot_count && order->slots[order->low].state == SLOT_FINAL)
        order->low++;
    while (order->front < order->slot_count && order->slots[order->front].state >= SLOT_SUMMED)
        order->front++;
    const uint32_t end = order->front + order->options.window;
    for (uint32_t i = order->front; gate && i < order->slot_count && i < end; i++) {
        if (order->slots[i].state == SLOT_READY || order->slots[i].state == SLOT_ZERO)
            order_launch(order, i);
        else if (order->options.strict && order->slots[i].state == SLOT_UNREADY)
            break;
    }
}

static void order_try_close(struct order *order)
{
    if (order->learning || !order->ended || !order->header_equal || order->close_joined)
        return;
    order->close_joined = true;
    order->close.plan_number = order->plans.number;
    order_emit(order, &(struct order_action){
                          .kind = ORDER_CLOSE, .close = &order->close, .step = order->step});
}

static void order_try_commit(struct order *order)
{
    if (!order->closed || order->commit_joined || order->low < order->slot_count ||
        order->given_up == order->step)
        return;
    order->commit_joined = true;
    order_emit(order, &(struct order_action){.kind = ORDER_COMMIT, .step = order->step});
}

static void order_try_halt(struct order *order)
{
    const uint64_t step = order->halt.step;
    if (!order->halt_held || (step != 0 && order->settled + 1 < step))
        return;
    order->halt_held = false;
    order_fail(order, order->halt.kind, order->halt.text);
}

void order_advance(struct order *order)
{
    order_try_halt(order);
    if (order->failed || !order->open || order->recovery.frozen)
        return;
    order_launch_window(order);
    order_try_close(order);
    order_try_commit(order);
    order_waits_advance(order);
}

// ---- The trainer's side ------------------------------------------------------------------------

void order_init(struct order *order, struct generation_id generation, uint32_t rank,
                uint32_t world_size, const struct order_options *options, struct order_sink sink)
{
    memset(order, 0, sizeof(*order));
    order->generation = generation;
    order->rank = rank;
    order->world_size = world_size;
    order->options = *options;
    if (options->window == 0)
        order->options.window = LOCKSTEP_WINDOW;
    if (options->threads == 0)
        order->options.threads = 1;
    order->sink = sink;
    order->plans.room = LOCKSTEP_MAX_PLANS;
}

void order_set_absent(struct order *order, uint64_t absent)
{
    order->absent = absent;
}

void order_resume(struct order *order, uint64_t settled)
{
    order->settled = order->step = settled;
}

void order_step_skipped(struct order *order, uint64_t step)
{
    order->settled = order->step = order->recovery.skipped = step;
    order->opening = 0;
}

static void order_adopt_plan(struct order *order, struct order_plan *plan)
{
    plan->used = order->step;
    order_plan_used(order);
    order->space = plan->hash;
    order->strict = order->strict || plan->strict;
    order->planned = order->slot_count = plan->count;
    for (uint32_t i = 0; i < plan->count; i++)
        order->slots[i] = (struct order_slot){
            .id = plan->slots[i],
            .state = order_is_absent(order, &plan->slots[i]) ? SLOT_FINAL : SLOT_UNREADY,
            .algorithm = plan->algorithms[i]};
}

// A step without a plan has plan number and hash 0.
void order_send_header(struct order *order)
{
    const struct order_plan *plan = order_plan_of(order, order->phase);
    struct step_header header = {.step = order_present_step(order),
                                 .opening = order->opening != 0,
                                 .starts = order->headers.starts,
                                 .uneven = order->headers.uneven};
    if (order->world_size == 1 || order->recovery.frozen)
        return;
    if (order->opening == 0) {
        header.phase = order->phase;
        header.plan_number = order->learning || !plan ? 0 : plan->number;
        header.plan_hash = order->learning ? 0 : order->space;
    }
    order_emit(order, &(struct order_action){
                          .kind = ORDER_HEADER, .header = &header, .step = header.step});
}

void order_step_opening(struct order *order, uint64_t step, const struct open_wave *opening)
{
    if (order->failed)
        return;
    order->opening = step;
    order->recovery.opened = false;
    order->recovery.opening = *opening;
    if (!order->recovery.frozen)
        order_emit(order,
                   &(struct order_action){.kind = ORDER_OPEN, .opening = opening, .step = step});
    order_send_header(order);
    order_take_early_uneven(order);
    order_advance(order);
}

uint64_t order_present_step(const struct order *order)
{
    return order->opening != 0 ? order->opening : order->step;
}

uint64_t order_lost_step(const struct order *order, bool needed)
{
    if (order->opening != 0)
        return order->opening;
    if (!order->open)
        return order->settled == 0 ? 0 : order->settled + 1;
    return order->commit_joined && !needed ? order->step + 1 : order->step;
}

void order_give_up(struct order *order, uint64_t step)
{
    order->given_up = step;
}

void order_step_begun(struct order *order, uint64_t step, uint64_t phase, const uint32_t *buckets)
{
    struct order_plan *plan = order_find_plan(order, phase);
    order->opening = 0;
    order->step = step;
    order->phase = phase;
    order->open = true;
    order->learning = !plan;
    order->ended = order->fail_said = false;
    order->close_joined = order->closed = order->commit_joined = false;
    order->refused = HALT_NONE;
    order->strict = order->options.strict;
    order->header_equal = order->world_size == 1;
    order->planned = order->slot_count = order->low = order->front = order->unplaced_count = 0;
    memcpy(order->buckets, buckets, sizeof(order->buckets));
    // A learning step has no plan hash. The hash of a plan is unlikely to equal ~phase.
    order->space = ~phase;
    memset(&order->close, 0, sizeof(order->close));
    memset(&order->verdict, 0, sizeof(order->verdict));
    order_waits_reset(order);
    if (plan)
        order_adopt_plan(order, plan);
    order_send_header(order);
    order_take_early_header(order);
    order_advance(order);
}

static struct order_slot *order_find(struct order *order, const struct slot_id *id, uint32_t first,
                                     uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        if (slot_equal(&order->slots[i].id, id))
            return &order->slots[i];
    }
    return NULL;
}

static void order_defer(struct order *order, const struct slot_id *id)
{
    order_emit(order,
               &(struct order_action){.kind = ORDER_DEFER, .deferred = id, .step = order->step});
}

// Keeps a slot that has no place in the order yet. Returns false if there is no room.
static bool order_keep(struct order *order, const struct order_unplaced *unplaced)
{
    if (order->unplaced_count == LOCKSTEP_MAX_SLOTS)
        return false;
    order->unplaced[order->unplaced_count++] = *unplaced;
    return true;
}

void order_send_ready(struct order *order, const struct order_unplaced *unplaced)
{
    struct up_message message = {.kind = UP_READY};
    message.u.ready = (struct up_ready){.step = order->step,
                                        .phase = order->phase,
                                        .slot = unplaced->id,
                                        .dtype = unplaced->dtype,
                                        .elements = unplaced->elements};
    order_send(order, &message);
}

void order_send_end(struct order *order)
{
    struct up_message message = {.kind = UP_END};
    const struct order_plan *plan = order->closed ? order_plan_of(order, order->phase) : NULL;
    message.u.end = (struct up_end){.step = order->step, .phase = order->phase};
    if (plan) {
        message.u.end.plan = plan->number;
        message.u.end.plan_hash = plan->hash;
    }
    order_send(order, &message);
}

// A frozen rank reports the slot in the next generation. The coordinator is also told of a slot
// that is one too many, so that its verdict names this rank.
static void order_report_ready(struct order *order, const struct order_unplaced *unplaced)
{
    const bool fits = order->slot_count + order->unplaced_count < LOCKSTEP_MAX_SLOTS;
    static_assert(LOCKSTEP_MAX_SLOTS == 1024, "the text says so");
    if (!order->recovery.frozen)
        order_send_ready(order, unplaced);
    if (!fits || !order_keep(order, unplaced))
        order_fail(order, HALT_LIMIT,
                   "more than 1024 buckets became ready in one step, and a step has at most 1024; "
                   "each bucket counts once for each separate call: make the buckets larger "
                   "(bucket_bytes), or make fewer separate calls");
}

// The close wave tells all ranks of the call. If unplaced[] has no room for the slot, a step cannot
// run all the slots.
static void order_unplanned_ready(struct order *order, const struct order_unplaced *unplaced)
{
    const struct slot_id *id = &unplaced->id;
    if (order->options.unplanned == UNPLANNED_DEFER) {
        order_defer(order, id);
        return;
    }
    order_close_add(&order->close, (struct call_id){.module = id->module, .call = id->call});
    if (!order_keep(order, unplaced))
        order->close.too_many = 1;
}

void order_slot_ready(struct order *order, struct slot_id id, enum dtype dtype, uint64_t elements)
{
    const struct order_unplaced unplaced = {.id = id, .dtype = dtype, .elements = elements};
    struct order_slot *slot;
    if (order->failed || !order->open)
        return;
    slot = order_find(order, &id, order->low, order->slot_count);
    if (!slot)
        slot = order_find(order, &id, 0, order->low);
    if (slot && slot->forfeited)
        order_defer(order, &id);
    else if (slot && slot->state == SLOT_UNREADY)
        slot->state = SLOT_READY;
    else if (!slot && order->learning)
        order_report_ready(order, &unplaced);
    else if (!slot)
        order_unplanned_ready(order, &unplaced);
    order->waits.changed = true;
    order_advance(order);
}

void order_calls_over(struct order *order, struct call_id first)
{
    if (order->failed || !order->open)
        return;
    for (uint32_t i = order->low; i < order->slot_count; i++) {
        struct order_slot *slot = &order->slots[i];
        if (slot->state == SLOT_UNREADY && slot->id.module == first.module &&
            slot->id.call >= first.call)
            slot->state = SLOT_ZERO;
    }
    order->waits.changed = true;
    order_advance(order);
}

void order_step_ended(struct order *order)
{
    if (order->failed || !order->open)
        return;
    order->ended = true;
    if (order->learning) {
        if (!order->recovery.frozen)
            order_send_end(order);
    } else {
        for (uint32_t i = order->low; i < order->slot_count; i++) {
            if (order->slots[i].state == SLOT_UNREADY)
                order->slots[i].state = SLOT_ZERO;
        }
    }
    order_advance(order);
}

// ---- The data plane's side ---------------------------------------------------------------------

void order_slot_final(struct order *order, uint32_t index)
{
    if (order->failed || index >= order->slot_count)
        return;
    order->slots[index].state = SLOT_FINAL;
    order_advance(order);
}

void order_slot_summed(struct order *order, uint32_t index)
{
    if (order->failed || index >= order->slot_count || order->slots[index].state != SLOT_LAUNCHED)
        return;
    order->slots[index].state = SLOT_SUMMED;
    order_advance(order);
}

// Returns the index of a slot in unplaced[]; unplaced_count if the slot is not ready on this rank.
static uint32_t order_unplaced_index(const struct order *order, const struct slot_id *id)
{
    uint32_t i = 0;
    while (i < order->unplaced_count && !slot_equal(&order->unplaced[i].id, id))
        i++;
    return i;
}

// The slots that are left stay in the order in which they became ready: a rank that goes on after a
// death reports them again, and the order of a plan is that of the reports.
static void order_place(struct order *order, uint32_t index)
{
    order->unplaced_count--;
    memmove(&order->unplaced[index], &order->unplaced[index + 1],
            (order->unplaced_count - index) * sizeof(order->unplaced[0]));
}

static void order_append(struct order *order, const struct order_slot *slot)
{
    const uint32_t index = order_unplaced_index(order, &slot->id);
    struct order_slot *to = &order->slots[order->slot_count++];
    *to = *slot;
    to->algorithm = ALGORITHM_BY_SIZE;
    to->state = index < order->unplaced_count ? SLOT_READY : SLOT_ZERO;
    if (order_is_absent(order, &slot->id))
        to->state = SLOT_FINAL;
    if (index < order->unplaced_count)
        order_place(order, index);
}

// Returns HALT_NONE, or why the step cannot run the calls outside the plan: the policy forbids
// them, they are too many, or they have too many buckets. Equal on every rank.
static enum halt_kind order_refuses(const struct order *order)
{
    const struct close_wave *verdict = &order->verdict;
    uint32_t total = order->slot_count;
    if (verdict->extra_total == 0)
        return HALT_NONE;
    if (order->options.unplanned != UNPLANNED_EXTEND ||
        verdict->extra_total > LOCKSTEP_MAX_EXTRA_CALLS)
        return HALT_UNPLANNED;
    if (verdict->too_many != 0)
        return HALT_LIMIT;
    for (uint32_t i = 0; i < verdict->extra_total; i++) {
        const struct call_id *call = &verdict->extras[i];
        if (call->module >= LOCKSTEP_MAX_MODULES || order_call_end(order, call) > 0)
            return HALT_UNPLANNED;
        total += order->buckets[call->module];
    }
    return total > LOCKSTEP_MAX_SLOTS ? HALT_LIMIT : HALT_NONE;
}

// Appends all buckets of each call: a plan has all buckets of a call, or none.
static void order_extend(struct order *order)
{
    for (uint32_t i = 0; i < order->verdict.extra_total; i++) {
        const struct call_id *call = &order->verdict.extras[i];
        for (uint32_t bucket = 0; bucket < order->buckets[call->module]; bucket++) {
            const struct slot_id id = {
                .module = call->module, .call = call->call, .bucket = bucket};
            order_append(order, &(struct order_slot){.id = id, .extension = true});
        }
    }
}

void order_close_completed(struct order *order, const struct close_wave *result)
{
    if (order->failed || !order->close_joined || order->closed)
        return;
    order->closed = true;
    order->verdict = *result;
    order->refused = order_refuses(order);
    if (order->refused == HALT_NONE)
        order_extend(order);
    order_switch_plans(order, result->plan_number);
    order_advance(order);
}

// After the commit wave no rank needs anything from another rank, so the close wave's verdict of
// this step takes effect here.
void order_commit_completed(struct order *order)
{
    if (order->failed || !order->commit_joined)
        return;
    order->open = false;
    if (order->refused != HALT_NONE) {
        order_fail(order, order->refused, NULL);
        return;
    }
    order->settled = order->step;
    order_replan(order);
    order_waits_settled(order);
    order_emit(order, &(struct order_action){.kind = ORDER_SETTLED, .step = order->step});
    order_advance(order);
}

// ---- The coordinator's side --------------------------------------------------------------------

// Returns NULL, or the reason why the coordinator cannot have sent this grant.
static const char *order_impossible_grant(struct order *order, const struct down_grant *grant)
{
    if (order->slot_count == LOCKSTEP_MAX_SLOTS)
        return "the coordinator granted more slots than a plan may have";
    if (order_find(order, &grant->slot, 0, order->slot_count))
        return "the coordinator granted a slot twice";
    // Only a rank with zero_defer has memory for the gradients of calls that were given up.
    if (grant->forced && !order->options.zero_defer)
        return "the coordinator gave up a call of this rank, which gives up none";
    return NULL;
}

void order_granted(struct order *order, const struct down_grant *grant)
{
    struct order_slot slot = {.id = grant->slot};
    if (order->failed || !order->open || !order->learning || grant->step != order->step)
        return;
    const char *wrong = order_impossible_grant(order, grant);
    if (wrong) {
        order_fail(order, HALT_PROTOCOL, wrong);
        return;
    }
    if (order_unplaced_index(order, &grant->slot) == order->unplaced_count &&
        !order_is_absent(order, &grant->slot)) {
        slot.forfeited = grant->forced && !order->ended;
        if (!slot.forfeited && !order->ended) {
            order_fail(order, HALT_PROTOCOL,
                       "the coordinator granted a slot that is not ready here");
            return;
        }
    }
    order_append(order, &slot);
    if (slot.forfeited)
        order_waits_forfeited(order, &slot.id);
    order->waits.changed = true;
    order_advance(order);
}

uint64_t order_first_impossible(const struct order *order)
{
    return order->open && order->commit_joined ? order->step + 1 : order->settled + 1;
}

void order_halted(struct order *order, const struct down_halt *halt)
{
    if (order->failed)
        return;
    if (!order->halt_held || halt->step < order->halt.step) {
        order->halt_held = true;
        order->halt = *halt;
    }
    order_advance(order);
}
