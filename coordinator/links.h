// SPDX-License-Identifier: Apache-2.0
//
// The functions of links.c that other files call.

#ifndef COORDINATOR_LINKS_H
#define COORDINATOR_LINKS_H

struct coordinator;
struct up_links;
struct worker;

void links_reported(struct coordinator *core, struct worker *worker, const struct up_links *links);

#endif
