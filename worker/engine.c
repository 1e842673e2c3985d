// SPDX-License-Identifier: Apache-2.0
//
// The engine: what whoever drives a session does with the transport and the order core. It takes
// commands from the trainer and messages from the coordinator out of the inbox, feeds them to the
// order core as facts, and does what the core decides. It decides nothing about order itself. Which
// thread drives is said in drive.c.
//
// What it does decide is the end: engine_fail is the only way in which a session fails while the
// engine runs, and it lets go of user memory before anybody learns of the failure.

#include "base/clock.h"
#include "base/text.h"
#include "protos/topology.h"
#include "worker/device.h"
#include "worker/error.h"
#include "worker/kernels.h"
#include "worker/session.h"
#include "worker/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Failing -----------------------------------------------------------------------------------

// How long a close waits for others to take what they may still need.
#define ENGINE_LINGER_MS 2000
// The same for a session that a verdict has ended: the other ranks were told, too.
#define ENGINE_HALT_LINGER_MS 200

// The session has failed; engine_let_go does the rest, outside of whatever event this came from.
static void engine_fail(struct lockstep_session *session, int status, const char *text)
{
    if (session->over)
        return;
    session->over = true;
    session->verdict_deadline_ms = 0;
    session->over_status = status;
    text_copy(session->over_text, sizeof(session->over_text), text);
    transport_wake(session->transport);
}

// Ends the links, so that user memory is not touched any more, and then says why. After a death
// they are closed at once. Otherwise another rank may still need our last frames to settle the step
// before the one that failed: those are sent first, and a goodbye, so that nobody takes this rank
// for dead.
static void engine_let_go(struct lockstep_session *session)
{
    session->let_go = true;
    if (session->linked && !session->over_abruptly)
        transport_leave(session->transport, ENGINE_HALT_LINGER_MS);
    if (session->generation.number != 0)
        transport_abandon(session->transport);
    session_fail(session, session->over_status, session->over_text);
    log_event(&session->log, LOG_LEVEL_ERROR, "session_failed", "status=%s text=%s",
              lockstep_status_name(session->over_status), session->over_text);
}

// Calls outside the plan, by name: the verdict is the same on every rank, and so is this text.
static void engine_unplanned_text(const struct lockstep_session *session, char *bytes, size_t size)
{
    const struct close_wave *verdict = &session->order->verdict;
    struct text text;
    text_init(&text, bytes, size);
    text_append(&text,
                "step %" PRIu64 ": calls outside the plan of phase '%s':", session->order->step,
                session->engine_phase);
    for (uint32_t i = 0; i < verdict->extra_total && i < LOCKSTEP_MAX_EXTRA_CALLS; i++) {
        const struct call_id *id = &verdict->extras[i];
        const char *name =
            id->module < session->module_count ? session->modules[id->module]->name : "?";
        text_append(&text, "%s module '%s' (call %" PRIu32 ")", i > 0 ? "," : "", name,
                    id->call + 1);
    }
    text_append(&text,
                "%s; %sthe first step of a phase decides which modules it runs: use another "
                "phase label for steps that run others",
                verdict->extra_total > LOCKSTEP_MAX_EXTRA_CALLS ? " and more" : "",
                session->config.unplanned == LOCKSTEP_UNPLANNED_FAIL ? ""
                                                                     : "that is too many for one "
                                                                       "step, and ");
}

// A wait for a call that runs at the end of the step only: the order core knows modules and phases
// by their numbers.
static void engine_wait_text(const struct lockstep_session *session, struct call_id call,
                             char *bytes, size_t size)
{
    const char *name =
        call.module < session->module_count ? session->modules[call.module]->name : "?";
    snprintf(bytes, size,
             "this rank waits for module '%s' (call %" PRIu32
             "), which is outside the plan of phase '%s' and runs when all ranks have ended the "
             "step: use another phase label for steps that run it, or do not wait for it",
             name, call.call + 1, session->engine_phase);
}

static const char *engine_peer_host(const struct lockstep_session *session, uint32_t rank)
{
    for (uint32_t i = 0; i < session->peer_count; i++) {
        if (session->peers[i].rank == rank)
            return session->peers[i].host;
    }
    return "unknown";
}

// The order core knows phases by their hashes only.
static void engine_phase_text(const struct lockstep_session *session, char *bytes, size_t size)
{
    const uint32_t rank = topology_predecessor(session->rank, session->world_size);
    char predecessor[LOCKSTEP_HOST_BYTES + 64];
    snprintf(predecessor, sizeof(predecessor), "rank %" PRIu32 " (host %s)", rank,
             engine_peer_host(session, rank));
    sets_difference(session, predecessor, bytes, size);
}

static const char engine_no_room[] =
    "the device has no memory for the buckets that are in flight in a step: smaller ones "
    "(config.bucket_bytes) need less";

// ---- Speaking to the coordinator ---------------------------------------------------------------

