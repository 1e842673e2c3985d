// SPDX-License-Identifier: Apache-2.0
//
// How a session goes on after a death; see recovery.h. Driver only.

#include "worker/engine/recovery.h"

#include "base/text.h"
#include "worker/engine/accord.h"
#include "worker/engine/carry.h"
#include "worker/engine/decisions.h"
#include "worker/engine/engine.h"
#include "worker/engine/events.h"
#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/engine/progress.h"
#include "worker/engine/recovery_report.h"
#include "worker/engine/repeat.h"
#include "worker/engine/resume.h"
#include "worker/engine/tell.h"
#include "worker/memory/units.h"
#include "worker/order/ancestry.h"
#include "worker/order/promise.h"
#include "worker/order/recover.h"
#include "worker/session/module/contribution.h"
#include "worker/session/renumber.h"
#include "worker/transport/freeze.h"
#include "worker/transport/redo.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool recovery_is_on(const struct lockstep_session *session)
{
    return session->engine.recovery != NULL;
}

void recovery_describe(const struct lockstep_session *session, struct up_resume *resume)
{
    const struct engine_recovery *recovery = session->engine.recovery;
    if (!recovery)
        return;
    resume->promised = recovery->promise.ballot;
    ancestry_describe(&recovery->ancestry, resume);
}

void recovery_established(struct lockstep_session *session)
{
    if (session->engine.recovery)
        ancestry_establish(&session->engine.recovery->ancestry);
}

bool recovery_begin(struct lockstep_session *session)
{
    if (session->config.on_failure != LOCKSTEP_ON_FAILURE_CONTINUE)
        return true;
    session->engine.recovery = calloc(1, sizeof(*session->engine.recovery));
    if (!session->engine.recovery)
        return false;
    promise_init(&session->engine.recovery->promise, session->world.generation);
    ancestry_begin(&session->engine.recovery->ancestry, session->world.generation,
                   session->world.size);
    return true;
}

static void recovery_drop_records(struct engine_recovery *recovery)
{
    for (uint32_t i = 0; i < recovery->record_count; i++)
        free(recovery->records[i].words);
    recovery->record_count = 0;
}

void recovery_free(struct lockstep_session *session)
{
    struct engine_recovery *recovery = session->engine.recovery;
    if (!recovery)
        return;
    recovery_drop_records(recovery);
    free(recovery->records);
    accord_free(session);
    free(recovery);
    session->engine.recovery = NULL;
}

// ---- Freezing ----------------------------------------------------------------------------------

static void recovery_gives_up(struct lockstep_session *session, const char *why)
{
    char text[LOCKSTEP_REPORT_BYTES];
    snprintf(text, sizeof(text), "a rank was lost, and this rank cannot go on without it: %s", why);
    session->end.over_abruptly = true;
    engine_fail(session, LOCKSTEP_E_PEER_LOST, text);
}

static void recovery_freeze(struct lockstep_session *session)
{
    struct engine_recovery *recovery = session->engine.recovery;
    session->end.verdict_deadline_ms = 0;
    recovery->decided = false;
    recovery_drop_records(recovery);
    order_freeze(session->engine.order);
    const char *why = repeat_freeze(session);
    if (!why && transport_freeze(session->transport, &recovery->promise.ballot) < 0)
        why = "it has no memory for what is final";
    session->engine.linked = false;
    session->step.times.in_flight = 0;
    if (!why)
        why = recovery_report(session);
    if (why)
        recovery_gives_up(session, why);
}

void recovery_prepare(struct lockstep_session *session, const struct down_prepare *prepare)
{
    struct up_message message = {.kind = UP_REFUSE};
    const char *why = NULL;
    if (!recovery_is_on(session))
        return;
    switch (promise_prepare(&session->engine.recovery->promise, prepare->ballot)) {
    case PROMISE_FREEZE:
        log_event(&session->log, LOG_LEVEL_WARN, "recovery_began",
                  "ballot=%" PRIu64 " step=%" PRIu64 " text=%s", prepare->ballot.number,
                  order_present_step(session->engine.order), prepare->text);
        carry_note(session, prepare);
        recovery_freeze(session);
        break;
    case PROMISE_REPORT:
        why = recovery_report(session);
        if (why)
            recovery_gives_up(session, why);
        break;
    case PROMISE_REFUSE:
        message.u.refuse.promised = session->engine.recovery->promise.ballot;
        engine_send(session, &message);
        break;
    case PROMISE_SILENCE:
        break;
    }
}

