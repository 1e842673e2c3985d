// SPDX-License-Identifier: Apache-2.0
//
// Attempts at work of several collectives: attempt.h. Trainer threads.

#include "worker/session/attempt.h"

#include "base/hash64.h"
#include "worker/session/agreement.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

int attempt_failed(void)
{
    return error_set(LOCKSTEP_E_CHANGED, "the world changed in lockstep_start");
}

int attempt_check_locked(const struct lockstep_session *session)
{
    const struct work_attempt *attempt = &session->works.attempt;
    mutex_assert_held(&session->mutex);
    return attempt->active && attempt->changes != session->step.change.number ? attempt_failed()
                                                                              : 0;
}

void attempt_tag_locked(struct lockstep_session *session, struct collective_tag *tag)
{
    struct work_attempt *attempt = &session->works.attempt;
    mutex_assert_held(&session->mutex);
    *tag = (struct collective_tag){.space = attempt->space, .slot = attempt->next++};
}

// tries: failed attempts in this generation. A rank that comes later repeats these attempts alone.
// Each fails at the collective at which the others failed, because the members know its outcome.
static void attempt_begin(struct lockstep_session *session, uint32_t scope, uint64_t *generation,
                          uint64_t *tries)
{
    struct work_attempt *attempt = &session->works.attempt;
    mutex_lock(&session->mutex);
    if (*generation != session->world.generation.number)
        *tries = 0;
    *generation = session->world.generation.number;
    const uint64_t identity[] = {*generation, session->starts, scope, (*tries)++};
    *attempt = (struct work_attempt){.active = true,
                                     .changes = session->step.change.number,
                                     .space = hash64(identity, sizeof(identity))};
    if (attempt->space == 0)
        attempt->space = 1;
    mutex_unlock(&session->mutex);
}

static void attempt_end(struct lockstep_session *session)
{
    mutex_lock(&session->mutex);
    session->works.attempt.active = false;
    mutex_unlock(&session->mutex);
}

int attempt_run(struct lockstep_session *session, uint32_t scope,
                int (*run)(struct lockstep_session *session, void *context), void *context)
{
    uint64_t generation = 0;
    uint64_t tries = 0;
    int status = LOCKSTEP_E_CHANGED;
    if (!agreement_is_on(session))
        return run(session, context);
    while (status == LOCKSTEP_E_CHANGED) {
        attempt_begin(session, scope, &generation, &tries);
        status = run(session, context);
        attempt_end(session);
    }
    return status;
}
