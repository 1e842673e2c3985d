// SPDX-License-Identifier: Apache-2.0
//
// lockstep_start: the comparison of manifests. Runs inside coordinator_step.

#ifndef COORDINATOR_VERIFY_H
#define COORDINATOR_VERIFY_H

#include <stdint.h>

struct coordinator;
struct job;
struct text;
struct up_start;
struct worker;

// Adds a line for each of the two if others that have started declare the same: "rank 0 declares
// the same as rank 2".
void verify_alike(struct coordinator *core, const struct job *job, const struct worker *a,
                  const struct worker *b, struct text *report);

void verify_start(struct coordinator *core, struct worker *worker, const struct up_start *start);
// A member learns a step while other members are in lockstep_start: makes a verdict that names
// both.
void verify_parted(struct coordinator *core, struct worker *learner);

// The members of the next generation are known: each of them that is in lockstep_start says
// UP_START again.
void verify_recover(struct coordinator *core, struct job *job);

// A member that has come back knows that the round is complete, and this coordinator did not know:
// tells it to the members that wait.
void verify_passed(struct coordinator *core, struct job *job);

#endif
