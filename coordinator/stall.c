// SPDX-License-Identifier: Apache-2.0
//
// Standstills: who is in the way of the others, and since when. Heartbeats and time go in; one
// stall of a job at a time, questions to its culprits and lines of logs come out. It ends nothing:
// a stall is something to look at, not a failure. Runs inside coordinator_step.
//
// The words. The place of a rank is (settled, position) of its heartbeat: how far it is in the
// order that all ranks share. The low is the least place of all members that have not left and are
// not silent: a silent one has moved on since its last heartbeat, as far as the others have. A rank
// is idle where it is neither done there nor waiting for others.
//
// The rules.
// 1. Progress is that the low grows, or what any rank has settled, or its plain collectives. It
//    ends a stall, whatever the ranks look like.
// 2. In the way is an idle rank at the low, and one that is silent: frozen (two heartbeats and a
//    half are missing) or stopped (a mate saw it). A rank that waits is never in the way. A trainer
//    may wait outside, for its device: that is so where NCCL has its part, and a stream of another
//    rank stands still.
// 3. An idle rank is a culprit when it has said, since the last progress, that it has been where it
//    is for longer than its bound (bounds.c). The bound is longer under a debugger, throttled by a
//    control group, and asleep on a disk. Nobody waits for it: then all members must be so, else it
//    is in nobody's way.
// 4. A silent rank is a culprit when others wait, or are culprits, and nothing has moved for a
//    heartbeat. A late heartbeat looks the same, so where an idle rank explains why the others
//    wait, a frozen one that was not in their way begins no stall; it joins one.
// 5. Nobody has been in the way, or silent, for the floor, some wait, and neither the low nor a
//    byte has moved: the ranks that wait for a stream of their own device; else, where NCCL has the
//    input of all ranks that wait, all of them; else the first link on which a sender holds bytes
//    that do not get to the other host; else it is unknown: no rank and no link is blamed, and the
//    sentence says what each rank waits in (standing.c). The floor begins when the last
//    rank comes, not at the last progress: others may have waited for it for long. Ranks that wait
//    for each other are no stall but a verdict, at once (waits.c).
// 6. No stall begins in the first two heartbeats that are heard of a generation, nor while this
//    process was itself too late to hear anybody.
// 7. Culprits come and go while a stall lasts. It ends without any.

#include "coordinator/stall.h"

#include "coordinator/beat.h"
#include "coordinator/blame.h"
#include "coordinator/bounds.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/culprit.h"
#include "coordinator/job.h"
#include "coordinator/journal.h"
#include "coordinator/rates.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/stall_end.h"
#include "coordinator/table.h"

// ---- Heartbeats --------------------------------------------------------------------------------

static void stall_watch(struct coordinator *core, struct stall *stall)
{
    stall->watched = true;
    stall->hold_ms = core->now + UINT64_C(2) * core->config.heartbeat_ms;
    stall->looked_ms = core->now;
    stall->next_ms = core->now + LOCKSTEP_WATCH_MS;
    stall->progress_ms = core->now;
    stall->traffic_ms = core->now;
    stall->excused_ms = core->now;
}

void stall_heartbeat(struct coordinator *core, struct worker *worker,
                     const struct up_heartbeat *last)
{
    struct job *job = core_job_of(core, worker);
    struct stall *stall = &job->stall;
    const struct place *place = &worker->heartbeat.place;
    if (!beat_known(worker))
        return;
    beat_stored(core, worker, last);
    bounds_learn(&job->stall.bounds, worker, core->now);
    if (!stall->watched)
        stall_watch(core, stall);
    // A rank that may be at the end of its bound is looked at before the next tick, but not for
    // every heartbeat of a large world.
    if (!stall->active && !place->waits && beat_age(worker) > core->config.stall_floor_ms &&
        stall->looked_ms + LOCKSTEP_WATCH_MS / 5 < stall->next_ms)
        stall->next_ms = stall->looked_ms + LOCKSTEP_WATCH_MS / 5;
}

// ---- Progress ----------------------------------------------------------------------------------

// Rule 1.
static void stall_progress(struct coordinator *core, struct job *job, const struct picture *picture)
{
    struct stall *stall = &job->stall;
    // The low is that of other ranks when one becomes silent: nobody has moved for that.
    const bool higher =
        picture->silent == stall->low_silent &&
        (picture->settled > stall->low_settled ||
         (picture->settled == stall->low_settled && picture->position > stall->low_position));
    if (picture->traffic != stall->traffic)
        stall->traffic_ms = core->now;
    if (!blame_unexplained(picture))
        stall->excused_ms = core->now;
    if (higher || picture->moved != stall->moved) {
        stall->progress_ms = core->now;
        stall_end(core, job, "the job moves on");
    }
    stall->traffic = picture->traffic;
    stall->moved = picture->moved;
    stall->low_settled = picture->settled;
    stall->low_position = picture->position;
    stall->low_silent = picture->silent;
}

