// SPDX-License-Identifier: Apache-2.0
//
// Members whose streams end and come back, and jobs that outlive their coordinator. Runs inside
// coordinator_step.
//
// The end of a stream is silence, not a death (rule M4 of membership). The member is *away*: it
// stays a member, its job goes on, and stalls that it causes are found as before. Death is proven
// by a refusal of the member's data port, by another member (UP_LOST), or by the launcher. A
// refusal counts only if a probe has reached that port before, because a firewall may refuse, too.
// While a member is away its port is probed again and again.
//
// The port of a member that has closed its session refuses, too, and this coordinator may not have
// heard the goodbye: after 30 seconds of silence the member's stream has ended. Other members have
// heard it, and tell it (absence_tell_goodbyes in worker/engine). So a refusal counts only when
// each of them is here and has had time for that, or when another member has lost a link to this
// one without a goodbye.
//
// A member comes back with a hello that says `resumes`. To a coordinator that knows its generation
// it proves itself by its uuid and rank, and gets again what it may have missed: the verdict, if
// the generation has ended; DOWN_VERIFIED; what it lacks of a learning step.
//
// A coordinator that does not know the generation has restarted. It rebuilds the job from what the
// members say: the first one that comes back brings the generation and the size of the world. The
// members that have not come back are *unseen*. Meanwhile members train, heartbeats count, and a
// learning step waits for all members as it always does. Generation numbers, plan numbers and
// rounds go on. The job keeps the incarnation of the coordinator that formed its generation. An
// unseen member has left if another one tells its goodbye, or if all others have left and it has
// not come for LOCKSTEP_BALLOT_ELSEWHERE_MS.
//
// A living generation is worth more than workers that gather under its name: these are sent away
// and come again. A new world may take the name of a job of which no member is connected for
// LOCKSTEP_AWAY_MS, or for LOCKSTEP_BALLOT_AWAY_MS if some have left. Members that come back
// afterwards are refused.
//
// Two coordinators of one job may be alive, each with some of its members: kin.c has what the
// generation of a member is to the job's, and divided.c how the members meet.

#include "coordinator/resume.h"

#include "coordinator/ballot.h"
#include "coordinator/core.h"
#include "coordinator/crossing.h"
#include "coordinator/decision.h"
#include "coordinator/divided.h"
#include "coordinator/gathering.h"
#include "coordinator/job.h"
#include "coordinator/join.h"
#include "coordinator/journal.h"
#include "coordinator/kin.h"
#include "coordinator/lineage.h"
#include "coordinator/relearn.h"
#include "coordinator/roster.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/stall.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"
#include "coordinator/verify.h"

// ---- Away --------------------------------------------------------------------------------------

void resume_ask_port(struct coordinator *core, const struct worker *worker)
{
    const struct coordinator_action action = {
        .kind = ACTION_PROBE, .peer = worker->peer, .text = worker->hello.address};
    if (worker->hello.address[0] != '\0')
        core->sink.action(core->sink.context, &action);
}

void resume_probe_all(struct coordinator *core, struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++)
        if (job_worker(core, job, i)->connected && !job_worker(core, job, i)->back.reached)
            resume_ask_port(core, job_worker(core, job, i));
}

// The stream of a member has ended: seeks a proof of its death.
static void resume_seek_proof(struct coordinator *core, struct job *job, struct worker *worker)
{
    core_disconnect(core, worker);
    worker->asked.id = 0;
    worker->blocked.wait_count = 0; // Its waits may time out now.
    worker->back.away_ms = core->now;
    worker->back.refused_ms = 0;
    worker->back.probe_ms = core->now + LOCKSTEP_PROBE_SOON_MS;
    if (worker->back.probe_ms < job->resuming.due_ms)
        job->resuming.due_ms = worker->back.probe_ms;
    resume_ask_port(core, worker);
}

