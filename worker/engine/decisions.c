// SPDX-License-Identifier: Apache-2.0
//
// The engine carries out the decisions of the order core here: launches, waves, headers, the end of
// a step, and error texts. The core knows modules and phases by numbers only; the functions here
// put their names into the texts. Driver only.

#include "worker/engine/decisions.h"
#include "worker/engine/carry.h"

#include "base/clock.h"
#include "base/text.h"
#include "protos/topology.h"
#include "worker/engine/accord.h"
#include "worker/engine/landing.h"
#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/engine/progress.h"
#include "worker/engine/recovery.h"
#include "worker/engine/tell.h"
#include "worker/engine/waits.h"
#include "worker/kernels/kernels.h"
#include "worker/order/check.h"
#include "worker/order/payloads.h"
#include "worker/session/module/contribution.h"
#include "worker/session/module/deferral.h"
#include "worker/session/module/sets.h"
#include "worker/support/error.h"
#include "worker/transport/headers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// ---- Error texts -------------------------------------------------------------------------------

// Writes the error text that names the calls outside the plan. The close wave's verdict is the same
// on every rank, so this text is, too.
static void engine_unplanned_text(const struct lockstep_session *session, enum halt_kind halt,
                                  char *bytes, size_t size)
{
    static_assert(LOCKSTEP_MAX_SLOTS == 1024, "the text says so");
    const struct close_wave *verdict = &session->engine.order->verdict;
    struct text text;
    text_init(&text, bytes, size);
    text_append(&text, "step %" PRIu64 ": calls outside the plan of phase '%s':",
                session->engine.order->step, session->engine.phase);
    for (uint32_t i = 0; i < verdict->extra_total && i < LOCKSTEP_MAX_EXTRA_CALLS; i++) {
        const struct call_id *id = &verdict->extras[i];
        const char *name =
            id->module < session->module_count ? session->modules[id->module]->name : "?";
        text_append(&text, "%s module '%s' (call %" PRIu32 ")", i > 0 ? "," : "", name,
                    id->call + 1);
    }
    text_append(&text, "%s; ", verdict->extra_total > LOCKSTEP_MAX_EXTRA_CALLS ? " and more" : "");
    if (halt == HALT_LIMIT)
        text_append(&text,
                    "with them the step has more than 1024 buckets, and a step has at most 1024; "
                    "each bucket counts once for each separate call: make the buckets larger "
                    "(bucket_bytes), or make fewer separate calls");
    else
        text_append(&text,
                    "%sthe first step of a phase decides which modules it runs: use another phase "
                    "label for steps that run others",
                    session->config.unplanned == LOCKSTEP_UNPLANNED_FAIL
                        ? ""
                        : "that is too many for one step, and ");
}

// Writes the error text for a wait for a call outside the plan. Such a call runs at the end of the
// step only, so the wait could never end. The order core knows the module by its number only.
static void engine_wait_text(const struct lockstep_session *session, struct call_id call,
                             char *bytes, size_t size)
{
    const char *name =
        call.module < session->module_count ? session->modules[call.module]->name : "?";
    snprintf(bytes, size,
             "this rank waits for module '%s' (call %" PRIu32
             "), which is outside the plan of phase '%s' and runs when all ranks have ended the "
             "step: use another phase label for steps that run it, or do not wait for it",
             name, call.call + 1, session->engine.phase);
}

// Writes the error text for a phase that differs from the predecessor's. The order core cannot name
// phases: it knows only their hashes.
static void engine_phase_text(const struct lockstep_session *session, char *bytes, size_t size)
{
    const uint32_t rank = topology_predecessor(session->world.rank, session->world.size);
    char predecessor[LOCKSTEP_HOST_BYTES + 64];
    snprintf(predecessor, sizeof(predecessor), "rank %" PRIu32 " (host %s)", rank,
             engine_peer_host(session, rank));
    sets_difference(session, predecessor, bytes, size);
}

// ---- Launching ---------------------------------------------------------------------------------

// The clock is read only when no other bucket is in flight.
void engine_count_launch(struct step_times *times)
{
    if (times->in_flight++ == 0)
        times->in_flight_since = clock_now_us();
}

// Counts a bucket as no longer in flight. The last bucket in flight reads the clock. It does so
// under the mutex, under which the trainer reads the clock at the step's end: so the two readings
// are in order.
static void engine_count_landing(struct lockstep_session *session)
{
    struct step_times *times = &session->step.times;
    uint64_t now;
    uint64_t end;
    if (--times->in_flight > 0)
        return;
    mutex_lock(&session->mutex);
    now = clock_now_us();
    end = times->end == 0 ? now : times->end;
    mutex_unlock(&session->mutex);
    times->in_flight_us += now - times->in_flight_since;
    if (end > times->in_flight_since)
        times->overlap_us += end - times->in_flight_since;
}

