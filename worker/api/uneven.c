// SPDX-License-Identifier: Apache-2.0
//
// Ranks that run out of data: the rule in force, and the agreement of step_begin on which ranks
// still have data. Trainer.

#include "worker/api/uneven.h"

#include "base/text.h"
#include "worker/api/step.h"
#include "worker/session/command.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <string.h>

// ---- In step_begin -----------------------------------------------------------------------------

int uneven_check(const struct lockstep_session *session,
                 const struct lockstep_step_options *options)
{
    if (options->exhausted == 0 && !session->step.exhausted)
        return 0;
    if (session->step.uneven == LOCKSTEP_UNEVEN_NONE)
        return error_set(LOCKSTEP_E_INVALID,
                         "exhausted without uneven data: set config.uneven on every rank, or "
                         "call lockstep_uneven_set");
    if (options->exhausted == 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "this rank was exhausted in step %" PRIu64 ": a rank without data stays "
                         "exhausted to the end",
                         session->step.number);
    if (options->accumulate != 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "exhausted with accumulate: a rank without data has nothing to add up");
    if (session->step.window_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "exhausted inside a window: end the window of step %" PRIu64 " with a "
                         "step that synchronizes it, then say exhausted",
                         session->step.number);
    return 0;
}

// Joins the open wave of a step and waits for it. Its result is in session->step.opening.
static int uneven_open(struct lockstep_session *session, uint64_t step,
                       const struct lockstep_step_options *options)
{
    const struct command command = {.kind = COMMAND_STEP_OPEN, .step = step};
    struct open_wave *opening = &session->step.opening;
    mutex_lock(&session->mutex);
    session->step.openings = step;
    memset(opening, 0, sizeof(*opening));
    opening->exhausted = options->exhausted;
    opening->first = options->exhausted != 0 ? OPEN_NOBODY : session->world.rank;
    if (options->exhausted == 0 && options->phase)
        text_copy(opening->phase, sizeof(opening->phase), options->phase);
    mutex_unlock(&session->mutex);
    session->step.opening_size = 1;
    if (session->config.solo)
        return 0;
    return step_await(session, &command, &session->step.opened, step, COND_NO_DEADLINE);
}

// There is no next step. An open window is dropped: its gradients, and what this rank has added to
// metrics and counters since the last synchronized step.
static void uneven_finish(struct lockstep_session *session)
{
    session->step.finished = true;
    if (!session->step.window_open)
        return;
    session->step.window_open = false;
    mutex_lock(&session->mutex);
    counter_drop_locked(session);
    metrics_drop_locked(session);
    mutex_unlock(&session->mutex);
    session->step.number--;
    atomic_store_explicit(&session->progress->step, session->step.number, memory_order_relaxed);
}

int uneven_agree(struct lockstep_session *session, struct lockstep_step_options *options,
                 uint32_t *exhausted)
{
    const uint64_t step =
        session->step.window_open ? session->step.number : session->step.number + 1;
    const struct open_wave *agreed = &session->step.opening;
    const int status = uneven_open(session, step, options);
    if (status < 0)
        return status;
    *exhausted = agreed->exhausted;
    session->step.exhausted = options->exhausted != 0;
    if (agreed->exhausted == session->step.opening_size ||
        (agreed->exhausted > 0 && session->step.uneven == LOCKSTEP_UNEVEN_FIRST)) {
        uneven_finish(session);
        return LOCKSTEP_FINISHED;
    }
    if (session->step.exhausted) {
        options->phase = agreed->phase;
        if (options->keep_weight == 0)
            options->weight = 0;
    }
    return 0;
}

// The number of the step that was opened and not run is used up: the next open wave and the next
// header then differ from those of that step.
void uneven_skip(struct lockstep_session *session)
{
    if (!session->step.skips)
        return;
    session->step.skips = false;
    session->step.number++;
    if (!session->config.solo)
        session_post(session,
                     (struct command){.kind = COMMAND_STEP_SKIP, .step = session->step.number});
}

// ---- The rule ----------------------------------------------------------------------------------

static int uneven_check_set(struct lockstep_session *session, lockstep_uneven uneven)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if ((unsigned)uneven > LOCKSTEP_UNEVEN_FIRST)
        return error_set(LOCKSTEP_E_INVALID, "uneven %d is unknown", (int)uneven);
    if (session->config.virtual_ranks > 0 && uneven != LOCKSTEP_UNEVEN_NONE)
        return error_set(LOCKSTEP_E_UNSUPPORTED,
                         "a rule for uneven data does not go together with config.virtual_ranks: a "
                         "leaf without data makes its step with weight 0");
    if (session->step.is_open || session->step.window_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "lockstep_uneven_set inside a %s (step %" PRIu64 "): end it first",
                         session->step.is_open ? "step" : "window", session->step.number);
    return 0;
}

int lockstep_uneven_set(lockstep_session *session, lockstep_uneven uneven)
{
    const int status = uneven_check_set(session, uneven);
    if (status < 0)
        return status;
    session->step.uneven = uneven;
    session->step.skips = session->step.skips || session->step.finished;
    session->step.finished = session->step.exhausted = false;
    return 0;
}
