// SPDX-License-Identifier: Apache-2.0
//
// The end of the control stream, and its return. Once the world has formed, training goes on
// without a coordinator. A session that starts, learns an order, or recovers from a death waits
// for it (absence.h). The control stream comes back by itself, to the same coordinator or to
// another one. Then this rank says where it is (struct up_resume), and repeats what the new
// coordinator needs and may not know: names of modules, and a loss. A coordinator that knows them
// ignores the repetition. Driver only.

#include "worker/engine/resume.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/text.h"
#include "worker/control/grpc.h"
#include "worker/engine/absence.h"
#include "worker/engine/decisions.h"
#include "worker/engine/engine.h"
#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/engine/recovery.h"
#include "worker/engine/tell.h"
#include "worker/engine/waits.h"
#include "worker/order/recover.h"
#include "worker/order/waits.h"
#include "worker/session/session.h"
#include "worker/transport/further.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void engine_remember(struct lockstep_session *session, const struct up_message *message)
{
    struct engine_said *said = &session->engine.said;
    if (message->kind == UP_START) {
        said->start = message->u.start;
    } else if (message->kind == UP_MODULES && message->u.modules.count > 0) {
        if (message->u.modules.first == 0)
            said->named_count = 0;
        if (said->named_count < SESSION_NAMED_PARTS)
            said->named[said->named_count++] = message->u.modules;
    }
}

// ---- Without a coordinator ----------------------------------------------------------------------

bool engine_can_wait(const struct lockstep_session *session)
{
    return session->world.formed || session->engine.order->recovery.frozen ||
           session->end.verdict_deadline_ms != 0;
}

void engine_control_ended(struct lockstep_session *session, const char *why)
{
    const bool again = session->end.control_gone;
    session->end.control_gone = true;
    text_copy(session->end.control_text, sizeof(session->end.control_text), why);
    if (session->end.over || atomic_load_explicit(&session->gate.failed, memory_order_acquire))
        return;
    engine_wait_alone(session);
    engine_decide_alone(session);
    if (!session->world.formed && !session->engine.order->recovery.frozen) {
        engine_fail(session, LOCKSTEP_E_UNREACHABLE, why);
        return;
    }
    absence_begin(session);
    if (again || atomic_load_explicit(&session->gate.alone, memory_order_relaxed)) {
        log_event(&session->log, LOG_LEVEL_WARN, "coordinator_not_reached", "text=%s", why);
        return;
    }
    atomic_store_explicit(&session->gate.alone_ms, clock_now_ms(), memory_order_relaxed);
    atomic_store_explicit(&session->gate.alone, true, memory_order_release);
    log_event(
        &session->log, LOG_LEVEL_WARN, "coordinator_lost",
        "text=%s hint=training goes on, and stalls are not diagnosed until it is back; until then "
        "new modules and phases wait for it",
        why);
}

void engine_control_refused(struct lockstep_session *session, const struct down_refused *refused)
{
    char text[LOCKSTEP_REPORT_BYTES];
    session->end.control_gone = true;
    engine_wait_alone(session);
    if (strcmp(session->end.control_text, refused->text) == 0)
        return; // It was refused before, with the same words.
    text_copy(session->end.control_text, sizeof(session->end.control_text), refused->text);
    absence_begin(session);
    if (session->end.away_need[0] != '\0' && refused->refusal != REFUSAL_DRAINING &&
        refused->refusal != REFUSAL_FULL) {
        snprintf(text, sizeof(text), "%s; the coordinator does not take this rank back: %s",
                 session->end.away_need, refused->text);
        engine_fail(session, absence_status(session), text);
    }
    log_event(&session->log, LOG_LEVEL_WARN, "coordinator_refused", "text=%s", refused->text);
}

// ---- Another stream -----------------------------------------------------------------------------

static void resume_describe(const struct lockstep_session *session, struct up_hello *hello)
{
    const struct order *order = session->engine.order;
    const bool learns = order->open && order->learning && !order->recovery.frozen;
    struct up_resume *resume = &hello->resume;
    hello->resumes = true;
    *resume = (struct up_resume){.generation = session->world.generation,
                                 .rank = session->world.rank,
                                 .world_size = session->world.size,
                                 .settled = order->settled,
                                 .rounds = order->headers.starts - session->engine.starting,
                                 .starting = session->engine.starting,
                                 .frozen = order->recovery.frozen,
                                 .plan_number = order->plans.number,
                                 .learning_step = learns ? order->step : 0,
                                 .tuning = session->world.tuning,
                                 .start = session->engine.said.start};
    recovery_describe(session, resume);
}