bool resume_away(struct coordinator *core, struct worker *worker)
{
    struct job *job = core_job_of(core, worker);
    if (worker->stage != STAGE_MEMBER || !job_running(job) || core->stopped_by[0] != '\0')
        return false;
    // While the first world connects, a member whose stream ends gives up, but for a frozen one.
    if (!job->tuned && !job->ballot.forming && !ballot_runs(job)) {
        worker->dead = true;
        return false;
    }
    resume_seek_proof(core, job, worker);
    journal_note(core, job, "worker_away",
                 "the control stream of rank %" PRIu32 " has ended; the rank may come back",
                 worker->rank);
    core_log(core, "worker_away", "job=%s generation=%" PRIu64 " rank=%" PRIu32, job->name,
             job->number, worker->rank);
    return true;
}

// Returns the worker that was probed: a connected one, or a member that is away.
static struct worker *resume_probed_worker(struct coordinator *core, coordinator_peer peer)
{
    struct worker *worker = table_worker(core, peer);
    for (uint32_t i = 0; !worker && i < core->worker_top; i++) {
        struct worker *other = &core->workers[i];
        if (other->stage == STAGE_MEMBER && other->back.away_ms != 0 && other->peer == peer)
            worker = other;
    }
    return worker;
}

// True if this member may know a goodbye that was said before `since_ms`, and has not told it yet.
static bool resume_may_tell(const struct worker *worker, uint64_t since_ms)
{
    if (worker->left || worker->dead || worker->back.refused_ms != 0)
        return false;
    const uint64_t from_ms = worker->back.came_ms > since_ms ? worker->back.came_ms : since_ms;
    return !worker->connected || worker->heard_ms < from_ms + 2 * LOCKSTEP_GOODBYE_MS;
}

// True if the closed port of the member is a proof of its death. A ballot goes on without it in any
// case.
static bool resume_is_gone(struct coordinator *core, const struct job *job,
                           const struct worker *worker)
{
    const uint64_t since_ms = worker->back.refused_ms;
    if (worker->accused.until_ms != 0 || ballot_runs(job) ||
        core->now >= since_ms + LOCKSTEP_BALLOT_AWAY_MS)
        return true;
    for (uint32_t rank = 0; rank < job->count; rank++)
        if (resume_may_tell(job_worker(core, job, rank), since_ms))
            return false;
    return true;
}

void resume_probed(struct coordinator *core, const struct coordinator_event *event)
{
    struct worker *worker = resume_probed_worker(core, event->peer);
    if (!worker || worker->stage != STAGE_MEMBER)
        return;
    worker->back.reached = worker->back.reached || event->reached;
    const bool awaited = worker->back.away_ms != 0 || worker->accused.until_ms != 0;
    struct job *job = core_job_of(core, worker);
    if (!awaited || !event->refused || !worker->back.reached || !job_running(job))
        return;
    if (worker->back.refused_ms == 0)
        worker->back.refused_ms = core->now;
    if (resume_is_gone(core, job, worker))
        verdict_gone(core, worker);
    else if (core->now + LOCKSTEP_PROBE_SOON_MS < job->resuming.due_ms)
        job->resuming.due_ms = core->now + LOCKSTEP_PROBE_SOON_MS;
}

// True if a ballot has waited for the member long enough. A coordinator of which the members can go
// elsewhere removes none that it needs: the other coordinator may have it.
static bool resume_misses(struct coordinator *core, struct job *job, const struct worker *worker)
{
    const bool elsewhere = divided_is_possible(core, job);
    const uint64_t bound_ms = elsewhere ? LOCKSTEP_BALLOT_ELSEWHERE_MS : LOCKSTEP_BALLOT_AWAY_MS;
    if (!ballot_runs(job) || decision_removes(job, worker->rank) ||
        core->now < worker->back.away_ms + bound_ms)
        return false;
    return ballot_suffices(core, job) || !elsewhere;
}

