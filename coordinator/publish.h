// SPDX-License-Identifier: Apache-2.0
//
// Layouts that rank 0 proposes, and published plans. Runs inside coordinator_step.

#ifndef COORDINATOR_PUBLISH_H
#define COORDINATOR_PUBLISH_H

struct coordinator;
struct job;
struct layout_part;
struct up_replan;
struct worker;

void publish_layout(struct coordinator *core, struct worker *worker,
                    const struct layout_part *part);
void publish_plan(struct coordinator *core, struct job *job);
// Sends the plan of the last learning step, which is kept, to a member that has missed it.
void publish_missed(struct coordinator *core, struct job *job, const struct worker *worker);
// A member proposes a new plan of a phase: publishes it, or ignores the message.
void publish_again(struct coordinator *core, struct worker *worker, const struct up_replan *replan);

#endif
