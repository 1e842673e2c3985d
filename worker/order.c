// SPDX-License-Identifier: Apache-2.0
//
// The worker's order core; the rules stand in order.h. Pure.

#include "worker/order.h"

#include "protos/topology.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// ---- The wave payloads -------------------------------------------------------------------------

void order_open_merge(void *into, const void *from)
{
    struct open_wave *a = into;
    const struct open_wave *b = from;
    a->exhausted += b->exhausted;
    if (b->first >= a->first)
        return;
    a->first = b->first;
    memcpy(a->phase, b->phase, sizeof(a->phase));
}

static int call_compare(const struct call_id *a, const struct call_id *b)
{
    if (a->call != b->call)
        return a->call < b->call ? -1 : 1;
    if (a->module != b->module)
        return a->module < b->module ? -1 : 1;
    return 0;
}

static bool close_contains(const struct close_wave *wave, const struct call_id *id)
{
    for (uint32_t i = 0; i < wave->extra_total && i < LOCKSTEP_MAX_EXTRA_CALLS; i++) {
        if (call_compare(&wave->extras[i], id) == 0)
            return true;
    }
    return false;
}

// Keeps the smallest calls in order. A saturated total means "more than can be named".
static void close_add(struct close_wave *wave, struct call_id id)
{
    uint32_t kept = wave->extra_total;
    if (close_contains(wave, &id))
        return;
    if (kept >= LOCKSTEP_MAX_EXTRA_CALLS) {
        wave->extra_total = LOCKSTEP_MAX_EXTRA_CALLS + 1;
        kept = LOCKSTEP_MAX_EXTRA_CALLS;
        if (call_compare(&id, &wave->extras[kept - 1]) > 0)
            return;
        kept--;
    } else {
        wave->extra_total++;
    }
    uint32_t at = kept;
    while (at > 0 && call_compare(&wave->extras[at - 1], &id) > 0) {
        wave->extras[at] = wave->extras[at - 1];
        at--;
    }
    wave->extras[at] = id;
}

void order_close_merge(void *into, const void *from)
{
    struct close_wave *a = into;
    const struct close_wave *b = from;
    const bool saturated =
        a->extra_total > LOCKSTEP_MAX_EXTRA_CALLS || b->extra_total > LOCKSTEP_MAX_EXTRA_CALLS;
    if (b->plan_number < a->plan_number)
        a->plan_number = b->plan_number;
    for (uint32_t i = 0; i < b->extra_total && i < LOCKSTEP_MAX_EXTRA_CALLS; i++)
        close_add(a, b->extras[i]);
    if (saturated)
        a->extra_total = LOCKSTEP_MAX_EXTRA_CALLS + 1;
}

static int unused_compare(const struct unused_parameter *a, const struct unused_parameter *b)
{
    if (a->severity != b->severity)
        return a->severity < b->severity ? -1 : 1;
    if (a->module != b->module)
        return a->module < b->module ? -1 : 1;
    if (a->call != b->call)
        return a->call < b->call ? -1 : 1;
    if (a->parameter != b->parameter)
        return a->parameter < b->parameter ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return 0;
}

static void commit_merge_unused(struct commit_wave *a, const struct commit_wave *b)
{
    struct unused_parameter merged[ORDER_UNUSED_NAMED];
    uint32_t count = 0;
    uint32_t i = 0;
    uint32_t j = 0;
    while (count < ORDER_UNUSED_NAMED && (i < a->unused_named || j < b->unused_named)) {
        const bool take_a =
            j >= b->unused_named ||
            (i < a->unused_named && unused_compare(&a->unused[i], &b->unused[j]) <= 0);
        merged[count++] = take_a ? a->unused[i++] : b->unused[j++];
    }
    memcpy(a->unused, merged, count * sizeof(merged[0]));
    a->unused_named = count;
    a->unused_total += b->unused_total;
    a->unused_errors += b->unused_errors;
    a->unused_warnings += b->unused_warnings;
}

