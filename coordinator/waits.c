// SPDX-License-Identifier: Apache-2.0
//
// Who is blocked in a planned step (order protocol, R9). Here is kept what each rank said last; a
// cycle in it is not looked for yet. Waits of a learning step are in learning.c. Runs inside
// coordinator_step.

#include "coordinator/core.h"

void waits_blocked(struct coordinator *core, struct worker *worker,
                   const struct up_blocked *blocked)
{
    if (blocked->step == 0 || blocked->wait_count > LOCKSTEP_MAX_WAITS) {
        verdict_protocol(core, worker, "is blocked by %" PRIu32 " waits in step %" PRIu64,
                         blocked->wait_count, blocked->step);
        return;
    }
    worker->blocked = *blocked;
}
