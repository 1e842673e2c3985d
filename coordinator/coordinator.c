// SPDX-License-Identifier: Apache-2.0
//
// The one function of the core: finds the worker that an event is about, and passes the event to
// the file that decides. This file itself decides only which messages a worker may send at which
// stage. Runs on the caller's thread; pure.

#include "coordinator/coordinator.h"

#include "coordinator/ballot.h"
#include "coordinator/beat.h"
#include "coordinator/core.h"
#include "coordinator/crossing.h"
#include "coordinator/difference.h"
#include "coordinator/job.h"
#include "coordinator/join.h"
#include "coordinator/kin.h"
#include "coordinator/learning.h"
#include "coordinator/links.h"
#include "coordinator/names.h"
#include "coordinator/publish.h"
#include "coordinator/rates.h"
#include "coordinator/resume.h"
#include "coordinator/roster.h"
#include "coordinator/sentence.h"
#include "coordinator/sides.h"
#include "coordinator/suspicion.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"
#include "coordinator/verify.h"
#include "coordinator/waits.h"

size_t coordinator_bytes(void)
{
    return sizeof(struct coordinator);
}

static_assert(offsetof(struct coordinator, words) <= 88 * 1024 * 1024 &&
                  sizeof(struct coordinator) <= 344 * 1024 * 1024,
              "a small daemon stays small");

struct coordinator *coordinator_init(void *memory, const struct coordinator_config *config)
{
    // Writes only the fields that mark all others as unused, so most of the memory stays untouched.
    struct coordinator *core = memory;
    core->config = *config;
    if (core->config.heartbeat_ms == 0)
        core->config.heartbeat_ms = LOCKSTEP_HEARTBEAT_MS;
    if (core->config.stall_floor_ms == 0)
        core->config.stall_floor_ms = LOCKSTEP_STALL_FLOOR_MS;
    core->draining = false;
    core->stopped_by[0] = '\0';
    core->absence.job[0] = '\0';
    core->number_floor = 0;
    core->asked = 0;
    core->job_count = 0;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_JOBS; i++) {
        core->jobs[i].used = false;
        core->jobs[i].learning.words = core->words[i];
        core->jobs[i].ballot.records.words = core->records[i];
    }
    core->worker_top = 0;
    core->worker_free = CORE_NONE;
    memset(core->peers, 0, sizeof(core->peers));
    return core;
}

const char *core_kind_name(enum up_kind kind)
{
    switch (kind) {
    case UP_HELLO:
        return "hello";
    case UP_START:
        return "start";
    case UP_MANIFEST_PART:
        return "manifest part";
    case UP_READY:
        return "ready";
    case UP_WAIT:
        return "wait";
    case UP_LAYOUT_PART:
        return "layout part";
    case UP_END:
        return "end";
    case UP_HEARTBEAT:
        return "heartbeat";
    case UP_FAIL:
        return "fail";
    case UP_LOST:
        return "lost";
    case UP_LEAVE:
        return "leave";
    case UP_LINKS:
        return "links";
    case UP_BLOCKED:
        return "blocked";
    case UP_MODULES:
        return "modules";
    case UP_ANSWER:
        return "answer";
    case UP_REPLAN:
        return "replan";
    case UP_REACH:
        return "reach";
    case UP_RECORD_PART:
        return "record_part";
    case UP_REPORT:
        return "report";
    case UP_REFUSE:
        return "refuse";
    case UP_NONE:
        break;
    }
    return "an unknown message";
}

// ---- Messages --------------------------------------------------------------------------------

static void core_heartbeat_numbers(struct up_heartbeat *kept, const struct up_heartbeat *heartbeat)
{
    if (kept->metric_count > LOCKSTEP_MAX_METRICS)
        kept->metric_count = LOCKSTEP_MAX_METRICS;
    for (uint32_t i = 0; i < kept->metric_count; i++)
        sentence_clean(kept->metrics[i].name, sizeof(kept->metrics[i].name),
                       heartbeat->metrics[i].name, sizeof(heartbeat->metrics[i].name));
    if (kept->counter_count > LOCKSTEP_MAX_COUNTERS)
        kept->counter_count = LOCKSTEP_MAX_COUNTERS;
    for (uint32_t i = 0; i < kept->counter_count; i++)
        sentence_clean(kept->counters[i].name, sizeof(kept->counters[i].name),
                       heartbeat->counters[i].name, sizeof(heartbeat->counters[i].name));
}

