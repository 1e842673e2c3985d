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

static inline bool order_of_call(const struct slot_id *slot, const struct call_id *call)
{
    return slot->module == call->module && slot->call == call->call;
}

#endif
