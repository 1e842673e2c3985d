// SPDX-License-Identifier: Apache-2.0
//
// What becomes of plain collectives that a death has hit. Each member of the new generation tells
// all others in one allreduce, the *accord*, which plain collectives of the trainer are in flight
// on it, whether it has their results, and the outcomes that it knows of earlier accords. All get
// the same table, and so the same outcomes:
//
//     some rank knows an outcome         that one: its trainer may have seen it
//     some rank is without the result    changed: it fails on every rank (LOCKSTEP_E_CHANGED)
//     all that name it have the result   done: a rank that does not name it has completed it
//
// The last line needs that a rank has a result only when all ranks have begun the collective
// (work_confirm), and that no rank completes it before all have the result (agreement.h).
//
// A send and its receive concern two ranks, and are launched again, because the sender still has
// what it sends: a trainer gets the error only if the other rank is gone. Both are done if a rank
// has the result and none is without it: the other one has completed it, by the same two reasons.
// A receive from any source that has no message gets the error if a rank is gone that could have
// sent one.
//
// Until the accord is complete no plain collective is launched: it may be one that has failed on
// other ranks. A rank that begins such a collective later gets the error then. Collectives that
// were made and not launched before the accord began count as in flight: their trainer did not know
// the new world. A work whose command has not come yet is launched or ended by that command: its
// trainer may still be copying its input, and receives from any source are in the order of their
// commands. Driver only.

#include "worker/engine/accord.h"

#include "worker/engine/tell.h"
#include "worker/session/anysource.h"
#include "worker/session/group.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/session/world.h"

#include <stdlib.h>

enum {
    ACCORD_ROWS = 2 * LOCKSTEP_MAX_PLAIN, // Of a rank: its works in flight, and outcomes.
    ACCORD_WORDS = 3, // Of a row: the space, the slot with the status, and the group's space.
};

enum accord_status {
    STATUS_WITHOUT = 1, // In flight, without the result.
    STATUS_WITH,
    STATUS_DONE, // These two: the outcome of an earlier accord.
    STATUS_CHANGED,
    STATUS_APART, // A send or receive in flight, without the result.
    STATUS_MET,
    STATUS_LAST = STATUS_MET,
};

struct accord {
    bool active;
    struct collective collective;
    struct extent extent;
    uint32_t rows; // Of this rank.
    uint64_t words[]; // [ranks][ACCORD_ROWS][ACCORD_WORDS]; a row of zeros ends a rank's part.
};

static bool accord_is_on(const struct lockstep_session *session)
{
    return session->config.on_failure == LOCKSTEP_ON_FAILURE_CONTINUE;
}

// True if the work is a plain collective of the trainer that has not ended.
static bool accord_open_locked(const struct lockstep_work *work)
{
    mutex_assert_held(&work->session->mutex);
    return work->state == WORK_IN_FLIGHT && work->agreement.wanted;
}

const char *accord_freeze(struct lockstep_session *session)
{
    const char *why = NULL;
    mutex_lock(&session->mutex);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PLAIN; i++) {
        struct lockstep_work *work = &session->works.all[i];
        if (accord_open_locked(work))
            work->missing = 0;
        else if (work->state == WORK_IN_FLIGHT)
            why = "a collective of the library is in flight";
    }
    session->works.unmatched_held = true;
    mutex_unlock(&session->mutex);
    if (session->engine.accord)
        session->engine.accord->active = false;
    return why;
}

bool accord_is_open(const struct lockstep_session *session)
{
    return session->engine.accord && session->engine.accord->active;
}

// True if a death has ended the send or receive.
static bool accord_parts_locked(struct lockstep_work *work)
{
    mutex_assert_held(&work->session->mutex);
    if (work->lost && anysource_is(work)) {
        anysource_forget_locked(work);
        work->member = 0; // From now on it is no receive without a message.
    }
    return work->lost;
}

// The command of the work comes when the outcomes are known. True if the work fails. It cannot be
// done: no rank has the result before this rank has launched it.
static bool accord_fails_locked(const struct lockstep_session *session, struct lockstep_work *work)
{
    const struct collective_tag *tag = &work->collective.tag;
    return accord_parts_locked(work) ||
           agreement_outcome(&session->works.outcomes, tag->space, tag->slot) == OUTCOME_CHANGED;
}

bool accord_holds(struct lockstep_session *session, struct lockstep_work *work)
{
    const bool waits = session->engine.order->recovery.frozen || accord_is_open(session);
    bool fails = false;
    if (!accord_is_on(session) || !work->agreement.wanted)
        return false;
    mutex_lock(&session->mutex);
    work->handed = true;
    if (!waits)
        fails = accord_fails_locked(session, work);
    else if (anysource_is(work))
        anysource_queue_locked(work);
    mutex_unlock(&session->mutex);
    if (fails)
        work_end(work, true);
    return waits || fails;
}

