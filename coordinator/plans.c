// SPDX-License-Identifier: Apache-2.0
//
// The layouts that a learning step collects for its plan, and their end. Runs inside
// coordinator_step.

#include "coordinator/plans.h"

#include "coordinator/core.h"

void plans_forget(struct learning *learning)
{
    learning->open = NULL;
    learning->word_count = 0;
    memset(learning->layouts, 0, sizeof(learning->layouts));
}
