// SPDX-License-Identifier: Apache-2.0
//
// Groups: group.h has the contract. A group is known by the hash of its name and its ranks, so
// members that make it with other ranks do not meet, and get a verdict like other ranks that wait
// for each other. Trainer threads.

#include "worker/session/group.h"

#include "base/bits.h"
#include "base/hash64.h"
#include "base/text.h"
#include "base/utf8.h"
#include "worker/session/change.h"
#include "worker/session/session.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

uint32_t group_place(const struct lockstep_group *group, uint32_t rank)
{
    uint32_t place = 0;
    if (!group)
        return rank;
    if (!bits_has(group->members, rank))
        return UINT32_MAX;
    while (group->ranks[place].rank != rank)
        place++;
    return place;
}

// Copies the ranks. Returns 0, or a failure if they are not ranks of the world, or not different.
static int group_copy(struct lockstep_group *group, const uint32_t *ranks)
{
    const struct session_world *world = &group->session->world;
    group->rank = UINT32_MAX;
    for (uint32_t i = 0; i < group->size; i++) {
        const uint32_t rank = ranks[i];
        if (rank >= world->size)
            return error_set(LOCKSTEP_E_INVALID,
                             "group '%s': there is no rank %" PRIu32 " in a world of %" PRIu32,
                             group->name, rank, world->size);
        if (bits_has(group->members, rank))
            return error_set(LOCKSTEP_E_INVALID, "group '%s': rank %" PRIu32 " is named twice",
                             group->name, rank);
        bits_add(group->members, rank);
        group->ranks[i].rank = rank;
        group->origins[i] = i;
        if (rank == world->rank)
            group->rank = i;
    }
    if (group->rank == UINT32_MAX)
        return error_set(LOCKSTEP_E_INVALID,
                         "group '%s': this rank, %" PRIu32
                         ", is not one of its ranks; only members make a group",
                         group->name, world->rank);
    return 0;
}

// After a change ranks have other numbers. So the generation is a part of the identity then.
static uint64_t group_hash(const struct lockstep_group *group, const uint32_t *ranks)
{
    const uint64_t parts[] = {hash64(group->name, strlen(group->name)),
                              hash64(ranks, group->size * sizeof(*ranks)),
                              group->session->world.generation.number};
    const size_t count = group->changes == 0 ? 2 : 3;
    return hash64(parts, count * sizeof(parts[0]));
}

static int group_refuse_count(const struct lockstep_session *session, const uint32_t *ranks,
                              uint32_t count, const char *name)
{
    return error_set(LOCKSTEP_E_INVALID,
                     "group '%s': %" PRIu32 " ranks%s; a group has 1 to %" PRIu32 " in this world",
                     name, count, !ranks ? " at NULL" : "", (uint32_t)session->world.size);
}

static int group_fill_locked(struct lockstep_group *group, const uint32_t *ranks)
{
    int status = agreement_numbers_locked(group->session);
    group->changes = group->session->step.change.number;
    if (status == 0 && group->size > group->session->world.size)
        status = group_refuse_count(group->session, ranks, group->size, group->name);
    if (status == 0)
        status = group_copy(group, ranks);
    if (status < 0)
        return status;
    group->space = group_hash(group, ranks);
    group->whole = group->size == group->session->world.size;
    group->everyone = (struct collective_parts){.sends = group->ranks, .send_count = group->size};
    return 0;
}

static int group_add_locked(struct lockstep_group *group)
{
    struct lockstep_session *session = group->session;
    int status = 0;
    if (session->works.group_count == LOCKSTEP_MAX_GROUPS)
        status = error_set(LOCKSTEP_E_INVALID,
                           "group '%s': this session has %d open groups already, the most; close "
                           "one first",
                           group->name, LOCKSTEP_MAX_GROUPS);
    else {
        group->next = session->works.groups;
        session->works.groups = group;
        session->works.group_count++;
    }
    return status;
}

// Gives the group its ranks and adds it to the session's, in one world.
static int group_enter(struct lockstep_group *group, const uint32_t *ranks)
{
    mutex_lock(&group->session->mutex);
    int status = group_fill_locked(group, ranks);
    if (status == 0)
        status = group_add_locked(group);
    mutex_unlock(&group->session->mutex);
    return status;
}

