// SPDX-License-Identifier: Apache-2.0
//
// Finds ranks that wait for each other forever (a knot). Runs inside coordinator_step.

#ifndef COORDINATOR_KNOT_H
#define COORDINATOR_KNOT_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct knot_edge;
struct up_blocked;
struct worker;

// Looks for a knot among the members that are blocked in the step and plan of the report. Returns
// true if there is one: the parties of core->knot that are not dropped.
bool knot_find(struct coordinator *core, const struct job *job, const struct up_blocked *report);
// Writes a shortest cycle through `start`, whose report closed the knot, and returns the number of
// its ranks. Overwrites core->knot.
uint32_t knot_cycle(struct coordinator *core, const struct worker *start,
                    const struct worker *cycle[LOCKSTEP_MAX_WORLD]);
// Returns true if `from` waits for `to`; *edge then says why.
bool knot_edge(const struct worker *from, const struct worker *to, struct knot_edge *edge);

#endif