void recovery_excluded(struct lockstep_session *session, const struct down_excluded *excluded)
{
    char text[LOCKSTEP_REPORT_BYTES];
    if (!recovery_is_on(session) ||
        !promise_excluded(&session->engine.recovery->promise, excluded->ballot))
        return;
    snprintf(text, sizeof(text), "the other ranks went on without this one: %s", excluded->text);
    session->end.over_abruptly = true;
    engine_fail(session, LOCKSTEP_E_PEER_LOST, text);
}

// ---- The decision ------------------------------------------------------------------------------

static struct held_record *record_find(const struct engine_recovery *recovery,
                                       enum record_kind kind, uint32_t position)
{
    for (uint32_t i = 0; i < recovery->record_count; i++) {
        struct held_record *record = &recovery->records[i];
        if (record->kind == kind && record->position == position)
            return record;
    }
    return NULL;
}

// Returns NULL if memory is missing.
static struct held_record *record_add(struct engine_recovery *recovery,
                                      const struct record_part *part)
{
    if (recovery->record_count == recovery->record_room) {
        const uint32_t room = recovery->record_room == 0 ? 16 : 2 * recovery->record_room;
        struct held_record *grown = realloc(recovery->records, room * sizeof(*grown));
        if (!grown)
            return NULL;
        recovery->records = grown;
        recovery->record_room = room;
    }
    struct held_record *record = &recovery->records[recovery->record_count];
    *record =
        (struct held_record){.kind = part->kind, .position = part->position, .total = part->total};
    record->words = calloc((size_t)part->total + 1, sizeof(*record->words));
    if (!record->words)
        return NULL;
    recovery->record_count++;
    return record;
}

void recovery_record(struct lockstep_session *session, const struct record_part *part)
{
    struct engine_recovery *recovery = session->engine.recovery;
    if (!recovery || !recovery->promise.frozen || part->total > LOCKSTEP_MAX_RECORD_WORDS)
        return;
    struct held_record *record = record_find(recovery, part->kind, part->position);
    if (!record)
        record = record_add(recovery, part);
    if (!record) {
        engine_fail(session, LOCKSTEP_E_SYSTEM, "no memory for the decision on a lost rank");
        return;
    }
    if (part->first != record->have || part->total != record->total ||
        part->count > record->total - record->have) {
        // A decision that is said again has the same records.
        if (record->have != record->total)
            engine_fail(session, LOCKSTEP_E_MISMATCH, "the coordinator sent an impossible record");
        return;
    }
    memcpy(record->words + record->have, part->words, part->count * sizeof(part->words[0]));
    record->have += part->count;
}

void recovery_decision(struct lockstep_session *session, const struct down_decision *decision)
{
    struct engine_recovery *recovery = session->engine.recovery;
    const struct generation_id *promised = recovery ? &recovery->promise.ballot : NULL;
    if (!recovery || !recovery->promise.frozen || decision->ballot.number != promised->number ||
        decision->ballot.incarnation != promised->incarnation)
        return;
    if (decision->chain_count == 0) {
        engine_fail(session, LOCKSTEP_E_MISMATCH, "the coordinator sent an impossible decision");
        return;
    }
    recovery->decided = true;
    recovery->decision = *decision;
}

bool recovery_expects(const struct lockstep_session *session,
                      const struct generation_id *generation)
{
    const struct engine_recovery *recovery = session->engine.recovery;
    return recovery && recovery->decided && recovery->promise.frozen &&
           generation->number == recovery->decision.ballot.number &&
           generation->incarnation == recovery->decision.ballot.incarnation;
}

