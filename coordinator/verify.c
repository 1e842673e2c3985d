// SPDX-License-Identifier: Apache-2.0
//
// lockstep_start: every member sends the hash of its manifest. As soon as two members differ,
// difference.c compares their manifests, without waiting for the other members. Members may call
// lockstep_start again. A *round* is one call on every member, from the first call to the last.
// Runs inside coordinator_step.

#include "coordinator/verify.h"

#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/difference.h"
#include "coordinator/job.h"
#include "coordinator/journal.h"
#include "coordinator/names.h"
#include "coordinator/plans.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"

static bool verify_same(const struct up_start *a, const struct up_start *b)
{
    return a->manifest_hash == b->manifest_hash && a->item_count == b->item_count &&
           a->root == b->root;
}

// Returns the lowest rank that has started in this round, or NULL.
static struct worker *verify_lowest(struct coordinator *core, const struct job *job)
{
    for (uint32_t i = 0; job->started > 0 && i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        if (worker->started)
            return worker;
    }
    return NULL;
}

// Sets *lowest to the lowest rank that has started. Returns the lowest rank that differs from it,
// or NULL.
static struct worker *verify_find_other(struct coordinator *core, const struct job *job,
                                        struct worker **lowest)
{
    *lowest = verify_lowest(core, job);
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        if (worker->started && !verify_same(&(*lowest)->start, &worker->start))
            return worker;
    }
    return NULL;
}

// Adds a line if other ranks that have started declare the same as `side`.
static void verify_alike_one(struct coordinator *core, const struct job *job,
                             const struct worker *side, struct text *report)
{
    uint32_t count = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (worker == side || !worker->started || !verify_same(&worker->start, &side->start))
            continue;
        count++;
        last = worker->rank;
    }
    if (count == 1)
        text_append(report, "\nrank %" PRIu32 " declares the same as rank %" PRIu32, last,
                    side->rank);
    else if (count > 1)
        text_append(report, "\n%" PRIu32 " other ranks declare the same as rank %" PRIu32, count,
                    side->rank);
}

void verify_alike(struct coordinator *core, const struct job *job, const struct worker *a,
                  const struct worker *b, struct text *report)
{
    verify_alike_one(core, job, a, report);
    verify_alike_one(core, job, b, report);
}

// ---- Some in lockstep_start, others in a step ------------------------------------------------

static void verify_tell_parted(struct coordinator *core, struct job *job,
                               const struct worker *starter, const struct worker *learner)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    core_rank_name(&sentence, starter);
    text_append(&sentence, " called lockstep_start again after step %" PRIu64 ", ",
                starter->start.settled);
    core_rank_name(&sentence, learner);
    text_append(&sentence,
                " began step %" PRIu64
                " instead: close the same modules and call lockstep_start on every rank",
                starter->start.settled + 1);
    const struct verdict verdict = {
        .kind = HALT_MANIFEST, .step = job_start_step(job, starter), .text = text};
    verdict_halt(core, job, &verdict);
}

void verify_parted(struct coordinator *core, struct worker *learner)
{
    struct job *job = core_job_of(core, learner);
    const struct worker *starter = verify_lowest(core, job);
    if (job->rounds == 0 || learner->started || !starter)
        verdict_protocol(core, learner, "learns a step before lockstep_start has completed");
    else
        verify_tell_parted(core, job, starter, learner);
}

// ---- A round ---------------------------------------------------------------------------------

// Begins a round, at the first member that calls lockstep_start. Returns false if other members are
// in a learning step; then a verdict was made.
static bool verify_begin(struct coordinator *core, struct job *job, struct worker *worker)
{
    if (job->learning.active) {
        verify_tell_parted(core, job, worker, job_worker(core, job, job->learning.opener));
        return false;
    }
    job->state = JOB_STARTING;
    plans_forget(&job->learning);
    job->learning.published_count = 0;
    return true;
}

