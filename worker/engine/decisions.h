// SPDX-License-Identifier: Apache-2.0
//
// The functions of decisions.c that other files call.

#ifndef WORKER_ENGINE_DECISIONS_H
#define WORKER_ENGINE_DECISIONS_H

#include <stdint.h>

struct collective;
struct lockstep_session;
struct order_action;
struct step_times;

// Carries out one decision of the order core. context: the session.
void engine_action(void *context, const struct order_action *action);
// Counts a launched bucket as in flight.
void engine_count_launch(struct step_times *times);
// Joins the commit wave of the step, unless this rank has given the step up. While buffers are in
// flight, only notes that the wave is held.
void engine_join_commit(struct lockstep_session *session, uint64_t step);
// Tells the order core that the bucket of this collective is final.
void engine_slot_final(struct lockstep_session *session, struct collective *collective);

#endif
