// SPDX-License-Identifier: Apache-2.0
//
// Declarations that only the files of the order core share. No file outside worker/order/ includes
// this header. Pure; any thread.

#ifndef WORKER_ORDER_PARTS_H
#define WORKER_ORDER_PARTS_H

#include "worker/order/order.h"

// True if the slot belongs to the call.
static inline bool order_of_call(const struct slot_id *slot, const struct call_id *call)
{
    return slot->module == call->module && slot->call == call->call;
}

// True if this rank does not have the module of the slot.
static inline bool order_is_absent(const struct order *order, const struct slot_id *id)
{
    return (order->absent >> id->module & 1) != 0;
}

#endif
