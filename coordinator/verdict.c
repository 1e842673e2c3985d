// SPDX-License-Identifier: Apache-2.0
//
// How a generation ends: this file makes a verdict from a fact (a lost member, a member that left,
// a disagreement, an impossible message), and sends the same verdict to every member. Runs inside
// coordinator_step.
//
// The first verdict holds. It is replaced only if a member reports that it cannot finish an earlier
// step either. A verdict of step s takes effect on a member when step s - 1 is settled there, so
// without the replacement such a member would wait forever (order protocol, R12). If a verdict is
// replaced by one of the same kind, the log has only the first.

#include "coordinator/verdict.h"

#include "coordinator/advice.h"
#include "coordinator/ballot.h"
#include "coordinator/beat.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/decision.h"
#include "coordinator/job.h"
#include "coordinator/journal.h"
#include "coordinator/kin.h"
#include "coordinator/names.h"
#include "coordinator/rates.h"
#include "coordinator/resume.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/sides.h"
#include "coordinator/stall_end.h"
#include "coordinator/suspicion.h"
#include "coordinator/table.h"

const char *verdict_kind_name(enum halt_kind kind)
{
    static const char *const names[] = {
        [HALT_NONE] = "none",     [HALT_MANIFEST] = "manifest",   [HALT_PHASE] = "phase",
        [HALT_ORDER] = "order",   [HALT_UNPLANNED] = "unplanned", [HALT_COLLECTIVE] = "collective",
        [HALT_LOST] = "lost",     [HALT_LEFT] = "left",           [HALT_PROTOCOL] = "protocol",
        [HALT_LAYOUT] = "layout", [HALT_TUNING] = "tuning",       [HALT_LIMIT] = "limit"};
    return (size_t)kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "unknown";
}

static void verdict_log(struct coordinator *core, struct job *job, const struct verdict *verdict)
{
    struct text quoted;
    char text[CORE_LOG_BYTES];
    char step[32]; // Empty if the verdict holds at once.
    text_init(&quoted, text, sizeof(text) / 2);
    sentence_quote(&quoted, job->halt.text);
    text_init(&quoted, step, sizeof(step));
    if (verdict->step != 0)
        text_append(&quoted, " step=%" PRIu64, verdict->step);
    core_log_halt(core, verdict->kind,
                  core->stopped_by[0] == '\0' ? "generation_halted" : "job_stopped",
                  "job=%s generation=%" PRIu64 " kind=%s%s text=%s", job->name, job->number,
                  verdict_kind_name(verdict->kind), step, text);
    journal_note(core, job, "generation_halted", "%s", job->halt.text);
}

// Makes the message of the job's verdict.
static void verdict_message(struct coordinator *core, const struct job *job, const char *text)
{
    struct text sentence;
    struct down_halt *halt = &core_message(core, job, DOWN_HALT)->u.halt;
    halt->step = job->halt.step;
    halt->kind = job->halt.kind;
    halt->has_rank = job->halt.has_rank;
    halt->rank = job->halt.rank;
    text_init(&sentence, halt->text, sizeof(halt->text));
    text_append(&sentence, "%s", text);
    if (job->halt.has_rank && job_worker(core, job, job->halt.rank)->vanished) {
        text_init(&sentence, halt->cause, sizeof(halt->cause));
        text_append(&sentence, "%s", job_worker(core, job, job->halt.rank)->heartbeat.failure);
    }
}

// A member that is behind obeys a verdict of its own generation only, in which ranks have other
// numbers.
static void verdict_send(struct coordinator *core, const struct job *job,
                         const struct worker *worker, const char *text)
{
    verdict_message(core, job, text);
    if (worker->behind) {
        core->out.generation = worker->hello.resume.generation;
        core->out.u.halt.has_rank = false;
    }
    core_send(core, worker);
}

void verdict_repeat(struct coordinator *core, const struct job *job, const struct worker *worker)
{
    verdict_send(core, job, worker, job->halt.text);
}

// Stores the verdict in the job, and sends it to every member.
static void verdict_tell(struct coordinator *core, struct job *job, const struct verdict *verdict)
{
    struct text sentence;
    rates_end(core, job);
    if (job->state != JOB_HALTED)
        job->ended_ms = core->now;
    job->state = JOB_HALTED;
    job->halt.kind = verdict->kind;
    job->halt.step = verdict->step;
    job->halt.has_rank = verdict->has_rank;
    job->halt.rank = verdict->rank;
    job->difference.active = false;
    job->learning.active = false;
    text_init(&sentence, job->halt.text, sizeof(job->halt.text));
    text_append(&sentence, "%s", verdict->text);
    for (uint32_t rank = 0; rank < job->count; rank++)
        verdict_send(core, job, job_worker(core, job, rank), verdict->text);
}

