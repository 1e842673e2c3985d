// SPDX-License-Identifier: Apache-2.0
//
// Ballots: when the members of a job freeze, and who belongs to the next generation. The rules are
// in docs/internals/recovery.md; M2, M4, M5 and M7 are names of it. Runs inside coordinator_step.
//
// A rank that is lost, by a proof or because its host does not answer for the bound, becomes a
// suspect of a ballot (suspicion.c has those of which there is no proof). Every other member is
// told to freeze and to report (DOWN_PREPARE), as soon as all of them are connected and are enough
// (M5): a coordinator that cannot decide freezes nobody. A further suspect begins the ballot anew
// with a higher number. When all other members have reported, the decision is sent, and the roster
// forms the next generation of them. If there can be no decision, the job ends with the verdict on
// the first suspect.
//
// Another coordinator of the job may be alive. So the members that are kept must be a quorum of
// every open generation (M2, M3: lineage.h). A rank that has promised more to the other coordinator
// refuses; then this one waits a while before it asks again (M1).

#include "coordinator/ballot.h"

#include "base/bits.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/decision.h"
#include "coordinator/job.h"
#include "coordinator/journal.h"
#include "coordinator/lineage.h"
#include "coordinator/names.h"
#include "coordinator/roster.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/stall_end.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"
#include "protos/redo.h"

void ballot_reset(struct job *job)
{
    job->ballot.wanted = false;
    job->ballot.active = false;
    job->ballot.forming = false;
    job->ballot.retry_ms = 0;
    job->ballot.suspicion_ms = UINT64_MAX;
    memset(job->ballot.suspects, 0, sizeof(job->ballot.suspects));
    memset(&job->ballot.parting, 0, sizeof(job->ballot.parting));
    records_reset(&job->ballot.records);
}

static struct generation_id ballot_id(const struct coordinator *core, const struct job *job)
{
    return (struct generation_id){.number = job->ballot.number,
                                  .incarnation = core->config.incarnation};
}

// ---- Who is kept -------------------------------------------------------------------------------

bool ballot_runs(const struct job *job)
{
    return job->ballot.wanted || job->ballot.active;
}

// True if the members that are kept may decide; connected: only those that are connected count.
static bool ballot_may_decide(struct coordinator *core, struct job *job, bool connected)
{
    uint64_t counted[LOCKSTEP_RANK_WORDS] = {0};
    bool any = false;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        if (decision_removes(job, rank) || (connected && !job_worker(core, job, rank)->connected))
            continue;
        bits_add(counted, rank);
        any = true;
    }
    return any && lineage_quorum(core, job, counted);
}

static bool ballot_has_quorum(struct coordinator *core, struct job *job)
{
    return ballot_may_decide(core, job, false);
}

bool ballot_suffices(struct coordinator *core, struct job *job)
{
    return ballot_may_decide(core, job, true);
}

// Returns NULL, or why the job cannot go on without this member.
static const char *ballot_obstacle(struct coordinator *core, const struct job *job)
{
    for (uint32_t rank = 0; rank < job->count; rank++)
        if (!decision_removes(job, rank) && !job_worker(core, job, rank)->left)
            return NULL;
    return "the job cannot go on without it: no rank is left";
}

// ---- Verdicts ----------------------------------------------------------------------------------

// The job ends after all: makes the verdict on the first suspect.
static void ballot_give_up(struct coordinator *core, struct job *job, const char *why)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    const uint32_t rank = job->ballot.cause;
    const bool caused = decision_removes(job, rank);
    text_init(&sentence, text, sizeof(text));
    text_append(&sentence, "%s; %s", job->ballot.text, why);
    ballot_reset(job);
    const struct verdict verdict = {
        .kind = HALT_LOST, .has_rank = caused, .rank = rank, .text = text};
    verdict_halt(core, job, &verdict);
}

// ---- Prepare -----------------------------------------------------------------------------------

static void ballot_ask(struct coordinator *core, struct job *job, const struct worker *worker)
{
    struct down_prepare *prepare = &core_message(core, job, DOWN_PREPARE)->u.prepare;
    prepare->ballot = ballot_id(core, job);
    if (!worker->behind) // Ranks of another generation have other numbers.
        memcpy(prepare->suspects, job->ballot.suspects, sizeof(prepare->suspects));
    memcpy(prepare->text, job->ballot.text, sizeof(prepare->text));
    core_send(core, worker);
}

// Adds a rank to those that the decision removes.
static void ballot_remove(struct job *job, uint32_t rank)
{
    bits_add(job->ballot.suspects, rank);
}

