// SPDX-License-Identifier: Apache-2.0
//
// Messages to the coordinator, and what the engine does with messages from it. Driver only.

#include "worker/engine/messages.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/text.h"
#include "worker/control/grpc.h"
#include "worker/engine/absence.h"
#include "worker/engine/decisions.h"
#include "worker/engine/events.h"
#include "worker/engine/parts.h"
#include "worker/engine/progress.h"
#include "worker/engine/recovery.h"
#include "worker/engine/resume.h"
#include "worker/engine/tell.h"
#include "worker/engine/tune.h"
#include "worker/engine/waits.h"
#include "worker/order/plan.h"
#include "worker/order/waits.h"
#include "worker/session/headroom.h"
#include "worker/session/module/manifest.h"
#include "worker/session/renumber.h"
#include "worker/session/work.h"
#include "worker/support/error.h"
#include "worker/transport/device/device_flow.h"
#include "worker/transport/further.h"
#include "worker/transport/lifecycle.h"
#include "worker/watch/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void engine_send(struct lockstep_session *session, struct up_message *message)
{
    int result;
    char text[LOCKSTEP_TEXT_BYTES + 128];
    message->generation = session->world.generation;
    engine_remember(session, message);
    if (session->end.control_gone && engine_can_wait(session)) {
        absence_begin(session);
        return; // Said again when the coordinator is back, if it still matters then.
    }
    atomic_fetch_add_explicit(&session->tallies.control_messages, 1, memory_order_relaxed);
    result = control_send(session->control, message);
    if (result == 0)
        return;
    // -1: the stream has ended, and engine_control_ended is about to learn it. What matters is said
    // again on the next stream.
    if (result == -1 && engine_can_wait(session))
        return;
    if (result == -1) {
        snprintf(text, sizeof(text), "the coordinator is gone and is needed here: %s",
                 session->end.control_text[0] != '\0' ? session->end.control_text
                                                      : "the stream ended");
        engine_fail(session, LOCKSTEP_E_UNREACHABLE, text);
        return;
    }
    engine_fail(session, LOCKSTEP_E_SYSTEM,
                result == -4   ? "no memory for a message to the coordinator"
                : result == -2 ? "the coordinator does not read: too many messages wait"
                               : "a control message could not be encoded");
}

const char *engine_peer_host(const struct lockstep_session *session, uint32_t rank)
{
    for (uint32_t i = 0; i < session->world.peer_count; i++) {
        if (session->world.peers[i].rank == rank)
            return session->world.peers[i].host;
    }
    const char *further =
        session->transport ? transport_further_host(session->transport, rank) : NULL;
    return further ? further : "unknown";
}

// ---- Forming a world ---------------------------------------------------------------------------

// Checks that every rank has a leaf (config.virtual_ranks). All ranks find the same before any link
// exists, so none of them sees another one leave first.
static bool engine_has_leaves(struct lockstep_session *session)
{
    const uint32_t leaves = session->config.virtual_ranks;
    char text[LOCKSTEP_TEXT_BYTES];
    if (leaves == 0 || session->world.size <= leaves)
        return true;
    snprintf(text, sizeof(text),
             "the world has %" PRIu32
             " ranks, and config.virtual_ranks (LOCKSTEP_VIRTUAL_RANKS) is %" PRIu32
             ": start at most as many ranks",
             session->world.size, leaves);
    engine_fail(session, LOCKSTEP_E_CONFIG, text);
    return false;
}

// Connects the links of the world. First checks that there are enough descriptors: without them a
// link would fail later as if the peer did not answer.
static void engine_form(struct lockstep_session *session, const struct transport_world *world)
{
    char what[64];
    char text[LOCKSTEP_TEXT_BYTES];
    const uint32_t needed =
        world->peer_count * LOCKSTEP_LINK_DESCRIPTORS + LOCKSTEP_BOARD_DESCRIPTORS;
    if (world->peer_count == 1)
        text_copy(what, sizeof(what), "the link to another rank needs");
    else
        snprintf(what, sizeof(what), "the links to %" PRIu32 " other ranks need",
                 world->peer_count);
    if (!headroom_descriptors(needed, what, text, sizeof(text)))
        engine_fail(session, LOCKSTEP_E_SYSTEM, text);
    else if (transport_form(session->transport, world) < 0)
        engine_fail(session, LOCKSTEP_E_SYSTEM, "no memory for the links of this world");
}

static struct order_options engine_order_options(const struct config *config)
{
    static const enum order_unplanned unplanned[] = {UNPLANNED_EXTEND, UNPLANNED_FAIL,
                                                     UNPLANNED_DEFER};
    return (struct order_options){.zero_defer = config->order == LOCKSTEP_ORDER_ZERO_DEFER,
                                  .unplanned = unplanned[config->unplanned],
                                  .threads = config->trainer_threads,
                                  .wait_while_open = config->wait_while_open};
}