void accord_free(struct lockstep_session *session)
{
    free(session->engine.accord);
    session->engine.accord = NULL;
}

// ---- Telling -----------------------------------------------------------------------------------

static void accord_add(struct accord *accord, uint32_t rank, const struct outcome *of,
                       enum accord_status status)
{
    uint64_t *row = &accord->words[((size_t)rank * ACCORD_ROWS + accord->rows++) * ACCORD_WORDS];
    row[0] = of->space;
    row[1] = (uint64_t)of->slot << 3 | (uint64_t)status;
    row[2] = of->group;
}

// True if this rank may still begin the collective.
static bool accord_awaits_locked(const struct lockstep_session *session,
                                 const struct outcome *outcome)
{
    const struct lockstep_group *group = session->works.groups;
    while (outcome->group != 0 && group && group->space != outcome->group)
        group = group->next;
    return (outcome->group == 0 || group) &&
           names_uses_locked(session, outcome->space) <= outcome->slot;
}

// Makes room when half of it is used: forgets outcomes that were decided before the last accord
// that decided any. An outcome stays while this rank has not begun its collective. Those of
// attempts are forgotten in any case: no rank begins their collectives any more.
static void accord_prune_locked(struct lockstep_session *session)
{
    struct outcomes *outcomes = &session->works.outcomes;
    uint64_t newest = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < outcomes->count; i++)
        if (outcomes->all[i].generation > newest)
            newest = outcomes->all[i].generation;
    for (uint32_t i = 0; i < outcomes->count; i++) {
        const struct outcome outcome = outcomes->all[i];
        const bool room =
            outcomes->count < LOCKSTEP_MAX_PLAIN / 2 && outcome.group != OUTCOME_ATTEMPT;
        if (room || outcome.generation == newest || accord_awaits_locked(session, &outcome))
            outcomes->all[kept++] = outcome;
    }
    outcomes->count = kept;
}

static uint64_t accord_group(const struct lockstep_work *work)
{
    if (work->agreement.attempt)
        return OUTCOME_ATTEMPT;
    return work->group ? work->group->space : 0;
}

static void accord_fill_locked(struct lockstep_session *session, struct accord *accord)
{
    const uint32_t rank = session->world.rank;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PLAIN; i++) {
        const struct lockstep_work *work = &session->works.all[i];
        const struct outcome of = {.space = work->collective.tag.space,
                                   .slot = work->collective.tag.slot,
                                   .group = accord_group(work)};
        if (!accord_open_locked(work) || work->lost || anysource_is(work))
            continue;
        if (work_is_pair(work))
            accord_add(accord, rank, &of, work->agreement.reached ? STATUS_MET : STATUS_APART);
        else
            accord_add(accord, rank, &of, work->agreement.reached ? STATUS_WITH : STATUS_WITHOUT);
    }
    for (uint32_t i = 0; i < session->works.outcomes.count; i++) {
        const struct outcome *outcome = &session->works.outcomes.all[i];
        accord_add(accord, rank, outcome,
                   outcome->kind == OUTCOME_DONE ? STATUS_DONE : STATUS_CHANGED);
    }
}

void accord_begin(struct lockstep_session *session)
{
    const size_t words = (size_t)session->world.size * ACCORD_ROWS * ACCORD_WORDS;
    const uint64_t number = session->world.generation.number;
    accord_free(session);
    struct accord *accord = calloc(1, sizeof(*accord) + words * sizeof(accord->words[0]));
    if (!accord) {
        engine_fail(session, LOCKSTEP_E_SYSTEM, "no memory to go on after a death");
        return;
    }
    session->engine.accord = accord;
    accord->active = true;
    work_forget_form(session);
    mutex_lock(&session->mutex);
    accord_prune_locked(session);
    accord_fill_locked(session, accord);
    mutex_unlock(&session->mutex);
    accord->extent = (struct extent){.in = accord->words, .out = accord->words, .elements = words};
    // No name of the trainer has this space: hashes of names are never 0.
    accord->collective = (struct collective){.kind = COLLECTIVE_ALLREDUCE,
                                             .dtype = DTYPE_UINT64,
                                             .op = REDUCE_MAX,
                                             .tag = {.slot = (uint32_t)number},
                                             .signature = number,
                                             .extents = &accord->extent,
                                             .extent_count = 1,
                                             .elements = words,
                                             .weight = 1};
    accord->collective.algorithm = world_algorithm(session, &accord->collective);
    transport_launch(session->transport, &accord->collective);
}

