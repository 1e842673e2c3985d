// SPDX-License-Identifier: Apache-2.0
//
// The search for ranks that wait for each other for ever. Runs inside coordinator_step.

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

// Looks among the members that are blocked as the report says, in its step and plan, for some that
// wait for each other. True: there are, and core->knot has those that are not dropped.
bool knot_find(struct coordinator *core, const struct job *job, const struct up_blocked *report);
// A shortest cycle through `start` in the knot that its report has closed; how many ranks. The knot
// is used up.
uint32_t knot_cycle(struct coordinator *core, const struct worker *start,
                    const struct worker *cycle[LOCKSTEP_MAX_WORLD]);
// Whether `from` waits for `to`.
bool knot_edge(const struct worker *from, const struct worker *to, struct knot_edge *edge);

#endif
