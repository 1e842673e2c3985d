// SPDX-License-Identifier: Apache-2.0
//
// The events of the transport. The engine passes results and waves to the order core as facts, and
// tells the coordinator of events that end the job. Driver only.

#include "worker/engine/events.h"

#include "base/text.h"
#include "worker/device/device.h"
#include "worker/engine/accord.h"
#include "worker/engine/decisions.h"
#include "worker/engine/landing.h"
#include "worker/engine/loss.h"
#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/engine/progress.h"
#include "worker/engine/recovery.h"
#include "worker/engine/tell.h"
#include "worker/engine/tune.h"
#include "worker/kernels/kernels.h"
#include "worker/order/header.h"
#include "worker/order/recover.h"
#include "worker/session/anysource.h"
#include "worker/session/counters.h"
#include "worker/session/headroom.h"
#include "worker/session/module/contribution.h"
#include "worker/session/work.h"
#include "worker/session/work_told.h"
#include "worker/transport/doors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void engine_formed(void *context)
{
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_LINKS};
    session->engine.linked = true;
    // All neighbours are connected. A later generation needs both listeners.
    if (!recovery_is_on(session))
        transport_settle_doors(session->transport);
    tune_links(session, &message.u.links);
    engine_send(session, &message);
}

// This rank cannot go on, and no other rank is to blame. The job ends, with the same error text on
// all ranks. report->u.fail.text says why.
static void engine_report_own(struct lockstep_session *session, struct up_message *report)
{
    struct down_halt seen = {.kind = HALT_LOST, .has_rank = true, .rank = session->world.rank};
    report->kind = UP_FAIL;
    report->u.fail.kind = HALT_LOST;
    snprintf(seen.text, sizeof(seen.text), "rank %" PRIu32 " (this one): %s", session->world.rank,
             report->u.fail.text);
    engine_report(session, report, &seen);
}

// If the rank is this one, its device or NCCL has failed.
static void engine_form_failed(void *context, uint32_t rank, const char *text)
{
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_LOST};
    struct down_halt seen = {.kind = HALT_LOST, .has_rank = true, .rank = rank};
    if (rank == session->world.rank) {
        snprintf(message.u.fail.text, sizeof(message.u.fail.text),
                 "its GPU cannot be connected to the others: %s", text);
        engine_report_own(session, &message);
        return;
    }
    message.u.lost.rank = rank;
    text_copy(message.u.lost.text, sizeof(message.u.lost.text), text);
    snprintf(seen.text, sizeof(seen.text), "rank %" PRIu32 " (host %s) cannot be reached: %s", rank,
             engine_peer_host(session, rank), text);
    engine_report(session, &message, &seen);
}

// The coordinator writes this rank's name before the text.
static void engine_encryption_differs(void *context, uint32_t rank)
{
    struct lockstep_session *session = context;
    const bool encrypts = session->config.encrypts;
    struct up_message message = {.kind = UP_FAIL, .u.fail.kind = HALT_TUNING};
    struct down_halt seen = {.kind = HALT_TUNING};
    snprintf(message.u.fail.text, sizeof(message.u.fail.text),
             "this rank has LOCKSTEP_DATA_ENCRYPTION=%s, rank %" PRIu32
             " (host %s) has LOCKSTEP_DATA_ENCRYPTION=%s: set it to the same on every rank",
             encrypts ? "tls" : "off", rank, engine_peer_host(session, rank),
             encrypts ? "off" : "tls");
    text_copy(seen.text, sizeof(seen.text), message.u.fail.text);
    engine_report(session, &message, &seen);
}

// The coordinator knows the addresses of all ranks. If it is away, this rank waits for it.
static void engine_reach(void *context, const uint32_t *ranks, uint32_t count)
{
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_REACH, .u.reach.count = count};
    char text[LOCKSTEP_TEXT_BYTES];
    if (!headroom_descriptors(count, "links to further ranks need", text, sizeof(text))) {
        engine_fail(session, LOCKSTEP_E_SYSTEM, text);
        return;
    }
    memcpy(message.u.reach.ranks, ranks, count * sizeof(ranks[0]));
    engine_send(session, &message);
}

