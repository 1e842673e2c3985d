// SPDX-License-Identifier: Apache-2.0
//
// lockstep_start (verify, then make the values equal), the state hash and the state check. Runs on
// the trainer's thread. state.c compares and sends.
//
// Between verification and broadcast, ranks with devices agree on where every tensor is
// (worker/session/module/residency.h). A death does not end lockstep_start in a session that goes
// on: what a death has hit is attempted again (worker/session/attempt.h).

#include "base/hash64.h"
#include "worker/api/buffers.h"
#include "worker/api/grouped.h"
#include "worker/api/grouped_state.h"
#include "worker/api/module.h"
#include "worker/api/state.h"
#include "worker/api/step_device.h"
#include "worker/session/module/deferral.h"
#include "worker/session/module/leaves.h"
#include "worker/session/module/manifest.h"
#include "worker/session/module/overlap.h"
#include "worker/session/module/replicas.h"
#include "worker/session/module/residency.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"
#include "worker/watch/watch.h"

#include <inttypes.h>

// Makes all parameters and buffers equal to those of the root.
static int start_broadcast(struct lockstep_session *session, void *context)
{
    (void)context;
    return state_compare(session, NULL, state_send);
}

// ---- lockstep_start ----------------------------------------------------------------------------

static int start_verify(struct lockstep_session *session)
{
    const struct command command = {.kind = COMMAND_START};
    const struct standing standing = await_other(AWAIT_START, API_START, ++session->starts);
    const struct wish wish = {.flag = &session->answered.verified,
                              .deadline_ms = COND_NO_DEADLINE,
                              .standing = &standing};
    int status;
    session->manifest_hash = module_manifest_hash(session);
    mutex_lock(&session->mutex);
    session->answered.verified = false;
    drive_until_locked(session, &command, &wish);
    status = session_failure_locked(session);
    mutex_unlock(&session->mutex);
    return status;
}

// If ranks have devices: agrees with all ranks on which tensors are on devices, makes the groups of
// buffers anew, because they depend on that, and reserves device memory.
static int start_settle_places(struct lockstep_session *session, void *context)
{
    const struct command command = {.kind = COMMAND_RESERVE};
    const struct wish wish = {.flag = &session->answered.reserved, .deadline_ms = COND_NO_DEADLINE};
    int status = residency_agree(session);
    (void)context;
    if (status < 0 || session->config.solo)
        return status;
    buffers_fini(session);
    status = buffers_make(session);
    if (status < 0)
        return status;
    mutex_lock(&session->mutex);
    session->answered.reserved = false;
    drive_until_locked(session, &command, &wish);
    status = session_failure_locked(session);
    mutex_unlock(&session->mutex);
    return status;
}

static int start_all(struct lockstep_session *session)
{
    grouped_forget(session);
    int status = leaves_start(session);
    if (status == 0 && !session->config.solo) {
        buffers_fini(session);
        status = buffers_make(session);
        if (status == 0)
            status = deferral_start(session);
        if (status == 0)
            status = start_verify(session);
        if (status == 0 && session->answered.grouped)
            status = attempt_run(session, ATTEMPT_GROUPED, grouped_agree, NULL);
    }
    if (status == 0)
        status = residency_matters(session)
                     ? attempt_run(session, ATTEMPT_PLACES, start_settle_places, NULL)
                     : residency_check_loaded(session);
    if (status == 0 && !session->config.solo)
        status = attempt_run(session, ATTEMPT_STATE, start_broadcast, NULL);
    if (status == 0 && !session->config.solo)
        status = grouped_state_sync(session);
    if (status < 0)
        return status;
    status = replica_copy_values(session);
    session->started = status == 0;
    return status;
}

int lockstep_start(lockstep_session *session)
{
    int status = session_check(session);
    if (status < 0)
        return status;
    // Other ranks may have registered or closed a module of a group without this one.
    if (session->started && session->answered.ever_grouped && !session->step.is_open &&
        !session->step.window_open) {
        status = step_device_land(session, COND_NO_DEADLINE);
        if (status == 0)
            status = module_stop(session);
        if (status < 0)
            return status;
    }
    if (session->started)
        return error_set(LOCKSTEP_E_INVALID,
                         "the session has been started already; no module was registered and no "
                         "module was closed since%s",
                         session->answered.ever_grouped
                             ? ", and a step or window is open"
                             : ", and the job has never had a module of a group");
    if (session->world.root >= session->world.size)
        return error_set(LOCKSTEP_E_CONFIG,
                         "config.root %" PRIu32 " does not fit the world of %" PRIu32
                         " that has formed",
                         session->world.root, session->world.size);
    const int overlap = overlap_check_moved(session);
    if (overlap < 0)
        return overlap;
    const struct visit visit = progress_enter(&session->tracker, API_START, PROGRESS_NO_MODULE, 0);
    watch_find_python(session->watch);
    await_enter(API_START, LOCKSTEP_MAX_MODULES);
    return progress_leave(&visit, start_all(session));
}

// ---- Hash and check ----------------------------------------------------------------------------

static int start_check_ready(struct lockstep_session *session)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!session->started || session->step.is_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "the state is shared after lockstep_start and outside a step");
    return 0;
}

int lockstep_state_hash(lockstep_session *session, uint64_t *hash)
{
    struct shared_state state;
    struct hash64 all;
    int status = start_check_ready(session);
    if (status == 0 && !hash)
        status = error_set(LOCKSTEP_E_INVALID, "hash is NULL: nowhere to put it");
    if (status < 0)
        return status;
    status = state_open(session, NULL, &state);
    if (status == 0) {
        hash64_init(&all, 0);
        hash64_update(&all, state.hashes, state.count * sizeof(state.hashes[0]));
        status = grouped_state_hash(session, &all);
    }
    if (status == 0)
        *hash = hash64_final(&all);
    state_free(&state);
    return status;
}

static int start_check(struct lockstep_session *session)
{
    const int status = state_compare(session, NULL, state_report);
    return status < 0 ? status : grouped_state_check(session);
}

int lockstep_state_check(lockstep_session *session)
{
    const int status = start_check_ready(session);
    if (status < 0 || session->config.solo)
        return status;
    const struct visit visit = progress_enter(&session->tracker, API_STATE, PROGRESS_NO_MODULE, 0);
    await_enter(API_STATE_CHECK, LOCKSTEP_MAX_MODULES);
    return progress_leave(&visit, start_check(session));
}

// The root of a broadcast does not wait for the other ranks. So a barrier follows: no rank returns
// before all ranks have called this function.
int lockstep_state_sync(lockstep_session *session)
{
    const struct collective barrier = {
        .kind = COLLECTIVE_ALLREDUCE, .dtype = DTYPE_INT32, .op = REDUCE_SUM};
    struct lockstep_work *work;
    int status = start_check_ready(session);
    if (status < 0 || session->config.solo)
        return status;
    const struct visit visit = progress_enter(&session->tracker, API_STATE, PROGRESS_NO_MODULE, 0);
    await_enter(API_STATE_SYNC, LOCKSTEP_MAX_MODULES);
    buffers_begin(session, 0, NULL);
    status = buffers_await(session);
    if (status == 0)
        status = work_call(session, "lockstep/state/synchronized", NULL, 1, &barrier,
                           LOCKSTEP_WAIT_FOREVER, &work);
    return progress_leave(&visit, status);
}