void verdict_halt(struct coordinator *core, struct job *job, const struct verdict *verdict)
{
    if (sides_tell(core, job, verdict->step))
        return; // The collective that differs was reported first, so it is the verdict.
    const bool again = job->state == JOB_HALTED && verdict->kind == job->halt.kind;
    stall_end(core, job, "a verdict has ended the generation");
    verdict_tell(core, job, verdict);
    if (!again)
        verdict_log(core, job, verdict);
}

void verdict_protocol(struct coordinator *core, struct worker *worker, const char *format, ...)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    va_list arguments;
    text_init(&sentence, text, sizeof(text));
    core_rank_name(&sentence, worker);
    text_append(&sentence, " ");
    va_start(arguments, format);
    text_append_v(&sentence, format, arguments);
    va_end(arguments);
    text_append(&sentence, "; this is misuse or a bug there: look at that rank first");
    const struct verdict verdict = {.kind = HALT_PROTOCOL, .text = text};
    verdict_halt(core, core_job_of(core, worker), &verdict);
    worker->lost = true;
    core_close(core, worker);
}

// ---- Leaving ---------------------------------------------------------------------------------

// Makes HALT_LEFT: leaver closed its session, and needer cannot go on without it from `step` on.
// The text has the failure that the leaver reported, if there is one.
static void verdict_left(struct coordinator *core, struct job *job, const struct worker *leaver,
                         const struct worker *needer, uint64_t step)
{
    const bool aborted = strncmp(leaver->left_cause, "aborted: ", 9) == 0;
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    core_rank_name(&sentence, leaver);
    text_append(&sentence, " closed its session while ");
    core_rank_name(&sentence, needer);
    if (step == 0)
        text_append(&sentence, " still needed it before the first step");
    else if (needer->started)
        text_append(&sentence, " still needed it in lockstep_start after step %" PRIu64, step - 1);
    else
        text_append(&sentence, " still needed it in step %" PRIu64, step);
    if (leaver->left_cause[0] != '\0')
        text_append(&sentence, ", after %s%s", aborted ? "it " : "", leaver->left_cause);
    else if (core->stopped_by[0] != '\0')
        text_append(&sentence, ": the job was stopped by %s", core->stopped_by);
    else
        text_append(&sentence, ": every rank must make the same steps and collectives");
    const struct verdict verdict = {
        .kind = HALT_LEFT, .step = step, .has_rank = true, .rank = leaver->rank, .text = text};
    verdict_halt(core, job, &verdict);
}

bool verdict_left_behind(struct coordinator *core, const struct worker *needer, uint64_t step)
{
    struct job *job = core_job_of(core, needer);
    for (uint32_t i = 0; job->left > 0 && i < job->count; i++) {
        const struct worker *leaver = job_worker(core, job, i);
        if (!leaver->left)
            continue;
        verdict_left(core, job, leaver, needer, step);
        return true;
    }
    return false;
}

// Returns a member that still needs the leaver, or NULL. The coordinator knows this of a member
// that is in lockstep_open with all links connected, or where ranks go on after a loss, and of one
// in lockstep_start or in a learning step. At other times the data plane notices it.
static const struct worker *verdict_needer(struct coordinator *core, const struct job *job,
                                           const struct worker *leaver)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (worker == leaver || worker->left || decision_removes(job, i))
            continue;
        if (job->learning.active || (job->state == JOB_STARTING && worker->started) ||
            (!job->tuned && (worker->linked || worker->hello.on_failure == FAILURE_CONTINUE)))
            return worker;
    }
    return NULL;
}

// True if each member has left, or is one that a ballot goes on without.
static bool verdict_is_over(struct coordinator *core, const struct job *job)
{
    for (uint32_t rank = 0; rank < job->count; rank++)
        if (!job_worker(core, job, rank)->left &&
            !(ballot_runs(job) && decision_removes(job, rank)))
            return false;
    return true;
}

