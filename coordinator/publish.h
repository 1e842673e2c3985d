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
// A member says what a plan should be. It is, or nothing happens.
void publish_again(struct coordinator *core, struct worker *worker, const struct up_replan *replan);

#endif
