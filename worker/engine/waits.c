// SPDX-License-Identifier: Apache-2.0
//
// The engine's part in lockstep_call_wait and lockstep_call_next: it tells the order core which
// calls threads wait for, and passes the core's answers to the threads. worker/api/call_wait.c runs
// on these threads.
// Driver only.

#include "worker/engine/waits.h"

#include "base/clock.h"
#include "worker/order/waits.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <stdio.h>

static struct call_id wait_call(const struct contribution *contribution)
{
    return (struct call_id){.module = contribution->module->index, .call = contribution->index};
}

static struct contribution *wait_contribution(const struct lockstep_session *session,
                                              uint32_t module, uint32_t call)
{
    return &session->modules[module]->contributions[call];
}

// ---- Answers -----------------------------------------------------------------------------------

// Gives the answer to one thread that waits for the contribution, or to one that asks. The core
// does not say which thread; any of them will do, because threads that wait for the same call get
// the same answer. The exception is RELEASE_WITHDRAWN: only a thread that wants to leave may get
// it. A thread that waits may not get the answer to a question: it leaves only after the
// coordinator's answer.
static void wait_answer(struct lockstep_session *session, const struct contribution *contribution,
                        bool asked, enum order_release answer)
{
    mutex_lock(&session->mutex);
    list_for_each (node, &session->call_waiters) {
        struct call_waiter *waiter = list_entry(node, struct call_waiter, waiters);
        if (waiter->contribution != contribution || waiter->answered || waiter->asks != asked ||
            (answer == RELEASE_WITHDRAWN && !waiter->leaves))
            continue;
        waiter->answered = waiter->stirred = true;
        waiter->answer = answer;
        break;
    }
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

// Sets or clears the deadline of waits. A coordinator detects ranks that wait for each other, so
// waits have a deadline only without one.
static void wait_limit(struct lockstep_session *session)
{
    const uint32_t timeout_ms = session->config.halt_timeout_ms;
    if (session->engine.waits == 0)
        session->end.halt_deadline_ms = 0;
    else if (session->end.control_gone && timeout_ms > 0 && session->end.halt_deadline_ms == 0)
        session->end.halt_deadline_ms = clock_now_ms() + timeout_ms;
}

void engine_wait_released(struct lockstep_session *session, const struct order_action *action)
{
    session->engine.waits--;
    wait_limit(session);
    wait_answer(session, wait_contribution(session, action->call.module, action->call.call), false,
                action->release);
}

void engine_wait_bucket(struct lockstep_session *session, struct collective *collective)
{
    struct contribution *contribution = collective->context;
    struct bucket_run *run = (void *)((char *)collective - offsetof(struct bucket_run, collective));
    const uint32_t count =
        atomic_load_explicit(&contribution->finished_count, memory_order_relaxed);
    // The result of a slot that was given up is not in user memory before the end of the step. A
    // slot that is repeated after a death may be final for the second time.
    if (session->engine.order->slots[collective->tag.slot].forfeited || run->listed)
        return;
    run->listed = true;
    contribution->finished[count] = (uint32_t)(run - contribution->runs);
    atomic_store(&contribution->finished_count, count + 1);
    if (atomic_load(&contribution->takers) == 0)
        return;
    mutex_lock(&session->mutex);
    list_for_each (node, &session->call_waiters) {
        struct call_waiter *waiter = list_entry(node, struct call_waiter, waiters);
        if (waiter->contribution == contribution && waiter->takes)
            waiter->stirred = true;
    }
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

// ---- Commands of waiting threads ---------------------------------------------------------------

static void wait_begin(struct lockstep_session *session, const struct contribution *contribution)
{
    session->engine.waits++;
    wait_limit(session);
    order_wait_begun(session->engine.order, wait_call(contribution));
}

// Handles the three commands of a wait. The order core expects that all buckets of an awaited call
// are ready. Other threads may still be handing over the last buckets of a call that has ended, so
// until then the wait is held back from the core.
void engine_wait(struct lockstep_session *session, const struct command *command)
{
    struct contribution *contribution = wait_contribution(session, command->module, command->call);
    const bool whole = contribution->announced == contribution->module->layout.bucket_count;
    if (!whole && command->kind == COMMAND_WAIT_BEGIN) {
        contribution->waits_held++;
    } else if (!whole) {
        contribution->waits_held -= command->kind == COMMAND_WAIT_END;
        wait_answer(session, contribution, command->kind == COMMAND_WAIT_ASK, RELEASE_WITHDRAWN);
    } else if (command->kind == COMMAND_WAIT_BEGIN) {
        wait_begin(session, contribution);
    } else if (command->kind == COMMAND_WAIT_END) {
        order_wait_ended(session->engine.order, wait_call(contribution));
    } else {
        wait_answer(session, contribution, true,
                    order_wait_ask(session->engine.order, wait_call(contribution)));
    }
}

void engine_wait_announced(struct lockstep_session *session, uint32_t module, uint32_t call)
{
    struct contribution *contribution = wait_contribution(session, module, call);
    contribution->announced++;
    if (contribution->announced < contribution->module->layout.bucket_count)
        return;
    while (contribution->waits_held > 0) {
        contribution->waits_held--;
        wait_begin(session, contribution);
    }
}

// ---- Without a coordinator ---------------------------------------------------------------------

void engine_wait_alone(struct lockstep_session *session)
{
    order_coordinator_lost(session->engine.order);
    wait_limit(session);
}

void engine_wait_together(struct lockstep_session *session)
{
    session->end.halt_deadline_ms = 0;
    order_coordinator_back(session->engine.order);
}

bool engine_wait_overdue(struct lockstep_session *session, char *bytes, size_t size)
{
    if (session->end.halt_deadline_ms == 0 || clock_now_ms() < session->end.halt_deadline_ms)
        return false;
    session->end.halt_deadline_ms = 0;
    snprintf(
        bytes, size,
        "step %" PRIu64 ": lockstep_call_wait has not ended within %" PRIu32
        " ms (halt_timeout_ms) without the coordinator, which would say whether ranks wait for "
        "each other: %s",
        session->engine.order->step, session->config.halt_timeout_ms, session->end.control_text);
    return true;
}
