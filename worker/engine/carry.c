// SPDX-License-Identifier: Apache-2.0
//
// The numbers of ranks when a generation ends; carry.h has the contract. Driver only.

#include "worker/engine/carry.h"

#include "base/bits.h"
#include "base/text.h"
#include "worker/engine/parts.h"
#include "worker/session/renumber.h"

#include <string.h>

static void carry_renumber_dead(struct lockstep_session *session, const uint64_t *removed)
{
    uint64_t died[LOCKSTEP_RANK_WORDS] = {0};
    uint32_t place = 0;
    for (uint32_t rank = 0; rank < session->world.size; rank++) {
        if (bits_has(removed, rank))
            continue;
        if (bits_has(session->end.died, rank))
            bits_add(died, place);
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
    session->end.goodbyes_told = 0;
    memset(session->end.goodbyes_of, 0, sizeof(session->end.goodbyes_of));
}

void carry_ends_locked(struct lockstep_session *session, const uint64_t *removed, uint64_t step)
{
    session->step.change.step = step;
    if (change_left(session->world.size, removed) < session->world.size)
        session->step.change.lost_step = step;
    carry_renumber_dead(session, removed);
    renumber_locked(session, removed);
    change_add(&session->step.change, session->world.rank, session->world.size, removed);
    session->world.root = change_place(session->world.root, session->world.size, removed);
}

void carry_note(struct lockstep_session *session, const struct down_prepare *prepare)
{
    struct farewell loss = {.kind = FAREWELL_LOST,
                            .witness = session->world.rank,
                            .step = order_present_step(session->engine.order)};
    text_copy(loss.text, sizeof(loss.text), prepare->text);
    for (uint32_t rank = 0; rank < session->world.size; rank++) {
        loss.rank = rank;
        if (rank != session->world.rank && bits_has(prepare->suspects, rank))
            losses_add(&session->end.losses, &loss);
    }
}

void carry_adapt_locked(const struct lockstep_session *session, uint64_t step,
                        struct commit_wave *own)
{
    if (session->step.change.lost_step == step)
        own->weighted = own->called;
    for (uint32_t i = 0; i < own->unused_named; i++)
        own->unused[i].rank = session->world.rank;
    for (uint32_t i = 0; i < own->aborted_named; i++)
        own->aborted[i].rank = session->world.rank;
}