static void engine_launch(struct lockstep_session *session, const struct order_action *action)
{
    const struct slot_id id = action->slot->id;
    struct contribution *contribution;
    struct collective *collective;
    if (id.module >= session->module_count ||
        id.call >= session->modules[id.module]->contribution_count ||
        id.bucket >= session->modules[id.module]->layout.bucket_count) {
        engine_fail(session, LOCKSTEP_E_MISMATCH,
                    "the plan names a slot that this rank does not have");
        return;
    }
    contribution = &session->modules[id.module]->contributions[id.call];
    if (!action->slot->zero)
        deferral_take(contribution, id.bucket);
    collective = contribution_collective(contribution, id.bucket, action->slot->algorithm,
                                         action->slot->zero, action->slot->forfeited);
    collective->tag = (struct collective_tag){
        .step = action->step, .space = action->space, .slot = action->index};
    atomic_fetch_add_explicit(&session->tallies.buckets_travelled, 1, memory_order_relaxed);
    if (action->slot->zero)
        atomic_fetch_add_explicit(&session->tallies.zero_filled, 1, memory_order_relaxed);
    engine_count_launch(&session->step.times);
    atomic_fetch_add_explicit(&session->tallies.runs, collective->extent_count,
                              memory_order_relaxed);
    trace_event(&session->trace, TRACE_LAUNCH, action->step, id.module, id.call, id.bucket,
                collective->elements * dtype_size(collective->dtype));
    transport_launch(session->transport, collective);
}

// ---- Waves and headers -------------------------------------------------------------------------

// The size and the functions of each kind of wave.
static const struct wave_rules {
    uint32_t size;
    void (*merge)(void *into, const void *from);
    const char *(*check)(const void *context, const struct wave_origin *origin, const void *payload,
                         const void *own);
    const char *name;
} wave_rules[WAVE_KINDS] = {
    [WAVE_CLOSE] = {sizeof(struct close_wave), order_close_merge, order_close_check, "close"},
    [WAVE_COMMIT] = {sizeof(struct commit_wave), order_commit_merge, order_commit_check, "commit"},
    [WAVE_OPEN] = {sizeof(struct open_wave), order_open_merge, order_open_check, "open"},
};

// Launches the wave. The caller has filled in this rank's part of the payload.
static void engine_join(struct lockstep_session *session, struct wave *wave, enum wave_kind kind,
                        uint64_t step)
{
    wave->step = step;
    wave->kind = kind;
    wave->size = wave_rules[kind].size;
    wave->merge = wave_rules[kind].merge;
    wave->check = wave_rules[kind].check;
    wave->name = wave_rules[kind].name;
    wave->context = &session->engine.wave_bounds;
    transport_wave(session->transport, wave);
}

static void engine_join_open(struct lockstep_session *session, const struct order_action *action)
{
    memcpy(session->engine.open_wave.payload, action->opening, sizeof(struct open_wave));
    engine_join(session, &session->engine.open_wave, WAVE_OPEN, action->step);
}

static void engine_join_close(struct lockstep_session *session, const struct order_action *action)
{
    memcpy(session->engine.close_wave.payload, action->close, sizeof(struct close_wave));
    engine_join(session, &session->engine.close_wave, WAVE_CLOSE, action->step);
}

// By joining the commit wave, this rank says that all its results of the step are final. The order
// core calls this when all slots are final. The wave is held while buffers are in flight, because
// the order core does not know of buffers.
void engine_join_commit(struct lockstep_session *session, uint64_t step)
{
    session->engine.commit_held = session->engine.buffers_in_flight > 0 || accord_is_open(session);
    if (session->engine.commit_held || session->engine.order->given_up == step)
        return;
    mutex_lock(&session->mutex);
    memcpy(session->engine.commit_wave.payload, &session->step.contribution,
           sizeof(struct commit_wave));
    if (recovery_is_on(session))
        carry_adapt_locked(session, step,
                           (struct commit_wave *)session->engine.commit_wave.payload);
    mutex_unlock(&session->mutex);
    engine_join(session, &session->engine.commit_wave, WAVE_COMMIT, step);
}

static void engine_send_header(struct lockstep_session *session, const struct step_header *header)
{
    struct step_note *note = &session->engine.own_note;
    note->count = 0;
    if (!header->opening)
        sets_note(session, note);
    transport_header(session->transport, header, note->bytes, note->count);
}

// ---- Decisions ---------------------------------------------------------------------------------

