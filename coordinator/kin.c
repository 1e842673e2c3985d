// SPDX-License-Identifier: Apache-2.0
//
// Compares the generation of a returning member with the job's: see kin.h.

#include "coordinator/kin.h"

#include "base/bits.h"
#include "coordinator/ballot.h"
#include "coordinator/core.h"
#include "coordinator/crossing.h"
#include "coordinator/job.h"
#include "coordinator/journal.h"
#include "coordinator/lineage.h"
#include "coordinator/relearn.h"
#include "coordinator/roster.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/stall.h"
#include "coordinator/table.h"

enum kinship kin_of(const struct job *job, const struct up_hello *hello)
{
    const struct up_resume *resume = &hello->resume;
    const struct lineage *newest = job && job_running(job) ? lineage_newest(job) : NULL;
    if (!newest || hello->on_failure != FAILURE_CONTINUE || resume->chain_count == 0 ||
        generation_compare(&resume->founder, &job->ballot.descent.founder) != 0)
        return KIN_UNKNOWN;
    const struct lineage *own = &resume->chain[resume->chain_count - 1];
    const int order = generation_compare(&own->id, &newest->id);
    if (order >= 0)
        return order == 0 ? KIN_SAME : KIN_AHEAD;
    return bits_has(newest->members, lineage_member(own, resume->rank)) ? KIN_BEHIND : KIN_REMOVED;
}

bool kin_is_coherent(const struct up_resume *resume)
{
    if (resume->chain_count == 0)
        return true;
    const struct lineage *own = &resume->chain[resume->chain_count - 1];
    return generation_compare(&own->id, &resume->generation) == 0 &&
           lineage_size(own->members) == resume->world_size;
}

uint32_t kin_dead(struct job *job, const struct worker *behind, uint32_t rank)
{
    const struct up_resume *resume = &behind->hello.resume;
    if (!behind->hello.resumes || resume->chain_count == 0 || rank >= resume->world_size)
        return CORE_NONE;
    const struct lineage *newest = lineage_newest(job);
    const uint32_t member = lineage_member(&resume->chain[resume->chain_count - 1], rank);
    if (bits_has(newest->members, member))
        return lineage_rank(newest, member);
    lineage_note_dead(job, member);
    return CORE_NONE;
}

void kin_exclude(struct coordinator *core, coordinator_peer peer, struct generation_id generation,
                 struct generation_id now, const char *text)
{
    struct down_excluded *excluded = &core_message(core, NULL, DOWN_EXCLUDED)->u.excluded;
    struct text sentence;
    core->out.generation = generation;
    excluded->ballot = now;
    text_init(&sentence, excluded->text, sizeof(excluded->text));
    text_append(&sentence, "%s", text);
    core_send_peer(core, peer);
}

static void kin_is_out(struct coordinator *core, struct job *job, struct worker *worker,
                       uint32_t member)
{
    worker->stage = STAGE_OUT;
    worker->job = (uint16_t)(job - core->jobs);
    worker->removal = (struct removal){.founder = job->ballot.descent.founder, .member = member};
    job->outs++;
}

void kin_remove(struct coordinator *core, struct job *job, struct worker *worker, uint32_t member,
                struct generation_id ballot)
{
    const struct generation_id asked = {.number = job->ballot.number,
                                        .incarnation = core->config.incarnation};
    if (worker->connected && generation_compare(&asked, &ballot) <= 0 &&
        generation_compare(&worker->hello.resume.promised, &ballot) <= 0) {
        job->connected--;
        kin_is_out(core, job, worker, member);
        return;
    }
    core_close(core, worker);
    core_worker_free(core, worker);
}

bool kin_seat_removed(struct coordinator *core, struct job *job, coordinator_peer peer,
                      const struct up_hello *hello, uint32_t member)
{
    struct worker *worker = core_worker_new(core, peer);
    if (!worker)
        return false;
    worker->hello = *hello;
    worker->generation = hello->resume.generation.number;
    kin_is_out(core, job, worker, member);
    return true;
}

void kin_ended(struct coordinator *core, struct job *job, const struct worker *worker)
{
    const struct generation_id *founder = &worker->removal.founder;
    if (founder->number == 0 || generation_compare(founder, &job->ballot.descent.founder) != 0)
        return; // Another world has the name of the job by now.
    lineage_note_dead(job, worker->removal.member);
    ballot_tick(core, job);
}

// ---- A generation that another coordinator has decided -----------------------------------------

