// SPDX-License-Identifier: Apache-2.0
//
// The functions of waits.c that other files call.

#ifndef WORKER_ENGINE_WAITS_H
#define WORKER_ENGINE_WAITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collective;
struct command;
struct lockstep_session;
struct order_action;

// The driver calls all functions of this header.

// Handles COMMAND_WAIT_BEGIN, COMMAND_WAIT_ASK and COMMAND_WAIT_END.
void engine_wait(struct lockstep_session *session, const struct command *command);
// Counts one more bucket of a contribution of which the order core knows that it is ready.
void engine_wait_announced(struct lockstep_session *session, uint32_t module, uint32_t call);
// ORDER_RELEASE: the order core answers a wait.
void engine_wait_released(struct lockstep_session *session, const struct order_action *action);
// A bucket is final: if its results are in user memory, threads may take it.
void engine_wait_bucket(struct lockstep_session *session, struct collective *collective);
// The coordinator is lost: waits get a deadline from now on.
void engine_wait_alone(struct lockstep_session *session);
// A coordinator listens again: waits have no deadline any more, and are reported again.
void engine_wait_together(struct lockstep_session *session);
// True, once, if a wait has passed its deadline without a coordinator. Then writes the error text.
bool engine_wait_overdue(struct lockstep_session *session, char *bytes, size_t size);

#endif
