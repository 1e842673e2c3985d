// SPDX-License-Identifier: Apache-2.0
//
// The ranks that are in the way. Runs inside coordinator_step.

#ifndef COORDINATOR_BLAME_H
#define COORDINATOR_BLAME_H

#include <stdbool.h>

struct coordinator;
struct found;
struct job;
struct picture;

void blame_look(const struct coordinator *core, const struct job *job, struct picture *picture);
// Some wait, and no rank explains it.
bool blame_unexplained(const struct picture *picture);
// True: the job stands still, and *found, which was empty, says who is in the way, or nobody.
bool blame_find(const struct coordinator *core, const struct job *job,
                const struct picture *picture, struct found *found);

#endif