// proof: what is said if its death is proven.
static void resume_tell_loss(struct lockstep_session *session, const struct farewell *loss,
                             enum loss_proof proof)
{
    struct up_message message = {.kind = UP_LOST};
    if (loss->rank == session->world.rank || loss->rank >= session->world.size)
        return;
    if (bits_has(session->end.died, loss->rank))
        message.u.lost.proof = proof;
    message.u.lost.rank = loss->rank;
    message.u.lost.left = loss->kind == FAREWELL_LEFT;
    message.u.lost.step = loss->step != 0 ? loss->step : 1;
    text_copy(message.u.lost.text, sizeof(message.u.lost.text), loss->text);
    engine_send(session, &message);
}

// Ranks whose processes have ended, and that are no loss yet. A rank that is no neighbour may have
// left: so its closed data port is said.
static void resume_tell_dead(struct lockstep_session *session)
{
    struct farewell loss = {.kind = FAREWELL_LOST, .witness = session->world.rank};
    loss.step = order_present_step(session->engine.order);
    text_copy(loss.text, sizeof(loss.text), "its process or its session has ended");
    for (loss.rank = 0; loss.rank < session->world.size; loss.rank++) {
        bool known = !bits_has(session->end.died, loss.rank);
        for (uint32_t i = 0; i < session->end.losses.count; i++)
            known = known || session->end.losses.of[i].rank == loss.rank;
        if (!known)
            resume_tell_loss(session, &loss, PROOF_PORT);
    }
}

// This rank has lost others, and the coordinator may not know. A rank that does not go on names the
// cause only.
static void resume_tell_losses(struct lockstep_session *session)
{
    const struct losses *losses = &session->end.losses;
    const struct farewell *first = losses_first(losses, session->world.rank);
    if (first && !recovery_is_on(session))
        resume_tell_loss(session, first, PROOF_PROCESS);
    if (!recovery_is_on(session))
        return;
    for (uint32_t i = 0; i < losses->count; i++)
        resume_tell_loss(session, &losses->of[i], PROOF_PROCESS);
    resume_tell_dead(session);
}

void resume_say_modules(struct lockstep_session *session, bool names)
{
    const struct engine_said *said = &session->engine.said;
    for (uint32_t i = 0; i < said->named_count; i++) {
        struct up_message message = {.kind = UP_MODULES, .u.modules = said->named[i]};
        if (!names)
            message.u.modules = (struct up_modules){.grouped = said->named[i].grouped,
                                                    .absent = said->named[i].absent};
        if (names || message.u.modules.grouped != 0)
            engine_send(session, &message);
    }
}

static void resume_say_again(struct lockstep_session *session)
{
    const struct engine_said *said = &session->engine.said;
    struct up_message message;
    resume_say_modules(session, true); // A verdict may come before rank 0 does.
    if (session->engine.starting && !session->engine.order->recovery.frozen) {
        message = (struct up_message){.kind = UP_START, .u.start = said->start};
        engine_send(session, &message);
    }
    if (session->engine.order->open && session->engine.order->learning &&
        !session->engine.order->recovery.frozen)
        engine_learn_again(session);
    resume_tell_losses(session);
}

// True if this rank is a member of a world, or of one that forms after a death.
static bool resume_is_member(const struct lockstep_session *session)
{
    return session->world.formed || session->engine.order->recovery.frozen;
}

void engine_control_stands(struct lockstep_session *session)
{
    struct up_message hello;
    if (!resume_is_member(session) || !control_hello(session->control, &hello))
        return;
    resume_describe(session, &hello.u.hello);
    if (control_send(session->control, &hello) < 0)
        return; // That stream has ended already; another one follows.
    session->end.control_gone = false;
    session->end.goodbyes_told = 0;
    memset(session->end.goodbyes_of, 0, sizeof(session->end.goodbyes_of));
    session->end.goodbyes_due_ms = clock_now_ms();
    resume_say_again(session);
    if (!session->end.over)
        engine_wait_together(session);
}

void engine_control_back(struct lockstep_session *session)
{
    absence_end(session);
    transport_seek(session->transport);
    if (!atomic_load_explicit(&session->gate.alone, memory_order_relaxed))
        return;
    session->end.control_text[0] = '\0';
    atomic_store_explicit(&session->gate.alone, false, memory_order_release);
    log_event(&session->log, LOG_LEVEL_INFO, "coordinator_back", "rank=%" PRIu32,
              session->world.rank);
}
