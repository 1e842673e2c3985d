// SPDX-License-Identifier: Apache-2.0
//
// Compares two manifests and describes their differences. Runs inside coordinator_step.

#ifndef COORDINATOR_DIFFERENCE_H
#define COORDINATOR_DIFFERENCE_H

struct coordinator;
struct job;
struct up_manifest_part;
struct worker;

void difference_begin(struct coordinator *core, struct job *job, struct worker *a,
                      struct worker *b);
void difference_part(struct coordinator *core, struct worker *worker,
                     const struct up_manifest_part *part);
void difference_tick(struct coordinator *core, struct job *job);

#endif