bool recovery_has_promised(const struct lockstep_session *session)
{
    return session->engine.recovery && session->engine.recovery->promise.frozen;
}

void recovery_changes_locked(struct lockstep_session *session)
{
    const struct down_decision *decision = &session->engine.recovery->decision;
    struct world_change *change = &session->step.change;
    uint64_t removed[LOCKSTEP_RANK_WORDS];
    ancestry_removed(&session->engine.recovery->ancestry, decision, removed);
    if (session->config.virtual_ranks > 0)
        deal_lost(&session->world.deal, decision->settled, removed);
    carry_ends_locked(session, removed, decision->settled + 1);
    text_copy(change->text, sizeof(change->text), decision->text);
}

// Ranks have other numbers from now on.
void recovery_forms(struct lockstep_session *session)
{
    struct engine_recovery *recovery = session->engine.recovery;
    (void)promise_decided(&recovery->promise, recovery->decision.ballot);
    ancestry_decided(&recovery->ancestry, &recovery->decision);
    carry_forget_losses(session);
}

// ---- Going on ----------------------------------------------------------------------------------

// Copies the payload of a wave out of a record. False: the decision does not have it.
static bool record_wave(const struct engine_recovery *recovery, enum record_kind kind,
                        void *payload, size_t size)
{
    const struct held_record *record = record_find(recovery, kind, 0);
    const size_t bytes = record ? record->have * sizeof(record->words[0]) : 0;
    memset(payload, 0, size);
    if (record)
        memcpy(payload, record->words, bytes < size ? bytes : size);
    return record != NULL;
}

// Adds the slots that are repeated.
static void recovery_redo_set(const struct engine_recovery *recovery, struct slot_set *set)
{
    for (uint32_t i = 0; i < recovery->record_count; i++) {
        const struct held_record *record = &recovery->records[i];
        if (record->kind == RECORD_ROWS && record->position < LOCKSTEP_MAX_SLOTS)
            slot_set_add(set, record->position);
    }
}

// Ends the step that other members have settled and this rank has not. False: the decision lacks
// its end, and the session fails.
static bool recovery_ends_step(struct lockstep_session *session)
{
    struct commit_wave outcome;
    if (!record_wave(session->engine.recovery, RECORD_COMMIT, &outcome, sizeof(outcome))) {
        engine_fail(session, LOCKSTEP_E_MISMATCH,
                    "the decision on a lost rank lacks the end of a step");
        return false;
    }
    engine_committed(session, &outcome);
    return true;
}

static void recovery_log(struct lockstep_session *session)
{
    const struct down_decision *decision = &session->engine.recovery->decision;
    log_event(&session->log, LOG_LEVEL_WARN, "recovered",
              "generation=%" PRIu64 " rank=%" PRIu32 " world_size=%" PRIu32 " settled=%" PRIu64
              " text=%s",
              session->world.generation.number, session->world.rank, session->world.size,
              decision->settled, decision->text);
}

