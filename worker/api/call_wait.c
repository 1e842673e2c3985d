// SPDX-License-Identifier: Apache-2.0
//
// lockstep_call_wait: a trainer takes the results of one call before its step is over.
// lockstep_call_next: it takes them bucket by bucket. Both run on trainer threads. Ranks that wait
// for each other are detected elsewhere: by the order core, which is told of every wait, and by the
// coordinator (docs/internals/order.md).
//
// A thread waits for contributions: that of the call and, if the call shares parameters that other
// modules own, those of the owners. It waits for them one after the other, in an order that the
// program fixes. So if one of these waits can never end, the thread always reaches it.

#include "base/clock.h"
#include "worker/api/call.h"
#include "worker/api/step.h"
#include "worker/control/grpc.h"
#include "worker/session/module/calls.h"
#include "worker/session/module/device_events.h"
#include "worker/session/module/replicas.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>

#define ANSWER_MS 1000 // How long a thread that leaves waits for the coordinator's answer.

// ---- Checks ------------------------------------------------------------------------------------

static bool wait_owns(const struct lockstep_module *owner, const struct lockstep_module *module)
{
    for (uint32_t p = 0; p < module->parameter_count && module->shared_count > 0; p++) {
        if (module != owner && module->homes[p].module == owner)
            return true;
    }
    return false;
}

// The owner's gradients travel when the owner and every module that shares them have ended their
// last call. A failure if one of these modules has not.
static int wait_check_handed(const struct lockstep_module *module,
                             const struct lockstep_module *owner)
{
    const struct lockstep_session *session = owner->session;
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *party = session->modules[m];
        if ((party != owner && !wait_owns(owner, party)) ||
            atomic_load_explicit(&party->contributions[0].handed, memory_order_acquire))
            continue;
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': to wait for its call, end the last call of module '%s' "
                         "first: gradients that they share travel with module '%s'",
                         module->name, party->name, owner->name);
    }
    return 0;
}

static int wait_check_shared(const struct lockstep_module *module)
{
    const struct lockstep_session *session = module->session;
    int status = module->separate_calls ? 0 : wait_check_handed(module, module);
    for (uint32_t m = 0; m < session->module_count && status == 0; m++) {
        if (wait_owns(session->modules[m], module))
            status = wait_check_handed(module, session->modules[m]);
    }
    return status;
}

static int wait_check_travels(const struct lockstep_call *call)
{
    const struct lockstep_module *module = call->module;
    if (module->session->step.accumulating)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its gradients add up in step %" PRIu64
                         " (accumulate), none travel that could be waited for",
                         module->name, call->step);
    if (!call->last)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its gradients travel with the last of %" PRIu32
                         " calls in a step (calls_per_step), not with call %" PRIu32
                         ": wait for that one",
                         module->name, module->calls_per_step, call->number + 1);
    return 0;
}

static int wait_check(struct lockstep_call *call)
{
    const struct lockstep_session *session;
    const char *name;
    int status = call_check(call);
    if (status < 0)
        return status;
    session = call->module->session;
    name = call->module->name;
    if (!session->step.is_open || call->step != session->step.number)
        return error_set(
            LOCKSTEP_E_INVALID,
            "module '%s': this is not a call of the open step: wait for it between its "
            "end and lockstep_step_end",
            name);
    if (session->step.ending)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': step %" PRIu64 " is in its end: wait for it with "
                         "lockstep_step_end",
                         name, session->step.number);
    if (!call->ended)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its call is open: call lockstep_call_end before "
                         "lockstep_call_wait",
                         name);
    if (call->given_up)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its call was given up (lockstep_call_abort): end the step",
                         name);
    status = wait_check_travels(call);
    return status < 0 ? status : wait_check_shared(call->module);
}

// ---- Waiting -----------------------------------------------------------------------------------

// The wait of one thread.
struct wait {
    struct lockstep_session *session;
    enum api_function api; // The public function that waits.
    bool asks; // True with a timeout of 0: asks whether the results are there, without waiting.
    uint64_t deadline_ms; // By clock_now_ms, or COND_NO_DEADLINE.
};

// Produces the results of a contribution in a solo session, which has no engine. Holds the mutex,
// because several threads may wait for calls that share an owner.
static int wait_alone(const struct wait *wait, struct contribution *contribution)
{
    int status = 0;
    mutex_lock(&wait->session->mutex);
    if (!contribution->returned) {
        call_note_withdrawn(contribution);
        status = device_events_await_end(wait->session, NULL);
        if (status == 0)
            status = step_settle_contribution(contribution, wait->session->step.weight);
        if (status == 0)
            status = replica_copy_contribution(contribution);
        contribution->returned = true;
    }
    mutex_unlock(&wait->session->mutex);
    return status;
}