static void core_heartbeat(struct coordinator *core, struct worker *worker,
                           const struct up_heartbeat *heartbeat)
{
    struct up_heartbeat *kept = &worker->heartbeat;
    worker->heard_ms = core->now;
    *kept = *heartbeat;
    sentence_clean(kept->mark, sizeof(kept->mark), heartbeat->mark, sizeof(heartbeat->mark));
    sentence_clean(kept->sleeps, sizeof(kept->sleeps), heartbeat->sleeps,
                   sizeof(heartbeat->sleeps));
    sentence_clean(kept->collective, sizeof(kept->collective), heartbeat->collective,
                   sizeof(heartbeat->collective));
    sentence_clean(kept->collective_detail, sizeof(kept->collective_detail),
                   heartbeat->collective_detail, sizeof(heartbeat->collective_detail));
    sentence_clean_lines(kept->failure, sizeof(kept->failure), heartbeat->failure,
                         sizeof(heartbeat->failure));
    if (kept->link_count > LOCKSTEP_LINKS_NAMED)
        kept->link_count = LOCKSTEP_LINKS_NAMED;
    if (kept->mate_count > LOCKSTEP_MATES_NAMED)
        kept->mate_count = LOCKSTEP_MATES_NAMED;
    if (kept->await.lack_count > LOCKSTEP_MAX_AWAITED)
        kept->await.lack_count = LOCKSTEP_MAX_AWAITED;
    if (kept->overdue_count > LOCKSTEP_OVERDUE_NAMED)
        kept->overdue_count = LOCKSTEP_OVERDUE_NAMED;
    core_heartbeat_numbers(kept, heartbeat);
}

static void core_member_heartbeat(struct coordinator *core, struct worker *worker,
                                  const struct up_heartbeat *heartbeat)
{
    const struct up_heartbeat last = worker->heartbeat;
    beat_heard(core, worker);
    core_heartbeat(core, worker, heartbeat);
    job_settled(core, core_job_of(core, worker), heartbeat->settled);
    stall_heartbeat(core, worker, &last);
    crossing_heartbeat(core, worker, &last.await);
    sides_heartbeat(core, worker, &last);
}

static void core_from_stranger(struct coordinator *core, coordinator_peer peer,
                               const struct up_message *message)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    if (message->kind == UP_HELLO) {
        join_hello(core, peer, message);
        return;
    }
    text_init(&sentence, text, sizeof(text));
    text_append(&sentence, "the first message of a stream must be a hello, this one was: %s",
                core_kind_name(message->kind));
    join_refuse(core, peer, REFUSAL_INVALID, text);
}

static void core_from_gatherer(struct coordinator *core, struct worker *worker,
                               const struct up_message *message)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    if (message->kind == UP_HEARTBEAT) {
        core_heartbeat(core, worker, &message->u.heartbeat);
        return;
    }
    if (message->kind == UP_LEAVE) {
        core_close(core, worker);
        join_forget(core, worker);
        return;
    }
    text_init(&sentence, text, sizeof(text));
    text_append(&sentence, "said %s before the world had formed; this is a bug in the worker",
                core_kind_name(message->kind));
    join_turn_away(core, worker, REFUSAL_INVALID, text);
}

// A message of a worker whose generation has ended. The worker may leave, or report that it cannot
// finish an earlier step than the verdict's.
static void core_from_ended(struct coordinator *core, struct worker *worker,
                            const struct up_message *message)
{
    struct job *job = core_job_of(core, worker);
    const bool present = worker->stage == STAGE_MEMBER;
    if (message->kind == UP_HEARTBEAT) {
        core_heartbeat(core, worker, &message->u.heartbeat);
        if (present) {
            job_settled(core, job, message->u.heartbeat.settled);
            rates_late(core, job);
        }
    } else if (message->kind == UP_LEAVE)
        verdict_leave(core, worker, &message->u.leave);
    else if (present && message->kind == UP_FAIL && message->u.fail.step < job->halt.step)
        verdict_fail(core, worker, &message->u.fail);
    else if (present && message->kind == UP_LOST && message->u.lost.step < job->halt.step)
        verdict_lost(core, worker, &message->u.lost);
    else
        job->dropped_total++;
}

