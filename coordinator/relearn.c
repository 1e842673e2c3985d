// SPDX-License-Identifier: Apache-2.0
//
// Learning steps that go on; relearn.h has the contract. Runs inside coordinator_step.

#include "coordinator/relearn.h"

#include "base/bits.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/learning.h"
#include "coordinator/names.h"
#include "coordinator/plans.h"
#include "coordinator/publish.h"
#include "coordinator/sentence.h"
#include "coordinator/slots.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"

// ---- A prefix of the order ---------------------------------------------------------------------

// The member says from the beginning what it knows of the step.
static void relearn_begin(struct worker *worker, uint64_t step)
{
    worker->recalled = 0;
    worker->back.step = step;
}

bool relearn_is_again(const struct worker *worker, uint64_t step)
{
    return worker->back.step != 0 && worker->back.step == step;
}

void relearn_resumed(struct coordinator *core, struct worker *worker)
{
    struct learning *learning = &core_job_of(core, worker)->learning;
    relearn_begin(worker, worker->hello.resume.learning_step);
    if (!learning->active || !worker->entered)
        return;
    worker->entered = false;
    worker->blocked.wait_count = 0;
    learning->entered--;
}

// Makes the verdict on a member whose prefix has another slot at a place than the order.
static void relearn_differs(struct coordinator *core, struct job *job, const struct worker *worker,
                            const struct up_ready *ready)
{
    const struct learning *learning = &job->learning;
    const struct learned_slot *slot = &learning->slots[learning->grants[ready->granted - 1]];
    const struct worker *other = job_worker(core, job, slot->reporter);
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    for (uint32_t i = 0; other == worker && i < job->count; i++)
        other = job_worker(core, job, i);
    text_init(&sentence, text, sizeof(text));
    core_rank_name(&sentence, worker);
    text_append(&sentence, " has ");
    slot_name(&sentence, &ready->slot);
    text_append(&sentence, " at place %" PRIu32 " of the order of step %" PRIu64 ", and ",
                ready->granted - 1, learning->step);
    core_rank_name(&sentence, other);
    text_append(&sentence, " has ");
    slot_name(&sentence, &slot->id);
    text_append(&sentence, " there: two coordinators have decided it");
    const struct verdict verdict = {.kind = HALT_PROTOCOL, .step = learning->step, .text = text};
    verdict_halt(core, job, &verdict);
}

// Returns the slot that the member's prefix has after the end of the order, or NULL.
static struct learned_slot *relearn_append(struct coordinator *core, struct job *job,
                                           const struct worker *worker,
                                           const struct up_ready *ready)
{
    struct learned_slot *slot = slot_find(&job->learning, &ready->slot);
    if (!slot)
        slot = slot_add(core, job, ready, worker->rank);
    if (!slot || slot->granted)
        return NULL;
    slot->reporter = worker->rank;
    learning_grant(core, job, slot);
    return slot;
}

// Returns true if the message goes on with the member's prefix.
static bool relearn_follows(const struct worker *worker, const struct up_ready *ready)
{
    return slot_valid(&ready->slot) && ready->granted == worker->recalled + 1 &&
           ready->granted <= ready->grants && ready->grants <= LOCKSTEP_MAX_SLOTS &&
           !worker->entered;
}

// True if the member says again a step whose plan was published, and that it may have missed.
static bool relearn_is_published(const struct job *job, const struct worker *worker, uint64_t step)
{
    const struct learning *learning = &job->learning;
    return !learning->active && learning->kept && step == learning->last_step &&
           relearn_is_again(worker, step);
}