// A coordinator that was stopped has not waited: no member could come to it. Nobody has missed a
// member that this coordinator never saw until a ballot needs it.
static void resume_stopped(const struct coordinator *core, const struct job *job,
                           struct worker *worker, uint64_t late_ms)
{
    struct comeback *back = &worker->back;
    if (back->unseen && ballot_runs(job) && job->ballot.began_ms > back->away_ms)
        back->away_ms = job->ballot.began_ms;
    back->away_ms += late_ms;
    if (back->away_ms > core->now)
        back->away_ms = core->now;
    if (back->refused_ms != 0)
        back->refused_ms =
            back->refused_ms + late_ms < core->now ? back->refused_ms + late_ms : core->now;
}

// Looks at a member that is away. Returns when that is due again.
static uint64_t resume_look(struct coordinator *core, struct worker *worker)
{
    struct comeback *back = &worker->back;
    if (back->unseen) {
        back->probe_ms = core->now + LOCKSTEP_PROBE_MS; // Its address is not known.
    } else if (core->now >= back->probe_ms) {
        back->probe_ms = core->now + LOCKSTEP_PROBE_MS;
        resume_ask_port(core, worker);
    }
    const uint64_t soon_ms = core->now + LOCKSTEP_PROBE_SOON_MS;
    return back->refused_ms != 0 && !worker->dead && soon_ms < back->probe_ms ? soon_ms
                                                                              : back->probe_ms;
}

// The members that have come to this coordinator have left since, and the others do not come: they
// have left, too, without a coordinator. One that lives may be with a coordinator that is stopped.
static void resume_desert(struct coordinator *core, struct job *job)
{
    if (job->left == 0 || job->left + job->resuming.unseen < job->count ||
        !resume_deserted(core, job))
        return;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        const struct worker *worker = job_worker(core, job, rank);
        if (worker->back.unseen && core->now < worker->back.away_ms + LOCKSTEP_BALLOT_ELSEWHERE_MS)
            return;
    }
    for (uint32_t rank = 0; rank < job->count && job_running(job); rank++) {
        struct worker *worker = job_worker(core, job, rank);
        if (!worker->back.unseen)
            continue;
        worker->goodbye = GOODBYE_LEFT;
        verdict_parted(core, worker);
    }
}

void resume_tick(struct coordinator *core, struct job *job)
{
    uint64_t next = UINT64_MAX;
    struct worker *missed = NULL;
    struct worker *gone = NULL;
    if (!job_running(job) || core->now < job->resuming.due_ms)
        return;
    const uint64_t late_ms = core->now - job->resuming.due_ms;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = job_worker(core, job, rank);
        if (worker->back.away_ms == 0)
            continue;
        resume_stopped(core, job, worker, late_ms);
        const uint64_t due_ms = resume_look(core, worker);
        if (worker->back.refused_ms != 0 && !worker->dead && resume_is_gone(core, job, worker))
            gone = worker;
        else if (resume_misses(core, job, worker))
            missed = worker;
        if (due_ms < next)
            next = due_ms;
    }
    if (next != UINT64_MAX) { // A member is away.
        const uint64_t divided_ms = divided_tick(core, job);
        if (divided_ms < next)
            next = divided_ms;
    }
    job->resuming.due_ms = next;
    if (gone)
        verdict_gone(core, gone);
    else if (missed)
        verdict_missed(core, missed);
    else
        resume_desert(core, job);
}

bool resume_deserted(const struct coordinator *core, const struct job *job)
{
    // When others have left, a member that comes back has at most one step to end.
    const uint64_t bound_ms = job->left > 0 ? LOCKSTEP_BALLOT_AWAY_MS : LOCKSTEP_AWAY_MS;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = &core->workers[job->workers[i]];
        if (worker->connected || (!worker->left && core->now < worker->back.away_ms + bound_ms))
            return false;
    }
    return true;
}

// ---- What a returning member says ---------------------------------------------------------------

static void resume_refuse(struct coordinator *core, coordinator_peer peer, enum refusal refusal,
                          const struct up_hello *hello, const char *why)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    text_append(&sentence,
                "the worker on %s (pid %" PRIu32 ") wants to go on as rank %" PRIu32
                " of generation %" PRIu64 " of job '%s', but %s",
                hello->host, hello->pid, hello->resume.rank, hello->resume.generation.number,
                hello->job, why);
    join_refuse(core, peer, refusal, text);
}

