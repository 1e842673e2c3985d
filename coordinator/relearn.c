// SPDX-License-Identifier: Apache-2.0
//
// Learning steps that have begun with another coordinator; relearn.h has the contract. Runs inside
// coordinator_step.

#include "coordinator/relearn.h"

#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/names.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"

bool relearn_is_decided(struct coordinator *core, const struct job *job, uint64_t step)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (worker->back.learned && worker->back.step == step)
            return true;
    }
    return false;
}

void relearn_halt(struct coordinator *core, struct job *job, const struct worker *worker,
                  uint64_t step)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct sentence sentence;
    sentence_begin(&sentence, text, sizeof(text));
    core_rank_name(&sentence, worker);
    sentence_add(&sentence,
                 " learns step %" PRIu64
                 ", whose order other ranks have from a coordinator that was lost",
                 step);
    const struct verdict verdict = {.kind = HALT_LOST, .step = step, .text = text};
    verdict_halt(core, job, &verdict);
}

const char *relearn_fault(struct coordinator *core, const struct job *job,
                          const struct up_resume *resume)
{
    const struct learning *learning = &job->learning;
    const bool active = learning->active && learning->step == resume->learning_step;
    if (resume->learning_step == 0)
        return NULL;
    if (resume->learned ? active : relearn_is_decided(core, job, resume->learning_step))
        return "some ranks have the order of the step that it learns, and others do not";
    if (resume->learned)
        return NULL;
    if (!learning->active && resume->learning_step <= learning->last_step)
        return "the order of the step that it learns was decided while it was away";
    if (resume->recalls > (active ? learning->grant_count : 0))
        return "this coordinator does not know the part of the order that was decided in the step "
               "that it learns";
    return NULL;
}
