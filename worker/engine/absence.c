// SPDX-License-Identifier: Apache-2.0
//
// Waiting for a coordinator that is away; absence.h has the contract. Driver only.

#include "worker/engine/absence.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/text.h"
#include "worker/control/grpc.h"
#include "worker/engine/loss.h"
#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/engine/recovery.h"
#include "worker/engine/tell.h"
#include "worker/order/recover.h"
#include "worker/transport/farewell.h"
#include "worker/transport/further.h"

#include <inttypes.h>
#include <stdio.h>

// True after a death that the ranks survive together.
static bool absence_follows_death(const struct lockstep_session *session)
{
    return recovery_is_on(session) &&
           (session->end.losses.count > 0 || session->engine.order->recovery.frozen);
}

// True as soon as this rank needs the coordinator, whether that is away or not.
static bool absence_needs(const struct lockstep_session *session)
{
    const struct order *order = session->engine.order;
    uint32_t rank;
    return session->engine.starting || (order_learns(order) && !order->recovery.frozen) ||
           absence_follows_death(session) || transport_awaits_address(session->transport, &rank);
}

// Returns what the coordinator is needed for, or NULL. text: room for it.
static const char *absence_need(const struct lockstep_session *session,
                                char text[LOCKSTEP_TEXT_BYTES])
{
    const struct order *order = session->engine.order;
    uint32_t rank;
    if (session->engine.starting)
        return "lockstep_start needs the coordinator, which compares what the ranks declare";
    if (order_learns(order) && !order->recovery.frozen) {
        snprintf(text, LOCKSTEP_TEXT_BYTES,
                 "step %" PRIu64 ": the order of phase '%s' is being learned, which the "
                 "coordinator does",
                 order->step, session->engine.phase);
        return text;
    }
    if (absence_follows_death(session))
        return session->end.lost_here.text[0] != '\0' ? session->end.lost_here.text
                                                      : "a rank was lost";
    if (!transport_awaits_address(session->transport, &rank))
        return NULL;
    snprintf(text, LOCKSTEP_TEXT_BYTES,
             "a link to rank %" PRIu32 " is needed, whose address the coordinator knows", rank);
    return text;
}

void absence_tell_need(struct lockstep_session *session)
{
    const bool needed = !session->end.over && absence_needs(session);
    if (needed == session->end.need_told || !session->control)
        return;
    session->end.need_told = needed;
    control_need(session->control, needed);
}

// True if a coordinator is there, and peers have said goodbye of which this rank has not told it.
static bool absence_owes_goodbyes(const struct lockstep_session *session)
{
    const struct engine_end *end = &session->end;
    return transport_goodbyes(session->transport) != end->goodbyes_told && !end->over &&
           !end->control_gone && session->control;
}

void absence_tell_goodbyes(struct lockstep_session *session)
{
    struct engine_end *end = &session->end;
    const bool owes = absence_owes_goodbyes(session);
    if (!owes)
        end->goodbyes_due_ms = 0;
    else if (end->goodbyes_due_ms == 0)
        end->goodbyes_due_ms = clock_now_ms() + LOCKSTEP_GOODBYE_MS;
    if (!owes || (clock_now_ms() < end->goodbyes_due_ms && !absence_needs(session)))
        return;
    end->goodbyes_told = transport_goodbyes(session->transport);
    end->goodbyes_due_ms = 0;
    for (uint32_t rank = 0; rank < session->world.size; rank++) {
        const struct farewell *said = transport_farewell(session->transport, rank);
        struct up_message message = {
            .kind = UP_LOST, .u.lost = {.rank = rank, .step = UP_LOST_NEVER, .proof = PROOF_WORD}};
        if (!said || said->kind == FAREWELL_FROZEN || bits_has(end->goodbyes_of, rank))
            continue;
        bits_add(end->goodbyes_of, rank);
        message.u.lost.left = said->kind != FAREWELL_LOST || said->rank != rank;
        text_copy(message.u.lost.text, sizeof(message.u.lost.text), said->text);
        engine_send(session, &message);
    }
}

void absence_begin(struct lockstep_session *session)
{
    char text[LOCKSTEP_TEXT_BYTES];
    const char *need = absence_need(session, text);
    const uint32_t timeout_ms = session->config.away_timeout_ms;
    if (!need || !session->end.control_gone || session->end.over ||
        session->end.away_need[0] != '\0')
        return;
    text_copy(session->end.away_need, sizeof(session->end.away_need), need);
    if (timeout_ms > 0)
        session->end.away_deadline_ms = clock_now_ms() + timeout_ms;
    log_event(&session->log, LOG_LEVEL_WARN, "coordinator_awaited",
              "timeout_ms=%" PRIu32 " text=%s cause=%s", timeout_ms, need,
              session->end.control_text);
}

void absence_end(struct lockstep_session *session)
{
    session->end.away_need[0] = '\0';
    session->end.away_deadline_ms = 0;
}

int absence_status(const struct lockstep_session *session)
{
    const bool lost = !session->engine.starting && !order_learns(session->engine.order) &&
                      absence_follows_death(session);
    return lost ? LOCKSTEP_E_PEER_LOST : LOCKSTEP_E_UNREACHABLE;
}

void absence_check(struct lockstep_session *session)
{
    char text[LOCKSTEP_REPORT_BYTES];
    if (session->end.away_deadline_ms == 0 || clock_now_ms() < session->end.away_deadline_ms)
        return;
    snprintf(text, sizeof(text),
             "%s; the coordinator is needed to go on, and has not come back within %.1f s "
             "(LOCKSTEP_AWAY_TIMEOUT_MS): %s",
             session->end.away_need, (double)session->config.away_timeout_ms / 1000.0,
             session->end.control_text);
    absence_end(session);
    // The others go on without this rank.
    if (recovery_is_on(session))
        engine_resign(session, order_present_step(session->engine.order), text);
    engine_fail(session, absence_status(session), text);
}

uint64_t absence_deadline(const struct lockstep_session *session)
{
    const struct engine_end *end = &session->end;
    // 1: at once. absence_tell_goodbyes then says when it is due.
    const uint64_t tell_ms = end->goodbyes_due_ms != 0 ? end->goodbyes_due_ms : 1;
    if (absence_owes_goodbyes(session) &&
        (end->away_deadline_ms == 0 || tell_ms < end->away_deadline_ms))
        return tell_ms;
    return end->away_deadline_ms;
}
