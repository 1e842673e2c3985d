// SPDX-License-Identifier: Apache-2.0
//
// Making pictures (core thread) and handing them over (both threads). See snapshot.h.

#include "server/snapshot.h"

#include "base/clock.h"

#include <stdlib.h>

// ---- making -----------------------------------------------------------------------------------

// Appends the next worker of a job; false: there is none, or no memory.
static bool add_worker(struct snapshot *snapshot, const struct coordinator *core, uint32_t job,
                       uint32_t worker, uint32_t *capacity)
{
    if (snapshot->worker_count == *capacity) {
        uint32_t wanted = *capacity ? *capacity * 2 : 64;
        struct worker_view *more = realloc(snapshot->workers, wanted * sizeof *more);
        if (!more)
            return false;
        snapshot->workers = more;
        *capacity = wanted;
    }
    struct worker_view *view = &snapshot->workers[snapshot->worker_count];
    if (!coordinator_worker_view(core, job, worker, snapshot->made_ms, view))
        return false;
    snapshot->worker_count++;
    return true;
}

static void add_job(struct snapshot *snapshot, const struct coordinator *core, uint32_t index,
                    uint32_t *capacity)
{
    struct snapshot_job *job = &snapshot->jobs[snapshot->job_count];
    if (!coordinator_job_view(core, index, &job->view))
        return;
    job->first_worker = snapshot->worker_count;
    while (job->worker_count < LOCKSTEP_MAX_WORLD &&
           add_worker(snapshot, core, index, job->worker_count, capacity))
        job->worker_count++;
    snapshot->job_count++;
}

struct snapshot *snapshot_make(const struct coordinator *core, uint64_t now_ms)
{
    struct snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot)
        return NULL;
    snapshot->made_ms = now_ms;
    uint32_t capacity = 0;
    uint32_t jobs = coordinator_job_count(core);
    for (uint32_t i = 0; i < jobs && i < LOCKSTEP_MAX_JOBS; i++)
        add_job(snapshot, core, i, &capacity);
    return snapshot;
}

void snapshot_free(struct snapshot *snapshot)
{
    if (!snapshot)
        return;
    free(snapshot->workers);
    free(snapshot);
}

// ---- handing over -----------------------------------------------------------------------------

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

// Takes over what was published; waits for it until the deadline.
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

// Under the mutex, so that the core thread is still there.
static void wake(struct snapshot_board *board)
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
    take_fresh(board, 0); // What came too late for an earlier reader is no answer to this one.
    atomic_store(&board->wanted, true);
    wake(board);
    *answered = take_fresh(board, now_ms + SNAPSHOT_WAIT_MS);
    return board->shown;
}
