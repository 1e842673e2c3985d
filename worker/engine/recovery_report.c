// SPDX-License-Identifier: Apache-2.0
// See recovery_report.h. Driver only.

#include "worker/engine/recovery_report.h"

#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/memory/units.h"
#include "worker/order/recover.h"
#include "worker/session/module/contribution.h"
#include "worker/transport/freeze.h"

#include <stdlib.h>
#include <string.h>

static void recovery_say(struct lockstep_session *session, enum record_kind kind, uint32_t position,
                         const uint64_t *words, uint32_t total)
{
    struct up_message message = {.kind = UP_RECORD_PART};
    struct record_part *part = &message.u.record_part;
    part->kind = kind;
    part->position = position;
    part->total = total;
    for (part->first = 0; part->first < total; part->first += part->count) {
        part->count = total - part->first;
        if (part->count > LOCKSTEP_RECORD_PART)
            part->count = LOCKSTEP_RECORD_PART;
        memcpy(part->words, words + part->first, part->count * sizeof(words[0]));
        engine_send(session, &message);
    }
}

static void recovery_say_set(struct lockstep_session *session, enum record_kind kind,
                             const struct slot_set *set)
{
    uint32_t total = LOCKSTEP_SLOT_WORDS;
    while (total > 0 && set->words[total - 1] == 0)
        total--;
    recovery_say(session, kind, 0, set->words, total);
}

// Zeros at the end do not travel, but for the first word.
static void recovery_say_wave(struct lockstep_session *session, enum record_kind kind,
                              const void *payload, size_t size)
{
    uint64_t words[(LOCKSTEP_WAVE_BYTES + 7) / 8] = {0};
    uint32_t total = (uint32_t)((size + 7) / 8);
    memcpy(words, payload, size);
    while (total > 1 && words[total - 1] == 0)
        total--;
    recovery_say(session, kind, 0, words, total);
}

static struct collective *slot_collective(struct lockstep_session *session,
                                          const struct slot_id *id)
{
    const struct lockstep_module *module = session->modules[id->module];
    return &module->contributions[id->call].runs[id->bucket].collective;
}

static void recovery_say_used(struct lockstep_session *session, uint32_t position,
                              const uint64_t *used, uint32_t words)
{
    while (words > 0 && used[words - 1] == 0)
        words--;
    if (words > 0)
        recovery_say(session, RECORD_USED, position, used, words);
}

// A slot that was launched and is not done. Returns NULL, or why it cannot be repeated.
static const char *recovery_say_runs(struct lockstep_session *session, uint32_t position)
{
    const struct slot_id *id = &session->engine.order->slots[position].id;
    const struct collective *collective = slot_collective(session, id);
    struct transport_finals finals;
    uint64_t used[LOCKSTEP_BUCKET_PARAMETERS / 64];
    transport_final(session->transport, collective, &finals);
    if (finals.unknown)
        return finals.unknown;
    const uint32_t total = 1 + 2 * finals.run_count;
    uint64_t *words = malloc(total * sizeof(*words));
    if (!words)
        return "this rank has no memory for its report";
    words[0] = collective->elements;
    for (uint32_t i = 0; i < finals.run_count; i++) {
        words[1 + 2 * i] = finals.runs[i].first;
        words[2 + 2 * i] = finals.runs[i].end;
    }
    recovery_say(session, RECORD_RUNS, position, words, total);
    free(words);
    transport_final_used(session->transport, collective, used);
    recovery_say_used(session, position, used, units_words(collective->unit_count));
    return NULL;
}

// The first position that may not be done on another rank, although it is done here. A rank that
// has launched a slot has all slots done that are W positions before it, but for repeated ones, for
// slots of groups, and on devices for slots that are summed (order protocol, R3).
static uint32_t recovery_used_from(const struct lockstep_session *session)
{
    const struct engine_recovery *recovery = session->engine.recovery;
    const struct order *order = session->engine.order;
    uint32_t highest = 0;
    for (uint32_t i = 0; session->world.devices == 0 && i < recovery->facts.slot_count; i++)
        if (slot_set_has(&recovery->facts.final, i) &&
            !module_is_grouped(session->modules[order->slots[i].id.module]))
            highest = i;
    const uint32_t window = order->options.window;
    const uint32_t from = highest >= window ? highest - window : 0;
    const bool again = recovery->redo_step == recovery->facts.step;
    return again && recovery->redo_low < from ? recovery->redo_low : from;
}

static const char *recovery_say_slots(struct lockstep_session *session)
{
    const struct engine_recovery *recovery = session->engine.recovery;
    const struct order *order = session->engine.order;
    const uint32_t used_from = recovery_used_from(session);
    const char *why = NULL;
    recovery_say_set(session, RECORD_GIVEN, &recovery->facts.contributed);
    recovery_say_set(session, RECORD_FINAL, &recovery->facts.final);
    for (uint32_t i = 0; i < recovery->facts.slot_count && !why; i++) {
        // A slot that is not given here runs later, or is of a module that this rank does not have.
        if (!slot_set_has(&recovery->facts.contributed, i))
            continue;
        const struct collective *collective = slot_collective(session, &order->slots[i].id);
        if (!slot_set_has(&recovery->facts.final, i))
            why = recovery_say_runs(session, i);
        else if (i >= used_from)
            recovery_say_used(session, i, collective->used, units_words(collective->unit_count));
    }
    return why;
}

// True if this rank has the result of the open wave of its present step, or of the step that it has
// skipped.
static bool recovery_has_opening(const struct lockstep_session *session)
{
    const struct order_facts *facts = &session->engine.recovery->facts;
    return facts->skipped ||
           (facts->opened && session->engine.order->recovery.result_step == facts->step);
}

static void recovery_say_waves(struct lockstep_session *session)
{
    const struct order *order = session->engine.order;
    const struct engine_recovery *recovery = session->engine.recovery;
    struct commit_wave outcome;
    mutex_lock(&session->mutex);
    outcome = session->step.outcome;
    mutex_unlock(&session->mutex);
    if (recovery->facts.settled > 0)
        recovery_say_wave(session, RECORD_COMMIT, &outcome, sizeof(outcome));
    if (recovery_has_opening(session))
        recovery_say_wave(session, RECORD_OPENING, &order->recovery.result,
                          sizeof(order->recovery.result));
    if (recovery->facts.closed && !order->learning)
        recovery_say_wave(session, RECORD_CLOSING, &order->verdict, sizeof(order->verdict));
}

const char *recovery_report(struct lockstep_session *session)
{
    struct engine_recovery *recovery = session->engine.recovery;
    const struct order *order = session->engine.order;
    const struct order_facts *facts = &recovery->facts;
    struct up_message message = {.kind = UP_REPORT};
    struct up_report *report = &message.u.report;
    order_report(order, &recovery->facts);
    const char *why = recovery_say_slots(session);
    if (why)
        return why;
    recovery_say_waves(session);
    report->ballot = recovery->promise.ballot;
    report->settled = facts->settled;
    report->step = facts->step;
    report->flags = (recovery_has_opening(session) && !facts->skipped ? REPORT_OPENED : 0u) |
                    (facts->skipped ? REPORT_SKIPPED : 0u) | (facts->begun ? REPORT_BEGUN : 0u) |
                    (facts->closed && !order->learning ? REPORT_CLOSED : 0u) |
                    (facts->all_final ? REPORT_ALL_FINAL : 0u);
    if (facts->begun) {
        report->phase = order->phase;
        report->space = order->space;
    }
    engine_send(session, &message);
    return NULL;
}