static void engine_set_world(struct lockstep_session *session, const struct down_message *message,
                             bool first)
{
    const struct down_generation *start = &message->u.generation_start;
    mutex_lock(&session->mutex);
    if (first)
        renumber_begin_locked(session, start->world_size);
    else
        recovery_changes_locked(session);
    memcpy(session->world.peers, start->peers, sizeof(session->world.peers));
    session->world.generation = message->generation;
    session->world.peer_count = start->peer_count;
    session->world.rank = start->rank;
    session->world.size = start->world_size;
    session->world.chunk_bytes = start->chunk_bytes;
    session->world.hosts = start->locality.hosts;
    session->world.devices = 0;
    for (uint32_t rank = 0; rank < start->world_size; rank++)
        session->world.devices += bits_has(start->gpus, rank);
    session->world.formed = false;
    if (first && session->config.virtual_ranks >= start->world_size)
        deal_begin(&session->world.deal, session->config.virtual_ranks, start->world_size);
    mutex_unlock(&session->mutex);
}

// The first generation, or the generation of a decision.
static void engine_generation(struct lockstep_session *session, const struct down_message *message)
{
    const struct down_generation *start = &message->u.generation_start;
    const bool first = session->world.generation.number == 0;
    struct transport_world world = {.generation = message->generation,
                                    .rank = start->rank,
                                    .world_size = start->world_size,
                                    .chunk_bytes = start->chunk_bytes,
                                    .locality = start->locality,
                                    .core_ranks = start->core_ranks,
                                    .peer_count = start->peer_count,
                                    .peers = session->world.peers,
                                    .further = start->further,
                                    .further_count = start->further_count,
                                    .form_timeout_ms = session->config.open_timeout_ms};
    struct order_options options = engine_order_options(&session->config);
    const struct order_sink sink = {engine_action, session};
    if (!first && !recovery_expects(session, &message->generation))
        return;
    memcpy(world.secret, start->secret, sizeof(world.secret));
    memcpy(world.devices, start->gpus, sizeof(world.devices));
    world.devices_meet = start->gpus_meet;
    if (first)
        session->engine.strict = device_flow_is_strict(&world);
    world.by_hosts = !first && !session->engine.strict;
    engine_set_world(session, message, first);
    options.strict = session->devices.first && device_flow_is_strict(&world);
    watch_formed(session->watch, &start->locality);
    if (!first) {
        work_forget_form(session);
        recovery_forms(session);
    } else {
        order_init(session->engine.order, message->generation, start->rank, start->world_size,
                   &options, sink);
    }
    if (first && !recovery_begin(session))
        engine_fail(session, LOCKSTEP_E_SYSTEM, "no memory for a session");
    else if (engine_has_leaves(session))
        engine_form(session, &world);
}

static void engine_tuned(struct lockstep_session *session, const struct tuning *tuning)
{
    tune_agreed(session, tuning);
    recovery_established(session);
    recovery_goes_on(session);
}

static void engine_tuning(struct lockstep_session *session, const struct tuning *tuning)
{
    if (recovery_has_promised(session))
        return; // The coordinator sent it before it knew that another rank had died.
    if (!session->engine.linked || session->world.formed)
        engine_fail(session, LOCKSTEP_E_MISMATCH,
                    "the coordinator sent a tuning that nobody has asked for");
    else if (!tune_possible(session, tuning))
        engine_fail(session, LOCKSTEP_E_MISMATCH,
                    "the coordinator sent a tuning that this world cannot run");
    else
        engine_tuned(session, tuning);
}

