// SPDX-License-Identifier: Apache-2.0
//
// The messages between ranks when a rank is lost or leaves. With them all ranks name the same lost
// rank even without a coordinator. Here are the losses that this rank sees, the losses that peers
// tell it, and the goodbye that it sends when it ends. worker/session/losses.h has the rule that
// chooses the rank that is named. Driver only.

#include "worker/engine/loss.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/text.h"
#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/engine/recovery.h"
#include "worker/engine/tell.h"
#include "worker/session/note.h"
#include "worker/transport/deaths.h"
#include "worker/transport/farewell.h"
#include "worker/transport/transport.h"

#include <inttypes.h>
#include <string.h>

// ---- Error texts --------------------------------------------------------------------------------

static void loss_name(const struct lockstep_session *session, const struct farewell *loss,
                      struct text *text)
{
    text_append(text, "rank %" PRIu32 " (host %s)", loss->rank,
                loss->host[0] != '\0' ? loss->host : engine_peer_host(session, loss->rank));
}

static void loss_lost_text(const struct lockstep_session *session, const struct farewell *loss,
                           struct text *text)
{
    if (loss->rank == session->world.rank && loss->witness != session->world.rank) {
        text_append(text, "rank %" PRIu32 " takes this one, rank %" PRIu32 ", for lost: %s",
                    loss->witness, loss->rank, loss->text);
        return;
    }
    loss_name(session, loss, text);
    if (loss->witness == session->world.rank)
        text_append(text, " was lost: %s", loss->text);
    else if (loss->witness == loss->rank)
        text_append(text, ": %s", loss->text);
    else
        text_append(text, " was lost: rank %" PRIu32 " says: %s", loss->witness, loss->text);
}

static void loss_left_text(const struct lockstep_session *session, const struct farewell *loss,
                           struct text *text)
{
    loss_name(session, loss, text);
    text_append(text, " closed its session while ");
    if (loss->witness == session->world.rank)
        text_append(text, "this rank");
    else
        text_append(text, "rank %" PRIu32, loss->witness);
    if (loss->step == 0)
        text_append(text, " still needed it before the first step");
    else
        text_append(text, " still needed it in step %" PRIu64, loss->step);
    if (loss->text[0] != '\0')
        text_append(text, ", after %s", loss->text);
    else
        text_append(text, ": every rank must make the same steps and collectives");
}

static void loss_halt(const struct lockstep_session *session, const struct farewell *loss,
                      struct down_halt *halt)
{
    const bool left = loss->kind == FAREWELL_LEFT;
    struct text text;
    *halt = (struct down_halt){
        .kind = left ? HALT_LEFT : HALT_LOST, .has_rank = true, .rank = loss->rank};
    halt->step = loss->step;
    text_init(&text, halt->text, sizeof(halt->text));
    if (left)
        loss_left_text(session, loss, &text);
    else
        loss_lost_text(session, loss, &text);
}

// ---- Losses that this rank sees or is told ------------------------------------------------------

void engine_resign(struct lockstep_session *session, uint64_t step, const char *text)
{
    struct farewell loss = {.kind = FAREWELL_LOST,
                            .rank = session->world.rank,
                            .witness = session->world.rank,
                            .step = step};
    if (!session->engine.linked)
        return;
    text_copy(loss.host, sizeof(loss.host), session->config.host);
    text_copy(loss.text, sizeof(loss.text), text);
    losses_add(&session->end.losses, &loss);
    transport_tell(session->transport, &loss);
}

static void loss_say(struct lockstep_session *session, const struct farewell *loss)
{
    log_event(&session->log, LOG_LEVEL_WARN, "peer_lost",
              "rank=%" PRIu32 " left=%d witness=%" PRIu32 " text=%s", loss->rank,
              loss->kind == FAREWELL_LEFT, loss->witness, loss->text);
}

// `rank` has left. If it left because a third rank had left or was lost before, its farewell names
// that third rank, and *loss becomes that farewell.
static void loss_left(struct lockstep_session *session, uint32_t rank, struct farewell *loss)
{
    const struct farewell *said = transport_farewell(session->transport, rank);
    loss->kind = FAREWELL_LEFT;
    loss->text[0] = '\0';
    if (said && (said->kind == FAREWELL_LEFT ||
                 (said->kind == FAREWELL_LOST && said->rank != session->world.rank)))
        *loss = *said;
    else if (said)
        text_copy(loss->text, sizeof(loss->text), said->text);
    session->end.left_seen = *loss;
}

// The first step that cannot be completed without this peer.
static uint64_t engine_lost_step(const struct lockstep_session *session, uint32_t rank)
{
    return order_lost_step(session->engine.order,
                           session->engine.commit_held ||
                               transport_wave_needs(session->transport, rank));
}