static void verdict_member_left(struct coordinator *core, struct job *job, struct worker *worker)
{
    worker->left = true;
    job->left++;
    if (!job_running(job))
        return;
    if (verdict_is_over(core, job)) {
        ballot_reset(job);
        stall_end(core, job, "all ranks have left");
        rates_end(core, job);
        job->state = JOB_FINISHED;
        job->ended_ms = core->now;
        core_log(core, "job_finished", "job=%s generation=%" PRIu64, job->name, job->number);
        journal_note(core, job, "job_finished", "all ranks have left");
        return;
    }
    if (ballot_left(core, job, worker))
        return;
    const struct worker *needer = verdict_needer(core, job, worker);
    if (needer)
        verdict_left(core, job, worker, needer,
                     job->learning.active ? job->learning.step : job_start_step(job, needer));
}

// ended: there is proof that its process has ended, or it said that it ends.
static void verdict_forget_out(struct coordinator *core, struct worker *worker, bool ended)
{
    struct job *job = core_job_of(core, worker);
    if (ended)
        kin_ended(core, job, worker);
    job->outs--;
    core_worker_free(core, worker);
}

void verdict_leave(struct coordinator *core, struct worker *worker, const struct up_leave *leave)
{
    const enum stage stage = worker->stage;
    worker->goodbye = GOODBYE_NONE; // Its own word is there.
    if (leave->settled > worker->heartbeat.settled)
        worker->heartbeat.settled = leave->settled;
    if (stage != STAGE_OUT && leave->cause[0] != '\0')
        sentence_clean_lines(worker->left_cause, sizeof(worker->left_cause), leave->cause,
                             sizeof(leave->cause));
    if (stage == STAGE_MEMBER) {
        job_settled(core, core_job_of(core, worker), leave->settled);
        ballot_part(core_job_of(core, worker), leave);
    }
    core_close(core, worker);
    if (stage == STAGE_OUT)
        verdict_forget_out(core, worker, true);
    else
        verdict_member_left(core, core_job_of(core, worker), worker);
}

// ---- Losing ----------------------------------------------------------------------------------

// A member was lost: the others go on, or the generation ends.
static void verdict_on(struct coordinator *core, struct job *job, struct worker *worker,
                       const char *text)
{
    char longer[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    const char *why;
    if (ballot_suspect(core, job, worker, text, &why))
        return;
    text_init(&sentence, longer, sizeof(longer));
    text_append(&sentence, "%s%s%s", text, why ? "; " : "", why ? why : "");
    const struct verdict verdict = {
        .kind = HALT_LOST, .has_rank = true, .rank = worker->rank, .text = longer};
    verdict_halt(core, job, &verdict);
}

static void verdict_lost_text(struct coordinator *core, struct job *job, struct worker *worker,
                              const char *cause, enum advice advice)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    const bool stopped = core->stopped_by[0] != '\0'; // The user's signal is the cause.
    text_init(&sentence, text, sizeof(text));
    if (stopped)
        text_append(&sentence, "rank %" PRIu32 " on host %s has ended: the job was stopped by %s",
                    worker->rank, worker->hello.host, core->stopped_by);
    else
        advice_sentence(worker, cause, advice, &sentence);
    worker->lost = true;
    worker->vanished = advice_is_of_an_end(advice) && !stopped;
    verdict_on(core, job, worker, text);
}

// Makes the verdict on a link that is cut: both ranks are alive and connected to the coordinator,
// but one does not acknowledge the other's data.
static void verdict_cut(struct coordinator *core, struct job *job, const struct worker *worker,
                        struct worker *peer, const char *cause)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    names_link(&sentence, worker, peer);
    text_append(&sentence,
                " is cut: %s, and both ranks are alive; look at the network between these two "
                "hosts%s",
                cause, advice_again(worker));
    verdict_on(core, job, suspicion_loser(core, job, worker, peer), text);
}

// After a verdict members may end without a goodbye: only those that were lost before count as
// lost. The member has done its part of each step that is final on some rank.
static void verdict_ended_after(struct coordinator *core, struct job *job, struct worker *worker)
{
    if (worker->lost)
        return;
    if (worker->heartbeat.settled < job->settled)
        worker->heartbeat.settled = job->settled;
    verdict_member_left(core, job, worker);
}

void verdict_death(struct coordinator *core, struct worker *worker, const char *text)
{
    char cause[LOCKSTEP_TEXT_BYTES / 2];
    char clean[LOCKSTEP_TEXT_BYTES / 4];
    struct text sentence;
    struct job *job = core_job_of(core, worker);
    text_init(&sentence, cause, sizeof(cause));
    const enum advice advice = advice_of_silence(core, worker, &sentence);
    core_disconnect(core, worker);
    if (worker->stage == STAGE_OUT) {
        verdict_forget_out(core, worker, worker->dead);
        return;
    }
    if (!job_running(job)) {
        verdict_ended_after(core, job, worker);
        return;
    }
    worker->lost = true;
    sentence_clean(clean, sizeof(clean), !text ? "" : text, !text ? 1 : sizeof(clean));
    if (clean[0] != '\0')
        text_append(&sentence, " (%s)", clean);
    verdict_lost_text(core, job, worker, cause, advice);
}

