// SPDX-License-Identifier: Apache-2.0
//
// Agreements of plain collectives, and outcomes of those that a death has hit: agreement.h.

#include "worker/session/agreement.h"

#include "base/hash64.h"
#include "worker/session/renumber.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"

bool agreement_is_on(const struct lockstep_session *session)
{
    return session->config.on_failure == LOCKSTEP_ON_FAILURE_CONTINUE && !session->config.solo;
}

void agreement_make(struct lockstep_work *work)
{
    struct agreement *agreement = &work->agreement;
    const struct collective *collective = &work->collective;
    const uint64_t space[] = {collective->tag.space, 2};
    agreement->reached = false;
    work->missing = 0;
    agreement->extent =
        (struct extent){.in = &agreement->element, .out = &agreement->element, .elements = 1};
    agreement->collective = (struct collective){
        .kind = COLLECTIVE_ALLREDUCE,
        .dtype = DTYPE_INT32,
        .op = REDUCE_SUM,
        .tag = {.space = hash64(space, sizeof(space)), .slot = collective->tag.slot},
        .signature = collective->signature,
        .extents = &agreement->extent,
        .extent_count = 1,
        .elements = 1,
        .weight = 1,
        .context = work,
    };
}

bool agreement_follows(struct lockstep_work *work)
{
    struct agreement *agreement = &work->agreement;
    if (!agreement->wanted || agreement->reached)
        return false;
    agreement->reached = true;
    work->missing = 1;
    work_address(work, &agreement->collective);
    transport_launch(work->session->transport, &agreement->collective);
    return true;
}

int agreement_error_locked(struct lockstep_session *session, const char *kind, const char *name)
{
    const struct world_change *change = &session->step.change;
    mutex_assert_held(&session->mutex);
    renumber_tell_locked(session);
    return error_set(LOCKSTEP_E_CHANGED,
                     "%s '%s': the world changed while it ran, and what it writes is undefined "
                     "now: call it again, on every rank; %s",
                     kind, name, change->text);
}

int agreement_parted_locked(struct lockstep_session *session, const char *kind, const char *name)
{
    const struct world_change *change = &session->step.change;
    mutex_assert_held(&session->mutex);
    renumber_tell_locked(session);
    return error_set(LOCKSTEP_E_CHANGED,
                     "%s '%s': the rank at the other end is gone, and what it writes is undefined "
                     "now: ask lockstep_world_change for the ranks that are left; %s",
                     kind, name, change->text);
}

static int agreement_renumbered(void)
{
    return error_set(LOCKSTEP_E_CHANGED,
                     "ranks may have other numbers, because the world has changed: ask "
                     "lockstep_world_change, and call it again with the numbers and counts of "
                     "now");
}

int agreement_numbers_locked(struct lockstep_session *session)
{
    const uint64_t changes = session->step.change.number;
    mutex_assert_held(&session->mutex);
    if (session->works.changes_told == changes)
        return 0;
    renumber_tell_locked(session);
    return agreement_renumbered();
}

int agreement_same_locked(struct lockstep_session *session, uint64_t changes)
{
    mutex_assert_held(&session->mutex);
    if (session->step.change.number == changes)
        return 0;
    renumber_tell_locked(session);
    return agreement_renumbered();
}

enum outcome_kind agreement_outcome(const struct outcomes *outcomes, uint64_t space, uint32_t slot)
{
    for (uint32_t i = 0; i < outcomes->count; i++)
        if (outcomes->all[i].space == space && outcomes->all[i].slot == slot)
            return outcomes->all[i].kind;
    return OUTCOME_NONE;
}

bool agreement_keep(struct outcomes *outcomes, const struct outcome *outcome)
{
    if (agreement_outcome(outcomes, outcome->space, outcome->slot) != OUTCOME_NONE)
        return true;
    if (outcomes->count == LOCKSTEP_MAX_PLAIN)
        return false;
    outcomes->all[outcomes->count++] = *outcome;
    return true;
}