void engine_peer_lost(void *context, uint32_t rank, enum peer_loss how, const char *text)
{
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_LOST};
    struct down_halt seen;
    struct farewell loss = {.kind = FAREWELL_LOST,
                            .rank = rank,
                            .witness = session->world.rank,
                            .step = engine_lost_step(session, rank)};
    if (how == LOSS_HERE) {
        engine_fail(session, LOCKSTEP_E_SYSTEM, text);
        return;
    }
    if (!recovery_is_on(session))
        order_give_up(session->engine.order, loss.step);
    message.u.lost.rank = rank;
    message.u.lost.left = how == LOSS_LEFT;
    message.u.lost.silent = how == LOSS_SILENT;
    message.u.lost.impossible = how == LOSS_IMPOSSIBLE;
    message.u.lost.proof = how == LOSS_LEFT                                 ? PROOF_WORD
                           : transport_take_death(session->transport, rank) ? PROOF_PROCESS
                                                                            : PROOF_NONE;
    if (message.u.lost.proof == PROOF_PROCESS)
        bits_add(session->end.died, rank);
    message.u.lost.step = loss.step;
    text_copy(message.u.lost.text, sizeof(message.u.lost.text), text);
    text_copy(loss.text, sizeof(loss.text), text);
    text_copy(loss.host, sizeof(loss.host), engine_peer_host(session, rank));
    if (how == LOSS_LEFT) {
        loss_left(session, rank, &loss);
        text_copy(message.u.lost.text, sizeof(message.u.lost.text), loss.text);
    } else {
        losses_add(&session->end.losses, &loss);
        transport_tell(session->transport, &loss);
    }
    loss_say(session, &loss);
    loss_halt(session, &loss, &seen);
    // A loss before the first step counts for step 1. A rank that gives up then says the same.
    seen.step = message.u.lost.step != 0 ? message.u.lost.step : 1;
    engine_report(session, &message, &seen);
}

// The loss may have been reported before, without this proof. A frozen rank says it, too: the
// coordinator may await its report.
static void loss_proven(struct lockstep_session *session, uint32_t rank, enum loss_proof proof,
                        const char *text)
{
    struct up_message message = {.kind = UP_LOST};
    bits_add(session->end.died, rank);
    if (session->end.over || session->end.control_gone)
        return; // Another rank says it, or this one when the coordinator is back.
    message.u.lost.rank = rank;
    message.u.lost.proof = proof;
    message.u.lost.step = engine_lost_step(session, rank);
    text_copy(message.u.lost.text, sizeof(message.u.lost.text), text);
    engine_send(session, &message);
}

void engine_mate_gone(void *context, uint32_t rank)
{
    loss_proven(context, rank, PROOF_PROCESS, "its process has ended");
}

void engine_port_closed(void *context, uint32_t rank)
{
    loss_proven(context, rank, PROOF_PORT, "nothing listens at its data port any more");
}

void engine_told(void *context, uint32_t from, const struct farewell *loss)
{
    struct lockstep_session *session = context;
    struct up_message message = {.kind = UP_LOST};
    struct down_halt seen;
    (void)from;
    losses_add(&session->end.losses, loss);
    loss_say(session, loss);
    loss_halt(session, loss, &seen);
    message.u.lost.rank = loss->rank;
    message.u.lost.step = losses_word_step(loss, order_present_step(session->engine.order));
    message.u.lost.told = true;
    message.u.lost.witness = loss->witness;
    text_copy(message.u.lost.text, sizeof(message.u.lost.text), loss->text);
    // A witness tells the coordinator itself when it gives up, or when it has lost this rank.
    engine_report(
        session, loss->rank == session->world.rank || loss->rank == loss->witness ? NULL : &message,
        &seen);
}

// By now this rank may know of more losses than the one that it saw first.
void engine_choose_loss(struct lockstep_session *session, struct down_halt *halt)
{
    const struct farewell *first = losses_first(&session->end.losses, session->world.rank);
    const uint64_t step = halt->step;
    char cause[sizeof(halt->cause)] = "";
    struct text text;
    if (halt->kind != HALT_LOST || !first || session->end.abort_text[0] != '\0')
        return;
    if (halt->has_rank && halt->rank == first->rank && first->rank != first->witness)
        text_copy(cause, sizeof(cause), halt->cause);
    loss_halt(session, first, halt);
    if (step < halt->step)
        halt->step = step;
    if (cause[0] == '\0')
        return;
    text_init(&text, halt->text, sizeof(halt->text));
    loss_lost_text(session, first, &text);
    text_append(&text, "; it ended without lockstep_close after %s", cause);
}

// ---- The goodbye --------------------------------------------------------------------------------

// Fills in the rank that is the cause of this rank's end, as the coordinator's verdict names it.
static void loss_of_halt(const struct lockstep_session *session, struct farewell *farewell)
{
    const struct down_halt *halt = &session->engine.order->halt;
    farewell->kind = halt->kind == HALT_LEFT ? FAREWELL_LEFT : FAREWELL_LOST;
    farewell->rank = halt->rank;
    farewell->step = halt->step;
    text_copy(farewell->host, sizeof(farewell->host), engine_peer_host(session, halt->rank));
    if (farewell->kind == FAREWELL_LOST)
        text_copy(farewell->text, sizeof(farewell->text), "the coordinator has lost it");
}

void engine_goodbye(struct lockstep_session *session)
{
    const struct down_halt *halt = &session->engine.order->halt;
    const struct farewell *lost = losses_first(&session->end.losses, session->world.rank);
    struct farewell farewell = {
        .kind = FAREWELL_CLOSED, .rank = session->world.rank, .witness = session->world.rank};
    struct text text;
    text_init(&text, farewell.text, sizeof(farewell.text));
    if (session->world.generation.number == 0)
        return;
    if (lost)
        farewell = *lost;
    else if (session->end.over && session->end.left_seen.kind == FAREWELL_LEFT)
        farewell = session->end.left_seen;
    else if (session->end.over && session->end.over_status == LOCKSTEP_E_PEER_LOST &&
             halt->has_rank)
        loss_of_halt(session, &farewell);
    else if (session->end.over)
        text_append(&text, "%s: %s", lockstep_status_name(session->end.over_status),
                    session->end.over_text);
    else
        session_read_note(session, farewell.text, sizeof(farewell.text));
    transport_goodbye(session->transport, &farewell);
}
