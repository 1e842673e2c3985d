// SPDX-License-Identifier: Apache-2.0
//
// Calls: the backward passes of a module in a step, and the gradients that they report. Runs on
// trainer threads; it counts what is missing in each bucket, and hands complete buckets to the
// engine. What then happens is decided in order.c.
//
// Every call has a serial number. In each call exactly one party speaks for a gradient: the thread
// that reports it ready, lockstep_call_unused, or the end of the call. Who it is is decided by one
// compare-and-swap on the gradient's claim, which is twice the serial of the call, plus 1 if the
// gradient was declared unused in it.
//
// Gradients of all calls of a step add up in the trainer's memory, so a parameter travels once,
// with the last call: there each gradient is *handed over*, exactly once, by the party that claimed
// it. In the calls before it is only noted that it is used. When the last call never comes,
// step_end hands everything over in its place, under a serial of its own. In a step that
// accumulates no call is the last one.

#include "base/clock.h"
#include "worker/error.h"
#include "worker/handle.h"
#include "worker/session.h"

#include <inttypes.h>

// ---- Checks ------------------------------------------------------------------------------------

int module_check(struct lockstep_module *module)
{
    if (!handle_is(HANDLE_MODULE, module))
        return error_set(LOCKSTEP_E_INVALID, module == NULL
                                                 ? "the module is NULL"
                                                 : "this is not a module, or it was closed");
    return session_check(module->session);
}

static int call_check(struct lockstep_call *call)
{
    if (!handle_is(HANDLE_CALL, call))
        return error_set(LOCKSTEP_E_INVALID, call == NULL ? "the call is NULL"
                                                          : "this is not a call, or its module "
                                                            "was closed");
    return session_check(call->module->session);
}

// A live call that is the open one of its module.
static int call_check_open(struct lockstep_call *call)
{
    const int status = call_check(call);
    if (status < 0)
        return status;
    if (atomic_load_explicit(&call->module->open, memory_order_acquire) != call)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': %s", call->module->name,
                         call->ended ? "its call has ended already" : "no call is open");
    return 0;
}

static int call_check_parameter(const struct lockstep_module *module, uint32_t parameter)
{
    if (parameter >= module->parameter_count)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has parameters 0 to %" PRId64 "; %" PRIu32 " is none of them",
                         module->name, (int64_t)module->parameter_count - 1, parameter);
    if (!module->shapes[parameter].trainable)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is %s and has no gradient", module->name,
                         module->parameters[parameter].name,
                         module->parameters[parameter].ignored ? "ignored" : "frozen");
    return 0;
}

// The pointer is compared only: it may be anything.
static bool call_belongs(const struct lockstep_module *module, const struct lockstep_call *call)
{
    for (uint32_t i = 0; i < module->calls_per_step; i++) {
        if (call == &module->calls[i])
            return true;
    }
    return false;
}

// ---- Claiming and handing over -----------------------------------------------------------------

// False when somebody spoke for the gradient in this call before; *before is what they claimed.
static bool call_claim(struct gradient *gradient, uint64_t serial, bool declared, uint64_t *before)
{
    uint64_t seen = atomic_load_explicit(&gradient->claim, memory_order_relaxed);
    do {
        *before = seen;
        if (seen >> 1 == serial)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&gradient->claim, &seen,
                                                    serial * 2 + (declared ? 1 : 0),
                                                    memory_order_acq_rel, memory_order_relaxed));
    return true;
}

static int call_claimed_error(const struct lockstep_module *module, uint32_t parameter,
                              uint64_t before, bool declares)
{
    const bool declared = (before & 1) != 0;
    const char *what = declares && declared ? "is declared unused twice"
                       : declares           ? "is declared unused after it was ready"
                       : declared           ? "is ready after it was declared unused"
                                            : "is ready twice";
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': parameter '%s' %s in call %" PRIu32 " of step %" PRIu64,
                     module->name, module->parameters[parameter].name, what, module->calls_made,
                     module->session->step);
}

// One gradient less is missing in its bucket; the last one hands the bucket to the engine.
static void call_hand(struct contribution *contribution, uint32_t parameter)
{
    const struct lockstep_module *module = contribution->module;
    const uint32_t bucket = module->bucket_of[parameter];
    const uint32_t place =
        atomic_fetch_add_explicit(&contribution->ready_count, 1, memory_order_relaxed);
    contribution->ready_order[place] = parameter;
    if (atomic_fetch_sub_explicit(&contribution->runs[bucket].missing, 1, memory_order_acq_rel) !=
        1)
        return;
    if (!module->session->config.solo)
        session_post(module->session, (struct command){.kind = COMMAND_READY,
                                                       .module = module->index,
                                                       .call = contribution->index,
                                                       .bucket = bucket});
}

