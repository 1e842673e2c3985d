// SPDX-License-Identifier: Apache-2.0
//
// A worker has one control stream. If two coordinators are alive, as while one replaces the other,
// each may have some of a job's members. None of them can decide without a quorum (M2), and none
// freezes members without one (M5), so nothing goes wrong; but nothing goes on either. So a
// coordinator that has had too few members for a while sends them away, and they try the next
// address. At most one coordinator has enough, and it keeps its own.
//
// Coordinators wait for different times, or members would change places for ever: the one that has
// made the generation waits longest, the others by their incarnation, and all of them longer each
// time.

#include "coordinator/divided.h"

#include "coordinator/ballot.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/journal.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"

bool divided_is_possible(struct coordinator *core, const struct job *job)
{
    for (uint32_t rank = 0; rank < job->count; rank++) {
        const struct worker *worker = job_worker(core, job, rank);
        if (worker->hello.elsewhere)
            return worker->hello.on_failure == FAILURE_CONTINUE;
    }
    return false;
}

static void divided_send_away(struct coordinator *core, struct worker *worker)
{
    struct down_refused *refused = &core_message(core, NULL, DOWN_REFUSED)->u.refused;
    struct text sentence;
    refused->refusal = REFUSAL_DRAINING;
    text_init(&sentence, refused->text, sizeof(refused->text));
    text_append(&sentence, "too few ranks of the job are connected to this coordinator; another "
                           "one may have the others");
    core_send(core, worker);
    core_close(core, worker);
    worker->asked.id = 0;
    worker->back.away_ms = core->now;
    worker->back.probe_ms = core->now + LOCKSTEP_PROBE_MS;
}

static uint64_t divided_patience(const struct coordinator *core, const struct job *job)
{
    const bool made = job->resuming.incarnation == core->config.incarnation;
    return job->resuming.divided_pause_ms +
           (made ? 2 * LOCKSTEP_DIVIDED_MS : core->config.incarnation % LOCKSTEP_DIVIDED_MS);
}

uint64_t divided_tick(struct coordinator *core, struct job *job)
{
    struct resuming *resuming = &job->resuming;
    if (job->connected == 0 || !divided_is_possible(core, job) || ballot_suffices(core, job)) {
        resuming->divided_ms = 0;
        return UINT64_MAX;
    }
    if (resuming->divided_ms == 0)
        resuming->divided_ms = core->now + divided_patience(core, job);
    if (core->now < resuming->divided_ms)
        return resuming->divided_ms;
    resuming->divided_ms = 0;
    if (resuming->divided_pause_ms < LOCKSTEP_DIVIDED_LAST_MS)
        resuming->divided_pause_ms *= 2;
    journal_note(core, job, "ranks_sent_away",
                 "only %" PRIu32 " of %" PRIu32
                 " ranks are connected: they look for another coordinator",
                 job->connected, job->count);
    ballot_postpone(job);
    for (uint32_t rank = 0; rank < job->count; rank++)
        if (job_worker(core, job, rank)->connected)
            divided_send_away(core, job_worker(core, job, rank));
    return UINT64_MAX;
}