// Fills `workers` by rank of the newer generation: the records that the job has, and new ones.
// Returns false if there is no room.
static bool kin_seats(struct coordinator *core, const struct job *job, const struct lineage *before,
                      const struct lineage *newer, uint16_t *workers)
{
    uint16_t fresh[LOCKSTEP_MAX_WORLD];
    uint32_t missing = 0;
    uint32_t rank = 0;
    for (uint32_t member = 0; member < LOCKSTEP_MAX_WORLD; member++) {
        if (!bits_has(newer->members, member))
            continue;
        const bool known = bits_has(before->members, member);
        workers[rank++] = known ? job->workers[lineage_rank(before, member)] : CORE_NONE;
        missing += !known;
    }
    if (!core_workers_absent(core, missing, fresh))
        return false;
    for (uint32_t i = 0, next = 0; i < rank; i++)
        if (workers[i] == CORE_NONE)
            workers[i] = fresh[next++];
    return true;
}

// Tells the members of the job's generation that are none of the newer one.
static void kin_dismiss(struct coordinator *core, struct job *job, const struct lineage *before,
                        const struct lineage *newer)
{
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = job_worker(core, job, rank);
        const uint32_t member = lineage_member(before, rank);
        if (bits_has(newer->members, member))
            continue;
        if (worker->connected)
            kin_exclude(core, worker->peer, before->id, newer->id,
                        "a later generation of the job goes on");
        kin_remove(core, job, worker, member, newer->id);
    }
}

static void kin_seat_unseen(struct coordinator *core, struct worker *worker)
{
    worker->back.away_ms = worker->heard_ms = core->now;
    worker->back.unseen = true;
    worker->hello.on_failure = FAILURE_CONTINUE;
    sentence_clean(worker->hello.host, sizeof(worker->hello.host), "unknown", sizeof("unknown"));
}

static void kin_take_seats(struct coordinator *core, struct job *job, const struct lineage *before,
                           const uint16_t *workers)
{
    job->connected = job->left = 0;
    job->resuming.unseen = 0;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = &core->workers[workers[rank]];
        if (worker->stage != STAGE_MEMBER)
            kin_seat_unseen(core, worker);
        if (!worker->hello.resumes)
            worker->hello.resume.generation = before->id;
        job->workers[rank] = workers[rank];
        worker->stage = STAGE_MEMBER;
        worker->job = (uint16_t)(job - core->jobs);
        worker->rank = rank;
        worker->linked = true;
        worker->behind = true;
        worker->accused.until_ms = 0;
        worker->blocked.wait_count = 0;
        worker->awaits = worker->lacks = 0;
        job->connected += worker->connected;
        job->left += worker->left;
        job->resuming.unseen += worker->back.unseen;
    }
}

// The state that is of one generation begins anew.
static void kin_renew(struct coordinator *core, struct job *job)
{
    job->linked = job->count;
    job->tuned = true;
    job->queried_step = 0;
    job->sides.active = false;
    job->resuming.due_ms = core->now + LOCKSTEP_PROBE_MS;
    crossing_reset(job);
    stall_reset(job);
    if (job->resuming.unseen == 0)
        roster_restored(core, job);
}

// Members that have not heard of the decision are frozen, and wait for it.
static void kin_ask_behind(struct coordinator *core, struct job *job)
{
    for (uint32_t rank = 0; rank < job->count; rank++)
        if (job_worker(core, job, rank)->connected)
            ballot_resumed(core, job_worker(core, job, rank));
}

const char *kin_adopt(struct coordinator *core, struct job *job, const struct up_hello *hello)
{
    const struct up_resume *resume = &hello->resume;
    const struct lineage *newer = &resume->chain[resume->chain_count - 1];
    const struct lineage before = *lineage_newest(job);
    const struct descent kept = job->ballot.descent;
    uint16_t workers[LOCKSTEP_MAX_WORLD];
    lineage_note_all_dead(core, job);
    if (!lineage_join(job, resume))
        return "too many of its generations are open";
    if (!kin_seats(core, job, &before, newer, workers)) {
        job->ballot.descent = kept;
        return "this coordinator has no room for its world";
    }
    kin_dismiss(core, job, &before, newer);
    ballot_reset(job);
    relearn_generation(core, job, false);
    journal_log(core, job, "job_resuming",
                "another coordinator has decided generation %" PRIu64 ": %" PRIu32 " rank%s go on",
                newer->id.number, resume->world_size, resume->world_size == 1 ? "" : "s");
    job->number = newer->id.number;
    job->resuming.incarnation = newer->id.incarnation;
    job->count = resume->world_size;
    job->tuning = resume->tuning;
    kin_take_seats(core, job, &before, workers);
    kin_renew(core, job);
    kin_ask_behind(core, job);
    return NULL;
}