static void engine_send(struct lockstep_session *session, struct up_message *message)
{
    int result;
    char text[LOCKSTEP_TEXT_BYTES + 128];
    message->generation = session->generation;
    atomic_fetch_add_explicit(&session->control_messages, 1, memory_order_relaxed);
    result = control_send(session->control, message);
    if (result == 0)
        return;
    if (result == -1 && message->kind == UP_BLOCKED) // The order core will hear of it.
        return;
    if (result == -1) {
        snprintf(text, sizeof(text), "the coordinator is gone and is needed here: %s",
                 session->control_text[0] != '\0' ? session->control_text : "the stream ended");
        engine_fail(session, LOCKSTEP_E_UNREACHABLE, text);
        return;
    }
    engine_fail(session, LOCKSTEP_E_SYSTEM,
                result == -2 ? "the coordinator does not read: too many messages wait"
                             : "a control message could not be encoded");
}

// This rank saw something that ends the job. The coordinator's sentence is the same for all ranks,
// so it is waited for; ours is used when it does not come.
static void engine_report(struct lockstep_session *session, struct up_message *message,
                          const struct down_halt *seen)
{
    if (session->verdict_deadline_ms != 0 || session->order->failed || session->over)
        return;
    session->lost_here = *seen;
    session->verdict_deadline_ms = clock_now_ms() + LOCKSTEP_HALT_GRACE_MS;
    if (session->control_gone)
        session->verdict_deadline_ms = clock_now_ms();
    else
        engine_send(session, message);
}

static void engine_check_verdict(struct lockstep_session *session)
{
    const bool idle = session->left_held && session->plain_in_flight == 0;
    if (session->verdict_deadline_ms == 0 ||
        (clock_now_ms() < session->verdict_deadline_ms && !idle))
        return;
    session->verdict_deadline_ms = 0;
    if (!session->over)
        order_halted(session->order, &session->lost_here);
}

static void engine_check_waits(struct lockstep_session *session)
{
    char text[LOCKSTEP_REPORT_BYTES];
    if (engine_wait_overdue(session, text, sizeof(text)))
        engine_fail(session, LOCKSTEP_E_UNREACHABLE, text);
}

// ---- What the order core decides ---------------------------------------------------------------

// Only the first of the buckets on their way, and the last one, read the clock.
static void engine_count_launch(struct step_times *times)
{
    if (times->in_flight++ == 0)
        times->in_flight_since = clock_now_us();
}

// The mutex orders the two readings of the clock, this one and that of the step's end.
static void engine_count_landing(struct lockstep_session *session)
{
    struct step_times *times = &session->times;
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
    atomic_fetch_add_explicit(&session->buckets_travelled, 1, memory_order_relaxed);
    if (action->slot->zero)
        atomic_fetch_add_explicit(&session->zero_filled, 1, memory_order_relaxed);
    engine_count_launch(&session->times);
    atomic_fetch_add_explicit(&session->runs, collective->extent_count, memory_order_relaxed);
    trace_event(&session->trace, TRACE_LAUNCH, action->step, id.module, id.call, id.bucket,
                collective->elements * dtype_size(collective->dtype));
    transport_launch(session->transport, collective);
}

static void engine_join_open(struct lockstep_session *session, const struct order_action *action)
{
    struct wave *wave = &session->open_wave;
    wave->step = action->step;
    wave->kind = WAVE_OPEN;
    wave->size = sizeof(struct open_wave);
    wave->merge = order_open_merge;
    memcpy(wave->payload, action->opening, sizeof(struct open_wave));
    transport_wave(session->transport, wave);
}

static void engine_join_close(struct lockstep_session *session, const struct order_action *action)
{
    struct wave *wave = &session->close_wave;
    wave->step = action->step;
    wave->kind = WAVE_CLOSE;
    wave->size = sizeof(struct close_wave);
    wave->merge = order_close_merge;
    memcpy(wave->payload, action->close, sizeof(struct close_wave));
    transport_wave(session->transport, wave);
}

// The commit wave says that all results of the step are final here. Those are the slots, of which
// the order core knows, and buffers.
static void engine_join_commit(struct lockstep_session *session, uint64_t step)
{
    struct wave *wave = &session->commit_wave;
    session->commit_held = session->buffers_in_flight > 0;
    if (session->commit_held)
        return;
    wave->step = step;
    wave->kind = WAVE_COMMIT;
    wave->size = sizeof(struct commit_wave);
    wave->merge = order_commit_merge;
    mutex_lock(&session->mutex);
    memcpy(wave->payload, &session->contribution, sizeof(struct commit_wave));
    mutex_unlock(&session->mutex);
    transport_wave(session->transport, wave);
}

static void engine_send_header(struct lockstep_session *session, const struct step_header *header)
{
    struct step_note note = {.count = 0};
    if (!header->opening)
        sets_note(session, &note);
    transport_header(session->transport, header, note.bytes, note.count);
}

