// SPDX-License-Identifier: Apache-2.0
//
// The engine: what the driver of a session does with the transport and the order core. It takes
// commands from the trainer and messages from the coordinator out of the inbox, feeds them to the
// order core as facts, and does what the core decides. It decides nothing about order itself.
// worker/session/drive.c decides which thread drives.
//
// This file carries out the trainer's commands, and has what the driver does in each round.
// decisions.c carries out the core's decisions, events.c handles events of the data plane,
// messages.c exchanges messages with the coordinator, landing.c handles this rank's device,
// waits.c handles waits for single calls, and tell.c ends the session.

#include "worker/engine/engine.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/engine/absence.h"
#include "worker/engine/events.h"
#include "worker/engine/inspect.h"
#include "worker/engine/landing.h"
#include "worker/engine/loss.h"
#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/engine/progress.h"
#include "worker/engine/recovery.h"
#include "worker/engine/repeat.h"
#include "worker/engine/resume.h"
#include "worker/engine/tell.h"
#include "worker/engine/waits.h"
#include "worker/order/header.h"
#include "worker/order/plan.h"
#include "worker/order/recover.h"
#include "worker/order/waits.h"
#include "worker/session/group.h"
#include "worker/session/module/deferral.h"
#include "worker/session/module/manifest.h"
#include "worker/session/module/sets.h"
#include "worker/session/work.h"
#include "worker/support/error.h"
#include "worker/transport/idle.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/reserve.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// How long a close waits until the other ranks have received this rank's last frames.
#define ENGINE_LINGER_MS 2000
// How long a close waits for a coordinator that is away, if the session goes on after a death. The
// last word of this rank may be all that the others know of the last step.
#define ENGINE_WORD_MS 5000

// ---- Commands ----------------------------------------------------------------------------------

static void engine_step_open(struct lockstep_session *session, uint64_t step)
{
    struct open_wave opening;
    mutex_lock(&session->mutex);
    opening = session->step.opening;
    mutex_unlock(&session->mutex);
    // The trainer may have read the number before the world has changed.
    if (opening.first != OPEN_NOBODY)
        opening.first = session->engine.order->rank;
    order_uneven(session->engine.order, session->step.uneven);
    order_step_opening(session->engine.order, step, &opening);
}

// Warns once in a session.
static void engine_warn_of_crowd(struct lockstep_session *session)
{
    char text[LOCKSTEP_TEXT_BYTES];
    if (session->engine.crowd_said || !order_is_crowded(session->engine.order))
        return;
    session->engine.crowd_said = true;
    snprintf(text, sizeof(text),
             "steps go round more than %d pairs of a phase and a set of trainable parameters, or "
             "more than %d sets of one module: their order is learned again and again, which is "
             "slow and needs the coordinator",
             LOCKSTEP_MAX_PLANS, LOCKSTEP_MAX_SETS);
    log_event(&session->log, LOG_LEVEL_WARN, "too_many_phases",
              "step=%" PRIu64 " phase=%s text=%s hint=%s", session->step.number,
              session->engine.phase, text,
              "use fewer phases, without a counter in their names, and fewer sets");
}

static void engine_step_begin(struct lockstep_session *session, uint64_t phase)
{
    uint32_t buckets[LOCKSTEP_MAX_MODULES] = {0};
    uint64_t absent = 0;
    struct transport_statistics now;
    session->engine.wave_bounds.module_count = session->module_count;
    for (uint32_t i = 0; i < session->module_count; i++) {
        const struct lockstep_module *module = session->modules[i];
        const struct grouped *grouped = &module->grouped;
        buckets[i] = grouped->absent ? grouped->buckets : module->layout.bucket_count;
        session->engine.wave_bounds.parameters[i] =
            grouped->absent ? grouped->parameters : module->parameter_count;
        session->engine.wave_bounds.calls[i] = module->contribution_count;
        absent |= (uint64_t)grouped->absent << i;
    }
    transport_statistics(session->transport, &now);
    session->engine.step_bytes_sent = now.bytes_sent;
    session->engine.step_bytes_received = now.bytes_received;
    session->engine.step_bytes_copied = now.bytes_copied;
    text_copy(session->engine.phase, sizeof(session->engine.phase), session->step.phase);
    order_uneven(session->engine.order, session->step.uneven);
    order_set_absent(session->engine.order, absent);
    order_step_begun(session->engine.order, session->step.number, phase, buckets);
    engine_warn_of_crowd(session);
    progress_order(session);
}