// M5: true if every member that is kept is connected, and they may decide.
static bool ballot_ready(struct coordinator *core, struct job *job)
{
    for (uint32_t rank = 0; rank < job->count; rank++)
        if (!decision_removes(job, rank) && !job_worker(core, job, rank)->connected)
            return false;
    return ballot_has_quorum(core, job);
}

bool ballot_lacks(struct coordinator *core, struct job *job, uint32_t member)
{
    const struct descent before = job->ballot.descent;
    if (!job->ballot.wanted || ballot_ready(core, job))
        return false;
    lineage_note_dead(job, member);
    const bool lacks = ballot_ready(core, job);
    job->ballot.descent = before;
    return lacks;
}

// Asks the members, if they can decide.
static void ballot_prepare(struct coordinator *core, struct job *job)
{
    struct ballot *ballot = &job->ballot;
    if (!ballot->wanted || core->now < ballot->retry_ms || !ballot_ready(core, job))
        return;
    ballot->wanted = false;
    ballot->active = true;
    ballot->retry_ms = 0;
    ballot->number++;
    for (uint32_t rank = 0; rank < job->count; rank++)
        if (!decision_removes(job, rank))
            ballot_ask(core, job, job_worker(core, job, rank));
}

void ballot_postpone(struct job *job)
{
    job->ballot.wanted = job->ballot.wanted || job->ballot.active;
    job->ballot.active = false;
}

// Begins a ballot with a number above all numbers that members may have promised. Members that have
// left are removed with the suspects.
static void ballot_begin(struct coordinator *core, struct job *job, uint64_t above)
{
    struct ballot *ballot = &job->ballot;
    if (ballot->number < above)
        ballot->number = above;
    if (ballot->number < job->number)
        ballot->number = job->number;
    ballot->wanted = true;
    ballot->active = false;
    records_reset(&ballot->records);
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = job_worker(core, job, rank);
        worker->reported = false;
        if (worker->left)
            ballot_remove(job, rank);
    }
    ballot->proof_ms =
        ballot_has_quorum(core, job) ? UINT64_MAX : core->now + LOCKSTEP_BALLOT_PROOF_MS;
    ballot_prepare(core, job);
}

// ---- The decision ------------------------------------------------------------------------------

// Tells the members that are removed, though they are connected, that they are none any more.
static void ballot_exclude(struct coordinator *core, struct job *job)
{
    for (uint32_t rank = 0; rank < job->count; rank++) {
        if (!decision_removes(job, rank))
            continue;
        struct down_excluded *excluded = &core_message(core, job, DOWN_EXCLUDED)->u.excluded;
        excluded->ballot = ballot_id(core, job);
        memcpy(excluded->text, job->ballot.text, sizeof(excluded->text));
        core_send(core, job_worker(core, job, rank));
    }
}

// Heartbeats are older than reports.
static void ballot_settled(struct coordinator *core, struct job *job)
{
    job->ballot.settled = 0;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        const struct worker *worker = job_worker(core, job, rank);
        if (!decision_removes(job, rank) && worker->report.settled > job->ballot.settled)
            job->ballot.settled = worker->report.settled;
    }
    if (job->ballot.parting.settled > job->ballot.settled)
        job->ballot.settled = job->ballot.parting.settled;
}

static void ballot_decide(struct coordinator *core, struct job *job)
{
    const char *why = !lineage_decide(job, ballot_id(core, job))
                          ? "too many recoveries were begun, and none was complete"
                          : decision_send(core, job);
    if (why) {
        ballot_give_up(core, job, why);
        return;
    }
    ballot_exclude(core, job);
    ballot_settled(core, job);
    job->ballot.active = false;
    job->ballot.forming = true;
    roster_reform(core, job);
    memset(job->ballot.suspects, 0, sizeof(job->ballot.suspects));
}

static bool ballot_complete(struct coordinator *core, const struct job *job)
{
    for (uint32_t rank = 0; rank < job->count; rank++)
        if (!decision_removes(job, rank) && !job_worker(core, job, rank)->reported)
            return false;
    return true;
}

// Decides if all members that are kept have reported, and are enough.
static void ballot_try(struct coordinator *core, struct job *job)
{
    ballot_prepare(core, job);
    if (job->ballot.active && ballot_complete(core, job) && ballot_has_quorum(core, job))
        ballot_decide(core, job);
}

// ---- Suspects ----------------------------------------------------------------------------------

static bool ballot_suspects_any(const struct job *job)
{
    uint64_t any = 0;
    for (uint32_t i = 0; i < LOCKSTEP_RANK_WORDS; i++)
        any |= job->ballot.suspects[i];
    return any != 0;
}