// The order core learns of the decision in the middle (order_recover). Before that, this function
// reads what the core will change, ends the step that other members have settled, and says what has
// to be known first (order/recover.h, repeat.h). After it, the core goes on: repeated buckets need
// the records, so these are dropped then.
void recovery_goes_on(struct lockstep_session *session)
{
    struct engine_recovery *recovery = session->engine.recovery;
    struct order *order = session->engine.order;
    struct close_wave closed;
    struct open_wave opened;
    if (!recovery || !recovery->decided)
        return;
    struct order_decision decision = {.generation = session->world.generation,
                                      .rank = session->world.rank,
                                      .world_size = session->world.size,
                                      .settled = recovery->decision.settled,
                                      .skipped = (recovery->decision.flags & REPORT_SKIPPED) != 0};
    const uint32_t size_before = order->world_size;
    recovery->decided = false;
    recovery_redo_set(recovery, &decision.redo);
    if (record_wave(recovery, RECORD_CLOSING, &closed, sizeof(closed)))
        decision.closed = &closed;
    if (record_wave(recovery, RECORD_OPENING, &opened, sizeof(opened)))
        decision.opened = &opened;
    const bool behind = decision.settled == order->settled + 1 && !decision.skipped;
    const bool waits = order->opening != 0 && !order->recovery.opened;
    if (behind && !recovery_ends_step(session))
        return;
    recovery_log(session);
    // A coordinator drops what a rank of an older generation says, but for ballots. And the rank
    // that was the first one may be gone before it had named the modules.
    if (!session->engine.starting)
        resume_say_modules(session, session->world.rank == 0);
    // A step that the decision completes has its layouts.
    if (!behind && order->learning && order->open && order->ended)
        engine_propose_layouts(session);
    recovery->redo_low = UINT32_MAX;
    recovery->redo_step = decision.settled + 1;
    accord_begin(session);
    if (!behind)
        repeat_go_on(session);
    order_recover(order, &decision);
    // The wave was complete in the world before.
    if (waits && order->recovery.opened)
        engine_opened(session, order->opening, &opened, size_before);
    progress_order(session);
    recovery_drop_records(recovery);
    if (session->engine.starting)
        engine_start_again(session);
}

void recovery_parts(const struct lockstep_session *session, struct up_leave *leave)
{
    const struct order *order = session->engine.order;
    const void *wave = &session->step.outcome;
    size_t size = sizeof(session->step.outcome);
    struct order_facts facts;
    if (session->config.on_failure != LOCKSTEP_ON_FAILURE_CONTINUE || !order)
        return;
    order_report(order, &facts);
    const bool opened = facts.opened && order->recovery.result_step == facts.step;
    if (!opened && facts.settled == 0)
        return;
    if (opened || facts.skipped) {
        wave = &order->recovery.result;
        size = sizeof(order->recovery.result);
        leave->flags = facts.skipped ? REPORT_SKIPPED : REPORT_OPENED;
    }
    leave->settled = facts.settled;
    memcpy(leave->words, wave, size);
    leave->word_count = (uint32_t)((size + sizeof(leave->words[0]) - 1) / sizeof(leave->words[0]));
    while (leave->word_count > 1 && leave->words[leave->word_count - 1] == 0)
        leave->word_count--;
}

void recovery_redo(struct lockstep_session *session, const struct order_action *action)
{
    struct engine_recovery *recovery = session->engine.recovery;
    const struct held_record *rows = record_find(recovery, RECORD_ROWS, action->index);
    const struct held_record *used = record_find(recovery, RECORD_USED, action->index);
    const struct slot_id *id = &action->slot->id;
    struct collective *collective =
        &session->modules[id->module]->contributions[id->call].runs[id->bucket].collective;
    const uint32_t words = units_words(collective->unit_count);
    uint64_t *bits = calloc((size_t)words + 1, sizeof(*bits));
    struct redo_row *table = calloc((size_t)rows->have / 3 + 1, sizeof(*table));
    const char *why = "no memory to repeat a bucket";
    if (bits && table) {
        for (uint32_t i = 0; i < rows->have / 3; i++)
            table[i] = (struct redo_row){.first = rows->words[3 * i],
                                         .end = rows->words[3 * i + 1],
                                         .owner = (uint32_t)(rows->words[3 * i + 2] >> 1),
                                         .kind = (enum redo_kind)(rows->words[3 * i + 2] & 1)};
        for (uint32_t i = 0; used && i < used->have && i < words; i++)
            bits[i] = used->words[i];
        const struct transport_redo redo = {
            .rows = table,
            .count = rows->have / 3,
            .used = bits,
            .whole = slot_set_has(&recovery->facts.final, action->index)};
        if (action->index < recovery->redo_low)
            recovery->redo_low = action->index;
        engine_count_launch(&session->step.times);
        why = transport_redo(session->transport, collective, &redo);
    }
    free(bits);
    free(table);
    if (why)
        engine_fail(session, LOCKSTEP_E_SYSTEM, why);
}