// True if the job's last generation is the one that the member names.
static bool resume_knows(const struct job *job, const struct up_resume *resume)
{
    return job->number == resume->generation.number &&
           job->resuming.incarnation == resume->generation.incarnation;
}

// Returns why a member of the job's last generation is refused, or NULL.
static const char *resume_fault(const struct worker *worker, const struct up_hello *hello)
{
    if (!worker->back.unseen && memcmp(&worker->hello.uuid, &hello->uuid, sizeof(hello->uuid)) != 0)
        return "that rank belongs to another worker";
    if (worker->left)
        return "that rank has closed its session";
    return NULL;
}

// ---- Coming back --------------------------------------------------------------------------------

// A member is unseen no more. leaves: because it has left.
static void resume_seen(struct coordinator *core, struct job *job, bool leaves)
{
    if (--job->resuming.unseen > 0)
        return;
    roster_restored(core, job);
    journal_log(core, job, "job_resumed",
                "all %" PRIu32 " ranks of generation %" PRIu64
                " have come back to this coordinator%s; the last settled step is %" PRIu64,
                job->count, job->number, leaves || job->left > 0 ? ", or have left" : "",
                job->settled);
}

void resume_parted(struct coordinator *core, struct job *job, struct worker *worker)
{
    worker->back.away_ms = 0;
    if (worker->heartbeat.settled < job->settled)
        worker->heartbeat.settled = job->settled; // It has done its part of each final step.
    if (!worker->back.unseen || worker->goodbye == GOODBYE_LOST)
        return; // A verdict or a decision follows about one that is lost.
    worker->back.unseen = false;
    resume_seen(core, job, true);
}

// Stores how far the member is.
static void resume_progress(struct coordinator *core, struct job *job, struct worker *worker)
{
    const struct up_resume *resume = &worker->hello.resume;
    struct comeback *back = &worker->back;
    back->rounds = resume->rounds;
    back->starts = resume->starting;
    if (resume->rounds > job->rounds) {
        job->rounds = resume->rounds;
        job->state = JOB_RUNNING;
        job->zero_defer = resume->start.zero_defer;
        verify_passed(core, job);
    }
    job->strict = job->strict || resume->start.strict;
    if (!worker->started)
        worker->start = resume->start;
    if (resume->settled > worker->heartbeat.settled)
        worker->heartbeat.settled = resume->settled;
    job_settled(core, job, resume->settled);
    if (resume->plan_number > job->learning.plan_number)
        job->learning.plan_number = resume->plan_number;
}

static void resume_announce(struct coordinator *core, struct job *job, const struct worker *worker,
                            bool unseen)
{
    if (!unseen) {
        journal_note(core, job, "worker_back", "rank %" PRIu32 " has come back", worker->rank);
        core_log(core, "worker_back", "job=%s generation=%" PRIu64 " rank=%" PRIu32, job->name,
                 job->number, worker->rank);
        return;
    }
    roster_seen(core, job, worker->rank);
    resume_seen(core, job, false);
}

static void resume_welcome(struct coordinator *core, const struct job *job,
                           const struct worker *worker)
{
    struct down_welcome *welcome = &core_message(core, job, DOWN_WELCOME)->u.welcome;
    core->out.generation = worker->hello.resume.generation;
    welcome->version = LOCKSTEP_PROTOCOL_VERSION;
    welcome->heartbeat_ms = core->config.heartbeat_ms;
    core_send(core, worker);
}