static void engine_ready(struct lockstep_session *session, const struct command *command)
{
    const struct lockstep_module *module = session->modules[command->module];
    const struct bucket *bucket = &module->layout.buckets[command->bucket];
    const struct slot_id id = {
        .module = command->module, .call = command->call, .bucket = command->bucket};
    order_slot_ready(session->engine.order, id, bucket->dtype, bucket->elements);
    deferral_take(&module->contributions[command->call], command->bucket);
    engine_wait_announced(session, command->module, command->call);
    progress_order(session);
}

// Makes the layout that this rank proposes for a module whose set has no learned layout. The layout
// follows the order in which gradients became ready on this rank, in the module's first
// contribution. If not all of them became ready, it follows the reversed order of definition:
// another rank may have called the module, or may call it after this rank's step_end. False: the
// session has failed.
static bool engine_make_layout(struct lockstep_session *session, struct lockstep_module *module)
{
    const struct bucket_caps caps = sets_caps(module);
    char text[LOCKSTEP_TEXT_BYTES];
    const struct contribution *first = &module->contributions[0];
    const bool ready = atomic_load(&first->ready_count) == module->trainable_count;
    if (buckets_layout(module->shapes, module->parameter_count, ready ? first->ready_order : NULL,
                       ready ? module->trainable_count : 0, caps, &module->sets.next, text,
                       sizeof(text)) == BUCKET_OK)
        return true;
    engine_fail(session, LOCKSTEP_E_SYSTEM, text);
    return false;
}

static void engine_propose_layout(struct lockstep_session *session, struct lockstep_module *module)
{
    struct up_message message = {.kind = UP_LAYOUT_PART};
    struct layout_part *part = &message.u.layout_part;
    // A layout that ranks have from a coordinator that was lost is not made anew.
    if (!module->sets.set->learned && !module->sets.next_agreed &&
        !engine_make_layout(session, module))
        return;
    part->module = module->index;
    part->total = buckets_encode(module->sets.set->learned ? &module->layout : &module->sets.next,
                                 module->sets.words);
    for (part->first = 0; part->first < part->total; part->first += part->count) {
        part->count = part->total - part->first;
        if (part->count > LOCKSTEP_LAYOUT_PART)
            part->count = LOCKSTEP_LAYOUT_PART;
        memcpy(part->words, module->sets.words + part->first, part->count * sizeof(part->words[0]));
        engine_send(session, &message);
    }
}

// True if this rank proposes the layouts of the module: the first rank that has it.
static bool engine_proposes(const struct lockstep_module *module)
{
    const uint32_t rank = module->session->world.rank;
    const bool own = module_is_grouped(module)
                         ? module->grouped.group && group_begins_with(module->grouped.group, rank)
                         : rank == 0;
    return own && module->trainable_count > 0;
}

void engine_propose_layouts(struct lockstep_session *session)
{
    for (uint32_t i = 0; i < session->module_count; i++) {
        if (engine_proposes(session->modules[i]))
            engine_propose_layout(session, session->modules[i]);
    }
}

// A frozen rank proposes layouts when it goes on.
static void engine_step_end(struct lockstep_session *session)
{
    if (session->engine.order->learning && !session->engine.order->recovery.frozen)
        engine_propose_layouts(session);
    order_step_ended(session->engine.order);
    progress_order(session);
}

void engine_learn_again(struct lockstep_session *session)
{
    struct order *order = session->engine.order;
    order_learn_again(order);
    if (order->ended) {
        engine_propose_layouts(session);
        order_send_end(order);
    }
    progress_order(session);
}

static void engine_name_module(const struct lockstep_module *module, struct up_modules *part)
{
    text_copy(part->names[part->count], sizeof(part->names[0]), module->name);
    text_copy(part->groups[part->count], sizeof(part->groups[0]), module->grouped.name);
    part->count++;
}