static void engine_arrived(void *context)
{
    anysource_match(context);
}

static bool engine_is_plain(const struct lockstep_session *session,
                            const struct collective *collective)
{
    const char *first = (const char *)session->works.all;
    const char *end = (const char *)(session->works.all + SESSION_MAX_WORK);
    return (const char *)collective >= first && (const char *)collective < end;
}

static void engine_done(void *context, struct collective *collective)
{
    struct lockstep_session *session = context;
    if (engine_is_plain(session, collective)) {
        // A device has finished it while this rank froze: it counts as in flight.
        if (recovery_is_on(session) && session->engine.order->recovery.frozen)
            return;
        work_done(collective->context);
        if (session->engine.commit_held)
            engine_join_commit(session, session->engine.order->step);
        return;
    }
    if (accord_done(session, collective)) {
        if (session->engine.commit_held)
            engine_join_commit(session, session->engine.order->step);
        return;
    }
    contribution_collective_done(collective->context, collective);
    tallies_weigh(&session->tallies, collective->tag.slot, collective->parts,
                  collective->weight_total);
    if (!engine_device_done(session, collective))
        engine_slot_final(session, collective);
}

void engine_opened(struct lockstep_session *session, uint64_t step, const struct open_wave *result,
                   uint32_t world_size)
{
    mutex_lock(&session->mutex);
    session->step.opening = *result;
    session->step.opening.phase[LOCKSTEP_NAME_BYTES - 1] = '\0';
    session->step.opening_size = world_size;
    session->step.opened = step;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

void engine_committed(struct lockstep_session *session, const struct commit_wave *outcome)
{
    mutex_lock(&session->mutex);
    session->step.outcome = *outcome;
    counter_apply(session, &session->step.outcome);
    metrics_apply(session, &session->step.outcome);
    mutex_unlock(&session->mutex);
}

static void engine_wave_done(void *context, struct wave *wave)
{
    struct lockstep_session *session = context;
    if (wave->kind == WAVE_OPEN) {
        const struct open_wave *result = (const struct open_wave *)wave->payload;
        order_open_completed(session->engine.order, result);
        engine_opened(session, wave->step, result, session->engine.order->world_size);
        return;
    }
    if (wave->kind == WAVE_CLOSE) {
        trace_event(&session->trace, TRACE_CLOSED, wave->step, TRACE_NO_MODULE, 0, 0, 0);
        order_close_completed(session->engine.order, (const struct close_wave *)wave->payload);
        progress_order(session);
        return;
    }
    engine_committed(session, (const struct commit_wave *)wave->payload);
    order_commit_completed(session->engine.order);
    progress_order(session);
}

static void engine_header(void *context, const struct step_header *header, const uint8_t *bytes,
                          uint32_t count)
{
    struct lockstep_session *session = context;
    struct step_note *note = &session->engine.heard[header->step % 2];
    note->step = header->step;
    note->count = count;
    memcpy(note->bytes, bytes, count);
    order_header_received(session->engine.order, header);
    progress_order(session);
}

// Returns the first device of this rank that has failed; if none has, this rank's first device.
static const struct device *engine_failed_device(const struct lockstep_session *session)
{
    uint32_t i = 0;
    while (i < session->devices.count && !device_failed(session->devices.all[i]))
        i++;
    return i < session->devices.count ? session->devices.all[i] : session->devices.first;
}

// A device of this rank has failed, so no bucket on it can become final.
static void engine_device_failed(void *context, const char *text)
{
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_FAIL};
    char *said = message.u.fail.text;
    snprintf(said, sizeof(message.u.fail.text), "its device failed, cuda:%d: %s",
             device_facts(engine_failed_device(session))->ordinal, text);
    log_event(&session->log, LOG_LEVEL_WARN, "device_failed", "text=%s", text);
    engine_resign(session, 0, said);
    engine_report_own(session, &message);
}

