// SPDX-License-Identifier: Apache-2.0
//
// Copies of the state for HTTP and tests. Changes no state. Runs on the thread of coordinator_step,
// never during a step.

#include "coordinator/view.h"

#include "coordinator/beat.h"
#include "coordinator/bounds.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/verdict.h"

uint32_t coordinator_job_count(const struct coordinator *coordinator)
{
    return coordinator->job_count;
}

static const struct job *view_job(const struct coordinator *coordinator, uint32_t index)
{
    if (index >= coordinator->job_count)
        return NULL;
    return &coordinator->jobs[coordinator->job_order[index]];
}

static void view_add(struct step_totals *sum, const struct step_totals *totals)
{
    sum->steps += totals->steps;
    sum->bytes_copied += totals->bytes_copied;
    sum->in_flight_us += totals->in_flight_us;
    sum->overlap_us += totals->overlap_us;
    sum->exposed_us += totals->exposed_us;
    sum->zero_filled += totals->zero_filled;
    sum->unused += totals->unused;
}

// Returns the step of a worker. A step is final only when every rank has done its part of it. So
// every member is at least at the last step that any rank reported as final, even if the member's
// last heartbeat is older.
static uint64_t view_step(const struct job *job, const struct worker *worker)
{
    const struct up_heartbeat *beat = &worker->heartbeat;
    if (worker->left)
        return beat->settled;
    return beat->step > job->settled ? beat->step : job->settled;
}

static void view_steps(const struct coordinator *coordinator, const struct job *job,
                       struct job_view *view)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = &coordinator->workers[job->workers[i]];
        const uint64_t step = view_step(job, worker);
        if (i == 0 || step < view->step_min)
            view->step_min = step;
        if (i == 0 || step > view->step_max)
            view->step_max = step;
        view_add(&view->totals, &worker->heartbeat.totals);
    }
}

static void view_numbers(const struct coordinator *coordinator, const struct job *job,
                         struct numbers_view *view)
{
    if (job->count == 0)
        return;
    const struct up_heartbeat *beat = &coordinator->workers[job->workers[0]].heartbeat;
    view->metric_count = beat->metric_count;
    memcpy(view->metrics, beat->metrics, sizeof(view->metrics));
    view->counter_count = beat->counter_count;
    memcpy(view->counters, beat->counters, sizeof(view->counters));
}

static void view_halt(const struct halt *halt, struct job_view *view)
{
    view->halt_kind = halt->kind == HALT_NONE ? NULL : verdict_kind_name(halt->kind);
    view->halt_has_rank = halt->has_rank;
    view->halt_rank = halt->rank;
    memcpy(view->halt_text, halt->text, sizeof(view->halt_text));
}

// Shows how the last generation ended.
static void view_ended(const struct ended *ended, struct job_view *view)
{
    view->state = ended->state;
    view->world_size = ended->world_size;
    view->formed_ms = ended->formed_ms;
    view->ended_ms = ended->ended_ms;
    view->settled = view->step_min = view->step_max = ended->settled;
    view->settled_ms = ended->settled_ms;
    view_halt(&ended->halt, view);
}

static void view_life(const struct coordinator *coordinator, const struct job *job,
                      struct job_view *view)
{
    view_halt(&job->halt, view);
    view->settled = job->settled;
    view->settled_ms = job->settled_ms;
    view->recovering = ballot_runs(job) || job->ballot.forming;
    view->recoveries = job->ballot.recoveries;
    view->recovery_spent_ms = job->ballot.spent_ms;
    view->recovery_lasted_ms = job->ballot.lasted_ms;
    memcpy(view->recovery_text, job->ballot.text, sizeof(view->recovery_text));
    view->formed_ms = job->formed_ms;
    view->ended_ms = job->ended_ms;
    for (uint32_t i = job->count; i > 0; i--) {
        const struct worker *worker = &coordinator->workers[job->workers[i - 1]];
        if (!worker->left || worker->left_cause[0] == '\0')
            continue;
        view->failed++;
        view->failed_rank = worker->rank;
        memcpy(view->failed_text, worker->left_cause, sizeof(view->failed_text));
    }
    view->metric_count = job->history.metric_count;
    memcpy(view->metrics, job->history.names, sizeof(view->metrics));
    view_numbers(coordinator, job, &view->numbers);
}

