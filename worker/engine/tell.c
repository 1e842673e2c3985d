// SPDX-License-Identifier: Apache-2.0
//
// How a session ends while its engine runs. engine_fail ends it, and engine_let_go gives up user
// memory before any thread of the trainer learns of the failure. When this rank sees a failure, it
// reports the failure to the coordinator and waits for the verdict, because the verdict's text is
// the same on all ranks. Driver only.

#include "worker/engine/tell.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/control/grpc.h"
#include "worker/engine/absence.h"
#include "worker/engine/loss.h"
#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/engine/recovery.h"
#include "worker/engine/waits.h"
#include "worker/transport/doors.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/wait.h"

#include <stdio.h>
#include <string.h>

// How long a failed session waits until other ranks have received its last frames. The time is
// short, because the verdict has ended the other ranks, too.
#define ENGINE_HALT_LINGER_MS 200
// How long an aborted session goes on with a commit wave that it has joined.
#define ENGINE_ABORT_LINGER_MS 2000

// A failure of this system (memory, descriptors) on this rank ends the job on all ranks. The
// coordinator is told the reason; otherwise the other ranks would report a dead rank or a broken
// link. The trainer may end the process as soon as it knows, so it is told when the coordinator's
// verdict is there. The session is over already, so a failure to send changes nothing.
static void engine_tell_lack(struct lockstep_session *session)
{
    struct up_message message = {.kind = UP_FAIL};
    if (session->end.over_status != LOCKSTEP_E_SYSTEM || session->world.generation.number == 0 ||
        session->end.control_gone)
        return;
    message.u.fail.kind = HALT_LOST;
    text_copy(message.u.fail.text, sizeof(message.u.fail.text), session->end.over_text);
    session->end.lack_deadline_ms = clock_now_ms() + ENGINE_HALT_LINGER_MS;
    engine_send(session, &message);
}

void engine_hear_of_lack(struct lockstep_session *session, const struct down_message *message)
{
    if (message->kind == DOWN_HALT)
        session->end.lack_deadline_ms = 0;
}

bool engine_must_let_go(const struct lockstep_session *session)
{
    return session->end.over && !session->end.let_go &&
           (session->end.control_gone || clock_now_ms() >= session->end.lack_deadline_ms);
}

void engine_fail(struct lockstep_session *session, int status, const char *text)
{
    // The text of a wait that timed out already names the lost coordinator (session_late_text).
    const char *alone = !strstr(text, "; the coordinator at ") ? session_alone_text(session) : "";
    if (session->end.over)
        return;
    session->end.over = true;
    session->end.verdict_deadline_ms = 0;
    session->end.over_status = status;
    snprintf(session->end.over_text, sizeof(session->end.over_text), "%.*s%s",
             (int)sizeof(session->end.over_text) - 128, text, alone);
    engine_tell_lack(session);
    transport_wake(session->transport);
}

// Another rank may still need this rank's last frames to settle the step before the failed one. So
// these frames are sent first, then a goodbye with the reason: no rank takes this one for dead.
void engine_let_go(struct lockstep_session *session)
{
    session->end.let_go = true;
    engine_goodbye(session);
    if (session->engine.linked)
        transport_retreat(session->transport, ENGINE_HALT_LINGER_MS, session->end.over_abruptly);
    if (session->world.generation.number != 0)
        transport_abandon(session->transport);
    // The trainer may keep this session open for as long as it likes. The ranks that go on may need
    // the proof that this one takes part no more (rule M4 of docs/internals/membership.md).
    if (recovery_is_on(session))
        transport_close_doors(session->transport);
    session_fail(session, session->end.over_status, session->end.over_text);
    log_event(&session->log, LOG_LEVEL_ERROR, "session_failed", "status=%s text=%s",
              lockstep_status_name(session->end.over_status), session->end.over_text);
}

// The session goes on after this loss: the coordinator answers by a ballot, or by a verdict when
// the job cannot go on. Without the coordinator this rank waits for it.
static void engine_report_survived(struct lockstep_session *session, struct up_message *message,
                                   const struct down_halt *seen)
{
    const bool proven =
        message && message->kind == UP_LOST && message->u.lost.proof == PROOF_PROCESS;
    session->end.lost_here = *seen; // For the case that the coordinator is lost, too.
    // Before the decision a frozen rank reports only what it can prove. A coordinator that has just
    // started may have no other proof of this death.
    if (message && !session->engine.order->failed && !session->end.over &&
        (!recovery_has_promised(session) || proven))
        engine_send(session, message);
    absence_begin(session);
}

