// SPDX-License-Identifier: Apache-2.0
//
// The public functions of plain collectives: allreduce, broadcast and barrier by name, and
// collectives of every kind, blocking and asynchronous. Trainer threads call them.
// worker/session/work.c and plain.c implement them.

#include "base/text.h"
#include "worker/device/device.h"
#include "worker/session/exit.h"
#include "worker/session/fork.h"
#include "worker/session/group.h"
#include "worker/session/notify.h"
#include "worker/session/plain.h"
#include "worker/session/session.h"
#include "worker/session/shape.h"
#include "worker/session/work.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"

#include <inttypes.h>
#include <string.h>

// 0, or a failure if the session cannot run a collective now. names_rank: the collective names a
// rank. The first one after a death fails if the trainer does not know yet that ranks may have
// other numbers.
static int collective_check(struct lockstep_session *session, bool names_rank)
{
    const int status = session_check(session);
    if (status < 0 || !names_rank)
        return status;
    mutex_lock(&session->mutex);
    const int told = agreement_numbers_locked(session);
    mutex_unlock(&session->mutex);
    return told;
}

// Finds out whether the data is in the memory of this rank's device, and sets like->device if it
// is. Other ranks may have theirs on the host. A failure if it is on another device.
static int collective_find(struct lockstep_session *session, const char *name, const void *data,
                           uint64_t count, struct collective *like)
{
    if (!session->devices.first || !data)
        return 0;
    mutex_lock(&session->mutex);
    const int status = work_check(session, name, count, like); // The text below needs a valid name.
    mutex_unlock(&session->mutex);
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
    status = collective_check(session, like->kind == COLLECTIVE_BROADCAST);
    if (status == 0)
        status = collective_find(session, name, data, count, like);
    if (status == 0)
        status = work_begin_by(session, CALLER_TRAINER, name, data, count, like, work);
    if (status < 0)
        *work = NULL;
    return status;
}

// A blocking collective has timed out. Other ranks may have its result, so this rank cannot go on:
// aborts the session. The error of this call stays the timeout. Later calls do not return
// E_TIMEOUT, which would tell some of them to wait again.
static void collective_give_up(struct lockstep_session *session, struct lockstep_work *work)
{
    char text[LOCKSTEP_TEXT_BYTES];
    text_copy(text, sizeof(text), lockstep_error_text());
    exit_abort_begins(session);
    session_abort(session, LOCKSTEP_E_CLOSED, text);
    work_wait(work, LOCKSTEP_WAIT_FOREVER);
    exit_tell_abort(session);
    (void)error_set(LOCKSTEP_E_TIMEOUT, "%s", text);
}

static enum api_function collective_function(const struct collective *like, const void *data)
{
    if (like->kind == COLLECTIVE_BROADCAST)
        return API_BROADCAST;
    return !data ? API_BARRIER : API_ALLREDUCE;
}

// A wait has timed out. left: where the work goes that is still in flight; NULL: the session fails.
static void collective_late(struct lockstep_session *session, struct lockstep_work *work,
                            struct lockstep_work **left)
{
    if (!left) {
        collective_give_up(session, work);
        return;
    }
    work_hand_out(work);
    *left = work;
}

static int collective_blocking(struct lockstep_session *session, const char *name, void *data,
                               uint64_t count, struct collective *like, uint32_t timeout_ms,
                               struct lockstep_work **left)
{
    struct lockstep_work *work;
    int status = collective_check(session, like->kind == COLLECTIVE_BROADCAST);
    if (status == 0)
        status = collective_find(session, name, data, count, like);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&session->tracker, API_COLLECTIVE, PROGRESS_NO_MODULE, 0);
    await_enter(collective_function(like, data), LOCKSTEP_MAX_MODULES);
    status =
        work_call_by(session, CALLER_TRAINER, name, data, count, like, timeout_ms, !left, &work);
    if (status == LOCKSTEP_E_TIMEOUT)
        collective_late(session, work, left);
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
    return collective_blocking(session, name, data, count, &like, timeout_ms, NULL);
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
    return collective_blocking(session, name, data, count, &like, timeout_ms, NULL);
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
    return collective_blocking(session, name, NULL, 1, &like, timeout_ms, NULL);
}