// The same for one that the last call does not report: an earlier one may have.
static void call_hand_silent(struct contribution *contribution, uint32_t parameter)
{
    struct gradient *gradient = &contribution->gradients[parameter];
    gradient->unused = !atomic_load_explicit(&gradient->used, memory_order_relaxed);
    call_hand(contribution, parameter);
}

// All that nobody has spoken for under this serial. In definition order reversed, like the layout
// before anything was learned.
static void call_hand_rest(struct contribution *contribution, uint64_t serial)
{
    const struct lockstep_module *module = contribution->module;
    uint64_t before;
    for (uint32_t p = module->parameter_count; p-- > 0;) {
        if (module->shapes[p].trainable &&
            call_claim(&contribution->gradients[p], serial, false, &before))
            call_hand_silent(contribution, p);
    }
    contribution->handed = true;
}

// Claims what is left, and marks the buckets that it belongs to. They are not complete until it is
// handed over, so what lies in them still belongs to this thread.
static void call_withhold(struct contribution *contribution, uint64_t serial)
{
    const struct lockstep_module *module = contribution->module;
    uint64_t before;
    for (uint32_t b = 0; b < module->layout.bucket_count; b++)
        contribution->runs[b].withdrawn = false;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        struct gradient *gradient = &contribution->gradients[p];
        gradient->withheld =
            module->shapes[p].trainable && call_claim(gradient, serial, false, &before);
        if (gradient->withheld)
            contribution->runs[module->bucket_of[p]].withdrawn = true;
    }
}

// The end of a call that was given up: every bucket that is not complete contributes zeros.
static void call_withdraw(struct contribution *contribution, uint64_t serial)
{
    const struct lockstep_module *module = contribution->module;
    call_withhold(contribution, serial);
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        if (module->shapes[p].trainable && contribution->runs[module->bucket_of[p]].withdrawn)
            contribution->gradients[p].unused = true;
    }
    for (uint32_t p = module->parameter_count; p-- > 0;) {
        if (contribution->gradients[p].withheld)
            call_hand(contribution, p);
    }
    contribution->handed = true;
}

void call_finish(struct lockstep_module *module)
{
    struct contribution *contribution = &module->contributions[0];
    const uint64_t step = module->session->step;
    if (module->called_step != step || contribution->handed)
        return;
    if (module->aborted_step == step)
        call_withdraw(contribution, ++module->serial);
    else
        call_hand_rest(contribution, ++module->serial);
}

// ---- The public functions ----------------------------------------------------------------------

static int call_check_begin(struct lockstep_module *module)
{
    const struct lockstep_session *session = module->session;
    if (!session->step_open)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': lockstep_call_begin outside a step",
                         module->name);
    if (session->ending)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': no call in step %" PRIu64 ", which is in its end: wait for "
                         "it with lockstep_step_end",
                         module->name, session->step);
    if (session->exhausted)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': no call in step %" PRIu64 ", for which this rank said that "
                         "it is exhausted",
                         module->name, session->step);
    if (atomic_load(&module->open) != NULL)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its call is open: call lockstep_call_end first",
                         module->name);
    if (module->aborted_step == session->step)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': no call after lockstep_call_abort in step %" PRIu64
                         ": end the step",
                         module->name, session->step);
    if (module->calls_made == module->calls_per_step)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': one more call in step %" PRIu64
                         " than its calls_per_step, which is %" PRIu32,
                         module->name, session->step, module->calls_per_step);
    return 0;
}

static void call_reset_gradients(struct lockstep_module *module)
{
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        struct gradient *gradient = &module->contributions[0].gradients[p];
        gradient->unused = gradient->excused = false;
        atomic_store_explicit(&gradient->used, false, memory_order_relaxed);
    }
}

int lockstep_call_begin(lockstep_module *module, lockstep_call **call)
{
    int status = module_check(module);
    struct lockstep_call *begun;
    if (status < 0)
        return status;
    if (call == NULL)
        return error_set(LOCKSTEP_E_INVALID, "call is NULL: nowhere to put the handle");
    *call = NULL;
    status = call_check_begin(module);
    if (status < 0)
        return status;
    if (module->called_step != module->session->step)
        call_reset_gradients(module);
    module->called_step = module->session->step;
    begun = &module->calls[module->calls_made++];
    begun->serial = ++module->serial;
    begun->last = module->calls_made == module->calls_per_step && !module->session->accumulating;
    atomic_store_explicit(&module->open, begun, memory_order_release);
    session_activity(module->session, ACTIVITY_IN_CALL);
    *call = begun;
    return 0;
}

