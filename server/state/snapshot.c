// SPDX-License-Identifier: Apache-2.0
//
// Makes snapshots (core thread) and hands them over (both threads). See snapshot.h.

#include "server/state/snapshot.h"

#include "coordinator/history.h"
#include "coordinator/journal.h"
#include "coordinator/rates.h"
#include "coordinator/stall_view.h"
#include "coordinator/view.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

// ---- making a snapshot ------------------------------------------------------------------------

// An array that grows.
struct growing {
    void *items;
    uint32_t count;
    uint32_t capacity;
};

struct making {
    const struct coordinator *core;
    struct snapshot *snapshot;
    struct growing workers;
    struct growing modules;
    struct growing stalls;
    struct growing rates;
    struct growing events;
    struct growing history;
};

// Returns the place for the next item, which counts once it is filled. Returns NULL if there is no
// memory.
static void *next_of(struct growing *list, size_t bytes)
{
    if (list->count == list->capacity) {
        const uint32_t wanted = list->capacity ? list->capacity * 2 : 16;
        void *more = realloc(list->items, wanted * bytes);
        if (!more)
            return NULL;
        list->items = more;
        list->capacity = wanted;
    }
    return (char *)list->items + list->count * bytes;
}

static bool add_worker(struct making *making, uint32_t job, uint32_t index)
{
    struct worker_view *view = next_of(&making->workers, sizeof(*view));
    return view &&
           coordinator_worker_view(making->core, job, index, making->snapshot->made_ms, view);
}

static bool add_module(struct making *making, uint32_t job, uint32_t index)
{
    struct module_view *view = next_of(&making->modules, sizeof(*view));
    return view && coordinator_module_view(making->core, job, index, view);
}

static bool add_stall(struct making *making, uint32_t job, uint32_t index)
{
    uint32_t most = SNAPSHOT_STALLS / coordinator_job_count(making->core);
    if (index >= (most > SNAPSHOT_JOB_STALLS ? most : SNAPSHOT_JOB_STALLS))
        return false;
    struct stall_view *view = next_of(&making->stalls, sizeof(*view));
    return view &&
           coordinator_stall_view(making->core, job, index, making->snapshot->made_ms, view);
}

static bool add_rate(struct making *making, uint32_t job, uint32_t index)
{
    struct rate_view *view = next_of(&making->rates, sizeof(*view));
    return view && coordinator_rate_view(making->core, job, index, making->snapshot->made_ms, view);
}

static bool add_event(struct making *making, uint32_t job, uint32_t index)
{
    struct event_view *view = next_of(&making->events, sizeof(*view));
    return view &&
           coordinator_event_view(making->core, job, index, making->snapshot->made_ms, view);
}

static bool add_history(struct making *making, uint32_t job, uint32_t index)
{
    struct history_view *view = next_of(&making->history, sizeof(*view));
    return view &&
           coordinator_history_view(making->core, job, index, making->snapshot->made_ms, view);
}

// Copies a job's items of one kind into the list, up to a bound.
static struct snapshot_part take_all(struct making *making, uint32_t job, struct growing *list,
                                     bool (*add)(struct making *, uint32_t, uint32_t),
                                     uint32_t most)
{
    struct snapshot_part part = {.first = list->count};
    while (part.count < most && add(making, job, part.count)) {
        part.count++;
        list->count++;
    }
    return part;
}

// Returns true if all workers of the job were refused or left before a world formed. Then there is
// nothing to show.
static bool deserted(const struct job_view *job)
{
    return job->state == JOB_GATHERING && job->joined == 0;
}

static void add_job(struct making *making, uint32_t index)
{
    struct snapshot *snapshot = making->snapshot;
    struct snapshot_job *job = &snapshot->jobs[snapshot->job_count];
    if (!coordinator_job_view(making->core, index, &job->view) || deserted(&job->view))
        return;
    job->workers = take_all(making, index, &making->workers, add_worker, LOCKSTEP_MAX_WORLD);
    job->modules = take_all(making, index, &making->modules, add_module, LOCKSTEP_MAX_MODULES);
    job->stalls = take_all(making, index, &making->stalls, add_stall, LOCKSTEP_STALLS_KEPT + 1);
    job->rates = take_all(making, index, &making->rates, add_rate, LOCKSTEP_RATE_SAMPLES);
    job->events = take_all(making, index, &making->events, add_event, LOCKSTEP_JOB_EVENTS);
    job->history = take_all(making, index, &making->history, add_history, LOCKSTEP_HISTORY_SLOTS);
    snapshot->job_count++;
}

