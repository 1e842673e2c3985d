// SPDX-License-Identifier: Apache-2.0
//
// The learning step of a phase. Runs inside coordinator_step.

#ifndef COORDINATOR_LEARNING_H
#define COORDINATOR_LEARNING_H

struct coordinator;
struct job;
struct learning;
struct up_end;
struct up_modules;
struct up_ready;
struct up_wait;
struct worker;

// The members of the job are those that go on after a loss; each has its rank of the generation
// that ends, and its index in the job is its next rank. The grants of a learning step stay, and
// every member reports again what it has made and is not granted, its layouts, and the end of the
// step.
void learning_recover(struct coordinator *core, struct job *job);
void learning_reset(struct learning *learning);
void learning_ready(struct coordinator *core, struct worker *worker, const struct up_ready *ready);
void learning_wait(struct coordinator *core, struct worker *worker, const struct up_wait *wait);
// A member says which modules it does not have.
void learning_grouped(struct coordinator *core, struct worker *worker,
                      const struct up_modules *modules);
// A member has come back in a learning step. It gets the grants that it has missed, and says again
// what it had said.
void learning_resumed(struct coordinator *core, struct worker *worker);
void learning_end(struct coordinator *core, struct worker *worker, const struct up_end *end);

#endif
