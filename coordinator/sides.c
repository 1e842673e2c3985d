// SPDX-License-Identifier: Apache-2.0
//
// The verdict on a collective that two ranks call differently. Runs inside coordinator_step.
//
// The rank that notices a difference knows only its own call. The coordinator keeps its report, and
// asks all ranks how they call this use of the collective. A rank on which the collective is in
// flight answers with a report of its own. The first report with another call than the kept one
// makes the verdict, whose text has both calls. If none arrives within LOCKSTEP_SIDES_MS, or
// another verdict comes first, the kept report alone makes the verdict.
//
// Some differences are not noticed by any rank: if ranks run a collective by different algorithms,
// each may wait for frames that the other algorithm never sends. So a heartbeat names the
// collectives of the trainer that have been in flight for long, with their signatures. If two ranks
// have different signatures for one use, the coordinator asks all ranks, and the first answer
// becomes the kept report.

#include "coordinator/sides.h"

#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/names.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"

#include <string.h>

static void sides_ask(struct coordinator *core, const struct job *job, uint64_t space, uint64_t use)
{
    struct down_query *query = &core_message(core, job, DOWN_QUERY)->u.query;
    query->form = true;
    query->key_count = 1;
    query->keys[0] = (struct await_key){.kind = AWAIT_COLLECTIVE, .space = space, .number = use};
    core_send_all(core, job);
}

static void sides_keep(struct coordinator *core, struct worker *worker, const struct up_fail *fail)
{
    struct job *job = core_job_of(core, worker);
    struct up_fail *kept = &job->sides.fail;
    job->sides.active = true;
    job->sides.due_ms = core->now + LOCKSTEP_SIDES_MS;
    job->sides.rank = worker->rank;
    *kept = *fail;
    sentence_clean(kept->text, sizeof(kept->text), fail->text, sizeof(fail->text));
    sentence_clean(kept->name, sizeof(kept->name), fail->name, sizeof(fail->name));
    sentence_clean(kept->form, sizeof(kept->form), fail->form, sizeof(fail->form));
    sides_ask(core, job, kept->space, kept->use);
}

bool sides_tell(struct coordinator *core, struct job *job, uint64_t step)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    const struct up_fail *fail = &job->sides.fail;
    if (!job->sides.active)
        return false;
    job->sides.active = false;
    text_init(&sentence, text, sizeof(text));
    core_rank_name(&sentence, job_worker(core, job, job->sides.rank));
    text_append(&sentence, ": %s", fail->text);
    const struct verdict verdict = {
        .kind = HALT_COLLECTIVE, .step = fail->step < step ? fail->step : step, .text = text};
    verdict_halt(core, job, &verdict);
    return true;
}

static void sides_add(struct text *sentence, const struct worker *worker, const char *form)
{
    core_rank_name(sentence, worker);
    text_append(sentence, " calls %s; ", form);
}

// Makes the verdict with both calls; the lower rank comes first in the text.
static void sides_tell_both(struct coordinator *core, const struct worker *other, const char *form,
                            uint64_t step)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    struct job *job = core_job_of(core, other);
    const struct up_fail *fail = &job->sides.fail;
    const struct worker *first = job_worker(core, job, job->sides.rank);
    const bool ascends = first->rank < other->rank;
    job->sides.active = false;
    text_init(&sentence, text, sizeof(text));
    text_append(&sentence, "collective '%s' (use %" PRIu64 ") differs: ", fail->name,
                fail->use + 1);
    sides_add(&sentence, ascends ? first : other, ascends ? fail->form : form);
    sides_add(&sentence, ascends ? other : first, ascends ? form : fail->form);
    text_append(&sentence, "make both calls alike");
    const struct verdict verdict = {
        .kind = HALT_COLLECTIVE, .step = fail->step < step ? fail->step : step, .text = text};
    verdict_halt(core, job, &verdict);
}

void sides_report(struct coordinator *core, struct worker *worker, const struct up_fail *fail)
{
    char form[LOCKSTEP_FORM_BYTES];
    struct job *job = core_job_of(core, worker);
    const struct sides *sides = &job->sides;
    if (!sides->active) {
        sides_keep(core, worker, fail);
        return;
    }
    sentence_clean(form, sizeof(form), fail->form, sizeof(fail->form));
    // The report is about another collective, or from the same side.
    if (worker->rank == sides->rank || fail->space != sides->fail.space ||
        fail->use != sides->fail.use || strcmp(form, sides->fail.form) == 0)
        return;
    sides_tell_both(core, worker, form, fail->step);
}

// ---- Overdue collectives -----------------------------------------------------------------------

static const struct overdue *sides_other(const struct worker *worker, const struct overdue *mine)
{
    const struct up_heartbeat *beat = &worker->heartbeat;
    for (uint32_t i = 0; i < beat->overdue_count; i++)
        if (beat->overdue[i].space == mine->space && beat->overdue[i].use == mine->use &&
            beat->overdue[i].signature != mine->signature)
            return &beat->overdue[i];
    return NULL;
}

static bool sides_overdue_differs(struct coordinator *core, const struct job *job,
                                  const struct overdue *mine)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (worker->connected && !worker->left && sides_other(worker, mine))
            return true;
    }
    return false;
}

// Ignores a heartbeat that names the same overdue collectives as the last one: a rank that waits
// long repeats them in every heartbeat.
void sides_heartbeat(struct coordinator *core, const struct worker *worker,
                     const struct up_heartbeat *last)
{
    const struct job *job = core_job_of(core, worker);
    const struct up_heartbeat *beat = &worker->heartbeat;
    if (job->sides.active || beat->overdue_count == 0 || !job_running(job) ||
        (beat->overdue_count == last->overdue_count &&
         memcmp(beat->overdue, last->overdue, beat->overdue_count * sizeof(last->overdue[0])) == 0))
        return;
    for (uint32_t i = 0; i < beat->overdue_count; i++) {
        const struct overdue *mine = &beat->overdue[i];
        if (sides_overdue_differs(core, job, mine)) {
            sides_ask(core, job, mine->space, mine->use);
            return;
        }
    }
}

// ---- Time --------------------------------------------------------------------------------------

void sides_tick(struct coordinator *core, struct job *job)
{
    if (job_running(job) && core->now >= sides_deadline(job))
        sides_tell(core, job, UINT64_MAX);
}

uint64_t sides_deadline(const struct job *job)
{
    return job_running(job) && job->sides.active ? job->sides.due_ms : UINT64_MAX;
}