struct snapshot *snapshot_make(const struct coordinator *core, uint64_t now_ms)
{
    struct snapshot *snapshot = calloc(1, sizeof(*snapshot));
    if (!snapshot)
        return NULL;
    struct making making = {.core = core, .snapshot = snapshot};
    snapshot->made_ms = now_ms;
    const uint32_t jobs = coordinator_job_count(core);
    for (uint32_t i = 0; i < jobs && i < LOCKSTEP_MAX_JOBS; i++)
        add_job(&making, i);
    snapshot->workers = making.workers.items;
    snapshot->worker_count = making.workers.count;
    snapshot->modules = making.modules.items;
    snapshot->stalls = making.stalls.items;
    snapshot->rates = making.rates.items;
    snapshot->events = making.events.items;
    snapshot->history = making.history.items;
    return snapshot;
}

void snapshot_free(struct snapshot *snapshot)
{
    if (!snapshot)
        return;
    free(snapshot->workers);
    free(snapshot->modules);
    free(snapshot->stalls);
    free(snapshot->rates);
    free(snapshot->events);
    free(snapshot->history);
    free(snapshot);
}

// ---- finding jobs and stalls ------------------------------------------------------------------

const struct snapshot_job *snapshot_find(const struct snapshot *snapshot, const char *name)
{
    for (uint32_t i = snapshot->job_count; i > 0; i--) {
        if (strcmp(snapshot->jobs[i - 1].view.name, name) == 0)
            return &snapshot->jobs[i - 1];
    }
    return NULL;
}

const struct stall_view *snapshot_stall(const struct snapshot *snapshot,
                                        const struct snapshot_job *job)
{
    if (job->stalls.count == 0) // If no job has a stall, the array is NULL.
        return NULL;
    const struct stall_view *newest = &snapshot->stalls[job->stalls.first];
    return newest->active ? newest : NULL;
}

// ---- handing a snapshot over ------------------------------------------------------------------

void snapshot_board_init(struct snapshot_board *board, void (*wake)(void *context), void *context)
{
    *board = (struct snapshot_board){.wake = wake, .context = context};
    mutex_init(&board->mutex);
    cond_init(&board->published);
}

void snapshot_board_fini(struct snapshot_board *board)
{
    snapshot_free(board->fresh);
    snapshot_free(board->shown);
    cond_fini(&board->published);
    mutex_fini(&board->mutex);
}

bool snapshot_wanted(struct snapshot_board *board)
{
    return atomic_load_explicit(&board->wanted, memory_order_relaxed) &&
           atomic_exchange(&board->wanted, false);
}

void snapshot_publish(struct snapshot_board *board, struct snapshot *snapshot)
{
    if (!snapshot)
        return;
    mutex_lock(&board->mutex);
    struct snapshot *old = board->fresh;
    board->fresh = snapshot;
    cond_signal(&board->published);
    mutex_unlock(&board->mutex);
    snapshot_free(old);
}

void snapshot_expire(struct snapshot_board *board)
{
    atomic_store(&board->stale, true);
}

void snapshot_end(struct snapshot_board *board)
{
    mutex_lock(&board->mutex);
    board->over = true;
    cond_broadcast(&board->published);
    mutex_unlock(&board->mutex);
}

// Takes the published snapshot. Waits for one until the deadline. Returns true if it got one.
static bool take_fresh(struct snapshot_board *board, uint64_t deadline_ms)
{
    mutex_lock(&board->mutex);
    while (!board->fresh && !board->over &&
           cond_wait_until(&board->published, &board->mutex, deadline_ms))
        ;
    struct snapshot *taken = board->fresh;
    board->fresh = NULL;
    mutex_unlock(&board->mutex);
    if (!taken)
        return false;
    snapshot_free(board->shown);
    board->shown = taken;
    return true;
}

// Holds the mutex, so that the core thread cannot end during the call.
void snapshot_wake(struct snapshot_board *board)
{
    mutex_lock(&board->mutex);
    if (!board->over)
        board->wake(board->context);
    mutex_unlock(&board->mutex);
}

const struct snapshot *snapshot_read(struct snapshot_board *board, bool *answered)
{
    uint64_t now_ms = clock_now_ms();
    *answered = true;
    if (!atomic_exchange(&board->stale, false) && board->shown &&
        now_ms - board->shown->made_ms < SNAPSHOT_AGE_MS)
        return board->shown;
    // Drop a snapshot that came too late for an earlier reader: it does not answer this reader.
    take_fresh(board, 0);
    atomic_store(&board->wanted, true);
    snapshot_wake(board);
    *answered = take_fresh(board, now_ms + SNAPSHOT_WAIT_MS);
    return board->shown;
}
