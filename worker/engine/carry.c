// SPDX-License-Identifier: Apache-2.0
//
// The numbers of ranks when a generation ends; carry.h has the contract. Driver only.

#include "worker/engine/carry.h"

#include "worker/engine/parts.h"
#include "worker/engine/recovery.h"
#include "worker/session/renumber.h"

#include <string.h>

static bool has(const uint64_t *set, uint32_t rank)
{
    return (set[rank / 64] >> rank % 64 & 1) != 0;
}

static void carry_renumber_dead(struct lockstep_session *session, const uint64_t *removed)
{
    uint64_t died[LOCKSTEP_RANK_WORDS] = {0};
    uint32_t place = 0;
    for (uint32_t rank = 0; rank < session->world.size; rank++) {
        if (has(removed, rank))
            continue;
        if (has(session->end.died, rank))
            died[place / 64] |= UINT64_C(1) << place % 64;
        place++;
    }
    memcpy(session->end.died, died, sizeof(died));
}

void carry_forget_losses(struct lockstep_session *session)
{
    memset(&session->end.losses, 0, sizeof(session->end.losses));
    memset(&session->end.left_seen, 0, sizeof(session->end.left_seen));
    memset(&session->end.lost_here, 0, sizeof(session->end.lost_here));
    session->end.verdict_deadline_ms = 0;
}

void carry_ends_locked(struct lockstep_session *session, const uint64_t *removed)
{
    struct ended_generation *ended = &session->engine.carry.ended;
    ended->generation = session->world.generation;
    ended->world_size = session->world.size;
    memcpy(ended->removed, removed, sizeof(ended->removed));
    carry_renumber_dead(session, removed);
    renumber_locked(session, removed);
    change_add(&session->step.change, session->world.rank, session->world.size, removed);
    session->world.root = change_place(session->world.root, session->world.size, removed);
}

bool carry_applies(const struct lockstep_session *session, const struct down_prepare *prepare)
{
    const struct ended_generation *ended = &prepare->ended;
    return recovery_has_promised(session) &&
           ended->generation.number == session->world.generation.number &&
           ended->generation.incarnation == session->world.generation.incarnation &&
           ended->world_size == session->world.size && !has(ended->removed, session->world.rank);
}

void carry_over(struct lockstep_session *session, const struct down_prepare *prepare,
                const struct generation_id *generation)
{
    const uint64_t *removed = prepare->ended.removed;
    uint32_t left = 0;
    for (uint32_t rank = 0; rank < session->world.size; rank++)
        left += !has(removed, rank);
    mutex_lock(&session->mutex);
    const uint32_t place = change_place(session->world.rank, session->world.size, removed);
    change_add(&session->engine.carry.names, session->world.rank, session->world.size, removed);
    carry_ends_locked(session, removed);
    session->world.rank = place;
    session->world.size = left;
    session->world.generation = *generation;
    session->world.peer_count = 0;
    mutex_unlock(&session->mutex);
    carry_forget_losses(session);
}

bool carry_is_on(const struct lockstep_session *session)
{
    return session->engine.carry.names.number != session->engine.carry.names.seen;
}

bool carry_names(const struct lockstep_session *session, uint32_t *rank)
{
    const struct world_change *names = &session->engine.carry.names;
    if (!carry_is_on(session))
        return true;
    if (has(names->removed, *rank))
        return false;
    *rank = change_place(*rank, names->size_before, names->removed);
    return true;
}
