// SPDX-License-Identifier: Apache-2.0
//
// The end of a data connection is no death (rule M4 of docs/internals/recovery.md): a rank that
// freezes closes its own, and a network can end one between two processes that are well. So a
// member that another one has lost is only *accused*. Its data port is probed at once, and again
// and again; a mate of its host may prove its death by its pidfd. A proof begins a ballot without
// it. If none has come after LOCKSTEP_ACCUSED_MS, verdict_unproven decides.
//
// All this is only of use in jobs whose ranks go on. In other jobs a link that has ended ends the
// generation in any case. Runs inside coordinator_step.

#include "coordinator/suspicion.h"

#include "coordinator/core.h"
#include "coordinator/decision.h"
#include "coordinator/job.h"
#include "coordinator/resume.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"

#include <string.h>

static bool suspicion_is_useful(const struct coordinator *core, const struct job *job,
                                const struct worker *peer)
{
    return peer->hello.on_failure == FAILURE_CONTINUE && job_running(job) &&
           core->stopped_by[0] == '\0';
}

bool suspicion_awaits(struct coordinator *core, const struct worker *accuser, struct worker *peer,
                      const struct up_lost *lost)
{
    struct job *job = core_job_of(core, peer);
    struct accusation *accused = &peer->accused;
    if (!suspicion_is_useful(core, job, peer))
        return false;
    // A suspect accuses those who have closed their links to it, and a rank that is frozen has
    // closed its own.
    if (decision_removes(job, peer->rank) || decision_removes(job, accuser->rank) ||
        (job->ballot.active && peer->reported) || accused->until_ms != 0)
        return true;
    accused->by = accuser->rank;
    accused->step = lost->step;
    sentence_clean_lines(accused->text, sizeof(accused->text), lost->text, sizeof(lost->text));
    accused->until_ms = core->now + LOCKSTEP_ACCUSED_MS;
    accused->pause_ms = LOCKSTEP_ACCUSED_PROBE_MS;
    accused->probe_ms = core->now + accused->pause_ms;
    if (accused->probe_ms < job->ballot.suspicion_ms)
        job->ballot.suspicion_ms = accused->probe_ms;
    resume_ask_port(core, peer);
    return true;
}

// The number of ranks on the member's host that the others go on with.
static uint32_t suspicion_mates(const struct coordinator *core, const struct job *job,
                                const struct worker *worker)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        const struct worker *mate = &core->workers[job->workers[rank]];
        count += !mate->left && !decision_removes(job, rank) &&
                 strcmp(mate->hello.host_id, worker->hello.host_id) == 0;
    }
    return count;
}

struct worker *suspicion_loser(struct coordinator *core, const struct job *job,
                               const struct worker *accuser, struct worker *accused)
{
    // If the accused rank is to go already, the accuser stays.
    if (decision_removes(job, accused->rank) ||
        suspicion_mates(core, job, accuser) >= suspicion_mates(core, job, accused))
        return accused;
    return job_worker(core, job, accuser->rank);
}

// Returns when something is to be done about the member next.
static uint64_t suspicion_probe(struct coordinator *core, struct worker *worker)
{
    struct accusation *accused = &worker->accused;
    if (core->now >= accused->probe_ms) {
        accused->pause_ms *= 2;
        accused->probe_ms = core->now + accused->pause_ms;
        resume_ask_port(core, worker);
    }
    return accused->probe_ms < accused->until_ms ? accused->probe_ms : accused->until_ms;
}

void suspicion_tick(struct coordinator *core, struct job *job)
{
    struct worker *over = NULL;
    uint64_t next = UINT64_MAX;
    if (core->now < suspicion_deadline(job))
        return;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = job_worker(core, job, rank);
        if (worker->accused.until_ms == 0)
            continue;
        if (!over && core->now >= worker->accused.until_ms) {
            over = worker;
            continue;
        }
        const uint64_t due_ms = suspicion_probe(core, worker);
        if (due_ms < next)
            next = due_ms;
    }
    job->ballot.suspicion_ms = next;
    if (!over)
        return;
    over->accused.until_ms = 0;
    verdict_unproven(core, over);
}

uint64_t suspicion_deadline(const struct job *job)
{
    return job_running(job) ? job->ballot.suspicion_ms : UINT64_MAX;
}