static bool verify_grouped(struct coordinator *core, const struct job *job)
{
    bool grouped = false;
    for (uint32_t i = 0; i < job->count; i++)
        grouped = grouped || job_worker(core, job, i)->start.grouped;
    return grouped;
}

static void verify_done(struct coordinator *core, struct job *job)
{
    job->state = JOB_RUNNING;
    job->rounds++;
    job->started = 0;
    job->zero_defer = job_worker(core, job, 0)->start.zero_defer;
    job->strict = false;
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        worker->started = false;
        job->strict = job->strict || worker->start.strict;
    }
    core_message(core, job, DOWN_VERIFIED)->u.verified.grouped = verify_grouped(core, job);
    core_send_all(core, job);
    core_log(core, "manifests_verified", "job=%s generation=%" PRIu64 " world=%" PRIu32, job->name,
             job->number, job->count);
    journal_note(core, job, "manifests_verified", "all ranks declare the same");
}

static bool verify_possible(struct coordinator *core, struct worker *worker,
                            const struct up_start *start)
{
    const struct job *job = core_job_of(core, worker);
    const struct worker *lowest = verify_lowest(core, job);
    if (worker->started)
        verdict_protocol(core, worker, "called lockstep_start a second time before all others did");
    else if (start->item_count > LOCKSTEP_MAX_ITEMS)
        verdict_protocol(core, worker, "announced a manifest of %" PRIu32 " items; the limit is %d",
                         start->item_count, LOCKSTEP_MAX_ITEMS);
    else if (start->root >= job->count)
        verdict_protocol(core, worker, "wants rank %" PRIu32 " as root; the world has %" PRIu32,
                         start->root, job->count);
    // In the first round `settled` is the step of the loaded file, and the manifests compare that.
    else if (job->rounds > 0 && lowest && lowest->start.settled != start->settled)
        verdict_protocol(core, worker,
                         "called lockstep_start after step %" PRIu64 ", rank %" PRIu32
                         " after step %" PRIu64,
                         start->settled, lowest->rank, lowest->start.settled);
    else
        return true;
    return false;
}

// A member that was away in lockstep_start says UP_START again. Returns true if this coordinator
// knows it already. If the round is complete, the member has missed that.
static bool verify_again(struct coordinator *core, struct job *job, struct worker *worker)
{
    if (!worker->back.starts)
        return false;
    worker->back.starts = false;
    if (worker->back.rounds == job->rounds)
        return worker->started;
    core_message(core, job, DOWN_VERIFIED)->u.verified.grouped = verify_grouped(core, job);
    core_send(core, worker);
    return true;
}

void verify_passed(struct coordinator *core, struct job *job)
{
    core_message(core, job, DOWN_VERIFIED)->u.verified.grouped = verify_grouped(core, job);
    for (uint32_t i = 0; job->started > 0 && i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        if (worker->started)
            core_send(core, worker);
        worker->started = false;
    }
    job->started = 0;
}

void verify_recover(struct coordinator *core, struct job *job)
{
    job->started = 0;
    job->difference.active = false;
    for (uint32_t i = 0; i < job->count; i++)
        job_worker(core, job, i)->started = false;
}

void verify_start(struct coordinator *core, struct worker *worker, const struct up_start *start)
{
    struct job *job = core_job_of(core, worker);
    struct worker *lowest = NULL;
    if (verify_again(core, job, worker) || !verify_possible(core, worker, start))
        return;
    worker->started = true;
    worker->start = *start;
    worker->grouped = worker->absent = 0;
    job->started++;
    if (verdict_left_behind(core, worker, job_start_step(job, worker)) ||
        (job->state == JOB_RUNNING && !verify_begin(core, job, worker)) || job->difference.active)
        return;
    struct worker *other = verify_find_other(core, job, &lowest);
    if (other)
        difference_begin(core, job, lowest, other);
    else if (job->started == job->count)
        verify_done(core, job);
}
