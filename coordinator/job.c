// SPDX-License-Identifier: Apache-2.0
//
// The table of jobs, and a job's life apart from its protocol: created by a first hello, gathering
// again after an end, recycled when another needs the room. Runs inside coordinator_step.

#include "coordinator/job.h"

#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/crossing.h"
#include "coordinator/learning.h"
#include "coordinator/sentence.h"

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

static void job_reset_gathering(struct job *job)
{
    job->state = JOB_GATHERING;
    job->deadline_ms = UINT64_MAX;
    job->timed_out[0] = '\0';
    job->count = 0;
    job->connected = 0;
    job->left = 0;
    job->hosts = 0;
    job->linked = 0;
    job->tuned = false;
    job->started = 0;
    job->rounds = 0;
    job->zero_defer = false;
    job->strict = false;
    job->queried_step = 0;
    crossing_reset(job);
    job->sides.active = false;
    job->module_count = 0;
    job->halt_kind = HALT_NONE;
    job->halt_step = 0;
    job->halt_text[0] = '\0';
    job->difference.active = false;
    learning_reset(&job->learning);
}

struct job *job_create(struct coordinator *core, const char *name)
{
    struct job *job = NULL;
    if (core->job_count == LOCKSTEP_MAX_JOBS && !job_recycle(core))
        return NULL;
    for (uint16_t i = 0; i < LOCKSTEP_MAX_JOBS && !job; i++) {
        if (core->jobs[i].used)
            continue;
        job = &core->jobs[i];
        core->job_order[core->job_count++] = i;
    }
    job->used = true;
    sentence_clean(job->name, sizeof(job->name), name, LOCKSTEP_JOB_NAME_BYTES);
    job->number = core->number_floor;
    job->outs = 0;
    job->messages_total = 0;
    job->dropped_total = 0;
    stall_init(job);
    job_reset_gathering(job);
    return job;
}

// Nobody's stream is at stake: finished, halted, or gathering in vain.
static bool job_deserted(const struct job *job)
{
    return job->connected == 0 && job->outs == 0;
}

static void job_forget(struct coordinator *core, uint32_t place)
{
    struct job *job = &core->jobs[core->job_order[place]];
    for (uint32_t i = 0; i < job->count; i++)
        core_worker_free(core, job_worker(core, job, i));
    // A job of the same name must not count from one again: old data connections would match.
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

void job_regather(struct coordinator *core, struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        if (!worker->connected) {
            core_worker_free(core, worker);
            continue;
        }
        worker->stage = STAGE_OUT;
        job->outs++;
    }
    job_reset_gathering(job);
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