static struct command wait_command(const struct contribution *contribution, enum command_kind kind)
{
    return (struct command){
        .kind = kind, .module = contribution->module->index, .call = contribution->index};
}

static struct standing wait_standing(const struct wait *wait,
                                     const struct contribution *contribution)
{
    const uint32_t module = contribution->module->index;
    struct standing standing = await_other(AWAIT_CALL, wait->api, wait->session->step.number);
    standing.key.space = (uint64_t)contribution->index << 32 | module;
    standing.module = module;
    return standing;
}

// Withdraws the wait, and waits for the answer: the coordinator may already have acted on the wait.
// A coordinator that is stopped or cut off does not answer. Then the control stream is given up,
// because everything that the coordinator has from it is void when another stream stands. The
// engine answers when the stream has ended. Caller holds the mutex, which is released meanwhile.
static void wait_withdraw_locked(const struct wait *wait, struct call_waiter *waiter)
{
    struct lockstep_session *session = wait->session;
    const struct command command = wait_command(waiter->contribution, COMMAND_WAIT_END);
    struct wish wish = {.flag = &waiter->answered, .deadline_ms = clock_now_ms() + ANSWER_MS};
    waiter->leaves = true;
    drive_until_locked(session, &command, &wish);
    while (!waiter->answered && session->gate.failure == 0) {
        mutex_unlock(&session->mutex);
        control_renew(session->control);
        mutex_lock(&session->mutex);
        wish.deadline_ms = clock_now_ms() + ANSWER_MS;
        drive_until_locked(session, NULL, &wish);
    }
}

// Waits for the engine's answer. When the deadline has passed, or a bucket is there that the thread
// waits for, withdraws the wait. Caller holds the mutex.
static int wait_answer_locked(const struct wait *wait, struct call_waiter *waiter)
{
    struct lockstep_session *session = wait->session;
    const struct command command =
        wait_command(waiter->contribution, wait->asks ? COMMAND_WAIT_ASK : COMMAND_WAIT_BEGIN);
    const struct standing standing = wait_standing(wait, waiter->contribution);
    const bool told = !wait->asks && wait->deadline_ms == COND_NO_DEADLINE &&
                      session->config.trainer_threads == 1;
    const struct wish wish = {.flag = wait->asks ? &waiter->answered : &waiter->stirred,
                              .deadline_ms = wait->asks ? COND_NO_DEADLINE : wait->deadline_ms,
                              .standing = told ? &standing : NULL};
    drive_until_locked(session, &command, &wish);
    if (!waiter->answered && session->gate.failure == 0)
        wait_withdraw_locked(wait, waiter);
    if (!waiter->answered && session->gate.failure != 0)
        return session_failure_locked(session);
    if (!waiter->answered || waiter->answer == RELEASE_WITHDRAWN)
        return LOCKSTEP_E_TIMEOUT;
    return waiter->answer == RELEASE_DEFERRED ? LOCKSTEP_DEFERRED : 0;
}

static int wait_for(const struct wait *wait, struct contribution *contribution)
{
    struct lockstep_session *session = wait->session;
    struct call_waiter waiter = {.contribution = contribution,
                                 .takes = wait->api == API_CALL_NEXT,
                                 .asks = wait->asks,
                                 .leaves = wait->asks};
    int status;
    if (session->config.solo)
        return wait_alone(wait, contribution);
    mutex_lock(&session->mutex);
    list_push_back(&session->call_waiters, &waiter.waiters);
    // The driver counts a finished bucket before it looks for takers, so one of both sees the
    // other.
    if (waiter.takes) {
        atomic_fetch_add(&contribution->takers, 1);
        waiter.stirred = atomic_load(&contribution->finished_count) > contribution->taken;
    }
    status = wait_answer_locked(wait, &waiter);
    if (waiter.takes)
        atomic_fetch_sub(&contribution->takers, 1);
    list_remove(&waiter.waiters);
    mutex_unlock(&session->mutex);
    return status;
}