static void engine_send_manifest(struct lockstep_session *session,
                                 const struct down_manifest_request *request)
{
    struct up_message message = {.kind = UP_MANIFEST_PART};
    struct up_manifest_part *part = &message.u.manifest_part;
    if (!session->engine.starting) { // Outside lockstep_start the trainer owns the modules.
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

static void engine_verified(struct lockstep_session *session, const struct down_verified *verified)
{
    if (!session->engine.starting)
        return;
    session->engine.starting = false;
    tune_started(session);
    mutex_lock(&session->mutex);
    session->answered.verified = true;
    session->answered.grouped = verified->grouped;
    session->answered.ever_grouped |= verified->grouped;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

// The first word of a layout is the number of its buckets: all that a rank needs to know of a
// module that it does not have.
static void engine_layout_elsewhere(struct lockstep_module *module, const struct layout_part *part)
{
    if (part->first == 0)
        module->grouped.next_buckets = part->words[0];
    module->sets.next_agreed = part->first + part->count == part->total;
}

static void engine_layout_part(struct lockstep_session *session, const struct layout_part *part)
{
    // Outside a step the trainer owns the modules. A layout comes into force when its step has
    // settled, and only after a learning step no bucket is in flight then.
    const bool expected = session->engine.order->open && session->engine.order->learning;
    struct lockstep_module *module =
        expected && part->module < session->module_count ? session->modules[part->module] : NULL;
    char text[LOCKSTEP_TEXT_BYTES] = "its parts do not fit";
    if (module && module->grouped.absent && part->count > 0) {
        engine_layout_elsewhere(module, part);
        return;
    }
    if (!module || part->total > module->sets.word_capacity ||
        part->first + part->count > part->total ||
        (part->first != 0 && part->first != module->sets.next_words)) {
        engine_fail(session, LOCKSTEP_E_MISMATCH, "the coordinator sent an impossible layout");
        return;
    }
    memcpy(module->sets.words + part->first, part->words, part->count * sizeof(part->words[0]));
    module->sets.next_words = part->first + part->count;
    if (module->sets.next_words < part->total)
        return;
    if (buckets_decode(module->sets.words, part->total, module->shapes, module->parameter_count,
                       &module->sets.next, text, sizeof(text)) == BUCKET_OK)
        module->sets.next_agreed = true;
    else
        engine_fail(session, LOCKSTEP_E_MISMATCH, text);
}

// A rank has left while plain collectives are in flight. If that rank has completed them, this rank
// can complete them, too. So the verdict waits for them, and fails only later collectives.
static void engine_hold_left(struct lockstep_session *session, const struct down_halt *halt)
{
    session->end.left_held = true;
    session->end.lost_here = *halt;
    session->end.verdict_deadline_ms = clock_now_ms() + LOCKSTEP_HALT_GRACE_MS;
}

static void engine_halt(struct lockstep_session *session, const struct down_halt *halt)
{
    if (session->world.generation.number == 0)
        engine_fail(session, error_status_of_halt(halt->kind), halt->text);
    else if (halt->kind == HALT_LEFT && session->engine.plain_in_flight > 0)
        engine_hold_left(session, halt);
    else
        order_halted(session->engine.order, halt);
}

static void engine_addresses(struct lockstep_session *session,
                             const struct down_addresses *addresses)
{
    for (uint32_t i = 0; i < addresses->count; i++) {
        if (transport_reach(session->transport, &addresses->peers[i]))
            continue;
        engine_fail(session, LOCKSTEP_E_MISMATCH,
                    "the coordinator sent an address that nobody has asked for");
        return;
    }
}

static void engine_grant(struct lockstep_session *session, const struct down_grant *grant)
{
    trace_event(&session->trace, TRACE_GRANT, grant->step, grant->slot.module, grant->slot.call,
                grant->slot.bucket, 0);
    order_granted(session->engine.order, grant);
    progress_order(session);
}

static void engine_plan(struct lockstep_session *session, const struct down_plan_part *part)
{
    for (uint32_t i = 0; i < part->slot_count; i++) {
        if (!tune_runs(session, part->slots[i].algorithm)) {
            engine_fail(session, LOCKSTEP_E_MISMATCH,
                        "the coordinator sent a plan with an algorithm that this world cannot run");
            return;
        }
    }
    if (part->last)
        trace_event(&session->trace, TRACE_PLAN, part->step, TRACE_NO_MODULE, 0, 0, part->number);
    order_plan_received(session->engine.order, part);
    progress_order(session);
}

// True if the message is about the stream, or about the present generation or the next one. The
// ballot of a message of a recovery tells whether it counts: the coordinator may know a newer
// generation than this rank has started.
static bool engine_message_fits(const struct lockstep_session *session,
                                const struct down_message *message)
{
    const struct generation_id *now = &session->world.generation;
    return now->number == 0 || message->kind == DOWN_REFUSED || message->kind == DOWN_WELCOME ||
           message->kind == DOWN_PREPARE || message->kind == DOWN_RECORD_PART ||
           message->kind == DOWN_DECISION || message->kind == DOWN_EXCLUDED ||
           (message->generation.number == now->number &&
            message->generation.incarnation == now->incarnation) ||
           (message->kind == DOWN_GENERATION && recovery_expects(session, &message->generation));
}

void engine_message(struct lockstep_session *session, const struct down_message *message)
{
    if (message->kind != DOWN_WELCOME && message->kind != DOWN_REFUSED)
        atomic_fetch_add_explicit(&session->tallies.control_messages, 1, memory_order_relaxed);
    if (!engine_message_fits(session, message))
        return;
    switch (message->kind) {
    case DOWN_WELCOME:
        watch_interval(session->watch, message->u.welcome.heartbeat_ms);
        engine_control_back(session);
        break;
    case DOWN_REFUSED:
        if (session->world.formed || recovery_has_promised(session) ||
            session->engine.order->recovery.frozen)
            engine_control_refused(session, &message->u.refused);
        else
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
        engine_verified(session, &message->u.verified);
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
        if (message->u.query.form)
            engine_say_form(session, &message->u.query.keys[0]);
        else
            order_queried(session->engine.order, &message->u.query);
        break;
    case DOWN_ADDRESSES:
        engine_addresses(session, &message->u.addresses);
        break;
    case DOWN_PREPARE:
        recovery_prepare(session, &message->u.prepare);
        break;
    case DOWN_RECORD_PART:
        recovery_record(session, &message->u.record_part);
        break;
    case DOWN_DECISION:
        recovery_decision(session, &message->u.decision);
        break;
    case DOWN_EXCLUDED:
        recovery_excluded(session, &message->u.excluded);
        break;
    case DOWN_INSPECT: // The watch handles it.
    case DOWN_NONE:
        break;
    }
}
