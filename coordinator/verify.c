// SPDX-License-Identifier: Apache-2.0
//
// lockstep_start: every member sends what identifies its manifest, and the first two that differ
// are taken apart by difference.c, without waiting for the others. Runs inside coordinator_step.

#include "coordinator/core.h"

static bool verify_same(const struct up_start *a, const struct up_start *b)
{
    return a->manifest_hash == b->manifest_hash && a->item_count == b->item_count &&
           a->root == b->root;
}

// The lowest rank that has started, and the lowest that differs from it; NULL: none does.
static struct worker *verify_find_other(struct coordinator *core, const struct job *job,
                                        struct worker **lowest)
{
    *lowest = NULL;
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        if (!worker->started)
            continue;
        if (*lowest == NULL)
            *lowest = worker;
        else if (!verify_same(&(*lowest)->start, &worker->start))
            return worker;
    }
    return NULL;
}

static void verify_done(struct coordinator *core, struct job *job)
{
    job->state = JOB_RUNNING;
    core_message(core, job, DOWN_VERIFIED);
    core_send_all(core, job);
    core_log(core, "manifests_verified", "job=%s generation=%" PRIu64 " world=%" PRIu32, job->name,
             job->number, job->count);
}

static bool verify_possible(struct coordinator *core, struct worker *worker,
                            const struct up_start *start)
{
    const struct job *job = core_job_of(core, worker);
    if (worker->started) {
        verdict_protocol(core, worker, "called lockstep_start a second time in one generation");
        return false;
    }
    if (start->item_count > CORE_MAX_ITEMS) {
        verdict_protocol(core, worker, "announced a manifest of %" PRIu32 " items; the limit is %d",
                         start->item_count, CORE_MAX_ITEMS);
        return false;
    }
    if (start->root >= job->count) {
        verdict_protocol(core, worker, "wants rank %" PRIu32 " as root; the world has %" PRIu32,
                         start->root, job->count);
        return false;
    }
    return true;
}

void verify_start(struct coordinator *core, struct worker *worker, const struct up_start *start)
{
    struct job *job = core_job_of(core, worker);
    struct worker *lowest = NULL;
    if (!verify_possible(core, worker, start) || verdict_left_behind(core, worker, 0))
        return;
    worker->started = true;
    worker->start = *start;
    job->started++;
    if (job->difference.active)
        return;
    struct worker *other = verify_find_other(core, job, &lowest);
    if (other != NULL)
        difference_begin(core, job, lowest, other);
    else if (job->started == job->count)
        verify_done(core, job);
}