bool coordinator_job_view(const struct coordinator *coordinator, uint32_t job,
                          struct job_view *view)
{
    const struct job *from = view_job(coordinator, job);
    memset(view, 0, sizeof(*view));
    if (!from)
        return false;
    memcpy(view->name, from->name, sizeof(view->name));
    view->state = job_running(from) && from->resuming.unseen > 0 ? JOB_RESUMING : from->state;
    view->generation.number = from->number;
    view->generation.incarnation = from->resuming.incarnation;
    view->world_size = from->state == JOB_GATHERING ? from->gathering.world_max : from->count;
    view->joined = from->connected;
    view->left = from->left;
    view->plan_number = from->learning.plan_number;
    view->hosts = from->hosts;
    view->tuned = from->tuned;
    if (from->tuned)
        view->tuning = from->tuning;
    view->messages_total = from->messages_total;
    view->dropped_total = from->dropped_total;
    view_steps(coordinator, from, view);
    view_life(coordinator, from, view);
    // All workers that came since the last generation have gone.
    if (from->state == JOB_GATHERING && from->count == 0 &&
        from->gathering.ended.state != JOB_GATHERING)
        view_ended(&from->gathering.ended, view);
    return true;
}

static enum stall_kind view_kind(const struct coordinator *coordinator, const struct job *job,
                                 const struct worker *worker, uint64_t now_ms)
{
    if (worker->lost)
        return STALL_LOST;
    if (worker->back.unseen) // It has sent this coordinator no heartbeat.
        return STALL_NONE;
    if (beat_stopped(coordinator, worker, now_ms))
        return STALL_STOPPED;
    if (beat_frozen(coordinator, worker, now_ms))
        return STALL_FROZEN;
    const struct stall *stall = &job->stall;
    for (uint32_t i = 0; stall->active && stall->announced && i < stall->culprit_count; i++)
        if (stall->culprits[i].blame.rank == worker->rank)
            return stall->culprits[i].blame.kind;
    return STALL_NONE;
}

static void view_stall(const struct coordinator *coordinator, const struct job *job,
                       const struct worker *worker, uint64_t now_ms, struct worker_view *view)
{
    struct stall_bound bound;
    view->frozen = !worker->back.unseen && beat_frozen(coordinator, worker, now_ms);
    if (worker->stage != STAGE_MEMBER)
        return;
    view->kind = view_kind(coordinator, job, worker, now_ms);
    view->waited_ms = worker->heartbeat.place.waited_us / 1000;
    if (job_running(job)) // Nobody waits for a rank of a job that has ended.
        view->straggler_permille = worker->beat.straggler_permille;
    if (job->rates.median_step > view->step)
        view->lag_steps = job->rates.median_step - view->step;
    if (!beat_known(worker))
        return;
    bounds_of(coordinator, job, worker, &bound);
    view->bound_ms = bound.bound_ms;
    view->slow = view->kind == STALL_NONE && !worker->heartbeat.place.waits && job_running(job) &&
                 beat_age_now(worker, now_ms) > bound.plain_ms;
}

bool coordinator_worker_view(const struct coordinator *coordinator, uint32_t job, uint32_t worker,
                             uint64_t now_ms, struct worker_view *view)
{
    const struct job *owner = view_job(coordinator, job);
    memset(view, 0, sizeof(*view));
    if (!owner || worker >= owner->count)
        return false;
    const struct worker *from = &coordinator->workers[owner->workers[worker]];
    const uint64_t age = now_ms > from->heard_ms ? now_ms - from->heard_ms : 0;
    view->rank = from->rank;
    view->has_rank = from->stage == STAGE_MEMBER;
    memcpy(view->host, from->hello.host, sizeof(view->host));
    view->pid = from->hello.pid;
    view->step = view_step(owner, from);
    view->settled = from->heartbeat.settled;
    view->activity = from->heartbeat.activity;
    view->activity_ms = from->heartbeat.since_ms + age;
    view->heartbeat_age_ms = age;
    view->left = from->left;
    view->lost = from->lost;
    view->awaited = from->back.unseen;
    memcpy(view->mark, from->heartbeat.mark, sizeof(view->mark));
    view->bytes_sent = from->heartbeat.bytes_sent;
    view->bytes_received = from->heartbeat.bytes_received;
    view->totals = from->heartbeat.totals;
    memcpy(view->device, from->hello.device, sizeof(view->device));
    view->has_gpu = from->hello.has_gpu;
    view->gpu = (struct gpu_view){.uuid = from->hello.gpu.uuid,
                                  .capability = from->hello.gpu.capability,
                                  .driver_version = from->hello.gpu.driver_version,
                                  .nccl_version = from->hello.gpu.nccl_version};
    view->place = from->heartbeat.place;
    view->flags = from->heartbeat.flags;
    memcpy(view->sleeps, from->heartbeat.sleeps, sizeof(view->sleeps));
    view_stall(coordinator, owner, from, now_ms, view);
    return true;
}

bool coordinator_module_view(const struct coordinator *coordinator, uint32_t job, uint32_t module,
                             struct module_view *view)
{
    const struct job *from = view_job(coordinator, job);
    memset(view, 0, sizeof(*view));
    if (!from || module >= from->module_count)
        return false;
    memcpy(view->name, from->modules[module], sizeof(view->name));
    return true;
}