static int aborted_compare(const struct aborted_call *a, const struct aborted_call *b)
{
    if (a->accepted != b->accepted)
        return a->accepted < b->accepted ? -1 : 1;
    if (a->module != b->module)
        return a->module < b->module ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return 0;
}

static void commit_merge_aborted(struct commit_wave *a, const struct commit_wave *b)
{
    struct aborted_call merged[ORDER_ABORTED_NAMED];
    uint32_t count = 0;
    uint32_t i = 0;
    uint32_t j = 0;
    while (count < ORDER_ABORTED_NAMED && (i < a->aborted_named || j < b->aborted_named)) {
        const bool take_a =
            j >= b->aborted_named ||
            (i < a->aborted_named && aborted_compare(&a->aborted[i], &b->aborted[j]) <= 0);
        merged[count++] = take_a ? a->aborted[i++] : b->aborted[j++];
    }
    memcpy(a->aborted, merged, count * sizeof(merged[0]));
    a->aborted_named = count;
    a->aborted_total += b->aborted_total;
    a->aborted_errors += b->aborted_errors;
}

static void commit_merge_counters(struct commit_wave *a, const struct commit_wave *b)
{
    struct counter_delta merged[2 * LOCKSTEP_MAX_COUNTERS];
    uint32_t count = 0;
    uint32_t i = 0;
    uint32_t j = 0;
    while (i < a->counter_count || j < b->counter_count) {
        if (j >= b->counter_count ||
            (i < a->counter_count && a->counters[i].name < b->counters[j].name)) {
            merged[count++] = a->counters[i++];
        } else if (i >= a->counter_count || b->counters[j].name < a->counters[i].name) {
            merged[count++] = b->counters[j++];
        } else {
            merged[count] = a->counters[i++];
            merged[count].delta =
                (int64_t)((uint64_t)merged[count].delta + (uint64_t)b->counters[j++].delta);
            count++;
        }
    }
    a->counter_overflow |= b->counter_overflow;
    if (count > LOCKSTEP_MAX_COUNTERS) {
        a->counter_overflow = 1;
        count = LOCKSTEP_MAX_COUNTERS;
    }
    memcpy(a->counters, merged, count * sizeof(merged[0]));
    a->counter_count = count;
}

void order_commit_merge(void *into, const void *from)
{
    struct commit_wave *a = into;
    const struct commit_wave *b = from;
    a->called |= b->called;
    a->weighted |= b->weighted;
    commit_merge_unused(a, b);
    commit_merge_aborted(a, b);
    commit_merge_counters(a, b);
}

// ---- Actions -----------------------------------------------------------------------------------

static void order_emit(struct order *order, const struct order_action *action)
{
    order->sink.action(order->sink.context, action);
}

static void order_send(struct order *order, struct up_message *message)
{
    message->generation = order->generation;
    order_emit(order, &(struct order_action){.kind = ORDER_SEND, .up = message});
}

static void order_fail(struct order *order, enum halt_kind halt, const char *text)
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

// ---- Launching, closing, committing: what follows from the state -------------------------------

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
    while (order->low < order->slot_count && order->slots[order->low].state == SLOT_FINAL)
        order->low++;
    for (uint32_t i = order->low; i < order->slot_count && i < order->low + LOCKSTEP_WINDOW; i++) {
        if (order->slots[i].state == SLOT_READY || order->slots[i].state == SLOT_ZERO)
            order_launch(order, i);
    }
}

static void order_try_close(struct order *order)
{
    if (order->learning || !order->ended || !order->header_equal || order->close_joined)
        return;
    order->close_joined = true;
    order->close.plan_number = order->plan_number;
    order_emit(order, &(struct order_action){
                          .kind = ORDER_CLOSE, .close = &order->close, .step = order->step});
}

