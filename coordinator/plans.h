// SPDX-License-Identifier: Apache-2.0
//
// The layouts that a learning step collects for its plan. Runs inside coordinator_step.

#ifndef COORDINATOR_PLANS_H
#define COORDINATOR_PLANS_H

struct learning;

// Forgets layouts. Plans are numbered on, and what was learned is still not learned again.
void plans_forget(struct learning *learning);

#endif
