// SPDX-License-Identifier: Apache-2.0
//
// The step as the trainer sees it: begin, calls, gradients, end, report. Runs on trainer threads;
// it counts what is missing, and tells the engine which buckets are complete and when the step has
// begun and ended. What then happens is decided in order.c.
//
// Who reported a gradient first is decided by one atomic exchange on its ready_step: so reports may
// come from several threads, and exactly one of "reported" and "unused" wins for each gradient.

#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "worker/error.h"
#include "worker/handle.h"
#include "worker/kernels.h"
#include "worker/session.h"

#include <inttypes.h>
#include <string.h>

// ---- step_begin --------------------------------------------------------------------------------

static int step_options(const struct lockstep_step_options *given,
                        struct lockstep_step_options *whole)
{
    const struct lockstep_step_options defaults = LOCKSTEP_STEP_INIT;
    *whole = defaults;
    if (given == NULL)
        return 0;
    if (given->struct_bytes < sizeof(*whole))
        return error_set(LOCKSTEP_E_INVALID,
                         "the step's options are too short; begin with LOCKSTEP_STEP_INIT");
    memcpy(whole, given, sizeof(*whole));
    if (whole->phase != NULL && (strlen(whole->phase) >= LOCKSTEP_NAME_BYTES ||
                                 !utf8_valid(whole->phase, strlen(whole->phase))))
        return error_set(LOCKSTEP_E_INVALID, "a phase has at most %d bytes of UTF-8",
                         LOCKSTEP_NAME_BYTES - 1);
    return 0;
}

static int step_check_begin(struct lockstep_session *session, const struct lockstep_step_view *view)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!session->started)
        return error_set(LOCKSTEP_E_INVALID, "call lockstep_start before the first step");
    if (session->step_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "step %" PRIu64 " is open: call lockstep_step_end "
                         "first",
                         session->step);
    if (view != NULL && view->struct_bytes < sizeof(*view))
        return error_set(LOCKSTEP_E_INVALID,
                         "the step's view is too short; begin with LOCKSTEP_STEP_VIEW_INIT");
    return 0;
}

static void step_reset_times(struct lockstep_session *session)
{
    struct step_times *times = &session->times;
    times->begin = clock_now_us();
    atomic_store_explicit(&times->first_ready, 0, memory_order_relaxed);
    atomic_store_explicit(&times->last_ready, 0, memory_order_relaxed);
    times->end = times->first_sent = times->last_received = 0;
    atomic_store_explicit(&session->control_messages, 0, memory_order_relaxed);
    atomic_store_explicit(&session->buckets_travelled, 0, memory_order_relaxed);
    atomic_store_explicit(&session->zero_filled, 0, memory_order_relaxed);
    atomic_store_explicit(&session->weight_total, 0, memory_order_relaxed);
}

static void step_fill_view(const struct lockstep_session *session, bool learning,
                           struct lockstep_step_view *view)
{
    if (view == NULL)
        return;
    view->step = session->step;
    view->generation = session->generation.number;
    view->rank = session->rank;
    view->world_size = session->world_size;
    view->learning = learning ? 1 : 0;
}

int lockstep_step_begin(lockstep_session *session, const struct lockstep_step_options *options,
                        struct lockstep_step_view *view)
{
    struct lockstep_step_options whole = LOCKSTEP_STEP_INIT;
    uint64_t phase;
    bool learning;
    int status = step_check_begin(session, view);
    if (status == 0)
        status = step_options(options, &whole);
    if (status < 0)
        return status;
    text_copy(session->phase, sizeof(session->phase), whole.phase == NULL ? "" : whole.phase);
    phase = hash64(session->phase, strlen(session->phase));
    session->step++;
    session->step_open = true;
    session->weight = whole.weight;
    step_reset_times(session);
    for (uint32_t i = 0; i < session->module_count; i++)
        module_step_begin(session->modules[i]);
    // Between steps the engine leaves the plans alone.
    learning = !session->config.solo && order_plan_of(session->order, phase) == NULL;
    step_fill_view(session, learning, view);
    session->report.learning = learning ? 1 : 0;
    atomic_store_explicit(&session->progress.step, session->step, memory_order_relaxed);
    if (!session->config.solo)
        session_post(session, (struct command){.kind = COMMAND_STEP_BEGIN, .value = phase});
    return 0;
}

// ---- Calls -------------------------------------------------------------------------------------

