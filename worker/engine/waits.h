// SPDX-License-Identifier: Apache-2.0
//
// The functions of waits.c that other files call.

#ifndef WORKER_ENGINE_WAITS_H
#define WORKER_ENGINE_WAITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct command;
struct lockstep_session;
struct order_action;

// A thread waits, asks, or waits no longer. Driver, like all here.
void engine_wait(struct lockstep_session *session, const struct command *command);
// The order core was told that one more bucket of a contribution is ready.
void engine_wait_announced(struct lockstep_session *session, uint32_t module, uint32_t call);
// ORDER_RELEASE: the order core answers a wait.
void engine_wait_released(struct lockstep_session *session, const struct order_action *action);
// The coordinator is lost.
void engine_wait_alone(struct lockstep_session *session);
// A wait has gone on for too long without it, once: the text says so.
bool engine_wait_overdue(struct lockstep_session *session, char *bytes, size_t size);

#endif
