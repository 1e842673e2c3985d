// SPDX-License-Identifier: Apache-2.0
//
// The learning step of a phase. Runs inside coordinator_step.

#ifndef COORDINATOR_LEARNING_H
#define COORDINATOR_LEARNING_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct learned_slot;
struct learning;
struct up_end;
struct up_modules;
struct up_ready;
struct up_wait;
struct worker;

void learning_reset(struct learning *learning);
void learning_ready(struct coordinator *core, struct worker *worker, const struct up_ready *ready);
void learning_wait(struct coordinator *core, struct worker *worker, const struct up_wait *wait);
// A member says which modules it does not have.
void learning_grouped(struct coordinator *core, struct worker *worker,
                      const struct up_modules *modules);
void learning_end(struct coordinator *core, struct worker *worker, const struct up_end *end);

// Returns true if a message of this step and phase can be handled. The first message of a step
// opens the step.
bool learning_admits(struct coordinator *core, struct worker *worker, uint64_t step,
                     uint64_t phase);
// The member is in the step, and gets the grants that it does not have. If it is the last one,
// grants the slots that are complete already, and publishes the plan if all have ended.
void learning_meet(struct coordinator *core, struct job *job, struct worker *worker);
// Sends the member the grants that it does not have.
void learning_catch_up(struct coordinator *core, const struct job *job,
                       const struct worker *worker);
// Appends the slot to the order, and tells all members that are in the step.
void learning_grant(struct coordinator *core, struct job *job, struct learned_slot *slot);

#endif
