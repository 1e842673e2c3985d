// SPDX-License-Identifier: Apache-2.0
//
// Copies of stalls, for HTTP and tests. Changes no state. Runs on the thread of coordinator_step,
// never during a step.

#include "coordinator/stall_view.h"

#include "coordinator/awaited.h"
#include "coordinator/beat.h"
#include "coordinator/bounds.h"
#include "coordinator/core.h"
#include "coordinator/culprit.h"
#include "coordinator/sentence.h"

static void stall_view_culprit(const struct coordinator *core, const struct job *job,
                               const struct culprit *from, uint64_t now_ms,
                               struct culprit_view *view)
{
    const struct worker *worker = &core->workers[job->workers[from->blame.rank]];
    struct stall_bound bound;
    bounds_of(core, job, worker, &bound);
    view->rank = worker->rank;
    memcpy(view->host, worker->hello.host, sizeof(view->host));
    view->pid = worker->hello.pid;
    view->kind = from->blame.kind;
    view->age_ms = beat_age_now(worker, now_ms);
    view->bound_ms = bound.bound_ms;
    memcpy(view->why, bound.why, sizeof(view->why));
    if (from->blame.kind == STALL_FROZEN || from->blame.kind == STALL_STOPPED) {
        struct text why;
        text_init(&why, view->why, sizeof(view->why));
        text_append(&why, "heartbeats");
        view->age_ms = now_ms - worker->heard_ms;
        view->bound_ms = beat_silence_ms(core);
    }
    view->place = worker->heartbeat.place;
    view->flags = worker->heartbeat.flags;
    if (from->blame.kind == STALL_STOPPED && worker->beat.traced)
        view->flags |= PLACE_TRACED;
    memcpy(view->sleeps, worker->heartbeat.sleeps, sizeof(view->sleeps));
    memcpy(view->mark, worker->heartbeat.mark, sizeof(view->mark));
    view->answered = from->answered;
    memcpy(view->top, from->top, sizeof(view->top));
    view->missing_total = from->missing_total;
    view->missing_count = from->missing_count;
    memcpy(view->missing, from->missing, sizeof(view->missing));
    memcpy(view->awaited, from->awaited, sizeof(view->awaited));
    view->stream = from->stream;
}

// True if the rank is a culprit. A culprit may also wait: for its device, or in its last heartbeat.
static bool stall_view_named(const struct stall *stall, uint32_t rank)
{
    for (uint32_t i = 0; i < stall->culprit_count; i++)
        if (stall->culprits[i].blame.rank == rank)
            return true;
    return false;
}

static bool stall_view_waits(const struct coordinator *core, const struct stall *stall,
                             const struct worker *worker, uint64_t now_ms)
{
    return !worker->left && !beat_frozen(core, worker, now_ms) &&
           !beat_stopped(core, worker, now_ms) && !stall_view_named(stall, worker->rank) &&
           (worker->heartbeat.place.waits ||
            (stall->kind == STALL_DEVICE && worker->heartbeat.held == DEVICE_HOLD_NCCL));
}

// Fills the edge to a culprit from the lowest of the ranks that wait for it. Returns false if no
// rank does.
static bool stall_view_edge(const struct coordinator *core, const struct job *job, uint64_t now_ms,
                            const struct blame *blame, struct stall_edge *edge)
{
    const struct worker *culprit = &core->workers[job->workers[blame->rank]];
    *edge = (struct stall_edge){.to = blame->rank};
    for (uint32_t i = job->count; i > 0; i--) {
        const struct worker *worker = &core->workers[job->workers[i - 1]];
        if (!stall_view_waits(core, &job->stall, worker, now_ms) ||
            !awaited_culprit(&worker->heartbeat.await, culprit, blame->kind))
            continue;
        edge->from = i - 1;
        edge->members++;
    }
    return edge->members > 0;
}

// Adds an edge from the ranks that wait for it to each culprit. For STALL_LINK the edge is the
// link.
static void stall_view_edges(const struct coordinator *core, const struct job *job, uint64_t now_ms,
                             struct stall_view *view)
{
    const struct stall *stall = &job->stall;
    for (uint32_t i = 0; i < stall->culprit_count; i++) {
        const struct blame *blame = &stall->culprits[i].blame;
        struct stall_edge *edge = &view->edges[view->edge_count];
        if (blame->kind == STALL_LINK)
            *edge = (struct stall_edge){.from = blame->rank, .to = blame->peer, .members = 1};
        else if (!stall_view_edge(core, job, now_ms, blame, edge))
            continue;
        view->edge_count++;
    }
}

static void stall_view_active(const struct coordinator *core, const struct job *job,
                              uint64_t now_ms, struct stall_view *view)
{
    const struct stall *stall = &job->stall;
    struct text sentence;
    view->number = stall->number;
    view->active = true;
    view->kind = stall->kind;
    view->step = stall->step;
    view->age_ms = now_ms - stall->began_ms;
    view->waiting = stall->waiting;
    if (stall->culprit_count > 0)
        memcpy(view->phase, stall->culprits[0].phase, sizeof(view->phase));
    text_init(&sentence, view->sentence, sizeof(view->sentence));
    culprit_sentence(core, job, now_ms, &sentence);
    view->culprit_total = stall->culprit_total;
    view->culprit_count = stall->culprit_count;
    for (uint32_t i = 0; i < stall->culprit_count; i++)
        stall_view_culprit(core, job, &stall->culprits[i], now_ms, &view->culprits[i]);
    stall_view_edges(core, job, now_ms, view);
}

static void stall_view_past(const struct stall_past *past, uint64_t now_ms, struct stall_view *view)
{
    view->number = past->number;
    view->kind = past->kind;
    view->step = past->step;
    view->age_ms = now_ms - past->began_ms;
    view->lasted_ms = past->ended_ms - past->began_ms;
    view->waiting = past->waiting;
    memcpy(view->phase, past->phase, sizeof(view->phase));
    memcpy(view->sentence, past->text, sizeof(view->sentence));
    view->culprit_total = past->culprit_total;
    view->culprit_count = past->culprit_count;
    for (uint32_t i = 0; i < past->culprit_count; i++) {
        view->culprits[i].rank = past->culprits[i].rank;
        view->culprits[i].pid = past->culprits[i].pid;
        view->culprits[i].kind = past->culprits[i].kind;
        memcpy(view->culprits[i].host, past->culprits[i].host, sizeof(view->culprits[i].host));
    }
}

bool coordinator_stall_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                            uint64_t now_ms, struct stall_view *view)
{
    memset(view, 0, sizeof(*view));
    if (job >= coordinator->job_count)
        return false;
    const struct job *from = &coordinator->jobs[coordinator->job_order[job]];
    const struct stall *stall = &from->stall;
    const bool active = stall->active && stall->announced;
    if (active && index == 0) {
        stall_view_active(coordinator, from, now_ms, view);
        return true;
    }
    index -= active;
    if (index >= stall->past_count || index >= LOCKSTEP_STALLS_KEPT)
        return false;
    stall_view_past(&stall->past[(stall->past_count - 1 - index) % LOCKSTEP_STALLS_KEPT], now_ms,
                    view);
    return true;
}
