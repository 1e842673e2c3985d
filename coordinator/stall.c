// SPDX-License-Identifier: Apache-2.0
//
// Stalls: which ranks hold up the others, and since when. The input is heartbeats and time; the
// output is at most one stall of a job at a time, questions to its culprits, and lines of logs. A
// stall ends nothing: it is information for the user, not a failure. Runs inside coordinator_step.
//
// The words. The *place* of a rank is (settled, position) of its heartbeat: how far the rank is in
// the order that all ranks share. A rank is *silent* if it is frozen (no heartbeat for two and a
// half intervals) or stopped (a mate reports it). The *low* is the lowest place of all members that
// have not left and are not silent; silent members do not count, because they may have moved on
// since their last heartbeat. A rank is *idle* if it has not done its part of its place and does
// not wait for other ranks. A *culprit* is a rank that is blamed for a stall.
//
// The rules.
// 1. There is progress when the low grows, or the last settled step or the number of plain
//    collectives of any rank. Progress ends a stall in any case.
// 2. An idle rank at the low, and a silent rank, are in the way if a waiting rank needs them, or if
//    no rank waits. A wait for a collective of a group needs the members only, and a wait for a
//    peer that peer (awaited.c); an idle rank that has begun the collective is not needed. A wait
//    that is not reported needs all ranks. A rank that waits is never in the way. A trainer may
//    wait for its device outside the library. This is assumed if NCCL has the rank's input and the
//    stream of another rank has not made its input.
// 3. An idle rank at the low is a culprit if it has reported, since the last progress, that it has
//    been in its place for longer than its bound (bounds.c). The bound is longer under a debugger,
//    when a control group throttles the process, and when the trainer sleeps on a disk. If no rank
//    waits, the rank is a culprit only if no member is busy and no member has left.
// 4. A silent rank is a culprit if other ranks wait or are culprits, and there was no progress for
//    a heartbeat interval. A late heartbeat looks the same. So if an idle rank explains why the
//    others wait, a frozen rank that was not in the way before begins no stall, but it joins one.
// 5. If some ranks wait, no rank has been in the way or silent for the floor, and neither the low
//    nor a byte has moved, the first of these is blamed: the ranks that wait for a stream of their
//    own device; all ranks, if NCCL has the input of all; the first link on which bytes do not
//    reach the other host. Otherwise the stall is unknown: no rank and no link is blamed, and the
//    sentence says what each rank waits for (standing.c). The floor begins when the last rank
//    begins to wait, not at the last progress, because the others may have waited long for it.
//    Ranks that wait for each other get a verdict at once instead (waits.c).
// 6. No stall begins during the first two heartbeat intervals of a generation, nor while this
//    process itself runs too late to receive heartbeats. After the return of a coordinator it is
//    one interval: the generation is under way, and each rank says for how long it has been in its
//    place.
// 7. Ranks become culprits, or stop being culprits, while a stall lasts. A stall ends when no rank
//    and no link is blamed and rule 5 does not hold.

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

// The first heartbeat of a generation shows that its members have been told of it. This may take
// seconds in a large world, in which no silence of a member counts.
static void stall_watch(struct coordinator *core, struct job *job)
{
    struct stall *stall = &job->stall;
    const bool rebuilt = job->resuming.incarnation != core->config.incarnation;
    stall->watched = true;
    stall->hold_ms = core->now + (rebuilt ? UINT64_C(1) : 2) * core->config.heartbeat_ms;
    stall->looked_ms = core->now;
    stall->next_ms = core->now + LOCKSTEP_WATCH_MS;
    stall->progress_ms = core->now;
    stall->traffic_ms = core->now;
    stall->excused_ms = core->now;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = job_worker(core, job, rank);
        if (worker->heard_ms == job->formed_ms)
            worker->heard_ms = core->now;
    }
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
        stall_watch(core, job);
    // If a rank may have reached its bound, the core looks earlier than at the next tick, but not
    // at every heartbeat of a large world.
    if (!stall->active && !place->waits && beat_age(worker) > core->config.stall_floor_ms &&
        stall->looked_ms + LOCKSTEP_WATCH_MS / 5 < stall->next_ms)
        stall->next_ms = stall->looked_ms + LOCKSTEP_WATCH_MS / 5;
}

