// SPDX-License-Identifier: Apache-2.0
//
// What the files of the order core share: order.c (steps, launches, waves, halts), check.c
// (what waves may say), header.c (what the predecessor begins), plan.c (plans held),
// replan.c (what a plan should be), waits.c (waits for calls) and payloads.c
// (payloads). Nobody else includes it.

#ifndef WORKER_ORDER_PARTS_H
#define WORKER_ORDER_PARTS_H

#include "worker/order/order.h"

// ---- order.c -----------------------------------------------------------------------------------

void order_emit(struct order *order, const struct order_action *action);
void order_send(struct order *order, struct up_message *message);
void order_fail(struct order *order, enum halt_kind halt, const char *text);
// Everything that can happen now. Called at the end of every event.
void order_advance(struct order *order);

// One more than the position of the last planned slot of a call; 0: it is not in the plan.
uint32_t order_call_end(const struct order *order, const struct call_id *call);

static inline bool order_of_call(const struct slot_id *slot, const struct call_id *call)
{
    return slot->module == call->module && slot->call == call->call;
}

// ---- header.c ----------------------------------------------------------------------------------

// The step begins: its header may have come earlier.
void order_take_early_header(struct order *order);

// ---- plan.c ------------------------------------------------------------------------------------

struct order_plan *order_find_plan(struct order *order, uint64_t phase);
// Every rank holds the plans up to this number: they are in force from the next step on.
void order_switch_plans(struct order *order, uint64_t number);

// ---- replan.c ----------------------------------------------------------------------------------

// The step is settled: if it differed from its plan as others before it did, that is said.
void order_replan(struct order *order);

// ---- waits.c -----------------------------------------------------------------------------------

// A step begins: nobody waits.
void order_waits_reset(struct order *order);
// The slot was given up before its call was made here: who waits for the call waits no longer.
void order_waits_forfeited(struct order *order, const struct slot_id *slot);
// Releases who need not wait any more, and says what is to be said of the others.
void order_waits_advance(struct order *order);
// The step is settled: all that was waited for is final.
void order_waits_settled(struct order *order);

// ---- payloads.c --------------------------------------------------------------------------------

// Keeps the smallest calls in order. A saturated total means "more than can be named".
void order_close_add(struct close_wave *wave, struct call_id id);

// The orders of the lists in waves: below 0, 0 or above.
int order_call_compare(const struct call_id *a, const struct call_id *b);
int order_unused_compare(const struct unused_parameter *a, const struct unused_parameter *b);
int order_aborted_compare(const struct aborted_call *a, const struct aborted_call *b);

#endif
