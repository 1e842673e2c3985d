// SPDX-License-Identifier: Apache-2.0
//
// The table of jobs: finds a job, and recycles a job without connected workers when another one
// needs its place. Runs inside coordinator_step.

#include "coordinator/job.h"

#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/table.h"

struct job *job_find(struct coordinator *core, const char *name)
{
    for (uint32_t i = 0; i < core->job_count; i++) {
        struct job *job = &core->jobs[core->job_order[i]];
        if (strcmp(job->name, name) == 0)
            return job;
    }
    return NULL;
}

struct worker *job_worker(struct coordinator *core, const struct job *job, uint32_t index)
{
    return &core->workers[job->workers[index]];
}

bool job_running(const struct job *job)
{
    return job->state == JOB_STARTING || job->state == JOB_RUNNING;
}

void job_settled(struct coordinator *core, struct job *job, uint64_t step)
{
    if (step <= job->settled)
        return;
    job->settled = step;
    job->settled_ms = core->now;
}

// True if no worker of the job is connected.
static bool job_deserted(const struct job *job)
{
    return job->connected == 0 && job->outs == 0;
}

static void job_forget(struct coordinator *core, uint32_t place)
{
    struct job *job = &core->jobs[core->job_order[place]];
    for (uint32_t i = 0; i < job->count; i++)
        core_worker_free(core, job_worker(core, job, i));
    // The next job must not number its generations from 1 again: data connections of an old
    // generation with the same number would be accepted.
    if (job->number > core->number_floor)
        core->number_floor = job->number;
    job->used = false;
    core->job_count--;
    memmove(&core->job_order[place], &core->job_order[place + 1],
            (core->job_count - place) * sizeof(core->job_order[0]));
}

bool job_recycle(struct coordinator *core)
{
    for (uint32_t i = 0; i < core->job_count; i++) {
        if (!job_deserted(&core->jobs[core->job_order[i]]))
            continue;
        job_forget(core, i);
        return true;
    }
    return false;
}

void job_remove_worker(struct coordinator *core, struct job *job, struct worker *worker)
{
    const uint16_t index = core_worker_index(core, worker);
    uint32_t place = 0;
    while (place < job->count && job->workers[place] != index)
        place++;
    if (place == job->count)
        return;
    job->count--;
    job->connected--;
    memmove(&job->workers[place], &job->workers[place + 1],
            (job->count - place) * sizeof(job->workers[0]));
}

uint64_t job_start_step(const struct job *job, const struct worker *starter)
{
    return job->rounds == 0 ? 0 : starter->start.settled + 1;
}