bool group_begins_with(const struct lockstep_group *group, uint32_t rank)
{
    for (uint32_t i = 0; i < group->size; i++)
        if (group->ranks[i].rank < rank)
            return false;
    return true;
}

void group_renumber_locked(struct lockstep_group *group, const uint64_t *removed, uint32_t size)
{
    const uint32_t own = group->ranks[group->rank].rank;
    uint32_t left = 0;
    memset(group->members, 0, sizeof(group->members));
    for (uint32_t i = 0; i < group->size; i++) {
        const uint32_t before = group->ranks[i].rank;
        const uint32_t rank = change_place(before, size, removed);
        if (bits_has(removed, before))
            continue;
        if (before == own)
            group->rank = left;
        bits_add(group->members, rank);
        group->ranks[left].rank = rank;
        group->origins[left++] = group->origins[i];
    }
    group->size = group->everyone.send_count = left;
    group->whole = left == change_left(size, removed);
}

static int group_check(const struct lockstep_session *session, const uint32_t *ranks,
                       uint32_t count, const char *name)
{
    if (!name || name[0] == '\0' || strlen(name) >= LOCKSTEP_GROUP_NAME_BYTES ||
        !utf8_valid(name, strlen(name)))
        return error_set(LOCKSTEP_E_INVALID, "a group's name has 1 to %d bytes of UTF-8",
                         LOCKSTEP_GROUP_NAME_BYTES - 1);
    if (!ranks || count == 0 || count > LOCKSTEP_MAX_WORLD)
        return group_refuse_count(session, ranks, count, name);
    return 0;
}

static void group_destroy(struct lockstep_group *group)
{
    handle_remove(group);
    free(group->ranks);
    free(group->origins);
    free(group);
}

int group_make(struct lockstep_session *session, const uint32_t *ranks, uint32_t count,
               const char *name, struct lockstep_group **made)
{
    int status = group_check(session, ranks, count, name);
    if (status < 0)
        return status;
    struct lockstep_group *group = calloc(1, sizeof(*group));
    if (!group)
        return error_set(LOCKSTEP_E_SYSTEM, "group '%s': no memory", name);
    group->session = session;
    group->size = count;
    group->ranks = calloc(count, sizeof(*group->ranks));
    group->origins = calloc(count, sizeof(*group->origins));
    text_copy(group->name, sizeof(group->name), name);
    if (!group->ranks || !group->origins)
        status = error_set(LOCKSTEP_E_SYSTEM, "group '%s': no memory", name);
    if (status == 0 && handle_add(HANDLE_GROUP, group) < 0)
        status = error_set(LOCKSTEP_E_SYSTEM, "group '%s': this process has %d handles, the most",
                           name, LOCKSTEP_MAX_HANDLES);
    if (status == 0)
        status = group_enter(group, ranks);
    if (status < 0)
        group_destroy(group);
    else
        *made = group;
    return status;
}

void group_number(struct lockstep_group *group, uint32_t making)
{
    const uint64_t parts[] = {group->space, making};
    mutex_lock(&group->session->mutex);
    if (making > 0)
        group->space = hash64(parts, sizeof(parts));
    mutex_unlock(&group->session->mutex);
}

int group_free(struct lockstep_group *group)
{
    struct lockstep_session *session = group->session;
    if (group->modules > 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "group '%s': %" PRIu32
                         " modules of it are registered; close them (lockstep_module_close) first",
                         group->name, group->modules);
    mutex_lock(&session->mutex);
    if (group->works > 0) {
        const uint32_t works = group->works;
        mutex_unlock(&session->mutex);
        return error_set(LOCKSTEP_E_INVALID,
                         "group '%s': %" PRIu32
                         " of its collectives were not waited for; wait for them first",
                         group->name, works);
    }
    struct lockstep_group **link = &session->works.groups;
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    session->works.group_count--;
    mutex_unlock(&session->mutex);
    group_destroy(group);
    return 0;
}

void group_free_all(struct lockstep_session *session)
{
    while (session->works.groups) {
        struct lockstep_group *group = session->works.groups;
        session->works.groups = group->next;
        group_destroy(group);
    }
    session->works.group_count = 0;
    free(session->works.made);
    session->works.made = NULL;
    session->works.made_places = session->works.made_count = 0;
}
