// SPDX-License-Identifier: Apache-2.0
//
// The learning step of a phase. Runs inside coordinator_step.

#ifndef COORDINATOR_LEARNING_H
#define COORDINATOR_LEARNING_H

struct coordinator;
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

#endif