static void engine_settled(struct lockstep_session *session, uint64_t step)
{
    struct transport_statistics now;
    if (sets_adopt_layouts(session) && engine_reserve_layouts(session) < 0)
        engine_fail(session, LOCKSTEP_E_SYSTEM, engine_no_room);
    transport_statistics(session->transport, &now);
    session->by_stream = session->any_enqueued = false; // Runs are the trainer's from now on.
    progress_order(session);
    atomic_store(&session->progress->settled, step);
    trace_event(&session->trace, TRACE_SETTLED, step, TRACE_NO_MODULE, 0, 0, 0);
    atomic_store(&session->progress->bytes_sent, now.bytes_sent);
    atomic_store(&session->progress->bytes_received, now.bytes_received);
    mutex_lock(&session->mutex);
    session->report.bytes_sent = now.bytes_sent - session->step_bytes_sent;
    session->report.bytes_received = now.bytes_received - session->step_bytes_received;
    session->report.bytes_copied = now.bytes_copied - session->step_bytes_copied;
    session->report.extended = session->order->verdict.extra_total;
    session->settled = step;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

static void engine_failed(struct lockstep_session *session, const struct order_action *action)
{
    char text[LOCKSTEP_REPORT_BYTES];
    session->verdict_deadline_ms = 0;
    trace_event(&session->trace, TRACE_HALT, action->step, TRACE_NO_MODULE, 0, 0, action->halt);
    if (action->text == NULL) {
        // Nothing is in flight any more, and other ranks may still read our last frames.
        engine_unplanned_text(session, text, sizeof(text));
        session_fail(session, LOCKSTEP_E_MISMATCH, text);
        return;
    }
    if (session->abort_text[0] != '\0') {
        session->over_abruptly = true;
        engine_fail(session, LOCKSTEP_E_CLOSED, session->abort_text);
        return;
    }
    session->over_abruptly = action->halt == HALT_LOST;
    engine_fail(session, error_status_of_halt(action->halt), action->text);
}

static void engine_action(void *context, const struct order_action *action)
{
    struct lockstep_session *session = context;
    if (session->over) // An earlier action of the same event has failed.
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
    case ORDER_FAILED:
        engine_failed(session, action);
        break;
    }
}

// ---- What the data plane reports ---------------------------------------------------------------

static void engine_formed(void *context)
{
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_LINKS};
    session->linked = true;
    tune_links(session, &message.u.links);
    engine_send(session, &message);
}

static void engine_form_failed(void *context, uint32_t rank, const char *text)
{
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_LOST};
    struct down_halt seen = {.kind = HALT_LOST, .has_rank = true, .rank = rank};
    message.u.lost.rank = rank;
    text_copy(message.u.lost.text, sizeof(message.u.lost.text), text);
    snprintf(seen.text, sizeof(seen.text), "rank %" PRIu32 " (host %s) cannot be reached: %s", rank,
             engine_peer_host(session, rank), text);
    engine_report(session, &message, &seen);
}

static void engine_count_times(struct lockstep_session *session,
                               const struct collective *collective)
{
    struct step_times *times = &session->times;
    if (collective->first_sent_us != 0 &&
        (times->first_sent == 0 || collective->first_sent_us < times->first_sent))
        times->first_sent = collective->first_sent_us;
    if (collective->last_received_us > times->last_received)
        times->last_received = collective->last_received_us;
}

static bool engine_is_plain(const struct lockstep_session *session,
                            const struct collective *collective)
{
    const char *first = (const char *)session->work;
    const char *end = (const char *)(session->work + SESSION_MAX_WORK);
    return (const char *)collective >= first && (const char *)collective < end;
}

static void engine_trace_final(const struct lockstep_session *session, uint32_t slot)
{
    const struct slot_id *id = &session->order->slots[slot].id;
    trace_event(&session->trace, TRACE_FINAL, session->order->step, id->module, id->call,
                id->bucket, 0);
}

void engine_slot_final(struct lockstep_session *session, const struct collective *collective)
{
    engine_count_landing(session);
    engine_count_times(session, collective);
    engine_trace_final(session, collective->tag.slot);
    order_slot_final(session->order, collective->tag.slot);
    progress_order(session);
}

static void engine_done(void *context, struct collective *collective)
{
    struct lockstep_session *session = context;
    if (engine_is_plain(session, collective)) {
        work_done(collective->context);
        if (session->commit_held)
            engine_join_commit(session, session->order->step);
        return;
    }
    contribution_collective_done(collective->context, collective);
    atomic_store_explicit(&session->weight_total, collective->weight_total, memory_order_relaxed);
    if (!engine_device_done(session, collective))
        engine_slot_final(session, collective);
}