void verdict_gone(struct coordinator *core, struct worker *worker)
{
    worker->dead = true;
    const bool away = worker->back.away_ms != 0;
    verdict_lost_text(core, core_job_of(core, worker), worker,
                      away ? "its control stream ended without a goodbye, and nothing listens at "
                             "its data port any more"
                           : "its links have ended, and nothing listens at its data port any more",
                      away ? ADVICE_ENDED : ADVICE_PARTED);
}

// In a ballot all links end. Otherwise the generation cannot go on without the link, so the ranks
// connect anew. If that has failed before, the link is cut.
void verdict_unproven(struct coordinator *core, struct worker *worker)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    struct job *job = core_job_of(core, worker);
    const struct worker *accuser = job_worker(core, job, worker->accused.by);
    if (ballot_runs(job))
        return;
    if (job->ballot.forming && worker->connected && !beat_frozen(core, worker, core->now)) {
        verdict_cut(core, job, accuser, worker, worker->accused.text);
        return;
    }
    text_init(&sentence, text, sizeof(text));
    names_link(&sentence, accuser, worker);
    text_append(&sentence, " has ended");
    names_step(&sentence, worker->accused.step);
    text_append(&sentence,
                " (%s), and nothing shows that a process has ended: the ranks connect anew",
                worker->accused.text);
    ballot_anew(core, job, worker->rank, text);
}

void verdict_missed(struct coordinator *core, struct worker *worker)
{
    char cause[LOCKSTEP_TEXT_BYTES / 2];
    struct text sentence;
    text_init(&sentence, cause, sizeof(cause));
    text_append(&sentence, "its control stream ended, and it has not come back for ");
    sentence_seconds(&sentence, core->now - worker->back.away_ms);
    verdict_lost_text(core, core_job_of(core, worker), worker, cause, ADVICE_SILENT);
}

// Sends the first verdict again with an earlier step, for a member that cannot finish this step.
// The verdict is not logged again.
static void verdict_again(struct coordinator *core, struct job *job, uint64_t step)
{
    char text[LOCKSTEP_TEXT_BYTES];
    memcpy(text, job->halt.text, sizeof(text));
    const struct verdict verdict = {job->halt.kind, step, job->halt.has_rank, job->halt.rank, text};
    verdict_tell(core, job, &verdict);
}

void verdict_parted(struct coordinator *core, struct worker *worker)
{
    char cause[LOCKSTEP_TEXT_BYTES / 2];
    struct text sentence;
    struct job *job = core_job_of(core, worker);
    core_disconnect(core, worker);
    resume_parted(core, job, worker);
    worker->dead = worker->goodbye == GOODBYE_LOST; // Takes no part any more.
    text_init(&sentence, cause, sizeof(cause));
    text_append(&sentence, "it gave up: %s", worker->left_cause);
    if (worker->dead)
        verdict_lost_text(core, job, worker, cause, ADVICE_SILENT);
    else
        verdict_member_left(core, job, worker);
}

// Another member has heard the goodbye of peer, which may not reach the coordinator.
static void verdict_goodbye(struct coordinator *core, const struct job *job, struct worker *peer,
                            const struct up_lost *lost)
{
    if (!job_running(job) || peer->left || peer->dead || peer->goodbye != GOODBYE_NONE)
        return;
    peer->goodbye = lost->left ? GOODBYE_LEFT : GOODBYE_LOST;
    if (peer->left_cause[0] == '\0')
        sentence_clean_lines(peer->left_cause, sizeof(peer->left_cause), lost->text,
                             sizeof(lost->text));
    if (peer->back.away_ms != 0)
        verdict_parted(core, peer);
}

// The lost peer has left, by its own goodbye or by that of the report. The LEAVE frame of the data
// plane may arrive before UP_LEAVE.
static void verdict_lost_leaver(struct coordinator *core, struct job *job, struct worker *peer,
                                const struct worker *worker, const struct up_lost *lost)
{
    if (lost->left && peer->left_cause[0] == '\0')
        sentence_clean_lines(peer->left_cause, sizeof(peer->left_cause), lost->text,
                             sizeof(lost->text));
    // No rank can finish a step after the last one that the leaver has settled.
    const uint64_t first_open = peer->heartbeat.settled + 1;
    const bool earlier = peer->left && peer->goodbye == GOODBYE_NONE && first_open < lost->step;
    verdict_left(core, job, peer, worker, earlier ? first_open : lost->step);
}

