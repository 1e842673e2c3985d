// SPDX-License-Identifier: Apache-2.0
//
// One rank's way through a program of calls; see sim_calls_run.h.

#include "tests/sim/sim_calls_run.h"

#include <string.h>

void calls_run_begin(struct calls_run *run, const struct calls *calls, uint32_t rank)
{
    memset(run, 0, sizeof(*run));
    run->calls = calls;
    run->rank = rank;
}

void calls_run_step(struct calls_run *run, uint32_t step)
{
    run->step = step;
    memset(run->position, 0, sizeof(run->position));
    memset(run->waits, 0, sizeof(run->waits));
    memset(run->made, 0, sizeof(run->made));
}

static const struct calls_thread *thread_of(const struct calls_run *run, uint32_t thread)
{
    return &run->calls->at[run->rank][run->step].threads[thread];
}

bool calls_run_can(const struct calls_run *run, uint32_t thread)
{
    return !run->waits[thread] && run->position[thread] < thread_of(run, thread)->count;
}

const struct calls_op *calls_run_next(struct calls_run *run, uint32_t thread)
{
    const struct calls_op *op;
    if (!calls_run_can(run, thread))
        return NULL;
    op = &thread_of(run, thread)->ops[run->position[thread]++];
    run->waits[thread] = op->kind == CALLS_WAIT;
    return op;
}

bool calls_run_over(const struct calls_run *run)
{
    for (uint32_t thread = 0; thread < run->calls->threads; thread++)
        if (run->waits[thread] || calls_run_can(run, thread))
            return false;
    return true;
}

void calls_run_ready(struct calls_run *run, const struct slot_id *slot)
{
    struct parts *made = &run->made[slot->module][slot->call][slot->bucket];
    struct parts *stash = &run->stash[slot->module][slot->bucket];
    *made = *stash;
    parts_add(made, run->rank, run->step, slot->call);
    memset(stash, 0, sizeof(*stash));
}

void calls_run_deferred(struct calls_run *run, const struct slot_id *slot)
{
    struct parts *made = &run->made[slot->module][slot->call][slot->bucket];
    parts_join(&run->stash[slot->module][slot->bucket], made);
    memset(made, 0, sizeof(*made));
}

bool calls_run_released(struct calls_run *run, const struct call_id *call)
{
    for (uint32_t thread = 0; thread < run->calls->threads; thread++) {
        if (!run->waits[thread])
            continue;
        const struct slot_id *slot = &thread_of(run, thread)->ops[run->position[thread] - 1].slot;
        if (slot->module != call->module || slot->call != call->call)
            continue;
        run->waits[thread] = false;
        return true;
    }
    return false;
}
