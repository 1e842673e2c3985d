// SPDX-License-Identifier: Apache-2.0
//
// The functions of waits.c that other files call.

#ifndef WORKER_ORDER_WAITS_H
#define WORKER_ORDER_WAITS_H

#include "protos/types.h"
#include "worker/order/order.h"

// A call was begun here, and has ended; its slots were said to be ready before that. Need not be
// said without wait_while_open.
void order_call_begun(struct order *order, struct call_id call);
void order_call_ended(struct order *order, struct call_id call);
// A thread of the trainer waits for a call of the open step that has ended here. ORDER_RELEASE
// answers once, at once or later.
void order_wait_begun(struct order *order, struct call_id call);
// The time of a wait is over. ORDER_RELEASE still answers it: at once, or, when the coordinator
// counts on the wait, as soon as that knows better (a round trip).
void order_wait_ended(struct order *order, struct call_id call);
// How a wait for the call would end if it were to end now. Pure: nothing is given up.
enum order_release order_wait_ask(const struct order *order, struct call_id call);
// Positions that every rank must make before all planned slots of a call can complete. Pure.
void order_need(const struct order *order, struct call_id call, struct slot_set *needs);
void order_queried(struct order *order, const struct down_query *query);
// Its stream has ended: nothing is said of waits any more.
void order_coordinator_lost(struct order *order);
// A step begins: nobody waits.
void order_waits_reset(struct order *order);
// The slot was given up before its call was made here: who waits for the call waits no longer.
void order_waits_forfeited(struct order *order, const struct slot_id *slot);
// Releases who need not wait any more, and says what is to be said of the others.
void order_waits_advance(struct order *order);
// The step is settled: all that was waited for is final.
void order_waits_settled(struct order *order);

#endif