static void engine_opened(struct lockstep_session *session, const struct wave *wave)
{
    mutex_lock(&session->mutex);
    memcpy(&session->opening, wave->payload, sizeof(session->opening));
    session->opening.phase[LOCKSTEP_NAME_BYTES - 1] = '\0';
    session->opened = wave->step;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

static void engine_wave_done(void *context, struct wave *wave)
{
    struct lockstep_session *session = context;
    if (wave->kind == WAVE_OPEN) {
        engine_opened(session, wave);
        return;
    }
    if (wave->kind == WAVE_CLOSE) {
        trace_event(&session->trace, TRACE_CLOSED, wave->step, TRACE_NO_MODULE, 0, 0, 0);
        order_close_completed(session->order, (const struct close_wave *)wave->payload);
        progress_order(session);
        return;
    }
    mutex_lock(&session->mutex);
    memcpy(&session->outcome, wave->payload, sizeof(session->outcome));
    counter_apply(session, &session->outcome);
    mutex_unlock(&session->mutex);
    order_commit_completed(session->order);
    progress_order(session);
}

static void engine_header(void *context, const struct step_header *header, const uint8_t *bytes,
                          uint32_t count)
{
    struct lockstep_session *session = context;
    struct step_note *note = &session->heard[header->step % 2];
    note->step = header->step;
    note->count = count;
    memcpy(note->bytes, bytes, count);
    order_header_received(session->order, header);
    progress_order(session);
}

static void engine_peer_lost(void *context, uint32_t rank, enum peer_loss loss, const char *text)
{
    const bool left = loss == LOSS_LEFT;
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_LOST};
    struct down_halt seen = {.kind = left ? HALT_LEFT : HALT_LOST, .has_rank = true, .rank = rank};
    message.u.lost.rank = rank;
    message.u.lost.left = left;
    message.u.lost.silent = loss == LOSS_SILENT;
    message.u.lost.step = order_present_step(session->order);
    text_copy(message.u.lost.text, sizeof(message.u.lost.text), text);
    snprintf(seen.text, sizeof(seen.text), "rank %" PRIu32 " (host %s) %s: %s", rank,
             engine_peer_host(session, rank), left ? "left the job" : "was lost", text);
    log_event(&session->log, LOG_LEVEL_WARN, "peer_lost", "rank=%" PRIu32 " left=%d text=%s", rank,
              left, text);
    engine_report(session, &message, &seen);
}

// The first one that has, of several.
static const struct device *engine_failed_device(const struct lockstep_session *session)
{
    uint32_t i = 0;
    while (i < session->own_devices && device_failed(session->devices[i]) == NULL)
        i++;
    return i < session->own_devices ? session->devices[i] : session->device;
}

// Nothing on this rank's device is ever final any more, so the job ends, for all ranks with one
// sentence.
static void engine_device_failed(void *context, const char *text)
{
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_FAIL};
    struct down_halt seen = {.kind = HALT_LOST, .has_rank = true, .rank = session->rank};
    char *said = message.u.fail.text;
    message.u.fail.kind = HALT_LOST;
    snprintf(said, sizeof(message.u.fail.text), "its device failed, cuda:%d: %s",
             device_facts(engine_failed_device(session))->ordinal, text);
    snprintf(seen.text, sizeof(seen.text), "rank %" PRIu32 " (this one): %s", session->rank, said);
    log_event(&session->log, LOG_LEVEL_WARN, "device_failed", "text=%s", text);
    engine_report(session, &message, &seen);
}

static const char *engine_collective_name(const struct lockstep_session *session,
                                          const struct collective *collective)
{
    if (engine_is_plain(session, collective))
        return ((const struct lockstep_work *)collective->context)->name;
    return ((const struct contribution *)collective->context)->module->name;
}

static void engine_mismatch(void *context, struct collective *collective, uint32_t rank,
                            const char *text)
{
    struct lockstep_session *session = context;
    const bool plain = engine_is_plain(session, collective);
    const struct collective *called =
        plain ? &((const struct lockstep_work *)collective->context)->collective : collective;
    struct up_message message = {.kind = UP_FAIL};
    struct down_halt seen = {.kind = plain ? HALT_COLLECTIVE : HALT_LAYOUT};
    message.u.fail.step = 0; // At once: the collective can never complete.
    message.u.fail.kind = seen.kind;
    snprintf(message.u.fail.text, sizeof(message.u.fail.text),
             "%s '%s' (here %" PRIu64 " elements of %s) differs from what rank %" PRIu32
             " calls by that name: %s",
             plain ? "collective" : "bucket of module", engine_collective_name(session, collective),
             called->elements, dtype_name(called->dtype), rank, text);
    text_copy(seen.text, sizeof(seen.text), message.u.fail.text);
    engine_report(session, &message, &seen);
}

// ---- What the coordinator says -----------------------------------------------------------------

static struct order_options engine_order_options(const struct config *config)
{
    static const enum order_unplanned unplanned[] = {UNPLANNED_EXTEND, UNPLANNED_FAIL,
                                                     UNPLANNED_DEFER};
    return (struct order_options){.zero_defer = config->order == LOCKSTEP_ORDER_ZERO_DEFER,
                                  .unplanned = unplanned[config->unplanned],
                                  .threads = config->trainer_threads,
                                  .wait_while_open = config->wait_while_open};
}

