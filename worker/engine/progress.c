// SPDX-License-Identifier: Apache-2.0
//
// Writes the state of the order core into struct progress, from which heartbeats take it. Driver
// only.

#include "worker/engine/progress.h"

#include "worker/order/order.h"
#include "worker/session/session.h"
#include "worker/watch/progress.h"

void progress_order(struct lockstep_session *session)
{
    const struct order *order = session->engine.order;
    struct place place = {.position = 0};
    if (order->open) {
        const bool slot = order->front < order->slot_count;
        place.position = order->front + (order->commit_joined ? 1 : 0);
        place.count = order->slot_count;
        place.done = slot ? order->slots[order->front].state >= SLOT_LAUNCHED : order->ended;
        place.open = true;
        place.learning = order->learning;
        if (slot)
            place.slot = order->slots[order->front].id;
    }
    progress_place(session->progress, &place);
}
