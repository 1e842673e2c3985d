// SPDX-License-Identifier: Apache-2.0
//
// The public functions of plain collectives: allreduce, broadcast and barrier by name, blocking and
// asynchronous. Trainer threads call them. worker/session/work.c implements them.

#include "base/text.h"
#include "worker/device/device.h"
#include "worker/session/fork.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"

#include <inttypes.h>

// Finds out whether the data is in the memory of this rank's device, and sets like->device if it
// is. Other ranks may have theirs on the host. A failure if it is on another device.
static int collective_find(const struct lockstep_session *session, const char *name,
                           const void *data, uint64_t count, struct collective *like)
{
    if (!session->devices.first || !data)
        return 0;
    const int status = work_check(session, name, count, like); // The text below needs a valid name.
    if (status < 0)
        return status;
    const enum memory_place place = device_place(session->devices.first, data);
    like->device = place == MEMORY_ON_DEVICE ? session->devices.first : NULL;
    if (place != MEMORY_ELSEWHERE)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "collective '%s': its data is in the memory of another device than cuda:%d, "
                     "which is this session's (config.device)",
                     name, device_facts(session->devices.first)->ordinal);
}

static int collective_async(struct lockstep_session *session, const char *name, void *data,
                            uint64_t count, struct collective *like, struct lockstep_work **work)
{
    int status;
    if (!work)
        return error_set(LOCKSTEP_E_INVALID, "work is NULL: nowhere to put the handle");
    *work = NULL;
    status = session_check(session);
    if (status == 0)
        status = collective_find(session, name, data, count, like);
    if (status == 0)
        status = work_begin_by(session, CALLER_TRAINER, name, data, count, like, work);
    if (status < 0)
        *work = NULL;
    return status;
}

// A blocking collective has timed out. Other ranks may have its result, so this rank cannot go on:
// aborts the session. The error text stays that of the timeout.
static void collective_give_up(struct lockstep_session *session, struct lockstep_work *work)
{
    char text[LOCKSTEP_TEXT_BYTES];
    text_copy(text, sizeof(text), lockstep_error_text());
    session_abort(session, LOCKSTEP_E_TIMEOUT, text);
    work_wait(work, LOCKSTEP_WAIT_FOREVER);
    (void)error_set(LOCKSTEP_E_TIMEOUT, "%s", text);
}

static enum api_function collective_function(const struct collective *like, const void *data)
{
    if (like->kind == COLLECTIVE_BROADCAST)
        return API_BROADCAST;
    return !data ? API_BARRIER : API_ALLREDUCE;
}

static int collective_blocking(struct lockstep_session *session, const char *name, void *data,
                               uint64_t count, struct collective *like, uint32_t timeout_ms)
{
    struct lockstep_work *work;
    int status = session_check(session);
    if (status == 0)
        status = collective_find(session, name, data, count, like);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&session->tracker, API_COLLECTIVE, PROGRESS_NO_MODULE, 0);
    await_enter(collective_function(like, data), LOCKSTEP_MAX_MODULES);
    status = work_call_by(session, CALLER_TRAINER, name, data, count, like, timeout_ms, &work);
    if (status == LOCKSTEP_E_TIMEOUT)
        collective_give_up(session, work);
    return progress_leave(&visit, status);
}

static struct collective collective_allreduce(lockstep_dtype dtype, lockstep_op op)
{
    return (struct collective){
        .kind = COLLECTIVE_ALLREDUCE, .dtype = (enum dtype)dtype, .op = (enum reduce_op)op};
}

static struct collective collective_broadcast(lockstep_dtype dtype, uint32_t root)
{
    return (struct collective){
        .kind = COLLECTIVE_BROADCAST, .dtype = (enum dtype)dtype, .root = root};
}

int lockstep_allreduce(lockstep_session *session, const char *name, void *data, uint64_t count,
                       lockstep_dtype dtype, lockstep_op op, uint32_t timeout_ms)
{
    if (!data && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "data is NULL and count is %" PRIu64, count);
    struct collective like = collective_allreduce(dtype, op);
    return collective_blocking(session, name, data, count, &like, timeout_ms);
}

int lockstep_allreduce_async(lockstep_session *session, const char *name, void *data,
                             uint64_t count, lockstep_dtype dtype, lockstep_op op,
                             lockstep_work **work)
{
    if (!data && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "data is NULL and count is %" PRIu64, count);
    struct collective like = collective_allreduce(dtype, op);
    return collective_async(session, name, data, count, &like, work);
}

int lockstep_broadcast(lockstep_session *session, const char *name, void *data, uint64_t count,
                       lockstep_dtype dtype, uint32_t root, uint32_t timeout_ms)
{
    if (!data && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "data is NULL and count is %" PRIu64, count);
    struct collective like = collective_broadcast(dtype, root);
    return collective_blocking(session, name, data, count, &like, timeout_ms);
}

int lockstep_broadcast_async(lockstep_session *session, const char *name, void *data,
                             uint64_t count, lockstep_dtype dtype, uint32_t root,
                             lockstep_work **work)
{
    if (!data && count > 0)
        return error_set(LOCKSTEP_E_INVALID, "data is NULL and count is %" PRIu64, count);
    struct collective like = collective_broadcast(dtype, root);
    return collective_async(session, name, data, count, &like, work);
}

// A barrier is an allreduce of one element whose result is never read. With data NULL the work uses
// an element of its own.
int lockstep_barrier_async(lockstep_session *session, const char *name, lockstep_work **work)
{
    struct collective like = collective_allreduce(LOCKSTEP_INT32, LOCKSTEP_SUM);
    return collective_async(session, name, NULL, 1, &like, work);
}

int lockstep_barrier(lockstep_session *session, const char *name, uint32_t timeout_ms)
{
    struct collective like = collective_allreduce(LOCKSTEP_INT32, LOCKSTEP_SUM);
    return collective_blocking(session, name, NULL, 1, &like, timeout_ms);
}

int lockstep_work_wait(lockstep_work *work, uint32_t timeout_ms)
{
    if (fork_in_child())
        return error_set(LOCKSTEP_E_FORKED,
                         "this process was forked from the one that opened the session");
    if (!handle_is(HANDLE_WORK, work))
        return error_set(LOCKSTEP_E_INVALID, !work ? "the work is NULL"
                                                   : "this is not work, or its session was "
                                                     "closed");
    int status = session_check_sink();
    if (status == 0)
        status = session_check_interrupted(work->session);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&work->session->tracker, API_WORK_WAIT, PROGRESS_NO_MODULE, 0);
    await_enter(API_WORK_WAIT, LOCKSTEP_MAX_MODULES);
    return progress_leave(&visit, work_wait(work, timeout_ms));
}
