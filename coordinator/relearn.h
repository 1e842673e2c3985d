// SPDX-License-Identifier: Apache-2.0
//
// Finds learning steps that a restarted coordinator cannot go on with. The grants that the lost
// one had sent are known to the ranks only, and ranks do not say them again. A rank that has no
// grants says all again, to any coordinator. Runs inside coordinator_step.

#ifndef COORDINATOR_RELEARN_H
#define COORDINATOR_RELEARN_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct up_resume;
struct worker;

// True if a member holds the plan of this step, which another coordinator has published.
bool relearn_is_decided(struct coordinator *core, const struct job *job, uint64_t step);
// Makes the verdict on a member that learns such a step.
void relearn_halt(struct coordinator *core, struct job *job, const struct worker *worker,
                  uint64_t step);
// Returns why a member that comes back cannot go on with the step that it learns, or NULL.
const char *relearn_fault(struct coordinator *core, const struct job *job,
                          const struct up_resume *resume);

#endif