// Sends the names of the first `total` modules to the coordinator. Only rank 0 sends them: the job
// ends unless all manifests are equal. Rank 0 sends them before UP_START, so the coordinator has
// the names before lockstep_start returns on any rank. Other ranks remember them: they may have to
// name the modules when rank 0 is gone.
static void engine_send_modules(struct lockstep_session *session, uint32_t total,
                                struct up_message *message)
{
    struct up_modules *part = &message->u.modules;
    part->total = total;
    while (part->first < total) {
        part->count = 0;
        while (part->count < LOCKSTEP_NAMES_PART && part->first + part->count < total)
            engine_name_module(session->modules[part->first + part->count], part);
        if (session->world.rank == 0)
            engine_send(session, message);
        else
            engine_remember(session, message);
        part->first += part->count;
    }
}

// All ranks know the modules of all groups now. Says which of them this rank has; rank 0 also says
// all names again.
static void engine_grouped_command(struct lockstep_session *session)
{
    struct up_message message = {.kind = UP_MODULES};
    struct up_message names;
    for (uint32_t i = session->common_count; i < session->module_count; i++) {
        message.u.modules.grouped |= UINT64_C(1) << i;
        message.u.modules.absent |= (uint64_t)session->modules[i]->grouped.absent << i;
    }
    names = message;
    engine_send_modules(session, session->module_count, &names);
    if (session->world.rank != 0)
        engine_send(session, &message);
}

void engine_start_again(struct lockstep_session *session)
{
    struct up_message names = {.kind = UP_MODULES};
    struct up_message message = {.kind = UP_START};
    session->engine.said.named_count = 0;
    engine_send_modules(session, session->common_count, &names);
    message.u.start.manifest_hash = session->manifest_hash;
    message.u.start.root = session->world.root;
    message.u.start.item_count = module_manifest_count(session);
    message.u.start.settled = session->engine.order->settled;
    message.u.start.strict = session->engine.order->options.strict;
    message.u.start.zero_defer = session->config.order == LOCKSTEP_ORDER_ZERO_DEFER;
    message.u.start.grouped = session->common_count < session->module_count;
    engine_send(session, &message);
}

// A rank that is frozen says it when it goes on.
static void engine_start_command(struct lockstep_session *session)
{
    order_resume(session->engine.order, session->step.number);
    order_start_begun(session->engine.order);
    session->engine.starting = true;
    transport_reserve(session->transport, LOCKSTEP_WINDOW + session->buffers.group_count);
    if (!session->engine.order->recovery.frozen)
        engine_start_again(session);
}