static void engine_generation(struct lockstep_session *session, const struct down_message *message)
{
    const struct down_generation *start = &message->u.generation_start;
    struct transport_world world = {.generation = message->generation,
                                    .rank = start->rank,
                                    .world_size = start->world_size,
                                    .chunk_bytes = start->chunk_bytes,
                                    .locality = start->locality,
                                    .peer_count = start->peer_count,
                                    .peers = session->peers,
                                    .form_timeout_ms = session->config.open_timeout_ms};
    struct order_options options = engine_order_options(&session->config);
    const struct order_sink sink = {engine_action, session};
    if (session->generation.number != 0)
        return;
    memcpy(session->peers, start->peers, sizeof(session->peers));
    memcpy(world.secret, start->secret, sizeof(world.secret));
    session->peer_count = start->peer_count;
    session->rank = start->rank;
    session->world_size = start->world_size;
    session->chunk_bytes = start->chunk_bytes;
    session->hosts = start->locality.hosts;
    memcpy(world.devices, start->gpus, sizeof(world.devices));
    world.devices_meet = start->gpus_meet;
    for (uint32_t rank = 0; rank < start->world_size; rank++)
        session->device_count += (uint32_t)(start->gpus[rank / 64] >> rank % 64 & 1);
    options.strict = session->device != NULL && transport_is_strict(&world);
    watch_formed(session->watch, &start->locality);
    session->generation = message->generation;
    order_init(session->order, message->generation, start->rank, start->world_size, &options, sink);
    if (transport_form(session->transport, &world) < 0)
        engine_fail(session, LOCKSTEP_E_SYSTEM, "no memory for the links of this world");
}

static void engine_tuning(struct lockstep_session *session, const struct tuning *tuning)
{
    if (session->linked && !session->formed)
        tune_agreed(session, tuning);
    else
        engine_fail(session, LOCKSTEP_E_MISMATCH,
                    "the coordinator sent a tuning that nobody has asked for");
}

static void engine_send_manifest(struct lockstep_session *session,
                                 const struct down_manifest_request *request)
{
    struct up_message message = {.kind = UP_MANIFEST_PART};
    struct up_manifest_part *part = &message.u.manifest_part;
    if (!session->starting) { // Modules belong to the trainer then.
        engine_fail(session, LOCKSTEP_E_MISMATCH,
                    "the coordinator asked for a manifest outside lockstep_start");
        return;
    }
    part->first = request->first;
    while (part->count < request->count && part->count < LOCKSTEP_MANIFEST_PART &&
           module_manifest_item(session, part->first + part->count, &part->items[part->count]))
        part->count++;
    engine_send(session, &message);
}

