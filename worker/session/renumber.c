// SPDX-License-Identifier: Apache-2.0
//
// New numbers for groups, and for sends and receives in flight: renumber.h. Other collectives in
// flight keep the numbers that they were made with, because they are never launched again.

#include "worker/session/renumber.h"

#include "base/bits.h"
#include "worker/session/anysource.h"
#include "worker/session/change.h"
#include "worker/session/group.h"
#include "worker/session/session.h"
#include "worker/session/work.h"

void renumber_begin_locked(struct lockstep_session *session, uint32_t size)
{
    for (uint32_t rank = 0; rank < size; rank++)
        session->world.origins[rank] = (uint16_t)rank;
}

static void renumber_origins(struct session_world *world, const uint64_t *removed)
{
    uint32_t left = 0;
    for (uint32_t rank = 0; rank < world->size; rank++)
        if (!bits_has(removed, rank))
            world->origins[left++] = world->origins[rank];
}

// True if a message may come from a rank that is removed.
static bool renumber_misses(const struct lockstep_work *work, const uint64_t *removed)
{
    uint64_t missed = 0;
    for (uint32_t word = 0; word < LOCKSTEP_RANK_WORDS; word++)
        missed |= removed[word] & (work->group ? work->group->members[word] : UINT64_MAX);
    return missed != 0;
}

// A receive that is done, and that the trainer has not waited for. Its part names the sender.
static void renumber_received(struct lockstep_work *work, const uint64_t *removed, uint32_t size)
{
    if (work->member == LOCKSTEP_ANY_SOURCE)
        return;
    const uint32_t rank = group_rank(work->group, work->member);
    work->pair[0].rank =
        bits_has(removed, rank) ? LOCKSTEP_ANY_SOURCE : change_place(rank, size, removed);
}

// A send, or a receive whose sender is known. Its parts name the other rank.
static void renumber_pair(struct lockstep_work *work, const uint64_t *removed, uint32_t size)
{
    const bool sends = work->kind == LOCKSTEP_SEND;
    const uint32_t peer = work->pair[sends].rank;
    work->lost = work->lost || bits_has(removed, peer);
    for (uint32_t i = 0; i < 2; i++)
        work->pair[i].rank = change_place(work->pair[i].rank, size, removed);
    work->part[sends ? 0 : 1].rank = work->pair[sends].rank;
}

static bool renumber_is_received(const struct lockstep_work *work)
{
    return work->state == WORK_DONE && work->kind == LOCKSTEP_RECEIVE && work->agreement.wanted;
}

static void renumber_work(struct lockstep_work *work, const uint64_t *removed, uint32_t size)
{
    if (renumber_is_received(work))
        renumber_received(work, removed, size);
    if (work->state != WORK_IN_FLIGHT || !work->agreement.wanted || !work_is_pair(work))
        return;
    if (!anysource_is(work))
        renumber_pair(work, removed, size);
    else
        work->lost = work->lost || renumber_misses(work, removed);
    if (anysource_is(work))
        work->pair[0].rank = work->pair[1].rank = change_place(work->pair[1].rank, size, removed);
}

// The place of the other rank: for texts, for the watch, and for renumber_tell_locked.
static void renumber_member(struct lockstep_work *work)
{
    if (renumber_is_received(work))
        work->member =
            work->member == LOCKSTEP_ANY_SOURCE || work->pair[0].rank == LOCKSTEP_ANY_SOURCE
                ? LOCKSTEP_ANY_SOURCE
                : group_place(work->group, work->pair[0].rank);
    if (work->state != WORK_IN_FLIGHT || !work->agreement.wanted || !work_is_pair(work) ||
        anysource_is(work) || work->lost)
        return;
    work->member = group_place(work->group, work->pair[work->kind == LOCKSTEP_SEND].rank);
}

void renumber_tell_locked(struct lockstep_session *session)
{
    struct works *works = &session->works;
    mutex_assert_held(&session->mutex);
    if (works->changes_told == session->step.change.number)
        return;
    works->changes_told = session->step.change.number;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PLAIN; i++) {
        const struct lockstep_work *work = &works->all[i];
        if (work->state != WORK_FREE && work->kind == LOCKSTEP_RECEIVE && work->sender)
            *work->sender = work->member;
    }
}

void renumber_locked(struct lockstep_session *session, const uint64_t *removed)
{
    struct works *works = &session->works;
    const uint32_t size = session->world.size;
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PLAIN; i++)
        renumber_work(&works->all[i], removed, size);
    for (struct lockstep_group *group = works->groups; group; group = group->next)
        group_renumber_locked(group, removed, size);
    renumber_origins(&session->world, removed);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PLAIN; i++)
        renumber_member(&works->all[i]);
}