static void engine_reserve_command(struct lockstep_session *session)
{
    if (engine_reserve(session) < 0)
        engine_fail(session, LOCKSTEP_E_SYSTEM, engine_no_room);
    mutex_lock(&session->mutex);
    session->answered.reserved = true;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

static struct call_id engine_call(const struct command *command)
{
    return (struct call_id){.module = command->module, .call = command->call};
}

static void engine_command(struct lockstep_session *session, const struct command *command)
{
    const bool failed =
        session->end.over || atomic_load_explicit(&session->gate.failed, memory_order_acquire);
    if (command->kind == COMMAND_STOP) {
        session->end.stop = true;
        session->end.leave = command->leaves;
        session->end.word_deadline_ms = clock_now_ms() + ENGINE_WORD_MS;
        return;
    }
    if (command->kind == COMMAND_INSPECT) {
        inspect_answer(session);
        return;
    }
    if (command->kind == COMMAND_CONTROL_STANDS) {
        engine_control_stands(session);
        return;
    }
    if (command->kind == COMMAND_CONTROL_ENDED) {
        engine_control_ended(session, command->text);
        session_drop(command);
        return;
    }
    // After an abort the trainer's commands are ignored. Messages of the coordinator are still
    // handled, because its answer to the abort is one of them.
    if (session->end.abort_text[0] != '\0' && command->kind < COMMAND_MESSAGE)
        return;
    if (failed && command->kind == COMMAND_MESSAGE)
        engine_hear_of_lack(session, command->message);
    if (!failed) {
        switch (command->kind) {
        case COMMAND_STEP_OPEN:
            engine_step_open(session, command->step);
            break;
        case COMMAND_STEP_SKIP:
            order_step_skipped(session->engine.order, command->step);
            atomic_store(&session->progress->settled, command->step);
            break;
        case COMMAND_STEP_BEGIN:
            engine_step_begin(session, command->phase);
            break;
        case COMMAND_READY:
            engine_ready(session, command);
            break;
        case COMMAND_CALL_BEGIN:
            order_call_begun(session->engine.order, engine_call(command));
            break;
        case COMMAND_CALL_END:
            order_call_ended(session->engine.order, engine_call(command));
            break;
        case COMMAND_CALLS_OVER:
            order_calls_over(session->engine.order, engine_call(command));
            break;
        case COMMAND_WAIT_BEGIN:
        case COMMAND_WAIT_ASK:
        case COMMAND_WAIT_END:
            engine_wait(session, command);
            break;
        case COMMAND_STEP_END:
            if (command->by_stream)
                engine_end_by_stream(session);
            engine_step_end(session);
            break;
        case COMMAND_PLAIN:
            if (!repeat_holds(session, command->work))
                work_launch(command->work);
            break;
        case COMMAND_START:
            engine_start_command(session);
            break;
        case COMMAND_GROUPED:
            engine_grouped_command(session);
            break;
        case COMMAND_RESERVE:
            engine_reserve_command(session);
            break;
        case COMMAND_MESSAGE:
            engine_message(session, command->message);
            break;
        case COMMAND_ABORT:
            engine_abort(session, command->status, command->text);
            atomic_store_explicit(&session->gate.aborted, true, memory_order_release);
            break;
        case COMMAND_LACK:
            engine_fail(session, LOCKSTEP_E_SYSTEM, "no memory for a message of the coordinator");
            break;
        case COMMAND_CONTROL_ENDED:
        case COMMAND_CONTROL_STANDS:
        case COMMAND_INSPECT:
        case COMMAND_STOP:
            break;
        }
    }
    session_drop(command);
}

static bool engine_exchange(struct lockstep_session *session, const struct command *command)
{
    return command->kind == COMMAND_PLAIN && !session->end.over &&
           !session->engine.order->recovery.frozen && session->end.abort_text[0] == '\0' &&
           !atomic_load_explicit(&session->gate.failed, memory_order_acquire) &&
           work_exchange(command->work);
}

// ---- Driving -----------------------------------------------------------------------------------

static bool engine_take(struct lockstep_session *session, struct command *command)
{
    bool taken;
    mutex_lock(&session->mutex);
    taken = ring_buffer_pop(&session->drive.inbox, command);
    mutex_unlock(&session->mutex);
    return taken;
}

// True while a close waits for the coordinator, until that has taken this rank's hello. Before, it
// may hear of the goodbye from another rank, and count this one as gone without a word.
static bool engine_keeps_word(const struct lockstep_session *session)
{
    const bool away = session->end.control_gone ||
                      atomic_load_explicit(&session->gate.alone, memory_order_relaxed);
    return session->end.stop && session->end.leave && recovery_is_on(session) && away &&
           !session->end.over && session->world.formed &&
           clock_now_ms() < session->end.word_deadline_ms;
}

static int engine_patience(const struct lockstep_session *session)
{
    uint64_t deadline_ms = session->end.verdict_deadline_ms;
    uint64_t now;
    if (deadline_ms == 0 ||
        (session->end.halt_deadline_ms != 0 && session->end.halt_deadline_ms < deadline_ms))
        deadline_ms = session->end.halt_deadline_ms;
    if (deadline_ms == 0 ||
        (absence_deadline(session) != 0 && absence_deadline(session) < deadline_ms))
        deadline_ms = absence_deadline(session);
    if (engine_keeps_word(session) &&
        (deadline_ms == 0 || session->end.word_deadline_ms < deadline_ms))
        deadline_ms = session->end.word_deadline_ms;
    if (session->end.lack_deadline_ms != 0 && !session->end.let_go &&
        (deadline_ms == 0 || session->end.lack_deadline_ms < deadline_ms))
        deadline_ms = session->end.lack_deadline_ms;
    if (deadline_ms == 0)
        return -1;
    now = clock_now_ms();
    if (now >= deadline_ms)
        return 0;
    return deadline_ms - now > INT32_MAX ? INT32_MAX : (int)(deadline_ms - now);
}

static bool engine_stops(const struct lockstep_session *session)
{
    return session->end.stop && !engine_keeps_word(session) &&
           (session->end.abort_text[0] == '\0' || session->end.verdict_deadline_ms == 0);
}

static bool engine_is_due(const struct lockstep_session *session)
{
    return session->end.verdict_deadline_ms != 0 || session->end.halt_deadline_ms != 0 ||
           absence_deadline(session) != 0 || engine_device_is_due(session) ||
           (session->end.over && !session->end.let_go);
}

static bool engine_attend(struct lockstep_session *session)
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
    absence_tell_need(session);
    absence_tell_goodbyes(session);
    if (!engine_must_let_go(session))
        return any;
    engine_let_go(session);
    return true;
}

