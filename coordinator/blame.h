// SPDX-License-Identifier: Apache-2.0
//
// Finds the ranks that the others wait for. Runs inside coordinator_step.

#ifndef COORDINATOR_BLAME_H
#define COORDINATOR_BLAME_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct found;
struct job;
struct picture;

// Fills *picture from the last heartbeats of the job's members.
void blame_look(const struct coordinator *core, const struct job *job, struct picture *picture);
// True if some members wait, and no member is in the way, silent or unknown.
bool blame_unexplained(const struct picture *picture);
// Returns true if the job is stalled. Then *found, which was empty, has the culprits; it stays
// empty if no rank explains the stall.
bool blame_find(const struct coordinator *core, const struct job *job,
                const struct picture *picture, struct found *found);
// Returns the number of members that wait for the culprits; without culprits, of all that wait.
uint32_t blame_waiting(const struct coordinator *core, const struct job *job,
                       const struct picture *picture, const struct found *found);

#endif