static void engine_settled(struct lockstep_session *session, uint64_t step)
{
    struct transport_statistics now;
    if (sets_adopt_layouts(session) && engine_reserve_layouts(session) < 0)
        engine_fail(session, LOCKSTEP_E_SYSTEM, engine_no_room);
    transport_statistics(session->transport, &now);
    session->landing.by_stream = session->landing.any_enqueued =
        false; // From now on bucket runs belong to the trainer.
    progress_order(session);
    atomic_store(&session->progress->settled, step);
    trace_event(&session->trace, TRACE_SETTLED, step, TRACE_NO_MODULE, 0, 0, 0);
    atomic_store(&session->progress->bytes_sent, now.bytes_sent);
    atomic_store(&session->progress->bytes_received, now.bytes_received);
    mutex_lock(&session->mutex);
    session->step.report.bytes_sent = now.bytes_sent - session->engine.step_bytes_sent;
    session->step.report.bytes_received = now.bytes_received - session->engine.step_bytes_received;
    session->step.report.bytes_copied = now.bytes_copied - session->engine.step_bytes_copied;
    session->step.report.extended = session->engine.order->verdict.extra_total;
    if (session->config.virtual_ranks > 0)
        deal_settled(&session->world.deal, step);
    session->step.settled = step;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
    if (session->end.abort_text[0] != '\0') // The abort has waited for this step to settle.
        engine_fail(session, session->end.abort_status, session->end.abort_text);
}

static void engine_failed(struct lockstep_session *session, const struct order_action *action)
{
    char text[LOCKSTEP_REPORT_BYTES];
    session->end.verdict_deadline_ms = 0;
    trace_event(&session->trace, TRACE_HALT, action->step, TRACE_NO_MODULE, 0, 0, action->halt);
    if (!action->text) {
        // No collective is in flight. The links stay open, because other ranks may still read this
        // rank's last frames.
        engine_unplanned_text(session, action->halt, text, sizeof(text));
        session_fail(session, error_status_of_halt(action->halt), text);
        return;
    }
    if (session->end.abort_text[0] != '\0') {
        session->end.over_abruptly = true;
        engine_fail(session, session->end.abort_status, session->end.abort_text);
        return;
    }
    session->end.over_abruptly = action->halt == HALT_LOST;
    engine_fail(session, error_status_of_halt(action->halt), action->text);
}

void engine_action(void *context, const struct order_action *action)
{
    struct lockstep_session *session = context;
    if (session->end.over) // The session has failed in an earlier action of the same event.
        return;
    switch (action->kind) {
    case ORDER_SEND: {
        struct up_message message = *action->up;
        if (message.kind == UP_FAIL && message.u.fail.kind == HALT_PHASE)
            engine_phase_text(session, message.u.fail.text, sizeof(message.u.fail.text));
        if (message.kind == UP_FAIL && message.u.fail.kind == HALT_UNPLANNED)
            engine_wait_text(session, action->call, message.u.fail.text,
                             sizeof(message.u.fail.text));
        engine_send(session, &message);
        break;
    }
    case ORDER_OPEN:
        engine_join_open(session, action);
        break;
    case ORDER_HEADER:
        engine_send_header(session, action->header);
        break;
    case ORDER_LAUNCH:
        engine_launch(session, action);
        break;
    case ORDER_REDO:
        recovery_redo(session, action);
        break;
    case ORDER_CLOSE:
        engine_join_close(session, action);
        break;
    case ORDER_COMMIT:
        engine_join_commit(session, action->step);
        break;
    case ORDER_SETTLED:
        engine_settled(session, action->step);
        break;
    case ORDER_RELEASE:
        engine_wait_released(session, action);
        break;
    case ORDER_DEFER:
        deferral_put_off(
            &session->modules[action->deferred->module]->contributions[action->deferred->call],
            action->deferred->bucket);
        break;
    case ORDER_IMPOSSIBLE:
        transport_blame(session->transport, action->rank, action->text);
        break;
    case ORDER_FAILED:
        engine_failed(session, action);
        break;
    }
}

// ---- Final slots -------------------------------------------------------------------------------

static void engine_count_times(struct lockstep_session *session,
                               const struct collective *collective)
{
    struct step_times *times = &session->step.times;
    if (collective->first_sent_us != 0 &&
        (times->first_sent == 0 || collective->first_sent_us < times->first_sent))
        times->first_sent = collective->first_sent_us;
    if (collective->last_received_us > times->last_received)
        times->last_received = collective->last_received_us;
}

static void engine_trace_final(const struct lockstep_session *session, uint32_t slot)
{
    const struct slot_id *id = &session->engine.order->slots[slot].id;
    trace_event(&session->trace, TRACE_FINAL, session->engine.order->step, id->module, id->call,
                id->bucket, 0);
}

void engine_slot_final(struct lockstep_session *session, struct collective *collective)
{
    engine_count_landing(session);
    engine_count_times(session, collective);
    engine_trace_final(session, collective->tag.slot);
    engine_wait_bucket(session, collective);
    order_slot_final(session->engine.order, collective->tag.slot);
    progress_order(session);
}