static const char *engine_collective_name(const struct lockstep_session *session,
                                          const struct collective *collective)
{
    if (engine_is_plain(session, collective))
        return ((const struct lockstep_work *)collective->context)->name;
    return ((const struct contribution *)collective->context)->module->name;
}

// Fills in how this rank calls the collective. The form is "" for a collective of the library: the
// trainer did not call it.
static void engine_fill_form(const struct lockstep_work *work, struct up_fail *fail)
{
    fail->space = work->collective.tag.space;
    fail->use = work->collective.tag.slot;
    text_copy(fail->name, sizeof(fail->name), work->name);
    work_told_form(work, fail->form, sizeof(fail->form));
}

// Sends nothing if the collective is not in flight on this rank.
void engine_say_form(struct lockstep_session *session, const struct await_key *key)
{
    struct up_message message = {.kind = UP_FAIL, .u.fail = {.kind = HALT_COLLECTIVE}};
    struct up_fail *fail = &message.u.fail;
    mutex_lock(&session->mutex);
    for (uint32_t i = 0; i < SESSION_MAX_WORK && fail->form[0] == '\0'; i++) {
        const struct lockstep_work *work = &session->works.all[i];
        const struct collective_tag *tag = &work->collective.tag;
        if (work->state == WORK_IN_FLIGHT && tag->space == key->space && tag->slot == key->number)
            engine_fill_form(work, fail);
    }
    mutex_unlock(&session->mutex);
    if (fail->form[0] == '\0')
        return;
    snprintf(fail->text, sizeof(fail->text), "collective '%s' (here %s) differs on another rank",
             fail->name, fail->form);
    engine_send(session, &message);
}

static void engine_mismatch(void *context, struct collective *collective, uint32_t rank,
                            const char *text)
{
    struct lockstep_session *session = context;
    const bool plain = engine_is_plain(session, collective);
    struct up_message message = {.kind = UP_FAIL};
    struct up_fail *fail = &message.u.fail;
    struct down_halt seen = {.kind = plain ? HALT_COLLECTIVE : HALT_LAYOUT};
    char own[LOCKSTEP_FORM_BYTES];
    snprintf(own, sizeof(own), "%" PRIu64 " elements of %s", collective->elements,
             dtype_name(collective->dtype));
    if (plain)
        engine_fill_form(collective->context, fail);
    if (fail->form[0] != '\0')
        text_copy(own, sizeof(own), fail->form);
    fail->step = 0; // The job ends at once: the collective can never complete.
    fail->kind = seen.kind;
    snprintf(fail->text, sizeof(fail->text),
             "%s '%s' (here %s) differs from what rank %" PRIu32 " calls by that name: %s",
             plain ? "collective" : "bucket of module", engine_collective_name(session, collective),
             own, rank, text);
    text_copy(seen.text, sizeof(seen.text), fail->text);
    engine_report(session, &message, &seen);
}

struct transport_events engine_events(struct lockstep_session *session)
{
    return (struct transport_events){.formed = engine_formed,
                                     .done = engine_done,
                                     .wave_done = engine_wave_done,
                                     .header = engine_header,
                                     .peer_lost = engine_peer_lost,
                                     .mate_gone = engine_mate_gone,
                                     .port_closed = engine_port_closed,
                                     .told = engine_told,
                                     .mismatch = engine_mismatch,
                                     .form_failed = engine_form_failed,
                                     .encryption_differs = engine_encryption_differs,
                                     .reach = engine_reach,
                                     .arrived = engine_arrived,
                                     .enqueued = engine_enqueued,
                                     .summed = engine_summed,
                                     .device_failed = engine_device_failed,
                                     .context = session};
}
