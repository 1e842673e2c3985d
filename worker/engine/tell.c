// SPDX-License-Identifier: Apache-2.0
//
// How a session ends while its engine runs. engine_fail is the only way, and engine_let_go lets go
// of user memory before anybody learns of the failure. What this rank has seen itself it tells the
// coordinator, whose sentence is the same for all ranks, and is waited for. Whoever drives.

#include "worker/engine/tell.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/control/grpc.h"
#include "worker/engine/loss.h"
#include "worker/engine/messages.h"
#include "worker/engine/parts.h"
#include "worker/engine/waits.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/wait.h"

#include <stdio.h>
#include <string.h>

// How long a session that a verdict has ended waits for others to take what they may still need;
// the other ranks were told, too.
#define ENGINE_HALT_LINGER_MS 200
// How long a session that was aborted goes on with a commit wave that it has joined.
#define ENGINE_ABORT_LINGER_MS 2000

// What this rank lacks ends the job on all ranks. The others hear what it was: they would take this
// rank, or a link to it, for broken. Its own session is over, so nothing comes of a failure to
// send.
static void engine_tell_lack(struct lockstep_session *session)
{
    struct up_message message = {.kind = UP_FAIL};
    if (session->over_status != LOCKSTEP_E_SYSTEM || session->generation.number == 0 ||
        session->control_gone)
        return;
    message.u.fail.kind = HALT_LOST;
    text_copy(message.u.fail.text, sizeof(message.u.fail.text), session->over_text);
    engine_send(session, &message);
}

void engine_fail(struct lockstep_session *session, int status, const char *text)
{
    // A wait whose time is over has said it already (session_late_text).
    const char *alone = !strstr(text, "; the coordinator at ") ? session_alone_text(session) : "";
    if (session->over)
        return;
    session->over = true;
    session->verdict_deadline_ms = 0;
    session->over_status = status;
    snprintf(session->over_text, sizeof(session->over_text), "%.*s%s",
             (int)sizeof(session->over_text) - 128, text, alone);
    engine_tell_lack(session);
    transport_wake(session->transport);
}

// Another rank may still need our last frames to settle the step before the one that failed: those
// are sent first, and a goodbye with the reason, so that nobody takes this rank for dead.
void engine_let_go(struct lockstep_session *session)
{
    session->let_go = true;
    engine_goodbye(session);
    if (session->linked && session->over_abruptly)
        transport_retreat(session->transport, ENGINE_HALT_LINGER_MS);
    else if (session->linked)
        transport_leave(session->transport, ENGINE_HALT_LINGER_MS);
    if (session->generation.number != 0)
        transport_abandon(session->transport);
    session_fail(session, session->over_status, session->over_text);
    log_event(&session->log, LOG_LEVEL_ERROR, "session_failed", "status=%s text=%s",
              lockstep_status_name(session->over_status), session->over_text);
}

void engine_report(struct lockstep_session *session, struct up_message *message,
                   const struct down_halt *seen)
{
    const bool waits = session->verdict_deadline_ms != 0;
    const struct order *order = session->order;
    const struct down_halt *known = waits              ? &session->lost_here
                                    : order->halt_held ? &order->halt
                                                       : NULL;
    // A rank that goes on with a commit wave after an abort sees others end that have completed it:
    // the rest of the wave may still come from those that have not.
    if (order->failed || session->over || !losses_change(known, seen, &session->lost_here))
        return;
    if (!waits)
        session->verdict_deadline_ms = clock_now_ms() + LOCKSTEP_HALT_GRACE_MS;
    if (session->control_gone)
        engine_decide_alone(session);
    else if (message)
        engine_send(session, message);
}

void engine_decide_alone(struct lockstep_session *session)
{
    if (session->verdict_deadline_ms == 0)
        return;
    session->verdict_deadline_ms = clock_now_ms();
    if (session->lost_here.kind == HALT_LOST && session->abort_text[0] == '\0')
        session->verdict_deadline_ms += LOCKSTEP_LOSS_SETTLE_MS;
}

// A step that other ranks may complete is completed: when this rank has joined the commit wave,
// they may only need its part of that. Nothing of the step is in user memory any more then, so the
// trainer need not wait.
static bool engine_abort_holds(struct lockstep_session *session, int status)
{
    const struct order *order = session->order;
    const bool borrows = session->plain_in_flight > 0 || session->unlanded > 0;
    if (!order->open || !order->commit_joined || session->commit_held)
        return false;
    session->lost_here = (struct down_halt){.kind = HALT_LOST};
    session->verdict_deadline_ms =
        clock_now_ms() + (borrows ? ENGINE_HALT_LINGER_MS : ENGINE_ABORT_LINGER_MS);
    if (!borrows)
        session_fail(session, status, session->abort_text);
    return true;
}

void engine_abort(struct lockstep_session *session, int status, const char *reason)
{
    struct up_message message = {.kind = UP_FAIL, .generation = session->generation};
    struct up_fail *fail = &message.u.fail;
    if (session->abort_text[0] != '\0' || session->over)
        return;
    fail->kind = HALT_LOST;
    // No rank completes a step whose commit wave waits for the buffers of this one.
    fail->step =
        session->commit_held ? session->order->step : order_first_impossible(session->order);
    snprintf(fail->text, sizeof(fail->text), "aborted: %s", reason);
    snprintf(session->abort_text, sizeof(session->abort_text), "%s%s",
             status == LOCKSTEP_E_CLOSED ? "this session was aborted: " : "", reason);
    session->abort_status = status;
    session->over_abruptly = true;
    engine_resign(session, fail->step, fail->text);
    if (!session->control_gone)
        (void)control_send(session->control, &message); // Others hear of it in any case.
    if (!engine_abort_holds(session, status))
        engine_fail(session, status, session->abort_text);
}

void engine_check_verdict(struct lockstep_session *session)
{
    const bool idle = session->left_held && session->plain_in_flight == 0;
    if (session->verdict_deadline_ms == 0 ||
        (clock_now_ms() < session->verdict_deadline_ms && !idle))
        return;
    session->verdict_deadline_ms = 0;
    engine_choose_loss(session, &session->lost_here);
    if (!session->over)
        order_halted(session->order, &session->lost_here);
}

void engine_check_waits(struct lockstep_session *session)
{
    char text[LOCKSTEP_REPORT_BYTES];
    if (engine_wait_overdue(session, text, sizeof(text)))
        engine_fail(session, LOCKSTEP_E_UNREACHABLE, text);
}