static void order_try_commit(struct order *order)
{
    if (!order->closed || order->commit_joined || order->low < order->slot_count)
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

// Everything that can happen now. Called at the end of every event.
static void order_advance(struct order *order)
{
    order_try_halt(order);
    if (order->failed || !order->open)
        return;
    order_launch_window(order);
    order_try_close(order);
    order_try_commit(order);
}

// ---- Headers -----------------------------------------------------------------------------------

static void order_compare_header(struct order *order, const struct step_header *header)
{
    struct up_message message = {.kind = UP_FAIL};
    if (header->phase == order->phase) {
        order->header_equal = true;
        return;
    }
    if (order->fail_said)
        return;
    order->fail_said = true;
    message.u.fail.step = order->step;
    message.u.fail.kind = HALT_PHASE;
    snprintf(message.u.fail.text, sizeof(message.u.fail.text),
             "this rank and its ring predecessor began different phases in step %" PRIu64,
             order->step);
    order_send(order, &message);
}

// A header whose rank begins a step where this one has called lockstep_start again.
static bool order_parted(struct order *order, const struct step_header *header)
{
    struct up_message message = {.kind = UP_FAIL};
    if (header->starts >= order->starts)
        return false;
    if (order->fail_said)
        return true;
    order->fail_said = true;
    message.u.fail.step = header->step;
    message.u.fail.kind = HALT_MANIFEST;
    snprintf(message.u.fail.text, sizeof(message.u.fail.text),
             "this rank called lockstep_start again after step %" PRIu64 ", rank %" PRIu32
             " began step %" PRIu64
             " instead: close the same modules and call lockstep_start on every rank",
             order->settled, topology_predecessor(order->rank, order->world_size), header->step);
    order_send(order, &message);
    return true;
}

// A rank that has joined an open wave is past it when it starts again, and so are all others.
static void order_opening_received(struct order *order, const struct step_header *header)
{
    if (header->step > order->settled && header->step > order->opening)
        order_parted(order, header);
    order->early_opening = *header;
}

void order_start_begun(struct order *order)
{
    if (order->failed)
        return;
    order->plan_count = 0;
    order->starts++;
    for (uint32_t i = 0; i < order->early_count; i++)
        order_parted(order, &order->early[i]);
    order_opening_received(order, &order->early_opening);
    order_advance(order);
}

static void order_take_early_header(struct order *order)
{
    for (uint32_t i = 0; i < order->early_count; i++) {
        const struct step_header header = order->early[i];
        if (header.step != order->step)
            continue;
        order->early[i] = order->early[--order->early_count];
        order_compare_header(order, &header);
        return;
    }
}

void order_header_received(struct order *order, const struct step_header *header)
{
    const bool started = header->starts == order->starts;
    if (!order->failed && header->opening) {
        order_opening_received(order, header);
        return;
    }
    if (order->failed || header->step <= order->settled || order_parted(order, header))
        return;
    if (started && order->open && header->step == order->step)
        order_compare_header(order, header);
    else if (started && header->step > order->step && order->early_count < 2)
        order->early[order->early_count++] = *header;
    else
        order_fail(order, HALT_PROTOCOL,
                   "the ring predecessor sent a header of an impossible step");
    order_advance(order);
}

// ---- The trainer's side ------------------------------------------------------------------------

void order_init(struct order *order, struct generation_id generation, uint32_t rank,
                uint32_t world_size, struct order_sink sink)
{
    memset(order, 0, sizeof(*order));
    order->generation = generation;
    order->rank = rank;
    order->world_size = world_size;
    order->sink = sink;
    order->plan_room = LOCKSTEP_MAX_PLANS;
}

void order_resume(struct order *order, uint64_t settled)
{
    order->settled = order->step = settled;
}

void order_forget_plans(struct order *order)
{
    order->plan_count = 0;
}

// Index of the plan of a phase; plan_count: there is none.
static uint32_t order_plan_index(const struct order *order, uint64_t phase)
{
    uint32_t i = 0;
    while (i < order->plan_count && order->plans[i].phase != phase)
        i++;
    return i;
}

static struct order_plan *order_find_plan(struct order *order, uint64_t phase)
{
    const uint32_t index = order_plan_index(order, phase);
    return index < order->plan_count ? &order->plans[index] : NULL;
}

const struct order_plan *order_plan_of(const struct order *order, uint64_t phase)
{
    const uint32_t index = order_plan_index(order, phase);
    return index < order->plan_count ? &order->plans[index] : NULL;
}

static void order_adopt_plan(struct order *order, struct order_plan *plan)
{
    plan->used = order->step;
    order->space = plan->hash;
    order->slot_count = plan->count;
    for (uint32_t i = 0; i < plan->count; i++)
        order->slots[i] =
            (struct order_slot){.id = plan->slots[i], .algorithm = plan->algorithms[i]};
}

void order_step_opening(struct order *order, uint64_t step, const struct open_wave *opening)
{
    const struct step_header header = {.step = step, .opening = true, .starts = order->starts};
    if (order->failed)
        return;
    order->opening = step;
    order_emit(order, &(struct order_action){.kind = ORDER_OPEN, .opening = opening, .step = step});
    if (order->world_size > 1)
        order_emit(order,
                   &(struct order_action){.kind = ORDER_HEADER, .header = &header, .step = step});
    order_advance(order);
}

uint64_t order_present_step(const struct order *order)
{
    return order->opening != 0 ? order->opening : order->step;
}

void order_step_begun(struct order *order, uint64_t step, uint64_t phase)
{
    struct order_plan *plan = order_find_plan(order, phase);
    const struct step_header header = {.step = step,
                                       .phase = phase,
                                       .plan_number = plan == NULL ? 0 : plan->number,
                                       .plan_hash = plan == NULL ? 0 : plan->hash,
                                       .starts = order->starts};
    order->opening = 0;
    order->step = step;
    order->phase = phase;
    order->open = true;
    order->learning = plan == NULL;
    order->ended = order->fail_said = false;
    order->close_joined = order->closed = order->commit_joined = false;
    order->header_equal = order->world_size == 1;
    order->slot_count = order->low = order->reported_count = 0;
    order->space = ~phase; // Learning has no plan; no plan's hash can be expected to equal this.
    memset(&order->close, 0, sizeof(order->close));
    memset(&order->verdict, 0, sizeof(order->verdict));
    if (plan != NULL)
        order_adopt_plan(order, plan);
    if (order->world_size > 1)
        order_emit(order,
                   &(struct order_action){.kind = ORDER_HEADER, .header = &header, .step = step});
    order_take_early_header(order);
    order_advance(order);
}

static void order_report_ready(struct order *order, struct slot_id id, enum dtype dtype,
                               uint64_t elements)
{
    struct up_message message = {.kind = UP_READY};
    if (order->reported_count == LOCKSTEP_MAX_SLOTS) {
        order_fail(order, HALT_PROTOCOL,
                   "more slots became ready in one step than a plan may have");
        return;
    }
    order->reported[order->reported_count++] = id;
    message.u.ready = (struct up_ready){.step = order->step,
                                        .phase = order->phase,
                                        .slot = id,
                                        .dtype = dtype,
                                        .elements = elements};
    order_send(order, &message);
}

static struct order_slot *order_find(struct order *order, const struct slot_id *id)
{
    for (uint32_t i = order->low; i < order->slot_count; i++) {
        if (slot_equal(&order->slots[i].id, id))
            return &order->slots[i];
    }
    return NULL;
}

void order_slot_ready(struct order *order, struct slot_id id, enum dtype dtype, uint64_t elements)
{
    struct order_slot *slot;
    if (order->failed || !order->open)
        return;
    if (order->learning) {
        order_report_ready(order, id, dtype, elements);
        return;
    }
    slot = order_find(order, &id);
    if (slot == NULL)
        close_add(&order->close, (struct call_id){.module = id.module, .call = id.call});
    else if (slot->state == SLOT_UNREADY)
        slot->state = SLOT_READY;
    order_advance(order);
}

void order_step_ended(struct order *order)
{
    struct up_message message = {.kind = UP_END};
    if (order->failed || !order->open)
        return;
    order->ended = true;
    if (order->learning) {
        message.u.end = (struct up_end){.step = order->step, .phase = order->phase};
        order_send(order, &message);
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

void order_close_completed(struct order *order, const struct close_wave *result)
{
    if (order->failed || !order->close_joined)
        return;
    order->closed = true;
    order->verdict = *result;
    order_advance(order);
}

void order_commit_completed(struct order *order)
{
    if (order->failed || !order->commit_joined)
        return;
    order->open = false;
    if (order->verdict.extra_total > 0) {
        order_fail(order, HALT_UNPLANNED, "calls outside the plan");
        return;
    }
    order->settled = order->step;
    order_emit(order, &(struct order_action){.kind = ORDER_SETTLED, .step = order->step});
    order_advance(order);
}

// ---- The coordinator's side --------------------------------------------------------------------

static bool order_reported(const struct order *order, const struct slot_id *id)
{
    for (uint32_t i = 0; i < order->reported_count; i++) {
        if (slot_equal(&order->reported[i], id))
            return true;
    }
    return false;
}

void order_granted(struct order *order, const struct down_grant *grant)
{
    if (order->failed || !order->open || !order->learning || grant->step != order->step)
        return;
    if (order->slot_count == LOCKSTEP_MAX_SLOTS) {
        order_fail(order, HALT_PROTOCOL, "the coordinator granted more slots than a plan may have");
        return;
    }
    if (!order_reported(order, &grant->slot) && !order->ended) {
        order_fail(order, HALT_PROTOCOL, "the coordinator granted a slot that is not ready here");
        return;
    }
    order->slots[order->slot_count++] =
        (struct order_slot){.id = grant->slot,
                            .state = order_reported(order, &grant->slot) ? SLOT_READY : SLOT_ZERO,
                            .algorithm = ALGORITHM_BY_SIZE};
    order_advance(order);
}

// Steps have one phase each, so no two plans were used last in the same step.
static struct order_plan *order_oldest_plan(struct order *order)
{
    struct order_plan *oldest = &order->plans[0];
    for (uint32_t i = 1; i < order->plan_count; i++) {
        if (order->plans[i].used < oldest->used)
            oldest = &order->plans[i];
    }
    return oldest;
}

static void order_install_plan(struct order *order)
{
    struct order_plan *plan = order_find_plan(order, order->incoming.phase);
    if (plan == NULL && order->plan_count < order->plan_room)
        plan = &order->plans[order->plan_count++];
    if (plan == NULL)
        plan = order_oldest_plan(order);
    *plan = order->incoming;
    plan->used = order->step;
    if (plan->number > order->plan_number)
        order->plan_number = plan->number;
}

void order_plan_received(struct order *order, const struct down_plan_part *part)
{
    struct order_plan *plan = &order->incoming;
    if (order->failed)
        return;
    if (part->slot_first == 0)
        *plan =
            (struct order_plan){.phase = part->phase, .number = part->number, .hash = part->hash};
    if (part->number != plan->number || part->slot_first != plan->count ||
        plan->count + part->slot_count > LOCKSTEP_MAX_SLOTS) {
        order_fail(order, HALT_PROTOCOL, "the coordinator sent parts of a plan out of order");
        return;
    }
    for (uint32_t i = 0; i < part->slot_count; i++) {
        plan->algorithms[plan->count] = (uint8_t)part->slots[i].algorithm;
        plan->slots[plan->count++] = part->slots[i].id;
    }
    if (!part->last)
        return;
    order_install_plan(order);
    if (part->closes_step && order->open && order->learning && part->step == order->step)
        order->closed = true;
    order_advance(order);
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
