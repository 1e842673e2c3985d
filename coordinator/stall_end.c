// SPDX-License-Identifier: Apache-2.0
//
// Ends a stall: stores it with the past stalls and logs its end. Separate from stall.c, because
// verdicts end stalls, too. Runs inside coordinator_step.

#include "coordinator/stall_end.h"

#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/journal.h"
#include "coordinator/sentence.h"

static void stall_remember(struct coordinator *core, struct job *job)
{
    struct stall *stall = &job->stall;
    struct stall_past *past = &stall->past[stall->past_count++ % LOCKSTEP_STALLS_KEPT];
    past->number = stall->number;
    past->kind = stall->kind;
    past->step = stall->step;
    past->began_ms = stall->began_ms;
    past->ended_ms = core->now;
    past->waiting = stall->waiting;
    past->phase[0] = '\0';
    if (stall->culprit_count > 0)
        memcpy(past->phase, stall->culprits[0].phase, sizeof(past->phase));
    memcpy(past->text, stall->text, sizeof(past->text));
    past->culprit_total = stall->culprit_total;
    past->culprit_count = stall->culprit_count;
    for (uint32_t i = 0; i < stall->culprit_count; i++) {
        const struct worker *worker = job_worker(core, job, stall->culprits[i].blame.rank);
        past->culprits[i].rank = worker->rank;
        past->culprits[i].pid = worker->hello.pid;
        past->culprits[i].kind = stall->culprits[i].blame.kind;
        memcpy(past->culprits[i].host, worker->hello.host, sizeof(past->culprits[i].host));
    }
}

void stall_end(struct coordinator *core, struct job *job, const char *why)
{
    struct stall *stall = &job->stall;
    if (!stall->active)
        return;
    stall->active = false;
    if (!stall->announced)
        return;
    stall_remember(core, job);
    char lasted[32];
    struct text seconds;
    text_init(&seconds, lasted, sizeof(lasted));
    sentence_seconds(&seconds, core->now - stall->began_ms);
    journal_log(core, job, "stall_ended", "stall %" PRIu64 " is over after %s: %s", stall->number,
                lasted, why);
}