// True if a thread has to drive. An open step or a world that is forming may need the engine at any
// time.
static bool engine_busy(const struct lockstep_session *session)
{
    return !session->world.formed || session->end.stop || session->engine.starting ||
           session->engine.order->open || session->engine.plain_in_flight > 0 ||
           session->landing.unlanded > 0 || session->engine.order->recovery.frozen ||
           engine_is_due(session) || !transport_idle(session->transport);
}

static void engine_finish(struct lockstep_session *session)
{
    struct command command;
    if (session->end.over && !session->end.let_go)
        engine_let_go(session);
    engine_goodbye(session);
    if (session->world.generation.number != 0 && !session->end.over && session->end.leave)
        transport_leave(session->transport, ENGINE_LINGER_MS);
    else if (session->world.generation.number != 0 && !session->end.over)
        transport_abandon(session->transport);
    while (engine_take(session, &command))
        session_drop(&command);
}

static const struct drive_work engine_work = {
    .command = engine_command,
    .exchange = engine_exchange,
    .attend = engine_attend,
    .busy = engine_busy,
    .is_due = engine_is_due,
    .patience = engine_patience,
    .stops = engine_stops,
    .finish = engine_finish,
};

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
        .regions = session->memory.regions,
        .recovers = config->on_failure == LOCKSTEP_ON_FAILURE_CONTINUE,
        .device = session->devices.first,
        .further = &session->devices.all[1],
        .further_count = session->devices.count > 0 ? session->devices.count - 1 : 0,
        .abort_ms = config->abort_ms,
        .latency_ns = config->latency_ns,
        .bytes_per_s = config->bytes_per_s,
        .slot_fill = config->slot_fill,
        .encrypts = config->encrypts,
        .events = engine_events(session)};
    status = transport_open(&transport, &session->transport, error, sizeof(error));
    if (status < 0)
        return error_set(status == -2 ? LOCKSTEP_E_SYSTEM : LOCKSTEP_E_CONFIG, "%s", error);
    text_copy(session->address, sizeof(session->address), transport_address(session->transport));
    status = drive_start(session, &engine_work);
    if (status == 0)
        return 0;
    transport_close(session->transport);
    session->transport = NULL;
    return status;
}

// Logs how many runs were written to slots through the caches, and how many past them. Runs after
// the engine thread has ended.
static void engine_log_slots(struct lockstep_session *session)
{
    struct transport_statistics now;
    transport_statistics(session->transport, &now);
    if (now.runs_filled[0] + now.runs_filled[1] > 0)
        log_event(&session->log, LOG_LEVEL_INFO, "slots_filled", "cached=%" PRIu64 " past=%" PRIu64,
                  now.runs_filled[0], now.runs_filled[1]);
}

void engine_last_word(const struct lockstep_session *session, struct up_leave *leave)
{
    recovery_parts(session, leave);
}

void engine_stop(struct lockstep_session *session, bool leave)
{
    if (!session->drive.has_thread)
        return;
    session_post(session, (struct command){.kind = COMMAND_STOP, .leaves = leave});
    drive_join(session);
    engine_log_slots(session);
    recovery_free(session);
}