bool ballot_suspect(struct coordinator *core, struct job *job, struct worker *worker,
                    const char *text, const char **why)
{
    struct ballot *ballot = &job->ballot;
    const bool first = !ballot_runs(job) && !ballot->forming;
    const bool again = decision_removes(job, worker->rank);
    const bool alone = !ballot_suspects_any(job);
    *why = NULL;
    if (worker->hello.on_failure != FAILURE_CONTINUE || !job_running(job))
        return false;
    if (again) {
        ballot_try(core, job); // A proof may have come.
        return true;
    }
    ballot_remove(job, worker->rank);
    if (first || !ballot_runs(job) || alone) {
        struct text sentence;
        if (first)
            ballot->began_ms = core->now;
        ballot->cause = worker->rank;
        text_init(&sentence, ballot->text, sizeof(ballot->text));
        text_append(&sentence, "%s", text);
    }
    *why = ballot_obstacle(core, job);
    if (*why && !ballot_runs(job)) {
        ballot_reset(job);
        return false;
    }
    if (*why) {
        ballot_give_up(core, job, *why);
        return true;
    }
    stall_end(core, job, "the ranks that are left finish the step");
    journal_log(core, job, "recovery_began", "%s", ballot->text);
    ballot_begin(core, job, 0);
    return true;
}

void ballot_anew(struct coordinator *core, struct job *job, uint32_t rank, const char *text)
{
    struct ballot *ballot = &job->ballot;
    struct text sentence;
    if (!ballot->forming)
        ballot->began_ms = core->now;
    ballot->cause = rank;
    text_init(&sentence, ballot->text, sizeof(ballot->text));
    text_append(&sentence, "%s", text);
    stall_end(core, job, "the ranks connect anew");
    journal_log(core, job, "recovery_began", "%s", ballot->text);
    ballot_begin(core, job, 0);
}

// ---- Members that leave (M10) ------------------------------------------------------------------

void ballot_part(struct job *job, const struct up_leave *leave)
{
    struct parting *parting = &job->ballot.parting;
    const bool older = leave->settled < parting->settled ||
                       (leave->settled == parting->settled && leave->flags != REPORT_OPENED);
    if (leave->word_count == 0 || leave->word_count > LOCKSTEP_WAVE_BYTES / 8 ||
        (parting->word_count > 0 && older))
        return;
    parting->settled = leave->settled;
    parting->flags = leave->flags;
    parting->word_count = leave->word_count;
    memcpy(parting->words, leave->words, leave->word_count * sizeof(leave->words[0]));
}

// A member that leaves while the links of the next generation are made is no part of that
// generation: its steps are over. Before any generation was established, it leaves because its
// lockstep_open has failed: that is no reason to train without it.
bool ballot_left(struct coordinator *core, struct job *job, struct worker *worker)
{
    if (!job->ballot.descent.established)
        return false;
    if (ballot_runs(job)) {
        ballot_remove(job, worker->rank);
        if (!ballot_has_quorum(core, job) && job->ballot.proof_ms == UINT64_MAX)
            job->ballot.proof_ms = core->now + LOCKSTEP_BALLOT_PROOF_MS;
        ballot_try(core, job);
        return true;
    }
    if (!job->ballot.forming)
        return false;
    ballot_begin(core, job, 0);
    return true;
}

// ---- Reports -----------------------------------------------------------------------------------

void ballot_record(struct coordinator *core, struct worker *worker, const struct record_part *part)
{
    struct job *job = core_job_of(core, worker);
    if (!ballot_runs(job) || worker->reported)
        return; // The ballot is over, or the report was sent twice.
    if (part->total > record_bound(part->kind, true) || part->position >= LOCKSTEP_MAX_SLOTS ||
        part->count > LOCKSTEP_RECORD_PART) {
        verdict_protocol(core, worker, "reported a record of kind %d that cannot be",
                         (int)part->kind);
        return;
    }
    const char *wrong = records_add(&job->ballot.records, worker->rank, part);
    if (wrong == records_full)
        ballot_give_up(core, job, "the ranks that are left know more than a ballot can hold");
    else if (wrong)
        verdict_protocol(core, worker, "%s", wrong);
}

void ballot_report(struct coordinator *core, struct worker *worker, const struct up_report *report)
{
    struct job *job = core_job_of(core, worker);
    const struct generation_id now = ballot_id(core, job);
    if (worker->reported)
        return;
    if (!job->ballot.active || report->ballot.number < now.number) {
        // The answer to an earlier ballot. The answer to this one follows.
        records_drop(&job->ballot.records, worker->rank);
        return;
    }
    if (report->ballot.number != now.number || report->ballot.incarnation != now.incarnation) {
        verdict_protocol(core, worker, "reported for a ballot that was not begun");
        return;
    }
    if (!records_whole(&job->ballot.records, worker->rank)) {
        verdict_protocol(core, worker, "reported before its records were complete");
        return;
    }
    worker->reported = true;
    worker->report = *report;
    ballot_try(core, job);
}

