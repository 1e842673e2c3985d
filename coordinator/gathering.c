// SPDX-License-Identifier: Apache-2.0
//
// Creates a job at the first hello, and lets a job gather workers again after its generation has
// ended. Runs inside coordinator_step.

#include "coordinator/gathering.h"

#include "coordinator/ballot.h"
#include "coordinator/core.h"
#include "coordinator/crossing.h"
#include "coordinator/history.h"
#include "coordinator/job.h"
#include "coordinator/learning.h"
#include "coordinator/sentence.h"
#include "coordinator/stall.h"
#include "coordinator/table.h"

static void gathering_reset(struct job *job)
{
    job->state = JOB_GATHERING;
    job->gathering.deadline_ms = UINT64_MAX;
    job->gathering.timed_out[0] = '\0';
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
    job->formed_ms = 0;
    job->ended_ms = 0;
    job->settled = 0;
    job->settled_ms = 0;
    job->halt.kind = HALT_NONE;
    job->halt.step = 0;
    job->halt.has_rank = false;
    job->halt.text[0] = '\0';
    job->resuming.unseen = 0;
    job->resuming.due_ms = UINT64_MAX;
    job->resuming.divided_ms = 0;
    job->resuming.divided_pause_ms = LOCKSTEP_DIVIDED_MS;
    job->ballot.descent.count = 0;
    job->difference.active = false;
    learning_reset(&job->learning);
    ballot_reset(job);
}

struct job *gathering_create(struct coordinator *core, const char *name)
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
    job->resuming.incarnation = core->config.incarnation;
    job->outs = 0;
    job->messages_total = 0;
    job->dropped_total = 0;
    job->ballot.number = 0;
    job->ballot.text[0] = '\0';
    job->ballot.recoveries = 0;
    job->ballot.spent_ms = job->ballot.lasted_ms = 0;
    stall_init(job);
    history_init(&job->history);
    job->gathering.ended.state = JOB_GATHERING;
    gathering_reset(job);
    return job;
}

// Keeps how the last generation ended. A job that gathers has kept it already.
static void gathering_keep(struct job *job)
{
    struct ended *ended = &job->gathering.ended;
    if (job->state == JOB_GATHERING)
        return;
    ended->state =
        job->state == JOB_HALTED || job->state == JOB_FINISHED ? job->state : JOB_GATHERING;
    ended->world_size = job->count;
    ended->formed_ms = job->formed_ms;
    ended->ended_ms = job->ended_ms;
    ended->settled = job->settled;
    ended->settled_ms = job->settled_ms;
    ended->halt = job->halt;
}

// Makes the job the latest one.
static void gathering_last(struct coordinator *core, const struct job *job)
{
    const uint16_t index = (uint16_t)(job - core->jobs);
    uint32_t place = 0;
    while (core->job_order[place] != index)
        place++;
    memmove(&core->job_order[place], &core->job_order[place + 1],
            (core->job_count - 1 - place) * sizeof(core->job_order[0]));
    core->job_order[core->job_count - 1] = index;
}

void gathering_again(struct coordinator *core, struct job *job)
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
    gathering_last(core, job);
    gathering_keep(job);
    gathering_reset(job);
}
