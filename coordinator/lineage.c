// SPDX-License-Identifier: Apache-2.0
//
// The open generations of a job: see lineage.h.

#include "coordinator/lineage.h"

#include "base/bits.h"
#include "coordinator/core.h"
#include "coordinator/decision.h"
#include "coordinator/job.h"

uint32_t lineage_size(const uint64_t *set)
{
    uint32_t size = 0;
    for (uint32_t i = 0; i < LOCKSTEP_RANK_WORDS; i++)
        for (uint64_t word = set[i]; word != 0; word &= word - 1)
            size++;
    return size;
}

uint32_t lineage_member(const struct lineage *generation, uint32_t rank)
{
    for (uint32_t member = 0; member < LOCKSTEP_MAX_WORLD; member++)
        if (bits_has(generation->members, member) && rank-- == 0)
            return member;
    return 0;
}

uint32_t lineage_rank(const struct lineage *generation, uint32_t member)
{
    uint32_t rank = 0;
    for (uint32_t other = 0; other < member; other++)
        rank += bits_has(generation->members, other);
    return rank;
}

// ---- The chain ---------------------------------------------------------------------------------

void lineage_found(struct job *job)
{
    struct descent *descent = &job->ballot.descent;
    struct lineage *first = &descent->chain[0];
    memset(descent, 0, sizeof(*descent));
    descent->founder =
        (struct generation_id){.number = job->number, .incarnation = job->resuming.incarnation};
    descent->count = 1;
    first->id = descent->founder;
    for (uint32_t rank = 0; rank < job->count; rank++)
        bits_add(first->members, rank);
}

const struct lineage *lineage_newest(const struct job *job)
{
    return job->ballot.descent.count == 0
               ? NULL
               : &job->ballot.descent.chain[job->ballot.descent.count - 1];
}

// Inserts a generation in the order of ballots, unless it is known.
static bool lineage_insert(struct descent *descent, const struct lineage *generation)
{
    uint32_t at = descent->count;
    while (at > 0 && generation_compare(&descent->chain[at - 1].id, &generation->id) > 0)
        at--;
    if (at > 0 && generation_compare(&descent->chain[at - 1].id, &generation->id) == 0)
        return true;
    if (descent->count == LOCKSTEP_CHAIN)
        return false;
    memmove(&descent->chain[at + 1], &descent->chain[at],
            (descent->count - at) * sizeof(descent->chain[0]));
    descent->chain[at] = *generation;
    descent->count++;
    return true;
}

// Forgets the generations before the newest one that is known to be established.
static void lineage_rise(struct descent *descent, const struct generation_id *established)
{
    uint32_t over = 0;
    while (over < descent->count && generation_compare(&descent->chain[over].id, established) < 0)
        over++;
    descent->count -= over;
    memmove(&descent->chain[0], &descent->chain[over], descent->count * sizeof(descent->chain[0]));
}

// True if all links of some generation stood: only ranks that are frozen in lockstep_open go to
// another coordinator before that.
static bool lineage_stood(const struct up_resume *resume)
{
    return !resume->frozen || resume->starting || resume->rounds > 0 || resume->settled > 0 ||
           generation_compare(&resume->chain[0].id, &resume->founder) != 0;
}

bool lineage_join(struct job *job, const struct up_resume *resume)
{
    struct descent joined = job->ballot.descent;
    if (resume->chain_count == 0)
        return true;
    lineage_rise(&joined, &resume->chain[0].id);
    const struct generation_id oldest = joined.count > 0 ? joined.chain[0].id : resume->chain[0].id;
    for (uint32_t i = 0; i < resume->chain_count; i++)
        if (generation_compare(&resume->chain[i].id, &oldest) >= 0 &&
            !lineage_insert(&joined, &resume->chain[i]))
            return false;
    for (uint32_t i = 0; i < LOCKSTEP_RANK_WORDS; i++)
        joined.dead[i] |= resume->dead[i];
    joined.established = joined.established || lineage_stood(resume);
    job->ballot.descent = joined;
    return true;
}

void lineage_adopt(struct job *job, const struct up_resume *resume)
{
    memset(&job->ballot.descent, 0, sizeof(job->ballot.descent));
    job->ballot.descent.founder = resume->founder;
    (void)lineage_join(job, resume); // A chain fits into an empty one.
}

void lineage_establish(struct job *job)
{
    const struct lineage *newest = lineage_newest(job);
    job->ballot.descent.established = true;
    if (newest)
        lineage_rise(&job->ballot.descent, &newest->id);
}

bool lineage_decide(struct job *job, struct generation_id ballot)
{
    struct descent *descent = &job->ballot.descent;
    if (descent->count == 0 || descent->count == LOCKSTEP_CHAIN)
        return false;
    const struct lineage *before = lineage_newest(job);
    struct lineage *next = &descent->chain[descent->count];
    memset(next, 0, sizeof(*next));
    next->id = ballot;
    for (uint32_t rank = 0, member = 0; member < LOCKSTEP_MAX_WORLD; member++)
        if (bits_has(before->members, member) && !decision_removes(job, rank++))
            bits_add(next->members, member);
    descent->count++;
    return true;
}

// ---- The quorum --------------------------------------------------------------------------------

void lineage_note_dead(struct job *job, uint32_t member)
{
    bits_add(job->ballot.descent.dead, member);
}

void lineage_note_all_dead(struct coordinator *core, struct job *job)
{
    const struct lineage *newest = lineage_newest(job);
    for (uint32_t rank = 0, member = 0; newest && rank < job->count; member++) {
        if (!bits_has(newest->members, member))
            continue;
        const struct worker *worker = job_worker(core, job, rank++);
        if (worker->dead || worker->left) // A worker that leaves says so itself.
            bits_add(job->ballot.descent.dead, member);
    }
}

static bool lineage_quorum_of(const struct coordinator *core, const struct descent *descent,
                              const struct lineage *generation, const uint64_t *counted)
{
    const uint32_t size = lineage_size(generation->members);
    uint32_t have = 0;
    bool proven = true; // True if all others are.
    for (uint32_t member = 0; member < LOCKSTEP_MAX_WORLD; member++) {
        if (!bits_has(generation->members, member))
            continue;
        if (bits_has(counted, member))
            have++;
        else
            proven = proven && bits_has(descent->dead, member);
    }
    const bool made = generation->id.incarnation == core->config.incarnation;
    return 2 * have > size || (made && 2 * have == size) || proven;
}

bool lineage_quorum(struct coordinator *core, struct job *job, const uint64_t *counted)
{
    const struct lineage *newest = lineage_newest(job);
    uint64_t members[LOCKSTEP_RANK_WORDS] = {0};
    if (!newest)
        return false;
    lineage_note_all_dead(core, job);
    for (uint32_t rank = 0, member = 0; rank < job->count; member++) {
        if (!bits_has(newest->members, member))
            continue;
        if (bits_has(counted, rank++))
            bits_add(members, member);
    }
    for (uint32_t i = 0; i < job->ballot.descent.count; i++)
        if (!lineage_quorum_of(core, &job->ballot.descent, &job->ballot.descent.chain[i], members))
            return false;
    return true;
}