void relearn_granted(struct coordinator *core, struct worker *worker, const struct up_ready *ready)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    struct learned_slot *slot = NULL;
    if (relearn_is_published(job, worker, ready->step)) {
        if (ready->granted == worker->recalled + 1)
            worker->recalled++;
        return;
    }
    if (!learning_admits(core, worker, ready->step, ready->phase))
        return;
    const bool follows = relearn_follows(worker, ready);
    if (follows && ready->granted <= learning->grant_count)
        slot = &learning->slots[learning->grants[ready->granted - 1]];
    else if (follows)
        slot = relearn_append(core, job, worker, ready);
    if (!slot) {
        verdict_protocol(core, worker, "said an order of step %" PRIu64 " that cannot be",
                         ready->step);
        return;
    }
    if (memcmp(&slot->id, &ready->slot, sizeof(slot->id)) != 0) {
        relearn_differs(core, job, worker, ready);
        return;
    }
    if (!ready->unmade)
        bits_add(slot->ready, worker->rank);
    if (++worker->recalled == ready->grants)
        learning_meet(core, job, worker);
}

// ---- The plan ----------------------------------------------------------------------------------

bool relearn_ended(struct coordinator *core, struct worker *worker, const struct up_end *end)
{
    struct job *job = core_job_of(core, worker);
    if (job->state != JOB_RUNNING || !relearn_is_published(job, worker, end->step))
        return false;
    if (end->plan == 0) {
        learning_catch_up(core, job, worker);
        publish_missed(core, job, worker);
    }
    return true;
}

bool relearn_holds(struct coordinator *core, struct worker *worker, const struct up_end *end)
{
    struct job *job = core_job_of(core, worker);
    struct learning *learning = &job->learning;
    worker->holds = end->plan != 0;
    if (!worker->holds)
        return true;
    if (learning->decided_number != 0 &&
        (learning->decided_number != end->plan || learning->decided_hash != end->plan_hash)) {
        char other[LOCKSTEP_NAME_BYTES];
        struct text sentence;
        text_init(&sentence, other, sizeof(other));
        core_rank_name(&sentence, job_worker(core, job, learning->decided_rank));
        verdict_protocol(core, worker, "holds another plan of step %" PRIu64 " than %s", end->step,
                         other);
        return false;
    }
    learning->decided_number = end->plan;
    learning->decided_hash = end->plan_hash;
    learning->decided_rank = worker->rank;
    return true;
}

bool relearn_is_known(const struct learning *learning, const struct worker *worker)
{
    const uint64_t step = worker->back.step;
    if (step == 0)
        return false;
    if (!learning->active)
        return step <= learning->last_step;
    return step < learning->step || (step == learning->step && worker->ended);
}

bool relearn_is_later(const struct learning *learning, const struct worker *worker)
{
    if (!learning->active || !learning->again)
        return false;
    if (worker->back.step != 0)
        return worker->back.step > learning->step;
    return worker->ended || worker->heartbeat.settled >= learning->step;
}

bool relearn_is_stale(struct coordinator *core, const struct job *job, uint64_t step)
{
    const struct learning *learning = &job->learning;
    bool stale = learning->kept;
    for (uint32_t module = 0; module < LOCKSTEP_MAX_MODULES; module++) {
        const struct layout *layout = &learning->layouts[module];
        if (layout->total == 0 || layout->proposer >= job->count)
            continue;
        const uint64_t of = job_worker(core, job, layout->proposer)->back.step;
        stale |= of != 0 && of < step;
    }
    return stale;
}

void relearn_overtaken(struct learning *learning)
{
    learning->active = false;
    learning->last_step = learning->step;
    plans_forget(learning);
}

// ---- Another generation ------------------------------------------------------------------------

// Returns the learning step that the member says again; 0: none.
static uint64_t relearn_reported(const struct job *job, const struct up_report *report)
{
    const bool learns = (report->flags & REPORT_BEGUN) != 0 && report->space == ~report->phase;
    return learns && report->step > job->ballot.settled ? report->step : 0;
}

void relearn_generation(struct coordinator *core, struct job *job, bool reported)
{
    struct learning *learning = &job->learning;
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        relearn_begin(worker, reported ? relearn_reported(job, &worker->report) : 0);
    }
    if (!learning->kept)
        plans_forget(learning);
    learning->active = false;
}