// ---- A stall -----------------------------------------------------------------------------------

static void stall_compose(const struct coordinator *core, struct job *job)
{
    struct sentence sentence;
    sentence_begin(&sentence, job->stall.text, sizeof(job->stall.text));
    culprit_sentence(core, job, core->now, &sentence);
}

static void stall_begin(struct coordinator *core, struct job *job)
{
    struct stall *stall = &job->stall;
    stall->active = true;
    stall->announced = false;
    stall->announce_ms = core->now + LOCKSTEP_INSPECT_MS;
    stall->began_ms = stall->progress_ms;
    stall->culprit_count = 0;
}

static struct culprit *stall_culprit(struct stall *stall, uint32_t rank)
{
    for (uint32_t i = 0; i < stall->culprit_count; i++)
        if (stall->culprits[i].blame.rank == rank)
            return &stall->culprits[i];
    return NULL;
}

static const struct blame *stall_found(const struct found *found, uint32_t rank)
{
    for (uint32_t i = 0; i < found->count; i++)
        if (found->blames[i].rank == rank)
            return &found->blames[i];
    return NULL;
}

// Rule 7. True: who is in the way, or why, has changed.
static bool stall_join(struct stall *stall, const struct found *found)
{
    const enum stall_kind kind = found->count == 0 ? STALL_UNKNOWN : found->blames[0].kind;
    bool changed = stall->culprit_total != found->total || stall->kind != kind;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < stall->culprit_count; i++) {
        const struct blame *now = stall_found(found, stall->culprits[i].blame.rank);
        if (!now || now->kind != stall->culprits[i].blame.kind) {
            changed = true;
            continue;
        }
        if (kept != i)
            stall->culprits[kept] = stall->culprits[i];
        kept++;
    }
    stall->culprit_count = kept;
    for (uint32_t i = 0; i < found->count; i++) {
        if (stall_culprit(stall, found->blames[i].rank))
            continue;
        struct culprit *joined = &stall->culprits[stall->culprit_count++];
        memset(joined, 0, sizeof(*joined));
        joined->blame = found->blames[i];
        changed = true;
    }
    stall->culprit_total = found->total;
    stall->kind = kind;
    return changed;
}

// Asks a connected member, unless it was asked a moment ago. Returns the number of the question, or
// 0 if none was sent.
static uint64_t stall_ask_worker(struct coordinator *core, struct worker *worker, uint32_t what)
{
    if (!worker->connected || core->now < worker->ask_again_ms)
        return 0;
    struct down_inspect *inspect =
        &core_message(core, core_job_of(core, worker), DOWN_INSPECT)->u.inspect;
    worker->asked = ++core->asked;
    worker->ask_again_ms = core->now + LOCKSTEP_INSPECT_PAUSE_MS;
    inspect->id = worker->asked;
    inspect->what = what;
    core_send(core, worker);
    return worker->asked;
}

// Asks culprits whose process runs what they do. A culprit is asked again, when that is allowed, if
// its thread had no time to answer: on a busy machine the next attempt may succeed.
static void stall_ask(struct coordinator *core, struct job *job)
{
    struct stall *stall = &job->stall;
    for (uint32_t i = 0; i < stall->culprit_count; i++) {
        struct culprit *culprit = &stall->culprits[i];
        if ((culprit->answered && !culprit->silent) || culprit->asked != 0 ||
            (culprit->blame.kind != STALL_OUTSIDE && culprit->blame.kind != STALL_IN_CALL &&
             culprit->blame.kind != STALL_UNKNOWN && culprit->blame.kind != STALL_DEVICE))
            continue;
        culprit->asked = stall_ask_worker(core, job_worker(core, job, culprit->blame.rank),
                                          INSPECT_PLACE | INSPECT_STACKS);
    }
}

static bool stall_answers_wanted(const struct stall *stall)
{
    for (uint32_t i = 0; i < stall->culprit_count; i++)
        if (stall->culprits[i].asked != 0)
            return true;
    return false;
}

static void stall_announce(struct coordinator *core, struct job *job)
{
    struct stall *stall = &job->stall;
    if (stall->announced || (core->now < stall->announce_ms && stall_answers_wanted(stall)))
        return;
    stall->announced = true;
    stall->number++;
    stall_compose(core, job);
    journal_log(core, job, "stall_began", "%s", stall->text);
}

