// SPDX-License-Identifier: Apache-2.0
//
// Forgets the layouts that a learning step collected for its plan. Runs inside coordinator_step.

#include "coordinator/plans.h"

#include "coordinator/core.h"

void plans_forget(struct learning *learning)
{
    learning->open = NULL;
    learning->word_count = 0;
    memset(learning->layouts, 0, sizeof(learning->layouts));
}
