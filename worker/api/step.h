// SPDX-License-Identifier: Apache-2.0
//
// The functions of step.c that other files call.

#ifndef WORKER_API_STEP_H
#define WORKER_API_STEP_H

#include <stdint.h>

struct command;
struct contribution;
struct lockstep_session;

// Produces the results of a contribution in a solo session, where no transport does it. Trainer.
int step_settle_contribution(struct contribution *contribution, uint64_t weight);
// Carries out the command, unless it is NULL, and waits until *reached equals step. reached: either
// &session->step.opened or &session->step.settled. LOCKSTEP_E_TIMEOUT: the deadline has passed; the
// error text is not set then. Trainer.
int step_await(struct lockstep_session *session, const struct command *command,
               const uint64_t *reached, uint64_t step, uint64_t deadline_ms);

#endif