// Culprits that wait themselves, for their devices.
static uint32_t stall_waiting_held(const struct coordinator *core, const struct job *job,
                                   const struct found *found)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < found->count; i++)
        held += found->blames[i].kind == STALL_DEVICE &&
                core->workers[job->workers[found->blames[i].rank]].heartbeat.place.waits;
    return held;
}

static void stall_update(struct coordinator *core, struct job *job, const struct picture *picture,
                         const struct found *found)
{
    struct stall *stall = &job->stall;
    if (!stall->active)
        stall_begin(core, job);
    stall->step = picture->settled + 1;
    stall->waiting = picture->waiting - stall_waiting_held(core, job, found);
    const bool changed = stall_join(stall, found);
    stall_ask(core, job);
    if (stall->announced && changed) {
        stall_compose(core, job);
        journal_log(core, job, "stall_changed", "%s", stall->text);
    }
    stall_announce(core, job);
}

// ---- Questions and answers ----------------------------------------------------------------------

void stall_asked(struct coordinator *core, const char *name, uint32_t rank, uint32_t what)
{
    const struct job *job = job_find(core, name);
    if (job && job_running(job) && rank < job->count && (what & INSPECT_ALL) != 0)
        stall_ask_worker(core, job_worker(core, job, rank), what & INSPECT_ALL);
}

static void stall_answered(struct coordinator *core, struct worker *worker,
                           const struct up_answer *answer)
{
    struct job *job = core_job_of(core, worker);
    struct culprit *culprit = job->stall.active ? stall_culprit(&job->stall, worker->rank) : NULL;
    if (!culprit)
        return;
    culprit_answer(culprit, answer);
    if (!answer->last)
        return;
    culprit->answered = true;
    culprit->asked = 0;
    if (job->stall.announced)
        stall_compose(core, job);
    else
        stall_announce(core, job);
}

// An answer to an earlier question comes late, and one to no question says nothing to anybody.
void stall_answer(struct coordinator *core, struct worker *worker, const struct up_answer *answer)
{
    if (answer->id == 0 || answer->id != worker->asked) {
        core_job_of(core, worker)->dropped_total++;
        return;
    }
    if (answer->last)
        worker->asked = 0;
    stall_answered(core, worker, answer);
}

// ---- Looking -----------------------------------------------------------------------------------

// Rule 6. False: whoever is missed may only not have been heard.
static bool stall_listens(struct coordinator *core, struct stall *stall)
{
    const uint64_t heartbeat_ms = core->config.heartbeat_ms;
    if (core->now - stall->looked_ms > LOCKSTEP_WATCH_MS + heartbeat_ms &&
        stall->hold_ms < core->now + heartbeat_ms + LOCKSTEP_FROZEN_SLACK_MS)
        stall->hold_ms = core->now + heartbeat_ms + LOCKSTEP_FROZEN_SLACK_MS;
    return core->now >= stall->hold_ms;
}

static void stall_judge(struct coordinator *core, struct job *job)
{
    struct stall *stall = &job->stall;
    struct picture picture;
    struct found found = {.total = 0};
    const bool listens = stall_listens(core, stall);
    blame_look(core, job, &picture);
    stall_progress(core, job, &picture);
    if (!listens)
        return;
    if (blame_find(core, job, &picture, &found))
        stall_update(core, job, &picture, &found);
    else
        stall_end(core, job, "nobody is in the way any more");
}

void stall_tick(struct coordinator *core, struct job *job)
{
    struct stall *stall = &job->stall;
    if (core->now < stall_deadline(job))
        return;
    stall_judge(core, job);
    rates_tick(core, job);
    stall->looked_ms = core->now;
    stall->next_ms = core->now + LOCKSTEP_WATCH_MS;
    if (stall->active && !stall->announced && stall->announce_ms < stall->next_ms)
        stall->next_ms = stall->announce_ms;
}

uint64_t stall_deadline(const struct job *job)
{
    return job_running(job) && job->stall.watched ? job->stall.next_ms : UINT64_MAX;
}

void stall_init(struct job *job)
{
    job->stall.number = 0;
    job->stall.past_count = 0;
    job->journal.count = 0;
    stall_reset(job);
}

void stall_reset(struct job *job)
{
    struct stall *stall = &job->stall;
    stall->watched = false;
    stall->active = false;
    stall->announced = false;
    stall->low_settled = 0;
    stall->low_position = 0;
    stall->low_silent = 0;
    stall->moved = 0;
    stall->traffic = 0;
    stall->culprit_count = 0;
    bounds_reset(&stall->bounds);
    rates_reset(&job->rates);
}
