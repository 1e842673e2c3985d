// SPDX-License-Identifier: Apache-2.0
//
// Memory that plain collectives borrow: lent.h says what it is for. Trainer threads.

#include "worker/session/lent.h"

#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>

void lent_add_locked(struct lockstep_work *work, const struct lent_range *range)
{
    struct lent *lent = &work->session->works.lent;
    const uint32_t place = work->lent[0] == 0 ? 0 : 1;
    mutex_assert_held(&work->session->mutex);
    lent->entries[lent->count++] =
        (struct lent_entry){.range = *range, .work = work, .place = place};
    work->lent[place] = lent->count;
}

void lent_remove_locked(struct lockstep_work *work)
{
    struct lent *lent = &work->session->works.lent;
    mutex_assert_held(&work->session->mutex);
    for (uint32_t i = 0; i < LENT_OF_WORK; i++) {
        const uint32_t number = work->lent[i];
        if (number == 0)
            continue;
        const struct lent_entry *last = &lent->entries[--lent->count];
        last->work->lent[last->place] = number;
        lent->entries[number - 1] = *last;
        work->lent[i] = 0;
    }
}

int lent_check_locked(const struct lockstep_session *session, const char *name, uint32_t use,
                      const struct lent_range *range)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < session->works.lent.count; i++) {
        const struct lent_entry *entry = &session->works.lent.entries[i];
        const struct lent_range *lent = &entry->range;
        const struct lockstep_work *other = entry->work;
        const uintptr_t begin = lent->begin > range->begin ? lent->begin : range->begin;
        const uintptr_t end = lent->end < range->end ? lent->end : range->end;
        if (begin < end && (lent->written || range->written))
            return error_set(LOCKSTEP_E_INVALID,
                             "collective '%s' (use %" PRIu32 ") and collective '%s' (use %" PRIu32
                             "), which was not waited for, overlap in memory: they have %zu bytes "
                             "at %p in common%s. Wait for that one first, or give each memory of "
                             "its own",
                             name, use + 1, other->name, other->collective.tag.slot + 1,
                             (size_t)(end - begin), (void *)begin,
                             lent->gaps || range->gaps ? ", gaps between parts included" : "");
    }
    return 0;
}

const struct lockstep_work *lent_find_locked(const struct lockstep_session *session,
                                             uintptr_t begin, uintptr_t end)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < session->works.lent.count; i++) {
        const struct lent_entry *entry = &session->works.lent.entries[i];
        if (entry->range.begin < end && begin < entry->range.end)
            return entry->work;
    }
    return NULL;
}