// ---- Collectives of every kind -----------------------------------------------------------------

// Between two members any source is the other one.
static void collective_name_source(struct lockstep_session *session,
                                   struct lockstep_collective *what)
{
    mutex_lock(&session->mutex);
    const uint32_t size = what->group ? what->group->size : session->world.size;
    const uint32_t own = what->group ? what->group->rank : session->world.rank;
    mutex_unlock(&session->mutex);
    if (size == 2)
        what->peer = 1 - own;
}

// Copies and checks the description. `what` may come from an older header.
static int collective_read(struct lockstep_session *session,
                           const struct lockstep_collective *given,
                           struct lockstep_collective *what)
{
    *what = (struct lockstep_collective)LOCKSTEP_COLLECTIVE_INIT;
    if (!given)
        return error_set(LOCKSTEP_E_INVALID, "what is NULL: no collective is described");
    if (given->struct_bytes != sizeof(*what) &&
        given->struct_bytes != offsetof(struct lockstep_collective, sender))
        return error_set(LOCKSTEP_E_INVALID,
                         "the collective has %zu bytes; begin with LOCKSTEP_COLLECTIVE_INIT, and "
                         "load a library that is not older than the header",
                         given->struct_bytes);
    memcpy(what, given, given->struct_bytes);
    what->struct_bytes = sizeof(*what);
    if (!shape_name(what->kind))
        return error_set(LOCKSTEP_E_INVALID, "there is no kind %d of collectives", (int)what->kind);
    if (what->group && !handle_is(HANDLE_GROUP, what->group))
        return error_set(LOCKSTEP_E_INVALID, "this is not a group, or it was closed");
    if (what->group && what->group->session != session)
        return error_set(LOCKSTEP_E_INVALID, "group '%s' is of another session", what->group->name);
    if (what->kind == LOCKSTEP_RECEIVE && what->peer == LOCKSTEP_ANY_SOURCE)
        collective_name_source(session, what);
    return 0;
}

// The one memory of a collective that is the same as lockstep_allreduce, lockstep_broadcast or
// lockstep_barrier; false if it is another.
static bool collective_is_named(struct lockstep_session *session,
                                const struct lockstep_collective *what, void **data)
{
    uint32_t rank;
    void *input = (void *)(uintptr_t)what->input;
    const bool one = !input || !what->output || input == what->output;
    *data = what->kind == LOCKSTEP_BARRIER ? NULL : what->output ? what->output : input;
    if (what->group || what->weight != 1)
        return false;
    switch (what->kind) {
    case LOCKSTEP_BARRIER:
        return true;
    case LOCKSTEP_ALLREDUCE:
        return what->output && one;
    case LOCKSTEP_BROADCAST:
        mutex_lock(&session->mutex);
        rank = session->world.rank;
        mutex_unlock(&session->mutex);
        if (what->root == rank)
            return *data && one;
        *data = what->output;
        return *data;
    case LOCKSTEP_REDUCE:
    case LOCKSTEP_REDUCE_SCATTER:
    case LOCKSTEP_GATHER:
    case LOCKSTEP_SCATTER:
    case LOCKSTEP_ALL_GATHER:
    case LOCKSTEP_ALL_TO_ALL:
    case LOCKSTEP_SEND:
    case LOCKSTEP_RECEIVE:
        break;
    }
    return false;
}

static struct collective collective_like(const struct lockstep_collective *what)
{
    if (what->kind == LOCKSTEP_BARRIER)
        return collective_allreduce(LOCKSTEP_INT32, LOCKSTEP_SUM);
    return what->kind == LOCKSTEP_BROADCAST ? collective_broadcast(what->dtype, what->root)
                                            : collective_allreduce(what->dtype, what->op);
}

static uint64_t collective_count(const struct lockstep_collective *what)
{
    return what->kind == LOCKSTEP_BARRIER ? 1 : what->count;
}