// Waits for all contributions of the call. LOCKSTEP_DEFERRED: one or more were deferred, and the
// others have their results.
static int wait_for_all(const struct wait *wait, struct lockstep_call *call)
{
    struct lockstep_module *module = call->module;
    bool deferred = false;
    int status = module->trainable_count > 0 ? wait_for(wait, call->contribution) : 0;
    for (uint32_t m = 0; m < wait->session->module_count && status >= 0; m++) {
        deferred = deferred || status == LOCKSTEP_DEFERRED;
        if (wait_owns(wait->session->modules[m], module))
            status = wait_for(wait, &wait->session->modules[m]->contributions[0]);
    }
    deferred = deferred || status == LOCKSTEP_DEFERRED;
    return status < 0 ? status : deferred ? LOCKSTEP_DEFERRED : 0;
}

// Copies the results of the first replica to the others, once in a step: a later copy would undo
// changes that the trainer has made. Holds the mutex, because several threads may wait for one
// call, and none may go on before the copy is done.
static int wait_give_back(struct contribution *contribution)
{
    struct mutex *mutex = &contribution->module->session->mutex;
    int status = 0;
    if (contribution->module->replicas == 1)
        return 0;
    mutex_lock(mutex);
    if (!contribution->returned)
        status = replica_copy_contribution(contribution);
    contribution->returned = true;
    mutex_unlock(mutex);
    return status;
}

static bool wait_enter(struct lockstep_session *session)
{
    if (atomic_fetch_add(&session->waiting, 1) < session->config.trainer_threads)
        return true;
    atomic_fetch_sub(&session->waiting, 1);
    return false;
}

static struct wait wait_make(struct lockstep_session *session, enum api_function api,
                             uint32_t timeout_ms)
{
    return (struct wait){.session = session,
                         .api = api,
                         .asks = timeout_ms == 0,
                         .deadline_ms = timeout_ms == LOCKSTEP_WAIT_FOREVER
                                            ? COND_NO_DEADLINE
                                            : clock_now_ms() + timeout_ms};
}

static int wait_refuse(const struct lockstep_call *call)
{
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': %" PRIu32 " threads wait for calls already; "
                     "config.trainer_threads says how many may",
                     call->module->name, call->module->session->config.trainer_threads);
}

// what: "is" or "has no further bucket that is".
static int wait_late(struct lockstep_call *call, const char *what, uint32_t timeout_ms)
{
    struct lockstep_session *session = call->module->session;
    char late[SESSION_LATE_BYTES];
    session_late_text(session, late);
    return error_set(LOCKSTEP_E_TIMEOUT,
                     "step %" PRIu64 ": module '%s' call %" PRIu32 " %s averaged after %" PRIu32
                     " ms: wait for it again, or go on%s",
                     session->step.number, call->module->name, call->number + 1, what, timeout_ms,
                     late);
}

static int wait_within(struct lockstep_call *call, uint32_t timeout_ms)
{
    struct lockstep_session *session = call->module->session;
    const struct wait wait = wait_make(session, API_CALL_WAIT, timeout_ms);
    int status;
    if (!wait_enter(session))
        return wait_refuse(call);
    device_events_say_wait(session);
    status = wait_for_all(&wait, call);
    atomic_fetch_sub(&session->waiting, 1);
    if (status == 0)
        status = wait_give_back(call->contribution);
    return status == LOCKSTEP_E_TIMEOUT ? wait_late(call, "is not", timeout_ms) : status;
}

int lockstep_call_wait(lockstep_call *call, uint32_t timeout_ms)
{
    const int status = wait_check(call);
    if (status < 0)
        return status;
    const struct visit visit = progress_enter(&call->module->session->tracker, API_CALL_WAIT,
                                              call->module->index, call->number);
    return progress_leave(&visit, wait_within(call, timeout_ms));
}

// ---- Bucket by bucket --------------------------------------------------------------------------

// In a solo session a wait finishes all buckets at once. Caller holds the mutex.
static void wait_finish_alone_locked(struct contribution *contribution)
{
    const uint32_t count = contribution->module->layout.bucket_count;
    for (uint32_t b = 0; b < count; b++)
        contribution->finished[b] = b;
    atomic_store(&contribution->finished_count, count);
}