static int step_check_module(struct lockstep_module *module)
{
    if (!handle_is(HANDLE_MODULE, module))
        return error_set(LOCKSTEP_E_INVALID, module == NULL
                                                 ? "the module is NULL"
                                                 : "this is not a module, or its session was "
                                                   "closed");
    return session_check(module->session);
}

static int step_check_call(struct lockstep_call *call)
{
    if (!handle_is(HANDLE_CALL, call))
        return error_set(LOCKSTEP_E_INVALID, call == NULL ? "the call is NULL"
                                                          : "this is not a call, or its session "
                                                            "was closed");
    return session_check(call->module->session);
}

int lockstep_call_begin(lockstep_module *module, lockstep_call **call)
{
    int status = step_check_module(module);
    struct lockstep_session *session;
    if (status < 0)
        return status;
    session = module->session;
    if (call == NULL)
        return error_set(LOCKSTEP_E_INVALID, "call is NULL: nowhere to put the handle");
    *call = NULL;
    if (!session->step_open)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': lockstep_call_begin outside a step",
                         module->name);
    if (atomic_load(&module->call.open))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': its call is open: call "
                         "lockstep_call_end first",
                         module->name);
    if (module->called_step == session->step)
        return error_set(LOCKSTEP_E_UNSUPPORTED,
                         "module '%s': a second call in step %" PRIu64 " is not supported yet",
                         module->name, session->step);
    module->called_step = session->step;
    for (uint32_t p = 0; p < module->parameter_count; p++)
        module->gradients[p].unused = false;
    atomic_store_explicit(&module->call.open, true, memory_order_release);
    session_activity(session, ACTIVITY_IN_CALL);
    *call = &module->call;
    return 0;
}

static void step_count_ready(struct lockstep_session *session)
{
    const uint64_t now = clock_now_us();
    uint64_t none = 0;
    atomic_compare_exchange_strong_explicit(&session->times.first_ready, &none, now,
                                            memory_order_relaxed, memory_order_relaxed);
    atomic_store_explicit(&session->times.last_ready, now, memory_order_relaxed);
}

// One gradient less is missing in its bucket; the last one hands the bucket to the engine.
static void step_bucket_less(struct lockstep_module *module, uint32_t parameter)
{
    const uint32_t bucket = module->bucket_of[parameter];
    const uint32_t place = atomic_fetch_add_explicit(&module->ready_count, 1, memory_order_relaxed);
    module->ready_order[place] = parameter;
    if (atomic_fetch_sub_explicit(&module->runs[bucket].missing, 1, memory_order_acq_rel) != 1)
        return;
    if (!module->session->config.solo)
        session_post(
            module->session,
            (struct command){.kind = COMMAND_READY, .module = module->index, .bucket = bucket});
}

static int step_check_gradient(const struct lockstep_module *module, const lockstep_call *call,
                               uint32_t parameter, const void *gradient, const void *stream)
{
    if (call != NULL && call != &module->call)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': this is not its call", module->name);
    if (parameter >= module->parameter_count)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s' has parameters 0 to %" PRId64 "; %" PRIu32 " is none of them",
                         module->name, (int64_t)module->parameter_count - 1, parameter);
    if (stream != NULL)
        return error_set(LOCKSTEP_E_UNSUPPORTED, "gradients on a device are not supported yet: "
                                                 "stream must be NULL");
    if (!module->shapes[parameter].trainable)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is frozen and has no "
                         "gradient",
                         module->name, module->parameters[parameter].name);
    if (gradient == NULL && module->gradients[parameter].memory == NULL &&
        module->shapes[parameter].elements > 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': the gradient of '%s' was registered "
                         "without memory and none is given now",
                         module->name, module->parameters[parameter].name);
    if (!atomic_load_explicit(&module->call.open, memory_order_acquire))
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is ready outside a call "
                         "(before lockstep_call_begin or after lockstep_call_end)",
                         module->name, module->parameters[parameter].name);
    return 0;
}

int lockstep_grad_ready(lockstep_module *module, lockstep_call *call, uint32_t parameter,
                        void *gradient, void *stream)
{
    int status = step_check_module(module);
    uint64_t before;
    if (status == 0)
        status = step_check_gradient(module, call, parameter, gradient, stream);
    if (status < 0)
        return status;
    before = atomic_exchange_explicit(&module->gradients[parameter].ready_step,
                                      module->session->step, memory_order_acq_rel);
    if (before == module->session->step)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': parameter '%s' is ready twice in step "
                         "%" PRIu64,
                         module->name, module->parameters[parameter].name, before);
    if (gradient != NULL)
        module->gradients[parameter].memory = gradient;
    step_count_ready(module->session);
    step_bucket_less(module, parameter);
    return 0;
}