static void core_from_member(struct coordinator *core, struct worker *worker,
                             const struct up_message *message)
{
    core_job_of(core, worker)->messages_total += message->kind != UP_HEARTBEAT;
    switch (message->kind) {
    case UP_START:
        verify_start(core, worker, &message->u.start);
        return;
    case UP_MANIFEST_PART:
        difference_part(core, worker, &message->u.manifest_part);
        return;
    case UP_READY:
        learning_ready(core, worker, &message->u.ready);
        return;
    case UP_WAIT:
        learning_wait(core, worker, &message->u.wait);
        return;
    case UP_LAYOUT_PART:
        publish_layout(core, worker, &message->u.layout_part);
        return;
    case UP_END:
        learning_end(core, worker, &message->u.end);
        return;
    case UP_HEARTBEAT:
        core_member_heartbeat(core, worker, &message->u.heartbeat);
        return;
    case UP_FAIL:
        verdict_fail(core, worker, &message->u.fail);
        return;
    case UP_LOST:
        verdict_lost(core, worker, &message->u.lost);
        return;
    case UP_LEAVE:
        crossing_forget(core_job_of(core, worker), worker);
        verdict_leave(core, worker, &message->u.leave);
        return;
    case UP_LINKS:
        links_reported(core, worker, &message->u.links);
        return;
    case UP_BLOCKED:
        waits_blocked(core, worker, &message->u.blocked);
        return;
    case UP_MODULES:
        names_told(core, worker, &message->u.modules);
        return;
    case UP_ANSWER:
        stall_answer(core, worker, &message->u.answer);
        return;
    case UP_REPLAN:
        publish_again(core, worker, &message->u.replan);
        return;
    case UP_REACH:
        roster_reach(core, worker, &message->u.reach);
        return;
    case UP_RECORD_PART:
        ballot_record(core, worker, &message->u.record_part);
        return;
    case UP_REPORT:
        ballot_report(core, worker, &message->u.report);
        return;
    case UP_REFUSE:
        ballot_refuse(core, worker, &message->u.refuse);
        return;
    case UP_HELLO:
        verdict_protocol(core, worker, "sent a second hello on its stream");
        return;
    case UP_NONE:
        break;
    }
    verdict_protocol(core, worker, "sent a message of the unknown kind %d", (int)message->kind);
}

static bool core_is_of_ballots(enum up_kind kind)
{
    return kind == UP_RECORD_PART || kind == UP_REPORT || kind == UP_REFUSE || kind == UP_HEARTBEAT;
}

// True if the message is of the worker's generation, or may have any generation: UP_LEAVE, a hello
// sent twice by mistake, and a heartbeat that was sent before the worker knew its generation. A
// worker that is behind only takes part in ballots.
static bool core_generation_fits(const struct coordinator *core, const struct worker *worker,
                                 const struct up_message *message)
{
    if (message->kind == UP_LEAVE || message->kind == UP_HELLO || message->kind == UP_NONE)
        return true;
    if (message->kind == UP_HEARTBEAT && message->generation.number == 0)
        return true;
    if (worker->behind)
        return core_is_of_ballots(message->kind);
    return message->generation.number == worker->generation &&
           message->generation.incarnation == core->jobs[worker->job].resuming.incarnation;
}

// A member that is behind has a proof of death. It names ranks of its own generation.
static void core_proof_from_behind(struct coordinator *core, struct worker *worker,
                                   const struct up_lost *lost)
{
    struct up_lost same = *lost;
    struct job *job = core_job_of(core, worker);
    if (lost->proof == PROOF_NONE || !job_running(job))
        return;
    same.rank = kin_dead(job, worker, lost->rank);
    if (same.rank != CORE_NONE)
        verdict_lost(core, worker, &same);
    else
        ballot_tick(core, job); // A quorum may be there now.
}

// A message of another generation. A heartbeat still says that the process lives: while the links
// of a generation are made, its members have no later one.
static void core_from_before(struct coordinator *core, struct worker *worker,
                             const struct up_message *message)
{
    if (message->kind != UP_HEARTBEAT || worker->stage != STAGE_MEMBER) {
        core_job_of(core, worker)->dropped_total++;
        return;
    }
    beat_heard(core, worker);
    worker->heard_ms = core->now;
}

static void core_message_arrived(struct coordinator *core, coordinator_peer peer,
                                 const struct up_message *message)
{
    struct worker *worker = table_worker(core, peer);
    if (!worker)
        core_from_stranger(core, peer, message);
    else if (worker->stage == STAGE_GATHERING)
        core_from_gatherer(core, worker, message);
    else if (worker->behind && message->kind == UP_LOST)
        core_proof_from_behind(core, worker, &message->u.lost);
    else if (!core_generation_fits(core, worker, message))
        core_from_before(core, worker, message);
    else if (worker->stage == STAGE_OUT || !job_running(core_job_of(core, worker)))
        core_from_ended(core, worker, message);
    else
        core_from_member(core, worker, message);
}