// A proof that the process is dead stays (M4): the hello may have been on its way.
static void resume_return(struct coordinator *core, struct job *job, struct worker *worker,
                          coordinator_peer peer, const struct up_hello *hello)
{
    const bool unseen = worker->back.unseen;
    core_close(core, worker); // The server may not have seen the end of the old stream yet.
    worker->hello = *hello;
    worker->heard_ms = core->now;
    worker->asked.id = 0;
    worker->blocked.wait_count = 0; // It says again what it still waits for.
    crossing_forget(job, worker);
    worker->back = (struct comeback){.came_ms = core->now, .reached = worker->back.reached};
    worker->generation = hello->resume.generation.number;
    worker->behind = !resume_knows(job, &hello->resume);
    core_reconnect(core, worker, peer);
    resume_welcome(core, job, worker);
    if (job->state == JOB_HALTED) {
        verdict_repeat(core, job, worker);
        return;
    }
    resume_progress(core, job, worker);
    resume_announce(core, job, worker, unseen);
    resume_ask_port(core, worker);
    relearn_resumed(core, worker);
    ballot_resumed(core, worker);
}

// ---- A job that this coordinator does not know -------------------------------------------------

// Makes the members of a generation that this coordinator has not formed. All are unseen.
static void resume_fill(struct coordinator *core, struct job *job, const struct up_hello *hello,
                        const uint16_t *workers)
{
    const struct up_resume *resume = &hello->resume;
    job->number = resume->generation.number;
    job->resuming.incarnation = resume->generation.incarnation;
    lineage_adopt(job, resume);
    job->state = JOB_STARTING;
    job->count = resume->world_size;
    job->gathering.world_min = hello->world_min;
    job->gathering.world_max = hello->world_max;
    job->gathering.window_ms = hello->window_ms;
    job->gathering.origin = core->origin;
    job->linked = job->count;
    job->tuned = true;
    job->tuning = resume->tuning;
    job->formed_ms = 0;
    job->resuming.unseen = job->count;
    job->resuming.due_ms = core->now + LOCKSTEP_PROBE_MS;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = &core->workers[workers[rank]];
        job->workers[rank] = workers[rank];
        worker->stage = STAGE_MEMBER;
        worker->job = (uint16_t)(job - core->jobs);
        worker->rank = rank;
        worker->generation = job->number;
        worker->linked = true;
        worker->heard_ms = core->now;
        worker->back.away_ms = core->now;
        worker->back.unseen = true;
        worker->hello.on_failure = hello->on_failure; // Equal on all ranks.
        sentence_clean(worker->hello.host, sizeof(worker->hello.host), "unknown",
                       sizeof("unknown"));
    }
    stall_reset(job);
    journal_log(core, job, "job_resuming",
                "rank %" PRIu32 " of %" PRIu32 " of generation %" PRIu64
                " was formed by another coordinator and has come to this one",
                resume->rank, job->count, job->number);
}

// A rank that was removed comes back on another stream: nothing is said once (M7). If it has
// promised more than the others run in, it does not obey (M6). If the others cannot decide while it
// lives, it is told the ballot that it promised: in no generation of that ballot, or of a lower
// one, has anything become final, because this rank has not started it.
static void resume_removed(struct coordinator *core, struct job *job, coordinator_peer peer,
                           const struct up_hello *hello, uint32_t member)
{
    struct generation_id now = {.number = job->number, .incarnation = job->resuming.incarnation};
    const struct coordinator_action close = {.kind = ACTION_CLOSE, .peer = peer};
    const bool outranks = generation_compare(&hello->resume.promised, &now) > 0;
    const bool lacked = outranks && ballot_lacks(core, job, member);
    if (lacked)
        now = hello->resume.promised;
    kin_exclude(core, peer, hello->resume.generation, now,
                job->ballot.text[0] != '\0' ? job->ballot.text
                                            : "a later generation of the job goes on");
    core_log(core, "worker_excluded", "job=%s generation=%" PRIu64 " rank=%" PRIu32, job->name,
             hello->resume.generation.number, hello->resume.rank);
    if (outranks && !lacked)
        ballot_outranked(core, job, hello->resume.promised);
    else if (kin_seat_removed(core, job, peer, hello, member))
        return;
    core->sink.action(core->sink.context, &close);
}

