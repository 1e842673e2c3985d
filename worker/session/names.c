// SPDX-License-Identifier: Apache-2.0
//
// The names of plain collectives: names.h has the contract. A table with open addressing: a name
// lies at its hash or behind it, without a free entry between. Trainer threads and the driver,
// under the session's mutex.

#include "worker/session/names.h"

#include "protos/limits.h"
#include "worker/session/group.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"

#include <stdlib.h>
#include <string.h>

// Returns the entry of a name, or the free entry where it belongs. NULL: neither is there.
static struct name_use *names_entry_locked(const struct lockstep_session *session, uint64_t hash)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < SESSION_NAME_PLACES; i++) {
        struct name_use *use = &session->works.names[(hash + i) % SESSION_NAME_PLACES];
        if (use->hash == hash || use->hash == 0)
            return use;
    }
    return NULL;
}

// Returns the entry of a group, or the free entry where it belongs. NULL: the table has no places.
static struct name_use *made_entry(struct name_use *made, size_t places, uint64_t hash)
{
    size_t i = hash & (places - 1);
    if (places == 0)
        return NULL;
    while (made[i].hash != hash && made[i].hash != 0)
        i = (i + 1) & (places - 1);
    return &made[i];
}

// Doubles the table of makings.
static bool names_grow_made_locked(struct works *works)
{
    const size_t places = works->made_places == 0 ? 8 : 2 * works->made_places;
    struct name_use *made = calloc(places, sizeof(*made));
    if (!made)
        return false;
    for (size_t i = 0; i < works->made_places; i++)
        if (works->made[i].hash != 0)
            *made_entry(made, places, works->made[i].hash) = works->made[i];
    free(works->made);
    works->made = made;
    works->made_places = places;
    return true;
}

uint32_t names_uses_locked(const struct lockstep_session *session, uint64_t hash)
{
    const struct name_use *use = names_entry_locked(session, hash);
    if (!use || use->hash == 0)
        use = made_entry(session->works.made, session->works.made_places, hash);
    return use ? use->uses : 0;
}

int names_made_locked(struct lockstep_session *session, uint64_t hash, struct name_use **use)
{
    struct works *works = &session->works;
    *use = made_entry(works->made, works->made_places, hash);
    if (*use && (*use)->hash == hash)
        return 0;
    if (works->made_count == SESSION_MAX_MADE)
        return error_set(LOCKSTEP_E_INVALID,
                         "a session makes at most %d groups of different names and ranks; use a "
                         "name again instead of numbering it",
                         SESSION_MAX_MADE);
    if (works->made_places < 2 * ((size_t)works->made_count + 1) && !names_grow_made_locked(works))
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for the name of a group");
    *use = made_entry(works->made, works->made_places, hash);
    (*use)->hash = hash;
    works->made_count++;
    return 0;
}

static bool names_group_is_open(const struct lockstep_session *session, uint64_t space)
{
    const struct lockstep_group *group = session->works.groups;
    while (group && group->space != space)
        group = group->next;
    return group != NULL;
}

// Removes an entry, and closes the gap: an entry behind it moves there, unless its name belongs
// behind the gap.
static void names_remove_locked(struct lockstep_session *session, size_t gap)
{
    struct name_use *names = session->works.names;
    for (size_t i = (gap + 1) % SESSION_NAME_PLACES; names[i].hash != 0;
         i = (i + 1) % SESSION_NAME_PLACES) {
        const size_t home = names[i].hash % SESSION_NAME_PLACES;
        if ((i + SESSION_NAME_PLACES - home) % SESSION_NAME_PLACES <
            (i + SESSION_NAME_PLACES - gap) % SESSION_NAME_PLACES)
            continue;
        names[gap] = names[i];
        gap = i;
    }
    names[gap] = (struct name_use){.hash = 0};
    session->works.names_used--;
    session->works.form.name_bytes = 0; // form.use points at an entry that may have moved.
}

// Returns false if all names are in use.
static bool names_forget_locked(struct lockstep_session *session)
{
    const struct name_use *names = session->works.names;
    size_t oldest = SESSION_NAME_PLACES;
    for (size_t i = 0; i < SESSION_NAME_PLACES; i++) {
        if (names[i].hash != 0 && names[i].group != 0 &&
            (oldest == SESSION_NAME_PLACES || names[i].last < names[oldest].last) &&
            !names_group_is_open(session, names[i].group))
            oldest = i;
    }
    if (oldest == SESSION_NAME_PLACES)
        return false;
    names_remove_locked(session, oldest);
    return true;
}

void names_make_room_locked(struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    while (session->works.names_used + session->works.unmatched_count + 2 > SESSION_MAX_NAMES &&
           names_forget_locked(session))
        continue;
}

bool names_have_room_locked(const struct lockstep_session *session)
{
    if (session->works.names_used + session->works.unmatched_count < SESSION_MAX_NAMES)
        return true;
    (void)error_set(LOCKSTEP_E_INVALID,
                    "collectives have at most %d different names; use a name again instead of "
                    "numbering it",
                    SESSION_MAX_NAMES);
    return false;
}

bool names_is_of_library(const char *name)
{
    return strncmp(name, WORK_LIBRARY_PREFIX, strlen(WORK_LIBRARY_PREFIX)) == 0;
}

// Returns a new entry, or NULL with the error text set.
static struct name_use *names_add_locked(struct lockstep_session *session, const char *name,
                                         uint64_t hash)
{
    names_make_room_locked(session);
    struct name_use *use = names_entry_locked(session, hash);
    const bool reserved =
        names_is_of_library(name) &&
        session->works.names_used + session->works.unmatched_count < SESSION_NAME_PLACES;
    if (!reserved && !names_have_room_locked(session))
        return NULL;
    use->hash = hash;
    session->works.names_used++;
    return use;
}

struct name_use *names_use_locked(struct lockstep_session *session, const char *name,
                                  const struct lockstep_group *group, uint64_t hash)
{
    struct name_use *use = names_entry_locked(session, hash);
    if (!use || use->hash != hash)
        use = names_add_locked(session, name, hash);
    if (use && group) {
        use->group = group->space;
        use->last = ++session->works.name_number;
    }
    return use;
}