int lockstep_call_end(lockstep_call *call)
{
    int status = step_check_call(call);
    struct lockstep_module *module;
    if (status < 0)
        return status;
    module = call->module;
    if (!atomic_exchange(&call->open, false))
        return error_set(LOCKSTEP_E_INVALID, "module '%s': %s", module->name,
                         call->ended ? "its call has ended already" : "no call is open");
    call->ended = true;
    // Definition order reversed, like the layout before anything was learned.
    for (uint32_t p = module->parameter_count; p-- > 0;) {
        struct gradient *gradient = &module->gradients[p];
        if (!module->shapes[p].trainable ||
            atomic_exchange_explicit(&gradient->ready_step, module->session->step,
                                     memory_order_acq_rel) == module->session->step)
            continue;
        gradient->unused = true;
        step_bucket_less(module, p);
    }
    session_activity(module->session, ACTIVITY_OUTSIDE);
    return 0;
}

static int step_unsupported_call(struct lockstep_call *call, const char *what)
{
    const int status = step_check_call(call);
    return status < 0 ? status : error_set(LOCKSTEP_E_UNSUPPORTED, "%s is not supported yet", what);
}

int lockstep_call_unused(lockstep_call *call, const uint32_t *parameters, uint32_t count)
{
    (void)parameters;
    (void)count;
    return step_unsupported_call(call, "lockstep_call_unused");
}

int lockstep_call_abort(lockstep_call *call)
{
    return step_unsupported_call(call, "lockstep_call_abort");
}

int lockstep_call_wait(lockstep_call *call, uint32_t timeout_ms)
{
    (void)timeout_ms;
    return step_unsupported_call(call, "lockstep_call_wait");
}

int lockstep_call_next(lockstep_call *call, uint32_t timeout_ms, uint32_t *bucket)
{
    (void)timeout_ms;
    (void)bucket;
    return step_unsupported_call(call, "lockstep_call_next");
}

// ---- step_end ----------------------------------------------------------------------------------

// What this rank says in the commit wave: which parameters it did not use, and its counters.
static void step_contribute(struct lockstep_session *session)
{
    struct commit_wave *wave = &session->contribution;
    mutex_lock(&session->mutex);
    memset(wave, 0, sizeof(*wave));
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t p = 0; module->called_step == session->step && p < module->parameter_count;
             p++) {
            if (!module->shapes[p].trainable || !module->gradients[p].unused)
                continue;
            wave->unused_total++;
            if (wave->unused_named < ORDER_UNUSED_NAMED)
                wave->unused[wave->unused_named++] =
                    (struct unused_parameter){.module = m, .parameter = p, .rank = session->rank};
        }
    }
    counter_contribute(session, wave);
    mutex_unlock(&session->mutex);
}

// A world of one: what the data plane would have done, here.
static void step_settle_alone(struct lockstep_session *session)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t p = 0; p < module->parameter_count; p++) {
            const struct gradient *gradient = &module->gradients[p];
            if (module->called_step == session->step && module->shapes[p].trainable &&
                !gradient->unused && session->weight > 1 &&
                module->gradient_kind == LOCKSTEP_GRADIENT_SUM)
                kernel_divide(module->shapes[p].dtype, gradient->memory, gradient->memory,
                              session->weight, module->shapes[p].elements);
        }
    }
    atomic_store(&session->weight_total, session->weight);
    mutex_lock(&session->mutex);
    session->outcome = session->contribution;
    counter_apply(session, &session->outcome);
    session->settled = session->step;
    mutex_unlock(&session->mutex);
}

static int step_await_settled(struct lockstep_session *session)
{
    int status = 0;
    session_activity(session, ACTIVITY_WAITING);
    mutex_lock(&session->mutex);
    while (session->settled != session->step && session->failure == 0)
        cond_wait(&session->changed, &session->mutex);
    if (session->settled != session->step)
        status = session_failure_locked(session);
    mutex_unlock(&session->mutex);
    session_activity(session, ACTIVITY_OUTSIDE);
    return status;
}

static uint64_t step_since(uint64_t begin, uint64_t at)
{
    return at == 0 ? 0 : at - begin;
}