// ---- The outcomes ------------------------------------------------------------------------------

// Finds out which statuses the members say of a collective.
static void accord_find(const struct accord *accord, uint32_t ranks, uint64_t space, uint64_t slot,
                        bool found[STATUS_LAST + 1])
{
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const uint64_t *row = &accord->words[(size_t)rank * ACCORD_ROWS * ACCORD_WORDS];
        for (uint32_t i = 0; i < ACCORD_ROWS && row[1] != 0; i++, row += ACCORD_WORDS)
            if (row[0] == space && row[1] >> 3 == slot && (row[1] & 7) <= STATUS_LAST)
                found[row[1] & 7] = true;
    }
}

static enum outcome_kind accord_outcome(const struct accord *accord, uint32_t ranks, uint64_t space,
                                        uint64_t slot)
{
    bool found[STATUS_LAST + 1] = {false};
    accord_find(accord, ranks, space, slot, found);
    if (found[STATUS_CHANGED])
        return OUTCOME_CHANGED;
    return found[STATUS_WITHOUT] && !found[STATUS_DONE] ? OUTCOME_CHANGED : OUTCOME_DONE;
}

// Returns false if there are more outcomes than a session keeps.
static bool accord_conclude_locked(struct lockstep_session *session)
{
    const struct accord *accord = session->engine.accord;
    const struct outcomes *outcomes = &session->works.outcomes;
    const uint32_t ranks = session->world.size;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const uint64_t *row = &accord->words[(size_t)rank * ACCORD_ROWS * ACCORD_WORDS];
        for (uint32_t i = 0; i < ACCORD_ROWS && row[1] != 0; i++, row += ACCORD_WORDS) {
            // accord_outcome looks at all rows: it is called once for each collective.
            if ((row[1] & 7) >= STATUS_APART ||
                agreement_outcome(outcomes, row[0], (uint32_t)(row[1] >> 3)) != OUTCOME_NONE)
                continue;
            const struct outcome outcome = {.space = row[0],
                                            .slot = (uint32_t)(row[1] >> 3),
                                            .group = row[2],
                                            .kind =
                                                accord_outcome(accord, ranks, row[0], row[1] >> 3),
                                            .generation = session->world.generation.number};
            if (!agreement_keep(&session->works.outcomes, &outcome))
                return false;
        }
    }
    return true;
}

static enum outcome_kind accord_pair_locked(struct lockstep_session *session,
                                            struct lockstep_work *work)
{
    const struct collective_tag *tag = &work->collective.tag;
    bool found[STATUS_LAST + 1] = {false};
    if (accord_parts_locked(work))
        return OUTCOME_CHANGED;
    if (anysource_is(work))
        return OUTCOME_NONE;
    accord_find(session->engine.accord, session->world.size, tag->space, tag->slot, found);
    if (found[STATUS_MET] && !found[STATUS_APART])
        return OUTCOME_DONE;
    work->collective.state = NULL;
    agreement_make(work);
    work_confirm(work);
    return OUTCOME_NONE;
}

static enum outcome_kind accord_look_locked(struct lockstep_session *session,
                                            struct lockstep_work *work)
{
    const struct collective_tag *tag = &work->collective.tag;
    return work_is_pair(work) ? accord_pair_locked(session, work)
                              : agreement_outcome(&session->works.outcomes, tag->space, tag->slot);
}

// Ends the work as the accord says, or launches it if no rank has named it. Works are launched in
// the order of their entries, which matters to receives from any source only: they get no message
// before all of them are launched.
static void accord_apply(struct lockstep_session *session, struct lockstep_work *work)
{
    enum outcome_kind outcome = OUTCOME_NONE;
    mutex_lock(&session->mutex);
    const bool held = accord_open_locked(work) && work->missing == 0 && work->handed;
    if (held)
        outcome = accord_look_locked(session, work);
    mutex_unlock(&session->mutex);
    if (held && outcome == OUTCOME_NONE)
        work_launch(work);
    if (outcome != OUTCOME_NONE)
        work_end(work, outcome == OUTCOME_CHANGED);
}

bool accord_done(struct lockstep_session *session, const struct collective *collective)
{
    struct accord *accord = session->engine.accord;
    if (!accord || collective != &accord->collective)
        return false;
    accord->active = false;
    mutex_lock(&session->mutex);
    const bool fits = accord_conclude_locked(session);
    mutex_unlock(&session->mutex);
    if (!fits) {
        engine_fail(session, LOCKSTEP_E_PEER_LOST,
                    "a rank was lost, and too many collectives were in flight to go on");
        return true;
    }
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PLAIN; i++)
        accord_apply(session, &session->works.all[i]);
    anysource_release(session);
    return true;
}