static void core_stream_ended(struct coordinator *core, const struct coordinator_event *event)
{
    struct worker *worker = table_worker(core, event->peer);
    if (!worker)
        return;
    if (worker->stage == STAGE_GATHERING) {
        join_forget(core, worker);
    } else if (worker->goodbye != GOODBYE_NONE && job_running(core_job_of(core, worker))) {
        verdict_parted(core, worker);
    } else if (event->proven || !resume_away(core, worker)) {
        worker->dead = worker->dead || event->proven;
        verdict_death(core, worker, event->text);
    }
}

static void core_tick(struct coordinator *core)
{
    for (uint32_t i = 0; i < core->job_count; i++) {
        struct job *job = &core->jobs[core->job_order[i]];
        if (job->state == JOB_GATHERING)
            join_tick(core, job);
        else if (job->state == JOB_STARTING)
            difference_tick(core, job);
        crossing_tick(core, job);
        sides_tick(core, job);
        stall_tick(core, job);
        resume_tick(core, job);
        ballot_tick(core, job);
        suspicion_tick(core, job);
    }
}

void coordinator_step(struct coordinator *coordinator, const struct coordinator_event *event,
                      uint64_t now_ms, struct coordinator_sink sink)
{
    coordinator->sink = sink;
    coordinator->now = now_ms;
    coordinator->entropy = event->entropy;
    coordinator->origin = event->origin;
    coordinator->formed = false;
    switch (event->kind) {
    case EVENT_MESSAGE:
        core_message_arrived(coordinator, event->peer, event->message);
        break;
    case EVENT_CLOSED:
        core_stream_ended(coordinator, event);
        break;
    case EVENT_PROBED:
        resume_probed(coordinator, event);
        break;
    case EVENT_TICK:
        core_tick(coordinator);
        break;
    case EVENT_DRAIN:
        join_drain(coordinator);
        break;
    case EVENT_STOPPING:
        sentence_clean(coordinator->stopped_by, sizeof(coordinator->stopped_by), event->text,
                       sizeof(coordinator->stopped_by));
        break;
    case EVENT_ABSENT:
        join_absent(coordinator, event->job, event->text);
        break;
    case EVENT_ASK:
        stall_asked(coordinator, event->job, event->rank, event->what);
        break;
    }
}

uint64_t coordinator_deadline(const struct coordinator *coordinator)
{
    uint64_t deadline = UINT64_MAX;
    for (uint32_t i = 0; i < coordinator->job_count; i++) {
        const struct job *job = &coordinator->jobs[coordinator->job_order[i]];
        uint64_t own = UINT64_MAX;
        if (job->state == JOB_GATHERING)
            own = job->gathering.deadline_ms;
        else if (job->state == JOB_STARTING && job->difference.active)
            own = job->difference.deadline_ms;
        if (crossing_deadline(job) < own)
            own = crossing_deadline(job);
        if (sides_deadline(job) < own)
            own = sides_deadline(job);
        if (stall_deadline(job) < own)
            own = stall_deadline(job);
        if (job_running(job) && job->resuming.due_ms < own)
            own = job->resuming.due_ms;
        if (ballot_deadline(job) < own)
            own = ballot_deadline(job);
        if (suspicion_deadline(job) < own)
            own = suspicion_deadline(job);
        if (own < deadline)
            deadline = own;
    }
    return deadline;
}

// ---- The worker of a stream -------------------------------------------------------------------

bool coordinator_peer_view(const struct coordinator *coordinator, coordinator_peer peer,
                           struct peer_view *view)
{
    const uint16_t entry = coordinator->peers[table_find(coordinator, peer)];
    memset(view, 0, sizeof(*view));
    if (entry == 0 || coordinator->workers[entry - 1].stage != STAGE_MEMBER)
        return false;
    const struct worker *worker = &coordinator->workers[entry - 1];
    memcpy(view->job, coordinator->jobs[worker->job].name, sizeof(view->job));
    view->generation = worker->generation;
    view->incarnation = coordinator->jobs[worker->job].resuming.incarnation;
    view->rank = worker->rank;
    memcpy(view->host, worker->hello.host, sizeof(view->host));
    view->pid = worker->hello.pid;
    view->asked = worker->asked.id;
    return true;
}

const char *coordinator_job_state_name(enum job_state state)
{
    switch (state) {
    case JOB_GATHERING:
        return "gathering";
    case JOB_STARTING:
        return "starting";
    case JOB_RUNNING:
        return "running";
    case JOB_HALTED:
        return "halted";
    case JOB_FINISHED:
        return "finished";
    case JOB_RESUMING:
        return "resuming";
    }
    return "unknown";
}
