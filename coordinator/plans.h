// SPDX-License-Identifier: Apache-2.0
//
// The layouts that a learning step collects for its plan. Runs inside coordinator_step.

#ifndef COORDINATOR_PLANS_H
#define COORDINATOR_PLANS_H

#include <stdbool.h>
#include <stdint.h>

struct learning;

// True if parts are missing of a layout that this rank has begun to propose.
bool plans_open(const struct learning *learning, uint32_t rank);
// Forgets the layouts. Plan numbers go on counting, and a learned step stays learned.
void plans_forget(struct learning *learning);

#endif