static void engine_verified(struct lockstep_session *session)
{
    if (!session->starting)
        return;
    session->starting = false;
    tune_started(session);
    mutex_lock(&session->mutex);
    session->verified = true;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

static void engine_layout_part(struct lockstep_session *session, const struct layout_part *part)
{
    // Outside a step modules belong to the trainer.
    struct lockstep_module *module = session->order->open && part->module < session->module_count
                                         ? session->modules[part->module]
                                         : NULL;
    char text[LOCKSTEP_TEXT_BYTES] = "its parts do not fit";
    if (module == NULL || part->total > module->word_capacity ||
        part->first + part->count > part->total ||
        (part->first != 0 && part->first != module->next_words)) {
        engine_fail(session, LOCKSTEP_E_MISMATCH, "the coordinator sent an impossible layout");
        return;
    }
    memcpy(module->words + part->first, part->words, part->count * sizeof(part->words[0]));
    module->next_words = part->first + part->count;
    if (module->next_words < part->total)
        return;
    if (buckets_decode(module->words, part->total, module->shapes, module->parameter_count,
                       &module->next, text, sizeof(text)) == BUCKET_OK)
        module->next_agreed = true;
    else
        engine_fail(session, LOCKSTEP_E_MISMATCH, text);
}

// A plain collective that the leaver has finished can be finished here too, and is: the next one
// is the one that fails.
static void engine_hold_left(struct lockstep_session *session, const struct down_halt *halt)
{
    session->left_held = true;
    session->lost_here = *halt;
    session->verdict_deadline_ms = clock_now_ms() + LOCKSTEP_HALT_GRACE_MS;
}

static void engine_halt(struct lockstep_session *session, const struct down_halt *halt)
{
    if (session->generation.number == 0)
        engine_fail(session, error_status_of_halt(halt->kind), halt->text);
    else if (halt->kind == HALT_LEFT && session->plain_in_flight > 0)
        engine_hold_left(session, halt);
    else
        order_halted(session->order, halt);
}

static void engine_grant(struct lockstep_session *session, const struct down_grant *grant)
{
    trace_event(&session->trace, TRACE_GRANT, grant->step, grant->slot.module, grant->slot.call,
                grant->slot.bucket, 0);
    order_granted(session->order, grant);
    progress_order(session);
}

static void engine_plan(struct lockstep_session *session, const struct down_plan_part *part)
{
    if (part->last)
        trace_event(&session->trace, TRACE_PLAN, part->step, TRACE_NO_MODULE, 0, 0, part->number);
    order_plan_received(session->order, part);
    progress_order(session);
}

static void engine_message(struct lockstep_session *session, const struct down_message *message)
{
    if (message->kind != DOWN_WELCOME && message->kind != DOWN_REFUSED)
        atomic_fetch_add_explicit(&session->control_messages, 1, memory_order_relaxed);
    if (session->generation.number != 0 &&
        (message->generation.number != session->generation.number ||
         message->generation.incarnation != session->generation.incarnation))
        return;
    switch (message->kind) {
    case DOWN_WELCOME:
        watch_interval(session->watch, message->u.welcome.heartbeat_ms);
        break;
    case DOWN_REFUSED:
        engine_fail(session, error_status_of_refusal(message->u.refused.refusal),
                    message->u.refused.text);
        break;
    case DOWN_GENERATION:
        engine_generation(session, message);
        break;
    case DOWN_TUNING:
        engine_tuning(session, &message->u.tuning);
        break;
    case DOWN_VERIFIED:
        engine_verified(session);
        break;
    case DOWN_MANIFEST_REQUEST:
        engine_send_manifest(session, &message->u.manifest_request);
        break;
    case DOWN_GRANT:
        engine_grant(session, &message->u.grant);
        break;
    case DOWN_LAYOUT_PART:
        engine_layout_part(session, &message->u.layout_part);
        break;
    case DOWN_PLAN_PART:
        engine_plan(session, &message->u.plan_part);
        break;
    case DOWN_HALT:
        engine_halt(session, &message->u.halt);
        break;
    case DOWN_QUERY:
        order_queried(session->order, &message->u.query);
        break;
    case DOWN_INSPECT: // The watch has it.
    case DOWN_NONE:
        break;
    }
}

// Training goes on without a coordinator; forming, starting and learning do not.
static void engine_control_ended(struct lockstep_session *session, const char *why)
{
    char text[LOCKSTEP_TEXT_BYTES + 128];
    session->control_gone = true;
    text_copy(session->control_text, sizeof(session->control_text), why);
    engine_wait_alone(session);
    if (session->verdict_deadline_ms != 0)
        session->verdict_deadline_ms = clock_now_ms();
    if (!session->formed || session->starting) {
        engine_fail(session, LOCKSTEP_E_UNREACHABLE, why);
        return;
    }
    log_event(&session->log, LOG_LEVEL_WARN, "coordinator_lost", "text=%s", why);
    if (session->order->open && session->order->learning) {
        snprintf(text, sizeof(text),
                 "step %" PRIu64 ": the coordinator was lost while the order of "
                 "phase '%s' was being learned: %s",
                 session->order->step, session->engine_phase, why);
        engine_fail(session, LOCKSTEP_E_UNREACHABLE, text);
    }
}

// ---- Commands ----------------------------------------------------------------------------------

static void engine_step_open(struct lockstep_session *session, uint64_t step)
{
    struct open_wave opening;
    mutex_lock(&session->mutex);
    opening = session->opening;
    mutex_unlock(&session->mutex);
    order_step_opening(session->order, step, &opening);
}

static void engine_step_begin(struct lockstep_session *session, uint64_t phase)
{
    uint32_t buckets[LOCKSTEP_MAX_MODULES] = {0};
    struct transport_statistics now;
    for (uint32_t i = 0; i < session->module_count; i++)
        buckets[i] = session->modules[i]->layout.bucket_count;
    transport_statistics(session->transport, &now);
    session->step_bytes_sent = now.bytes_sent;
    session->step_bytes_received = now.bytes_received;
    session->step_bytes_copied = now.bytes_copied;
    text_copy(session->engine_phase, sizeof(session->engine_phase), session->phase);
    order_step_begun(session->order, session->step, phase, buckets);
    progress_order(session);
}

static void engine_ready(struct lockstep_session *session, const struct command *command)
{
    const struct lockstep_module *module = session->modules[command->module];
    const struct bucket *bucket = &module->layout.buckets[command->bucket];
    const struct slot_id id = {
        .module = command->module, .call = command->call, .bucket = command->bucket};
    order_slot_ready(session->order, id, bucket->dtype, bucket->elements);
    deferral_take(&module->contributions[command->call], command->bucket);
    engine_wait_announced(session, command->module, command->call);
    progress_order(session);
}

// The layout that rank 0 proposes for a module: the one that was learned for its set, or else its
// parameters in the order in which they became ready here, in the first of its calls that travels.
// A module that was not called here keeps the order of its definition reversed: another rank may
// have called it, or may do so after our step_end.
static bool engine_make_layout(struct lockstep_session *session, struct lockstep_module *module)
{
    const struct bucket_caps caps = sets_caps(module);
    char text[LOCKSTEP_TEXT_BYTES];
    const struct contribution *first = &module->contributions[0];
    const bool ready = atomic_load(&first->ready_count) == module->trainable_count;
    if (buckets_layout(module->shapes, module->parameter_count, ready ? first->ready_order : NULL,
                       ready ? module->trainable_count : 0, caps, &module->next, text,
                       sizeof(text)) == BUCKET_OK)
        return true;
    engine_fail(session, LOCKSTEP_E_SYSTEM, text);
    return false;
}

static void engine_propose_layout(struct lockstep_session *session, struct lockstep_module *module)
{
    struct up_message message = {.kind = UP_LAYOUT_PART};
    struct layout_part *part = &message.u.layout_part;
    if (!module->set->learned && !engine_make_layout(session, module))
        return;
    part->module = module->index;
    part->total =
        buckets_encode(module->set->learned ? &module->layout : &module->next, module->words);
    for (part->first = 0; part->first < part->total; part->first += part->count) {
        part->count = part->total - part->first;
        if (part->count > LOCKSTEP_LAYOUT_PART)
            part->count = LOCKSTEP_LAYOUT_PART;
        memcpy(part->words, module->words + part->first, part->count * sizeof(part->words[0]));
        engine_send(session, &message);
    }
}

static void engine_step_end(struct lockstep_session *session)
{
    const bool proposes = session->order->learning && session->rank == 0;
    for (uint32_t i = 0; proposes && i < session->module_count; i++) {
        if (session->modules[i]->trainable_count > 0)
            engine_propose_layout(session, session->modules[i]);
    }
    order_step_ended(session->order);
    progress_order(session);
}

// Rank 0 says what modules are called: manifests are equal, or the job ends, so it speaks for all.
// Before it starts, so that no other rank is past its start while modules have no names.
static void engine_send_modules(struct lockstep_session *session)
{
    struct up_message message = {.kind = UP_MODULES};
    struct up_modules *part = &message.u.modules;
    part->total = session->module_count;
    while (part->first < session->module_count) {
        for (part->count = 0;
             part->count < LOCKSTEP_NAMES_PART && part->first + part->count < session->module_count;
             part->count++)
            text_copy(part->names[part->count], sizeof(part->names[0]),
                      session->modules[part->first + part->count]->name);
        engine_send(session, &message);
        part->first += part->count;
    }
}

static void engine_start_command(struct lockstep_session *session)
{
    struct up_message message = {.kind = UP_START};
    order_resume(session->order, session->step);
    order_start_begun(session->order);
    session->starting = true;
    if (session->rank == 0)
        engine_send_modules(session);
    transport_reserve(session->transport, LOCKSTEP_WINDOW + session->group_count);
    message.u.start.manifest_hash = session->manifest_hash;
    message.u.start.root = session->config.root;
    message.u.start.item_count = module_manifest_count(session);
    message.u.start.settled = session->order->settled;
    message.u.start.strict = session->order->options.strict;
    message.u.start.zero_defer = session->config.order == LOCKSTEP_ORDER_ZERO_DEFER;
    engine_send(session, &message);
}

static void engine_reserve_command(struct lockstep_session *session)
{
    if (engine_reserve(session) < 0)
        engine_fail(session, LOCKSTEP_E_SYSTEM, engine_no_room);
    mutex_lock(&session->mutex);
    session->reserved = true;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

// Links are closed only when the coordinator has told everybody: a reset that came first would be
// taken for a death, and the reason would be lost.
static void engine_abort(struct lockstep_session *session, const char *reason)
{
    struct up_message message = {.kind = UP_FAIL};
    if (session->abort_text[0] != '\0')
        return;
    message.u.fail.kind = HALT_LOST;
    snprintf(message.u.fail.text, sizeof(message.u.fail.text), "aborted: %s", reason);
    snprintf(session->abort_text, sizeof(session->abort_text), "this session was aborted: %s",
             reason);
    if (session->generation.number == 0 || session->control_gone) {
        session->over_abruptly = true;
        engine_fail(session, LOCKSTEP_E_CLOSED, session->abort_text);
        return;
    }
    // Used when no halt comes.
    session->lost_here = (struct down_halt){.kind = HALT_LOST};
    session->verdict_deadline_ms = clock_now_ms() + LOCKSTEP_HALT_GRACE_MS;
    engine_send(session, &message);
}

static struct call_id engine_call(const struct command *command)
{
    return (struct call_id){.module = command->module, .call = command->call};
}

void engine_command(struct lockstep_session *session, const struct command *command)
{
    const bool failed =
        session->over || atomic_load_explicit(&session->failed, memory_order_acquire);
    if (command->kind == COMMAND_STOP) {
        session->stop = true;
        session->leave = command->value != 0;
        return;
    }
    if (command->kind == COMMAND_INSPECT) {
        watch_driven(session);
        return;
    }
    // After an abort nothing is begun any more; its answer is still heard.
    if (session->abort_text[0] != '\0' && command->kind < COMMAND_MESSAGE)
        return;
    if (!failed) {
        switch (command->kind) {
        case COMMAND_STEP_OPEN:
            engine_step_open(session, command->value);
            break;
        case COMMAND_STEP_BEGIN:
            engine_step_begin(session, command->value);
            break;
        case COMMAND_READY:
            engine_ready(session, command);
            break;
        case COMMAND_CALL_BEGIN:
            order_call_begun(session->order, engine_call(command));
            break;
        case COMMAND_CALL_END:
            order_call_ended(session->order, engine_call(command));
            break;
        case COMMAND_WAIT_BEGIN:
        case COMMAND_WAIT_ASK:
        case COMMAND_WAIT_END:
            engine_wait(session, command);
            break;
        case COMMAND_STEP_END:
            if (command->value != 0)
                engine_end_by_stream(session);
            engine_step_end(session);
            break;
        case COMMAND_PLAIN:
            work_launch(command->pointer);
            break;
        case COMMAND_START:
            engine_start_command(session);
            break;
        case COMMAND_RESERVE:
            engine_reserve_command(session);
            break;
        case COMMAND_MESSAGE:
            engine_message(session, command->pointer);
            break;
        case COMMAND_CONTROL_ENDED:
            engine_control_ended(session, command->pointer);
            break;
        case COMMAND_ABORT:
            engine_abort(session, command->pointer);
            break;
        case COMMAND_INSPECT:
        case COMMAND_STOP:
            break;
        }
    }
    session_drop(command);
}

// ---- Driving -----------------------------------------------------------------------------------

static bool engine_take(struct lockstep_session *session, struct command *command)
{
    bool taken;
    mutex_lock(&session->mutex);
    taken = ring_buffer_pop(&session->inbox, command);
    mutex_unlock(&session->mutex);
    return taken;
}

int engine_patience(const struct lockstep_session *session)
{
    uint64_t deadline_ms = session->verdict_deadline_ms;
    uint64_t now;
    if (deadline_ms == 0 ||
        (session->halt_deadline_ms != 0 && session->halt_deadline_ms < deadline_ms))
        deadline_ms = session->halt_deadline_ms;
    if (deadline_ms == 0)
        return -1;
    now = clock_now_ms();
    if (now >= deadline_ms)
        return 0;
    return deadline_ms - now > INT32_MAX ? INT32_MAX : (int)(deadline_ms - now);
}

bool engine_stops(const struct lockstep_session *session)
{
    return session->stop && (session->abort_text[0] == '\0' || session->verdict_deadline_ms == 0);
}

bool engine_is_due(const struct lockstep_session *session)
{
    return session->verdict_deadline_ms != 0 || session->halt_deadline_ms != 0 ||
           engine_device_is_due(session) || (session->over && !session->let_go);
}

bool engine_attend(struct lockstep_session *session)
{
    struct command command;
    bool any = false;
    while (!engine_stops(session) && engine_take(session, &command)) {
        engine_command(session, &command);
        any = true;
    }
    any = any || engine_device_is_due(session);
    engine_device_attend(session);
    engine_check_verdict(session);
    engine_check_waits(session);
    if (!session->over || session->let_go)
        return any;
    engine_let_go(session);
    return true;
}

// A step that is open may need the engine at any time; so does a world that is forming.
bool engine_busy(const struct lockstep_session *session)
{
    return !session->formed || session->stop || session->starting || session->order->open ||
           session->plain_in_flight > 0 || session->unlanded > 0 || engine_is_due(session) ||
           !transport_idle(session->transport);
}

void engine_finish(struct lockstep_session *session)
{
    struct command command;
    if (session->over && !session->let_go)
        engine_let_go(session);
    if (session->generation.number != 0 && !session->over && session->leave)
        transport_leave(session->transport, ENGINE_LINGER_MS);
    else if (session->generation.number != 0 && !session->over)
        transport_abandon(session->transport);
    while (engine_take(session, &command))
        session_drop(&command);
}

static struct transport_events engine_events(struct lockstep_session *session)
{
    return (struct transport_events){.formed = engine_formed,
                                     .done = engine_done,
                                     .wave_done = engine_wave_done,
                                     .header = engine_header,
                                     .peer_lost = engine_peer_lost,
                                     .mismatch = engine_mismatch,
                                     .form_failed = engine_form_failed,
                                     .enqueued = engine_enqueued,
                                     .summed = engine_summed,
                                     .device_failed = engine_device_failed,
                                     .context = session};
}

int engine_start(struct lockstep_session *session)
{
    char error[LOCKSTEP_TEXT_BYTES];
    const struct config *config = &session->config;
    int status;
    const struct transport_config transport = {
        .kind =
            config->transport == LOCKSTEP_TRANSPORT_LOOPBACK ? TRANSPORT_LOOPBACK : TRANSPORT_TCP,
        .host = config->advertise,
        .port_first = config->port_first,
        .port_last = config->port_last,
        .shares = config->transport == LOCKSTEP_TRANSPORT_AUTO,
        .torn_bytes = config->torn_bytes,
        .regions = session->regions,
        .device = session->device,
        .further = &session->devices[1],
        .further_count = session->own_devices > 0 ? session->own_devices - 1 : 0,
        .abort_ms = config->abort_ms,
        .latency_ns = config->latency_ns,
        .bytes_per_s = config->bytes_per_s,
        .slot_fill = config->slot_fill,
        .encrypts = config->encrypts,
        .events = engine_events(session)};
    if (transport_open(&transport, &session->transport, error, sizeof(error)) < 0)
        return error_set(LOCKSTEP_E_CONFIG, "%s", error);
    text_copy(session->address, sizeof(session->address), transport_address(session->transport));
    status = drive_start(session);
    if (status == 0)
        return 0;
    transport_close(session->transport);
    session->transport = NULL;
    return status;
}

// What the duels of transport_fill.c came to. Nobody drives.
static void engine_log_slots(struct lockstep_session *session)
{
    struct transport_statistics now;
    transport_statistics(session->transport, &now);
    if (now.runs_filled[0] + now.runs_filled[1] > 0)
        log_event(&session->log, LOG_LEVEL_INFO, "slots_filled", "cached=%" PRIu64 " past=%" PRIu64,
                  now.runs_filled[0], now.runs_filled[1]);
}

void engine_stop(struct lockstep_session *session, bool leave)
{
    if (!session->engine_runs)
        return;
    session_post(session, (struct command){.kind = COMMAND_STOP, .value = leave ? 1 : 0});
    drive_join(session);
    engine_log_slots(session);
}
