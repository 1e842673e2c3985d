// SPDX-License-Identifier: Apache-2.0
//
// The last change of the world in which a session goes on, and this rank's leaves. Trainer.

#include "base/bits.h"
#include "base/text.h"
#include "worker/session/gate.h"
#include "worker/session/module/leaves.h"
#include "worker/session/renumber.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <string.h>

#define CHANGE_LOST (sizeof((struct lockstep_change){0}.lost) / sizeof(uint32_t))

// The ranks of the world before that were removed.
static void change_lost(const uint64_t *removed, struct lockstep_change *change)
{
    for (uint32_t rank = 0; rank < change->world_size_before; rank++) {
        if (!bits_has(removed, rank))
            continue;
        if (change->lost_count < CHANGE_LOST)
            change->lost[change->lost_count] = rank;
        change->lost_count++;
    }
}

int lockstep_world_change(lockstep_session *session, struct lockstep_change *change)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!change || change->struct_bytes != sizeof(*change))
        return error_set(LOCKSTEP_E_INVALID, "change is NULL or of another version: begin with "
                                             "LOCKSTEP_CHANGE_INIT");
    *change = (struct lockstep_change)LOCKSTEP_CHANGE_INIT;
    mutex_lock(&session->mutex);
    const struct world_change *last = &session->step.change;
    renumber_tell_locked(session);
    if (last->number > 0) {
        change->changes = last->number;
        change->step = last->step;
        change->generation = session->world.generation.number;
        change->rank = session->world.rank;
        change->world_size = session->world.size;
        change->rank_before = last->rank_before;
        change->world_size_before = last->size_before;
        text_copy(change->text, sizeof(change->text), last->text);
        change_lost(last->removed, change);
    }
    mutex_unlock(&session->mutex);
    return 0;
}

int lockstep_leaves(lockstep_session *session, uint32_t *first, uint32_t *count, uint32_t *total)
{
    const int status = session_check_handle(session);
    uint32_t all;
    if (status < 0)
        return status;
    const struct tree_block own = leaves_of(session, &all);
    if (first)
        *first = own.first;
    if (count)
        *count = own.end - own.first;
    if (total)
        *total = all;
    return 0;
}
