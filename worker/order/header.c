// SPDX-License-Identifier: Apache-2.0
//
// Headers of the ring predecessor. The file checks whether the predecessor begins the same step in
// the same phase, and has started as often as this rank. Pure; part of the order core, whose rules
// stand in order.h (R1, start again).

#include "worker/order/header.h"

#include "worker/order/order.h"
#include "worker/order/parts.h"

#include "protos/topology.h"

#include <inttypes.h>
#include <stdio.h>

// Prepares a report to the coordinator. False: this rank has reported a failure already.
static bool order_fail_begin(struct order *order, uint64_t step, enum halt_kind kind,
                             struct up_message *message)
{
    if (order->fail_said)
        return false;
    order->fail_said = true;
    *message = (struct up_message){.kind = UP_FAIL};
    message->u.fail.step = step;
    message->u.fail.kind = kind;
    return true;
}

// Returns false if the predecessor begins or opens a step by another rule for ranks without data,
// and reports that once. Without the report, one of both ranks would wait in the open wave, which
// the other rank does not join.
static bool order_compare_uneven(struct order *order, const struct step_header *header)
{
    static const char *const rules[] = {"none", "all", "first"};
    struct up_message message;
    if (header->uneven == order->headers.uneven)
        return true;
    if (!order_fail_begin(order, header->step, HALT_MANIFEST, &message))
        return false;
    snprintf(message.u.fail.text, sizeof(message.u.fail.text),
             "step %" PRIu64 ": rank %" PRIu32 " begins it with uneven=%s, rank %" PRIu32
             " with uneven=%s: call lockstep_uneven_set with the same value on every rank, after "
             "the same step",
             header->step, topology_predecessor(order->rank, order->world_size),
             rules[header->uneven], order->rank, rules[order->headers.uneven]);
    order_send(order, &message);
    return false;
}

// All ranks must hold the same plan of a phase in force. If a bug of this library broke that rule,
// the job would hang silently, so the plan hashes are compared.
static void order_compare_header(struct order *order, const struct step_header *header)
{
    const bool phase = header->phase == order->phase;
    struct up_message message;
    if (!order_compare_uneven(order, header))
        return;
    if (phase && header->plan_hash == (order->learning ? 0 : order->space)) {
        order->header_equal = true;
        return;
    }
    if (!order_fail_begin(order, order->step, phase ? HALT_PROTOCOL : HALT_PHASE, &message))
        return;
    snprintf(message.u.fail.text, sizeof(message.u.fail.text),
             "this rank and its ring predecessor began different %s in step %" PRIu64,
             phase ? "plans of one phase" : "phases", order->step);
    order_send(order, &message);
}

// True if the header's rank has begun a step while this rank has called lockstep_start again.
// Reports that once.
static bool order_parted(struct order *order, const struct step_header *header)
{
    struct up_message message;
    if (header->starts >= order->headers.starts)
        return false;
    if (!order_fail_begin(order, header->step, HALT_MANIFEST, &message))
        return true;
    snprintf(message.u.fail.text, sizeof(message.u.fail.text),
             "this rank called lockstep_start again after step %" PRIu64 ", rank %" PRIu32
             " began step %" PRIu64
             " instead: close the same modules and call lockstep_start on every rank",
             order->settled, topology_predecessor(order->rank, order->world_size), header->step);
    order_send(order, &message);
    return true;
}

// A rank that has joined an open wave can start again only after the wave has a result. Then all
// other ranks have the result, too, so a header of a step up to order->opening is no sign of a
// parted rank.
static void order_opening_received(struct order *order, const struct step_header *header)
{
    if (header->step > order->settled && header->step > order->opening)
        order_parted(order, header);
    if (header->step == order_present_step(order) && (order->opening != 0 || order->open))
        order_compare_uneven(order, header);
    order->headers.early_opening = *header;
}

void order_start_begun(struct order *order)
{
    if (order->failed)
        return;
    order->plans.count = 0;
    order->headers.starts++;
    for (uint32_t i = 0; i < order->headers.early_count; i++)
        order_parted(order, &order->headers.early[i]);
    order_opening_received(order, &order->headers.early_opening);
    order_advance(order);
}

void order_uneven(struct order *order, uint32_t uneven)
{
    order->headers.uneven = uneven;
}

void order_take_early_uneven(struct order *order)
{
    const uint64_t step = order_present_step(order);
    if (order->recovery.frozen)
        return;
    if (order->headers.early_opening.step == step)
        order_compare_uneven(order, &order->headers.early_opening);
    for (uint32_t i = 0; i < order->headers.early_count; i++) {
        if (order->headers.early[i].step == step)
            order_compare_uneven(order, &order->headers.early[i]);
    }
}

void order_take_early_header(struct order *order)
{
    order_take_early_uneven(order);
    for (uint32_t i = 0; i < order->headers.early_count && !order->recovery.frozen; i++) {
        const struct step_header header = order->headers.early[i];
        if (header.step != order->step)
            continue;
        order->headers.early[i] = order->headers.early[--order->headers.early_count];
        order_compare_header(order, &header);
        return;
    }
}

// A member that goes on earlier sends its header while this rank is frozen.
static void order_keep_header(struct order *order, const struct step_header *header)
{
    if (header->opening)
        order->headers.early_opening = *header;
    else if (order->headers.early_count < 2)
        order->headers.early[order->headers.early_count++] = *header;
}

void order_take_kept_headers(struct order *order)
{
    if (order->open)
        order_take_early_header(order);
    else if (order->opening != 0)
        order_take_early_uneven(order);
}

void order_header_received(struct order *order, const struct step_header *header)
{
    const bool started = header->starts == order->headers.starts;
    if (order->recovery.frozen) {
        order_keep_header(order, header);
        return;
    }
    if (!order->failed && header->opening) {
        order_opening_received(order, header);
        return;
    }
    if (order->failed || header->step <= order->settled || order_parted(order, header))
        return;
    if (started && order->open && header->step == order->step) {
        order_compare_header(order, header);
    } else if (started && header->step > order->step && order->headers.early_count < 2) {
        order->headers.early[order->headers.early_count++] = *header;
        if (header->step == order->opening)
            order_compare_uneven(order, header);
    } else {
        order_emit(order, &(struct order_action){
                              .kind = ORDER_IMPOSSIBLE,
                              .rank = topology_predecessor(order->rank, order->world_size),
                              .step = order->step,
                              .text = "sent an impossible header: no rank can be in that step"});
    }
    order_advance(order);
}