// Takes a finished bucket that no thread has taken. LOCKSTEP_FINISHED: all were taken.
// LOCKSTEP_E_TIMEOUT: there is none yet, or no thread has waited yet. A trainer that takes a bucket
// without a wait would give up the same calls as one that waits only by chance
// (LOCKSTEP_ORDER_ZERO_DEFER). waited: true if this thread has just waited.
static int wait_take(struct contribution *contribution, bool waited, uint32_t *bucket)
{
    struct lockstep_session *session = contribution->module->session;
    int status = LOCKSTEP_E_TIMEOUT;
    mutex_lock(&session->mutex);
    if (waited && session->config.solo)
        wait_finish_alone_locked(contribution);
    if (!contribution->asked && !waited) {
        status = LOCKSTEP_E_TIMEOUT;
    } else if (contribution->taken < atomic_load(&contribution->finished_count)) {
        *bucket = contribution->finished[contribution->taken++];
        status = 0;
    } else if (contribution->taken == contribution->module->layout.bucket_count) {
        status = LOCKSTEP_FINISHED;
    }
    mutex_unlock(&session->mutex);
    return status;
}

static void wait_note(struct contribution *contribution, const struct wait *wait)
{
    mutex_lock(&wait->session->mutex);
    contribution->asked = contribution->asked || !wait->asks;
    mutex_unlock(&wait->session->mutex);
}

static int wait_failure(struct lockstep_session *session)
{
    int status;
    mutex_lock(&session->mutex);
    status = session_failure_locked(session);
    mutex_unlock(&session->mutex);
    return status;
}

// Waits for a bucket and takes it. A finished bucket stirs all threads that wait for one, so a
// thread that finds none left waits again until its deadline. A session may fail with E_TIMEOUT,
// too.
static int wait_for_bucket(const struct wait *wait, struct lockstep_call *call, uint32_t timeout_ms,
                           uint32_t *bucket)
{
    for (;;) {
        const int status = wait_for(wait, call->contribution);
        int taken;
        int failure;
        if (status < 0 && status != LOCKSTEP_E_TIMEOUT)
            return status;
        wait_note(call->contribution, wait);
        taken = wait_take(call->contribution, true, bucket);
        if (taken != LOCKSTEP_E_TIMEOUT)
            return taken;
        if (status == LOCKSTEP_DEFERRED)
            return status;
        failure = wait_failure(wait->session);
        if (failure < 0)
            return failure;
        if (status == 0 || wait->asks || clock_now_ms() >= wait->deadline_ms)
            return wait_late(call, "has no further bucket that is", timeout_ms);
    }
}

static int wait_next(struct lockstep_call *call, uint32_t timeout_ms, uint32_t *bucket)
{
    struct lockstep_session *session = call->module->session;
    const struct wait wait = wait_make(session, API_CALL_NEXT, timeout_ms);
    int status = wait_take(call->contribution, false, bucket);
    if (call->module->trainable_count == 0)
        return LOCKSTEP_FINISHED;
    if (status != LOCKSTEP_E_TIMEOUT)
        return status;
    if (!wait_enter(session))
        return wait_refuse(call);
    device_events_say_wait(session);
    status = wait_for_bucket(&wait, call, timeout_ms, bucket);
    atomic_fetch_sub(&session->waiting, 1);
    return status;
}

int lockstep_call_next(lockstep_call *call, uint32_t timeout_ms, uint32_t *bucket)
{
    int status = wait_check(call);
    if (status == 0 && !bucket)
        status = error_set(LOCKSTEP_E_INVALID, "bucket is NULL: nowhere to put the number");
    if (status == 0 && call->module->replicas > 1)
        status = error_set(LOCKSTEP_E_UNSUPPORTED,
                           "module '%s' has replicas, which get their results all at once: use "
                           "lockstep_call_wait",
                           call->module->name);
    if (status < 0)
        return status;
    const struct visit visit = progress_enter(&call->module->session->tracker, API_CALL_NEXT,
                                              call->module->index, call->number);
    return progress_leave(&visit, wait_next(call, timeout_ms, bucket));
}

int lockstep_bucket_parameters(lockstep_module *module, uint32_t bucket,
                               const uint32_t **parameters, uint32_t *count)
{
    const struct bucket_layout *layout;
    const int status = module_check(module);
    if (status < 0)
        return status;
    layout = &module->layout;
    if (!parameters || !count)
        return error_set(LOCKSTEP_E_INVALID, "parameters or count is NULL: nowhere to put them");
    if (!module->session->step.is_open || module->session->step.ending)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': buckets are those of an open step: ask between "
                         "lockstep_step_begin and lockstep_step_end",
                         module->name);
    if (bucket >= layout->bucket_count)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has %" PRIu32 " buckets in this step; %" PRIu32
                         " is none of their numbers",
                         module->name, layout->bucket_count, bucket);
    *parameters = &layout->order[layout->buckets[bucket].first];
    *count = layout->buckets[bucket].count;
    return 0;
}