// M1: a rank has promised more to another coordinator. That one may get through first.
void ballot_refuse(struct coordinator *core, struct worker *worker, const struct up_refuse *refuse)
{
    struct job *job = core_job_of(core, worker);
    struct ballot *ballot = &job->ballot;
    const struct generation_id now = ballot_id(core, job);
    if (!ballot->active || generation_compare(&refuse->promised, &now) <= 0)
        return;
    ballot->retry_ms =
        core->now + LOCKSTEP_BALLOT_RETRY_MS + core->config.incarnation % LOCKSTEP_BALLOT_RETRY_MS;
    ballot_begin(core, job, refuse->promised.number);
}

// M2: without enough members the ballot waits until all others are proven dead.
void ballot_tick(struct coordinator *core, struct job *job)
{
    if (!job_running(job) || !ballot_runs(job))
        return;
    ballot_prepare(core, job);
    if (core->now < job->ballot.proof_ms)
        return;
    job->ballot.proof_ms = UINT64_MAX;
    if (!ballot_has_quorum(core, job))
        ballot_give_up(core, job,
                       "the job cannot go on: too few ranks are left to decide, and the others "
                       "are not known to be dead");
}

uint64_t ballot_deadline(const struct job *job)
{
    const struct ballot *ballot = &job->ballot;
    if (!job_running(job) || !ballot_runs(job))
        return UINT64_MAX;
    const bool waits = ballot->wanted && ballot->retry_ms != 0;
    return waits && ballot->retry_ms < ballot->proof_ms ? ballot->retry_ms : ballot->proof_ms;
}

// All members are to decide once more, though none of them is known to be lost.
static void ballot_again(struct coordinator *core, struct job *job, uint32_t rank, uint64_t above,
                         const char *text)
{
    struct ballot *ballot = &job->ballot;
    struct text sentence;
    const char *why = ballot_obstacle(core, job);
    ballot->began_ms = core->now;
    ballot->cause = rank;
    text_init(&sentence, ballot->text, sizeof(ballot->text));
    text_append(&sentence, "%s", text);
    journal_log(core, job, "recovery_began", "%s", ballot->text);
    ballot_begin(core, job, above);
    if (why)
        ballot_give_up(core, job, why);
}

// A member that is frozen has lost the coordinator of its ballot.
static void ballot_orphaned(struct coordinator *core, struct job *job, const struct worker *worker)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    text_append(&sentence, "the coordinator was lost while %" PRIu32 " ranks recovered from a loss",
                job->count);
    ballot_again(core, job, worker->rank, 0, text);
}

void ballot_outranked(struct coordinator *core, struct job *job, struct generation_id promised)
{
    if (!ballot_runs(job) && !job->ballot.forming && !ballot_obstacle(core, job))
        ballot_again(core, job, 0, promised.number,
                     "a rank that was removed has promised a ballot that did not end");
}

// M7: nothing is said once.
void ballot_resumed(struct coordinator *core, struct worker *worker)
{
    struct job *job = core_job_of(core, worker);
    if (worker->hello.on_failure != FAILURE_CONTINUE || !job_running(job) ||
        decision_removes(job, worker->rank))
        return;
    if (!job->ballot.active && job->ballot.number < worker->hello.resume.promised.number)
        job->ballot.number = worker->hello.resume.promised.number;
    if (!worker->reported)
        records_drop(&job->ballot.records, worker->rank); // A part of them may have been lost.
    if (job->ballot.active && !worker->reported)
        ballot_ask(core, job, worker);
    else if (job->ballot.wanted)
        ballot_prepare(core, job);
    else if (job->ballot.forming && !worker->linked)
        ballot_begin(core, job, 0);
    else if ((worker->hello.resume.frozen || worker->behind) && !job->ballot.active)
        ballot_orphaned(core, job, worker);
}

void ballot_linked(struct coordinator *core, struct job *job)
{
    struct ballot *ballot = &job->ballot;
    if (!ballot->forming || ballot_runs(job))
        return;
    ballot->forming = false;
    ballot->recoveries++;
    ballot->lasted_ms = core->now - ballot->began_ms;
    ballot->spent_ms += ballot->lasted_ms;
    journal_log(core, job, "recovered",
                "%" PRIu32 " rank%s go on after step %" PRIu64 " in %" PRIu64 " ms; %s", job->count,
                job->count == 1 ? "" : "s", ballot->settled, ballot->lasted_ms, ballot->text);
}