// left: as for collective_late.
static int collective_wait(struct lockstep_session *session,
                           const struct lockstep_collective *given, uint32_t timeout_ms,
                           struct lockstep_work **left)
{
    struct lockstep_collective what;
    struct lockstep_work *work = NULL;
    void *data;
    int status = session_check(session);
    if (status == 0)
        status = collective_read(session, given, &what);
    if (status == 0)
        status = collective_check(session, what.kind == LOCKSTEP_BROADCAST);
    if (status < 0)
        return status;
    if (collective_is_named(session, &what, &data)) {
        struct collective like = collective_like(&what);
        return collective_blocking(session, what.name, data, collective_count(&what), &like,
                                   timeout_ms, left);
    }
    const struct visit visit =
        progress_enter(&session->tracker, API_COLLECTIVE, PROGRESS_NO_MODULE, 0);
    await_enter(API_COLLECTIVE_RUN, LOCKSTEP_MAX_MODULES);
    status = plain_call(session, &what, timeout_ms, !left, &work);
    if (status == LOCKSTEP_E_TIMEOUT)
        collective_late(session, work, left);
    return progress_leave(&visit, status);
}

int lockstep_collective_run(lockstep_session *session, const struct lockstep_collective *what,
                            uint32_t timeout_ms)
{
    return collective_wait(session, what, timeout_ms, NULL);
}

int lockstep_collective_wait(lockstep_session *session, const struct lockstep_collective *what,
                             uint32_t timeout_ms, lockstep_work **work)
{
    if (!work)
        return error_set(LOCKSTEP_E_INVALID, "work is NULL: nowhere to put the handle");
    *work = NULL;
    return collective_wait(session, what, timeout_ms, work);
}

int lockstep_collective_begin(lockstep_session *session, const struct lockstep_collective *given,
                              lockstep_work **work)
{
    struct lockstep_collective what;
    void *data;
    if (!work)
        return error_set(LOCKSTEP_E_INVALID, "work is NULL: nowhere to put the handle");
    *work = NULL;
    int status = session_check(session);
    if (status == 0)
        status = collective_read(session, given, &what);
    if (status == 0)
        status = collective_check(session, what.kind == LOCKSTEP_BROADCAST);
    if (status < 0)
        return status;
    if (collective_is_named(session, &what, &data)) {
        struct collective like = collective_like(&what);
        return collective_async(session, what.name, data, collective_count(&what), &like, work);
    }
    return plain_begin(session, &what, work);
}

// ---- Work --------------------------------------------------------------------------------------

// 0, or a failure if this is not work, or this thread must not call the library.
static int collective_check_work(const struct lockstep_work *work)
{
    if (fork_in_child())
        return error_set(LOCKSTEP_E_FORKED,
                         "this process was forked from the one that opened the session");
    if (!handle_is(HANDLE_WORK, work))
        return error_set(LOCKSTEP_E_INVALID, !work ? "the work is NULL"
                                                   : "this is not work, or its session was "
                                                     "closed");
    const int status = session_check_sink();
    return status < 0 ? status : session_check_interrupted(work->session);
}

int lockstep_work_notify(lockstep_work *work, void (*function)(void *context), void *context)
{
    const int status = collective_check_work(work);
    if (status < 0)
        return status;
    if (!function)
        return error_set(LOCKSTEP_E_INVALID, "function is NULL: nothing to call");
    return notify_set(work, function, context);
}

int lockstep_session_fd(lockstep_session *session, int *fd)
{
    if (!fd)
        return error_set(LOCKSTEP_E_INVALID, "fd is NULL: nowhere to put the descriptor");
    *fd = -1;
    const int status = session_check_handle(session);
    return status < 0 ? status : notify_open(session, fd);
}

int lockstep_work_wait(lockstep_work *work, uint32_t timeout_ms)
{
    const int status = collective_check_work(work);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&work->session->tracker, API_WORK_WAIT, PROGRESS_NO_MODULE, 0);
    await_enter(API_WORK_WAIT, LOCKSTEP_MAX_MODULES);
    return progress_leave(&visit, work_wait(work, timeout_ms));
}