void engine_report(struct lockstep_session *session, struct up_message *message,
                   const struct down_halt *seen)
{
    const bool waits = session->end.verdict_deadline_ms != 0;
    const struct order *order = session->engine.order;
    const struct down_halt *known = waits              ? &session->end.lost_here
                                    : order->halt_held ? &order->halt
                                                       : NULL;
    if (recovery_is_on(session) && seen->kind == HALT_LOST && session->end.abort_text[0] == '\0') {
        engine_report_survived(session, message, seen);
        return;
    }
    // After an abort this rank may go on with a commit wave. It then sees links to ranks end that
    // have completed the wave, which is no new failure: other ranks may still send their part.
    if (order->failed || session->end.over || !losses_change(known, seen, &session->end.lost_here))
        return;
    if (!waits)
        session->end.verdict_deadline_ms = clock_now_ms() + LOCKSTEP_HALT_GRACE_MS;
    if (session->end.control_gone)
        engine_decide_alone(session);
    else if (message)
        engine_send(session, message);
}

void engine_decide_alone(struct lockstep_session *session)
{
    if (session->end.verdict_deadline_ms == 0)
        return;
    session->end.verdict_deadline_ms = clock_now_ms();
    if (session->end.lost_here.kind == HALT_LOST && session->end.abort_text[0] == '\0')
        session->end.verdict_deadline_ms += LOCKSTEP_LOSS_SETTLE_MS;
}

// True if the abort waits until the open step has settled or a deadline has passed. It waits once
// this rank has joined the commit wave: other ranks may need only that wave to complete the step.
// If no collective borrows user memory any more, the trainer gets the failure at once.
static bool engine_abort_holds(struct lockstep_session *session, int status)
{
    const struct order *order = session->engine.order;
    const bool borrows = session->engine.plain_in_flight > 0 || session->landing.unlanded > 0;
    if (!order->open || !order->commit_joined || session->engine.commit_held)
        return false;
    session->end.lost_here = (struct down_halt){.kind = HALT_LOST};
    session->end.verdict_deadline_ms =
        clock_now_ms() + (borrows ? ENGINE_HALT_LINGER_MS : ENGINE_ABORT_LINGER_MS);
    if (!borrows)
        session_fail(session, status, session->end.abort_text);
    return true;
}

void engine_abort(struct lockstep_session *session, int status, const char *reason)
{
    struct up_message message = {.kind = UP_FAIL, .generation = session->world.generation};
    struct up_fail *fail = &message.u.fail;
    if (session->end.abort_text[0] != '\0' || session->end.over)
        return;
    fail->kind = HALT_LOST;
    // While the commit wave is held for this rank's buffers, no rank can complete the open step.
    fail->step = session->engine.commit_held ? session->engine.order->step
                                             : order_first_impossible(session->engine.order);
    snprintf(fail->text, sizeof(fail->text), "aborted: %s", reason);
    snprintf(session->end.abort_text, sizeof(session->end.abort_text), "%s%s",
             status == LOCKSTEP_E_CLOSED ? "this session was aborted: " : "", reason);
    session->end.abort_status = status;
    session->end.over_abruptly = true;
    engine_resign(session, fail->step, fail->text);
    if (!session->end.control_gone)
        (void)control_send(session->control, &message); // engine_resign has told the peers.
    if (!engine_abort_holds(session, status))
        engine_fail(session, status, session->end.abort_text);
}

void engine_check_verdict(struct lockstep_session *session)
{
    const bool idle = session->end.left_held && session->engine.plain_in_flight == 0;
    if (session->end.verdict_deadline_ms == 0 ||
        (clock_now_ms() < session->end.verdict_deadline_ms && !idle))
        return;
    session->end.verdict_deadline_ms = 0;
    engine_choose_loss(session, &session->end.lost_here);
    if (!session->end.over)
        order_halted(session->engine.order, &session->end.lost_here);
}

void engine_check_waits(struct lockstep_session *session)
{
    char text[LOCKSTEP_REPORT_BYTES];
    if (engine_wait_overdue(session, text, sizeof(text)))
        engine_fail(session, LOCKSTEP_E_UNREACHABLE, text);
    absence_check(session);
}
