// SPDX-License-Identifier: Apache-2.0
//
// The layouts that a learning step collects for its plan: plans.h has the contract. Runs inside
// coordinator_step.

#include "coordinator/plans.h"

#include "coordinator/core.h"

bool plans_open(const struct learning *learning, uint32_t rank)
{
    bool open = false;
    for (uint32_t module = 0; module < LOCKSTEP_MAX_MODULES; module++) {
        const struct layout *layout = &learning->layouts[module];
        open |= layout->received < layout->total && layout->proposer == rank;
    }
    return open;
}

void plans_forget(struct learning *learning)
{
    learning->kept = false;
    learning->word_count = 0;
    memset(learning->layouts, 0, sizeof(learning->layouts));
}
