// SPDX-License-Identifier: Apache-2.0
//
// The functions of decisions.c that other files call.

#ifndef WORKER_ENGINE_DECISIONS_H
#define WORKER_ENGINE_DECISIONS_H

#include <stdint.h>

struct collective;
struct lockstep_session;
struct order_action;

// A decision of the order core; context: the session.
void engine_action(void *context, const struct order_action *action);
// Joins the wave which says that all results of the step are final here, unless buffers are not.
void engine_join_commit(struct lockstep_session *session, uint64_t step);
// worker/engine/engine.c: the order core takes the bucket for final from now on.
void engine_slot_final(struct lockstep_session *session, const struct collective *collective);

#endif