static void step_fill_report(struct lockstep_session *session)
{
    struct lockstep_report *report = &session->report;
    struct step_times *times = &session->times;
    report->step = session->step;
    report->first_ready_us = step_since(times->begin, atomic_load(&times->first_ready));
    report->last_ready_us = step_since(times->begin, atomic_load(&times->last_ready));
    report->first_wire_us = step_since(times->begin, times->first_sent);
    report->last_wire_us = step_since(times->begin, times->last_received);
    report->end_us = step_since(times->begin, times->end);
    report->done_us = step_since(times->begin, clock_now_us());
    report->bytes_copied = 0; // Buckets are lists of extents in the gradients' own memory.
    report->weight_total = atomic_load(&session->weight_total);
    report->buckets = atomic_load(&session->buckets_travelled);
    report->zero_filled = atomic_load(&session->zero_filled);
    report->control_messages = atomic_load(&session->control_messages);
}

// The same on every rank, because the commit wave gave all ranks the same list.
static int step_unused_error(const struct lockstep_session *session,
                             const struct commit_wave *outcome)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    text_init(&text, bytes, sizeof(bytes));
    text_append(
        &text, "step %" PRIu64 ": %" PRIu64 " gradient%s not produced by the backward pass:",
        session->step, outcome->unused_total, outcome->unused_total == 1 ? " was" : "s were");
    for (uint32_t i = 0; i < outcome->unused_named; i++) {
        const struct unused_parameter *unused = &outcome->unused[i];
        const struct lockstep_module *module = session->modules[unused->module];
        text_append(&text, "\n  module '%s' parameter '%s' on rank %" PRIu32, module->name,
                    module->parameters[unused->parameter].name, unused->rank);
    }
    if (outcome->unused_total > outcome->unused_named)
        text_append(&text, "\n  and %" PRIu64 " more",
                    outcome->unused_total - outcome->unused_named);
    return error_set(LOCKSTEP_E_UNUSED, "%s", bytes);
}

static int step_check_end(struct lockstep_session *session, const void *stream)
{
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!session->step_open)
        return error_set(LOCKSTEP_E_INVALID, "no step is open: call lockstep_step_begin first");
    if (stream != NULL)
        return error_set(LOCKSTEP_E_UNSUPPORTED, "streams are not supported yet: stream must be "
                                                 "NULL");
    for (uint32_t i = 0; i < session->module_count; i++) {
        if (atomic_load(&session->modules[i]->call.open))
            return error_set(LOCKSTEP_E_INVALID,
                             "module '%s' has an open call: call "
                             "lockstep_call_end before lockstep_step_end",
                             session->modules[i]->name);
    }
    return 0;
}

int lockstep_step_end(lockstep_session *session, void *stream)
{
    struct commit_wave outcome;
    int status = step_check_end(session, stream);
    if (status < 0)
        return status;
    session->times.end = clock_now_us();
    step_contribute(session);
    if (session->config.solo)
        step_settle_alone(session);
    else
        session_post(session, (struct command){.kind = COMMAND_STEP_END});
    status = step_await_settled(session);
    session->step_open = false;
    if (status < 0)
        return status;
    step_fill_report(session);
    mutex_lock(&session->mutex);
    outcome = session->outcome;
    mutex_unlock(&session->mutex);
    if (outcome.counter_overflow)
        return error_set(LOCKSTEP_E_INVALID, "the ranks together use more than %d counters",
                         LOCKSTEP_MAX_COUNTERS);
    return outcome.unused_total > 0 ? step_unused_error(session, &outcome) : 0;
}

int lockstep_step_report(lockstep_session *session, uint64_t step, uint32_t timeout_ms,
                         struct lockstep_report *report)
{
    const int status = session_check_handle(session);
    size_t bytes;
    (void)timeout_ms;
    if (status < 0)
        return status;
    if (report == NULL || report->struct_bytes < sizeof(report->struct_bytes))
        return error_set(LOCKSTEP_E_INVALID, "begin the report with LOCKSTEP_REPORT_INIT");
    if (step == 0 || step != session->report.step)
        return error_set(LOCKSTEP_E_INVALID,
                         "there is no report of step %" PRIu64 "; the last one "
                         "is of step %" PRIu64,
                         step, session->report.step);
    bytes = report->struct_bytes < sizeof(*report) ? report->struct_bytes : sizeof(*report);
    session->report.struct_bytes = bytes;
    memcpy(report, &session->report, bytes);
    return 0;
}
