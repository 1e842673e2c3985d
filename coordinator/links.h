// SPDX-License-Identifier: Apache-2.0
//
// The tuning of a generation. Runs inside coordinator_step.

#ifndef COORDINATOR_LINKS_H
#define COORDINATOR_LINKS_H

struct coordinator;
struct up_links;
struct worker;

void links_reported(struct coordinator *core, struct worker *worker, const struct up_links *links);

#endif
