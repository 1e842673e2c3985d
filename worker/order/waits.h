// SPDX-License-Identifier: Apache-2.0
//
// Waits of the trainer's threads for calls (R9). Pure; part of the order core, see order.h.

#ifndef WORKER_ORDER_WAITS_H
#define WORKER_ORDER_WAITS_H

#include "protos/types.h"
#include "worker/order/order.h"

// A call began on this rank; a call ended, after all slots of the call were reported ready. Without
// the option wait_while_open the caller need not report either of them.
void order_call_begun(struct order *order, struct call_id call);
void order_call_ended(struct order *order, struct call_id call);
// A thread of the trainer waits for a call of the open step that has ended on this rank. The order
// core answers with one ORDER_RELEASE, during this event or later.
void order_wait_begun(struct order *order, struct call_id call);
// The timeout of a wait has passed. ORDER_RELEASE still answers the wait. If the coordinator has a
// report of the wait, the answer comes after a round trip to the coordinator, else at once.
void order_wait_ended(struct order *order, struct call_id call);
// Returns how a wait for the call would end if it ended now. Changes nothing.
enum order_release order_wait_ask(const struct order *order, struct call_id call);
// Fills `needs` with the positions that every rank must make ready before all planned slots of a
// call can complete.
void order_need(const struct order *order, struct call_id call, struct slot_set *needs);
// The coordinator asked about the waits of a step.
void order_queried(struct order *order, const struct down_query *query);
// The connection to the coordinator has ended. From now on the rank reports no wait.
void order_coordinator_lost(struct order *order);
// Another connection to a coordinator stands, which has heard of no wait: the rank reports again.
void order_coordinator_back(struct order *order);
// A step begins: forgets all waits and reports of the last step.
void order_waits_reset(struct order *order);
// A slot was given up before its call was made on this rank: marks the waits for that call as
// deferred.
void order_waits_forfeited(struct order *order, const struct slot_id *slot);
// Ends the waits that are over, and reports the other waits if a report is due.
void order_waits_advance(struct order *order);
// The step is settled: ends all waits with RELEASE_FINAL.
void order_waits_settled(struct order *order);
// The rank goes on in a new generation: what was reported of waits is reported again where it is
// due, and waits that were withdrawn end.
void order_waits_recover(struct order *order);

#endif