// ---- Progress ----------------------------------------------------------------------------------

// Rule 1. Compares the picture with the last one, notes progress, and ends the stall at progress.
static void stall_progress(struct coordinator *core, struct job *job, const struct picture *picture)
{
    struct stall *stall = &job->stall;
    // When a rank becomes silent, the low may grow because that rank no longer counts: this is no
    // progress.
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
    struct text sentence;
    text_init(&sentence, job->stall.text, sizeof(job->stall.text));
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

// Rule 7. Returns true if the culprits, or the kinds of their stalls, have changed.
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

// Inspects a member, unless it is not connected, or was inspected for all this less than
// LOCKSTEP_INSPECT_PAUSE_MS ago. Returns the number of the inspection, or 0 if none was sent.
static uint64_t stall_ask_worker(struct coordinator *core, struct worker *worker, uint32_t what)
{
    const uint64_t again_ms = core->now + LOCKSTEP_INSPECT_PAUSE_MS;
    if (core->now < worker->asked.stacks_again_ms)
        what &= ~(uint32_t)INSPECT_STACKS;
    if (core->now < worker->asked.events_again_ms)
        what &= ~(uint32_t)INSPECT_EVENTS;
    if (!worker->connected || (what & ~(uint32_t)INSPECT_PLACE) == 0)
        return 0;
    // Answers to an earlier inspection are dropped from now on.
    worker->asked.what = worker->asked.id != 0 ? worker->asked.what | what : what;
    if ((worker->asked.what & INSPECT_STACKS) != 0)
        worker->asked.stacks_again_ms = again_ms;
    if ((worker->asked.what & INSPECT_EVENTS) != 0)
        worker->asked.events_again_ms = again_ms;
    struct down_inspect *inspect =
        &core_message(core, core_job_of(core, worker), DOWN_INSPECT)->u.inspect;
    worker->asked.id = ++core->asked;
    inspect->id = worker->asked.id;
    inspect->what = worker->asked.what;
    core_send(core, worker);
    return worker->asked.id;
}

// Inspects the culprits whose processes run. A culprit whose trainer thread did not answer in time,
// or moved whenever it was looked at, is inspected again: the next attempt may succeed.
static void stall_ask(struct coordinator *core, struct job *job)
{
    struct stall *stall = &job->stall;
    for (uint32_t i = 0; i < stall->culprit_count; i++) {
        struct culprit *culprit = &stall->culprits[i];
        struct worker *worker = job_worker(core, job, culprit->blame.rank);
        if (worker->asked.id == 0) // The stream has ended since: no answer will come.
            culprit->asked = 0;
        if ((culprit->answered && !culprit->silent) || culprit->asked != 0 ||
            (culprit->blame.kind != STALL_OUTSIDE && culprit->blame.kind != STALL_IN_CALL &&
             culprit->blame.kind != STALL_UNKNOWN && culprit->blame.kind != STALL_DEVICE))
            continue;
        culprit->asked = stall_ask_worker(core, worker, INSPECT_PLACE | INSPECT_STACKS);
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

static void stall_update(struct coordinator *core, struct job *job, const struct picture *picture,
                         const struct found *found)
{
    struct stall *stall = &job->stall;
    if (!stall->active)
        stall_begin(core, job);
    stall->step = picture->settled + 1;
    stall->waiting = blame_waiting(core, job, picture, found);
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

// Drops an answer that does not belong to the worker's last inspection.
void stall_answer(struct coordinator *core, struct worker *worker, const struct up_answer *answer)
{
    if (answer->id == 0 || answer->id != worker->asked.id) {
        core_job_of(core, worker)->dropped_total++;
        return;
    }
    if (answer->last)
        worker->asked.id = 0;
    // The answer about a timeline must not take the place of what a culprit has said.
    if ((worker->asked.what & INSPECT_STACKS) != 0)
        stall_answered(core, worker, answer);
}

// ---- Looking -----------------------------------------------------------------------------------

// Rule 6. Returns false if missing heartbeats may only be late, or not received yet.
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