// Returns the job for a generation that this coordinator does not know, or NULL: the hello was
// refused.
static struct job *resume_rebuild(struct coordinator *core, coordinator_peer peer,
                                  const struct up_hello *hello)
{
    uint16_t workers[LOCKSTEP_MAX_WORLD];
    if (!core_workers_absent(core, hello->resume.world_size, workers)) {
        resume_refuse(core, peer, REFUSAL_FULL, hello,
                      "this coordinator has no room for its world");
        return NULL;
    }
    struct job *job = job_find(core, hello->job);
    while (job && job->state == JOB_GATHERING && job->count > 0)
        join_turn_away(core, job_worker(core, job, job->count - 1), REFUSAL_DRAINING,
                       "a world of this job is running; it can be joined when that has ended");
    if (job)
        gathering_again(core, job);
    else
        job = gathering_create(core, hello->job);
    if (!job) {
        core_workers_free(core, workers, hello->resume.world_size);
        resume_refuse(core, peer, REFUSAL_FULL, hello, "this coordinator has no room for its job");
        return NULL;
    }
    resume_fill(core, job, hello, workers);
    return job;
}

// ---- Hello -------------------------------------------------------------------------------------

// Returns why the member cannot be of the job as this coordinator knows it, or NULL.
static const char *resume_conflict(const struct job *job, const struct up_hello *hello)
{
    const struct up_resume *resume = &hello->resume;
    const bool known = resume_knows(job, resume);
    if (known && (job->state == JOB_GATHERING || job->state == JOB_FINISHED))
        return "that generation has ended";
    if (!known && job_running(job))
        return "that job is running as another generation";
    if (!known && job->resuming.incarnation == resume->generation.incarnation &&
        job->number > resume->generation.number)
        return "a later generation of that job has ended already";
    if (known && job->count != resume->world_size)
        return "the world has another size";
    return NULL;
}

static void resume_take_back(struct coordinator *core, struct job *job, uint32_t rank,
                             coordinator_peer peer, const struct up_hello *hello)
{
    struct worker *worker = job_worker(core, job, rank);
    const char *why = resume_fault(worker, hello);
    if (why)
        resume_refuse(core, peer, REFUSAL_INVALID, hello, why);
    else
        resume_return(core, job, worker, peer, hello);
}

// The member's generation can be compared with the job's.
static void resume_kin(struct coordinator *core, struct job *job, coordinator_peer peer,
                       const struct up_hello *hello, enum kinship kinship)
{
    const struct up_resume *resume = &hello->resume;
    const struct lineage *own = &resume->chain[resume->chain_count - 1];
    const char *why = NULL;
    if (kinship == KIN_AHEAD)
        why = kin_adopt(core, job, hello);
    else if (!lineage_join(job, resume))
        why = "too many of its generations are open";
    if (why)
        resume_refuse(core, peer, REFUSAL_FULL, hello, why);
    else if (kinship == KIN_REMOVED)
        resume_removed(core, job, peer, hello, lineage_member(own, resume->rank));
    else
        resume_take_back(core, job,
                         lineage_rank(lineage_newest(job), lineage_member(own, resume->rank)), peer,
                         hello);
}

void resume_hello(struct coordinator *core, coordinator_peer peer, const struct up_hello *hello)
{
    const struct up_resume *resume = &hello->resume;
    struct job *job = job_find(core, hello->job);
    const char *why = NULL;
    if (core->draining) {
        resume_refuse(core, peer, REFUSAL_DRAINING, hello, "the coordinator is going down");
        return;
    }
    if (resume->generation.number == 0 || resume->rank >= resume->world_size ||
        resume->world_size > LOCKSTEP_MAX_WORLD || !kin_is_coherent(resume))
        why = "there is no such rank";
    const enum kinship kinship = why ? KIN_UNKNOWN : kin_of(job, hello);
    if (kinship != KIN_UNKNOWN) {
        resume_kin(core, job, peer, hello, kinship);
        return;
    }
    if (!why && job)
        why = resume_conflict(job, hello);
    if (why) {
        resume_refuse(core, peer, REFUSAL_INVALID, hello, why);
        return;
    }
    if (!job || !resume_knows(job, resume))
        job = resume_rebuild(core, peer, hello);
    if (job)
        resume_take_back(core, job, resume->rank, peer, hello);
}
