// SPDX-License-Identifier: Apache-2.0
//
// The processes of mates; mates.h has the contract. Engine thread.

#include "worker/transport/flow/mates.h"

#include "protos/types.h"
#include "worker/support/process.h"

#include <string.h>
#include <unistd.h>

struct mate_process *mates_of_rank(struct mates *mates, uint32_t rank)
{
    for (uint32_t i = 0; i < mates->count; i++)
        if (mates->all[i].rank == rank)
            return &mates->all[i];
    return NULL;
}

bool mates_is_gone(struct mates *mates, uint32_t rank)
{
    const struct mate_process *mate = mates_of_rank(mates, rank);
    return mate && (mate->gone || process_is_gone(mate->process));
}

// Takes what is known of a process out of the list of the last generation.
static void mates_take(struct mates *last, struct mate_process *mate)
{
    for (uint32_t i = 0; i < last->count; i++) {
        struct mate_process *known = &last->all[i];
        if (known->pid != mate->pid || known->started != mate->started || known->process < 0)
            continue;
        mate->process = known->process;
        mate->gone = known->gone;
        known->process = -1;
        return;
    }
    if (mate->pid != (uint32_t)getpid())
        mate->process = process_open(mate->pid, mate->started);
}

uint32_t mates_form(struct mates *mates, const struct locality *locality, int *dropped)
{
    struct mates last = *mates;
    uint32_t drops = 0;
    memset(mates, 0, sizeof(*mates));
    for (uint32_t i = 0; i < locality->mate_count; i++) {
        struct mate_process *mate = &mates->all[mates->count];
        if (i == locality->local)
            continue;
        *mate = (struct mate_process){.endpoint.kind = ENDPOINT_PROCESS,
                                      .rank = locality->mates[i],
                                      .pid = locality->mate_pids[i],
                                      .started = locality->mate_started[i],
                                      .process = -1};
        mates_take(&last, mate);
        mates->count++;
        mates->untold += mate->gone;
    }
    for (uint32_t i = 0; i < last.count; i++)
        if (last.all[i].process >= 0)
            dropped[drops++] = last.all[i].process;
    return drops;
}