static void call_count_ready(struct lockstep_session *session)
{
    const uint64_t now = clock_now_us();
    uint64_t none = 0;
    atomic_compare_exchange_strong_explicit(&session->times.first_ready, &none, now,
                                            memory_order_relaxed, memory_order_relaxed);
    atomic_store_explicit(&session->times.last_ready, now, memory_order_relaxed);
}

static int call_check_report(const struct lockstep_module *module, const lockstep_call *call,
                             uint32_t parameter, const void *stream)
{
    if (call != NULL && !call_belongs(module, call))
        return error_set(LOCKSTEP_E_INVALID, "module '%s': this is not its call", module->name);
    if (stream != NULL)
        return error_set(LOCKSTEP_E_UNSUPPORTED, "gradients on a device are not supported yet: "
                                                 "stream must be NULL");
    return call_check_parameter(module, parameter);
}

static int call_check_memory(const struct lockstep_module *module, const struct gradient *gradient,
                             uint32_t parameter, const void *given)
{
    if (given != NULL || gradient->memory != NULL || module->shapes[parameter].elements == 0)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': the gradient of '%s' was registered without memory and none is "
                     "given now",
                     module->name, module->parameters[parameter].name);
}

int lockstep_grad_ready(lockstep_module *module, lockstep_call *call, uint32_t parameter,
                        void *gradient, void *stream)
{
    int status = module_check(module);
    const struct lockstep_call *open;
    struct gradient *reported;
    uint64_t before;
    if (status == 0)
        status = call_check_report(module, call, parameter, stream);
    if (status < 0)
        return status;
    open = atomic_load_explicit(&module->open, memory_order_acquire);
    if (open == NULL || (call != NULL && call != open))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is ready outside a call (before "
                         "lockstep_call_begin or after lockstep_call_end)",
                         module->name, module->parameters[parameter].name);
    reported = &open->contribution->gradients[parameter];
    status = call_check_memory(module, reported, parameter, gradient);
    if (status < 0)
        return status;
    if (!call_claim(reported, open->serial, false, &before))
        return call_claimed_error(module, parameter, before, false);
    if (gradient != NULL)
        reported->memory = gradient;
    atomic_store_explicit(&reported->used, true, memory_order_relaxed);
    call_count_ready(module->session);
    if (open->last)
        call_hand(open->contribution, parameter);
    return 0;
}

int lockstep_call_unused(lockstep_call *call, const uint32_t *parameters, uint32_t count)
{
    int status = call_check_open(call);
    uint64_t before;
    if (status == 0 && parameters == NULL && count > 0)
        status = error_set(LOCKSTEP_E_INVALID, "parameters is NULL and count is %" PRIu32, count);
    for (uint32_t i = 0; status == 0 && i < count; i++)
        status = call_check_parameter(call->module, parameters[i]);
    for (uint32_t i = 0; status == 0 && i < count; i++) {
        struct gradient *gradient = &call->contribution->gradients[parameters[i]];
        if (!call_claim(gradient, call->serial, true, &before))
            return call_claimed_error(call->module, parameters[i], before, true);
        gradient->excused = true;
        if (call->last)
            call_hand_silent(call->contribution, parameters[i]);
    }
    return status;
}

// Nothing can be reported in it any more.
static void call_shut(struct lockstep_call *call)
{
    atomic_store(&call->module->open, NULL);
    call->ended = true;
    session_activity(call->module->session, ACTIVITY_OUTSIDE);
}

int lockstep_call_end(lockstep_call *call)
{
    const int status = call_check_open(call);
    if (status < 0)
        return status;
    call_shut(call);
    if (call->last)
        call_hand_rest(call->contribution, call->serial);
    return 0;
}

int lockstep_call_abort(lockstep_call *call)
{
    const int status = call_check_open(call);
    if (status < 0)
        return status;
    call_shut(call);
    call->module->aborted_step = call->module->session->step;
    if (call->last)
        call_withdraw(call->contribution, call->serial);
    return 0;
}

// ---- Not built yet -----------------------------------------------------------------------------

static int call_unsupported(struct lockstep_call *call, const char *what)
{
    const int status = call_check(call);
    return status < 0 ? status : error_set(LOCKSTEP_E_UNSUPPORTED, "%s is not supported yet", what);
}

int lockstep_call_wait(lockstep_call *call, uint32_t timeout_ms)
{
    (void)timeout_ms;
    return call_unsupported(call, "lockstep_call_wait");
}

int lockstep_call_next(lockstep_call *call, uint32_t timeout_ms, uint32_t *bucket)
{
    (void)timeout_ms;
    (void)bucket;
    return call_unsupported(call, "lockstep_call_next");
}