// The peer lives, but does not acknowledge what the witness sends.
static void verdict_lost_link(struct coordinator *core, struct job *job,
                              const struct worker *witness, struct worker *peer, uint64_t step)
{
    char cause[LOCKSTEP_TEXT_BYTES / 4];
    struct text sentence;
    text_init(&sentence, cause, sizeof(cause));
    if (step != 0)
        text_append(&sentence, "in step %" PRIu64 " ", step);
    text_append(&sentence, "nothing that rank %" PRIu32 " sends is acknowledged any more",
                witness->rank);
    verdict_cut(core, job, witness, peer, cause);
}

// A report that a peer is lost is one of: a goodbye of the peer, which another member passes on; no
// news; the end of a rank that has left; a link that is cut; a suspicion, which waits for a proof;
// a death.
void verdict_lost(struct coordinator *core, struct worker *worker, const struct up_lost *lost)
{
    char cause[LOCKSTEP_TEXT_BYTES / 2];
    struct text sentence;
    struct job *job = core_job_of(core, worker);
    if (lost->rank >= job->count || lost->rank == worker->rank) {
        verdict_protocol(core, worker, "lost rank %" PRIu32 ", which cannot be a peer of it",
                         lost->rank);
        return;
    }
    struct worker *peer = job_worker(core, job, lost->rank);
    if (lost->proof == PROOF_WORD && lost->step == UP_LOST_NEVER) {
        verdict_goodbye(core, job, peer, lost);
        return;
    }
    // After a verdict members close their links, so a lost peer is no new fact.
    if (job->state == JOB_HALTED) {
        verdict_again(core, job, lost->step);
        return;
    }
    // A ballot removes it already: a mate sees its process end, or a link to it cannot be made. The
    // data port of a rank that has left refuses connections, which is no news.
    if (peer->left && (ballot_runs(job) || lost->proof == PROOF_PORT))
        return;
    if (lost->left || peer->left) {
        verdict_lost_leaver(core, job, peer, worker, lost);
        return;
    }
    const struct worker *witness = names_witness(core, worker, lost);
    // If two ranks do not reach each other, one of them is removed, not both.
    if (lost->silent && decision_removes(job, witness->rank))
        return;
    if (lost->silent && peer->connected && !beat_frozen(core, peer, core->now)) {
        verdict_lost_link(core, job, witness, peer, lost->step);
        return;
    }
    peer->dead = peer->dead || lost->proof == PROOF_PROCESS || lost->proof == PROOF_PORT;
    if (!peer->dead && !lost->silent && !lost->impossible &&
        suspicion_awaits(core, witness, peer, lost))
        return;
    text_init(&sentence, cause, sizeof(cause));
    names_loss(core, &sentence, worker, lost);
    verdict_lost_text(core, job, peer, cause, advice_of_loss(witness, peer, lost));
}

// ---- Disagreements ---------------------------------------------------------------------------

void verdict_fail(struct coordinator *core, struct worker *worker, const struct up_fail *fail)
{
    char clean[LOCKSTEP_TEXT_BYTES];
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    if (fail->kind == HALT_NONE || fail->kind == HALT_LEFT) {
        verdict_protocol(core, worker, "reported a failure of kind %s, which is no disagreement",
                         verdict_kind_name(fail->kind));
        return;
    }
    if (fail->kind == HALT_COLLECTIVE && fail->form[0] != '\0' &&
        job_running(core_job_of(core, worker))) {
        sides_report(core, worker, fail);
        return;
    }
    sentence_clean_lines(clean, sizeof(clean), fail->text, sizeof(fail->text));
    text_init(&sentence, text, sizeof(text));
    core_rank_name(&sentence, worker);
    text_append(&sentence, ": %s", clean);
    // HALT_LOST: the reporter called lockstep_abort, so it is itself the lost rank.
    const struct verdict verdict = {.kind = fail->kind,
                                    .step = fail->step,
                                    .has_rank = fail->kind == HALT_LOST,
                                    .rank = fail->kind == HALT_LOST ? worker->rank : 0,
                                    .text = text};
    worker->lost = worker->lost || fail->kind == HALT_LOST;
    verdict_halt(core, core_job_of(core, worker), &verdict);
}
