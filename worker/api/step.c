// SPDX-License-Identifier: Apache-2.0
//
// The step as the trainer sees it: begin, end, wait. Runs on the trainer's thread, and tells the
// engine when the step has begun and ended. Calls within the step are in call.c.
// worker/order/order.c decides when buckets travel and when the step settles.

#include "worker/api/step.h"

#include "base/clock.h"
#include "base/hash64.h"
#include "base/text.h"
#include "base/utf8.h"
#include "worker/api/buffers.h"
#include "worker/api/call.h"
#include "worker/api/step_device.h"
#include "worker/api/step_report.h"
#include "worker/api/step_verdict.h"
#include "worker/api/uneven.h"
#include "worker/kernels/kernels.h"
#include "worker/order/payloads.h"
#include "worker/order/plan.h"
#include "worker/session/counters.h"
#include "worker/session/module/calls.h"
#include "worker/session/module/contribution.h"
#include "worker/session/module/deferral.h"
#include "worker/session/module/device_events.h"
#include "worker/session/module/leaves.h"
#include "worker/session/module/overlap.h"
#include "worker/session/module/places.h"
#include "worker/session/module/replicas.h"
#include "worker/session/module/sets.h"
#include "worker/session/renumber.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <string.h>

// To read the processor time of the process is a system call of half a microsecond. It is read only
// if the step before was not shorter than this: in shorter steps the engine's thread sleeps anyway
// (worker/session/drive.c).
#define STEP_LONG_US 1000

// ---- step_begin --------------------------------------------------------------------------------

// Copies and checks the options. If the caller was compiled with an older header, the fields that
// it lacks get their defaults. In the first version the options ended before accumulate.
static int step_options(const struct lockstep_step_options *given,
                        struct lockstep_step_options *whole)
{
    const struct lockstep_step_options defaults = LOCKSTEP_STEP_INIT;
    *whole = defaults;
    if (!given)
        return 0;
    if (given->struct_bytes < offsetof(struct lockstep_step_options, accumulate) ||
        given->struct_bytes > sizeof(*whole))
        return error_set(LOCKSTEP_E_INVALID,
                         "the step's options have %zu bytes; begin with LOCKSTEP_STEP_INIT, and "
                         "load a library that is not older than the header",
                         given->struct_bytes);
    memcpy(whole, given, given->struct_bytes);
    if (whole->accumulate > 1 || whole->exhausted > 1 || whole->keep_weight > 1)
        return error_set(LOCKSTEP_E_INVALID,
                         "the step's accumulate, exhausted and keep_weight are 0 or 1");
    if (whole->reserved != 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "the step's reserved is %" PRIu32 ", and has to be 0: begin with "
                         "LOCKSTEP_STEP_INIT",
                         whole->reserved);
    if (whole->weight > LOCKSTEP_MAX_WEIGHT)
        return error_set(LOCKSTEP_E_INVALID,
                         "the step's weight is %" PRIu64
                         "; a rank has at most %llu, which is 2^%d, "
                         "so that the sum over all ranks is exact",
                         whole->weight, LOCKSTEP_MAX_WEIGHT, LOCKSTEP_MAX_WEIGHT_BITS);
    if (whole->phase && (strlen(whole->phase) >= LOCKSTEP_NAME_BYTES ||
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
        return error_set(LOCKSTEP_E_INVALID,
                         "call lockstep_start before the first step, and again after "
                         "lockstep_module_close and lockstep_module_register");
    if (session->step.is_open)
        return error_set(LOCKSTEP_E_INVALID,
                         "step %" PRIu64 " is open: call lockstep_step_end "
                         "first",
                         session->step.number);
    if (view && view->struct_bytes < offsetof(struct lockstep_step_view, changed))
        return error_set(LOCKSTEP_E_INVALID,
                         "the step's view is too short; begin with LOCKSTEP_STEP_VIEW_INIT");
    return 0;
}

static void step_reset_times(struct lockstep_session *session)
{
    struct step_times *times = &session->step.times;
    const uint64_t now_us = clock_now_us();
    times->begin_used =
        now_us - times->begin < STEP_LONG_US ? STEP_USED_UNKNOWN : clock_process_us();
    times->begin = now_us;
    atomic_store_explicit(&times->first_ready, 0, memory_order_relaxed);
    atomic_store_explicit(&session->progress->ready_us, 0, memory_order_relaxed);
    times->end = times->first_sent = times->last_received = 0;
    times->in_flight_us = times->overlap_us = 0;
    atomic_store_explicit(&session->tallies.control_messages, 0, memory_order_relaxed);
    atomic_store_explicit(&session->tallies.buckets_travelled, 0, memory_order_relaxed);
    atomic_store_explicit(&session->tallies.zero_filled, 0, memory_order_relaxed);
    atomic_store_explicit(&session->tallies.put_off, 0, memory_order_relaxed);
    atomic_store_explicit(&session->tallies.runs, 0, memory_order_relaxed);
    atomic_store_explicit(&session->tallies.weight_total, 0, memory_order_relaxed);
    atomic_store_explicit(&session->tallies.weight_place, 0, memory_order_relaxed);
}

// The step is open. Also without a view, the changes so far and later ones do not count as one: see
// lockstep_world_change. But the trainer has not heard of them. A program that was compiled before
// `changed` has a shorter view.
static void step_fill_view(struct lockstep_session *session, uint32_t exhausted,
                           struct lockstep_step_view *view)
{
    mutex_lock(&session->mutex);
    session->step.accumulates = session->step.accumulating;
    struct world_change *change = &session->step.change;
    const bool changed = change->number != change->seen;
    change->seen = change->number;
    if (!view) {
        mutex_unlock(&session->mutex);
        return;
    }
    renumber_tell_locked(session);
    view->generation = session->world.generation.number;
    view->rank = session->world.rank;
    view->world_size = session->world.size;
    mutex_unlock(&session->mutex);
    view->step = session->step.number;
    view->learning = session->step.learning ? 1 : 0;
    view->exhausted = exhausted;
    if (view->struct_bytes >= sizeof(*view)) {
        view->changed = changed;
        view->reserved = 0;
    }
}

static int step_check_window(const struct lockstep_session *session, const char *phase)
{
    if (!session->step.window_open || strcmp(session->step.phase, phase) == 0)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "step %" PRIu64 ": phase '%s' inside a window that accumulates for phase '%s'",
                     session->step.number, phase, session->step.phase);
}

// With config.virtual_ranks a step is a leaf, and has a weight of its own.
static int step_check_leaf(struct lockstep_session *session,
                           const struct lockstep_step_options *options)
{
    if (session->config.virtual_ranks > 0)
        return leaves_check(session, options->weight, options->accumulate != 0);
    if (options->accumulate == 0 || options->weight == 1)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "a window has one weight, given with its last step: leave it at 1 with "
                     "accumulate");
}

int step_await(struct lockstep_session *session, const struct command *command,
               const uint64_t *reached, uint64_t step, uint64_t deadline_ms)
{
    const bool opens = reached == &session->step.opened;
    const struct standing standing = await_other(opens ? AWAIT_OPENING : AWAIT_STEP,
                                                 opens ? API_STEP_BEGIN : API_STEP_END, step);
    const struct wish wish = {.counter = reached,
                              .value = step,
                              .deadline_ms = deadline_ms,
                              .standing = deadline_ms == COND_NO_DEADLINE ? &standing : NULL};
    int status = 0;
    mutex_lock(&session->mutex);
    drive_until_locked(session, command, &wish);
    if (*reached != step)
        status = session->gate.failure != 0 ? session_failure_locked(session) : LOCKSTEP_E_TIMEOUT;
    mutex_unlock(&session->mutex);
    return status;
}

// Opens the step on this rank. Every step begins like this, also one that only accumulates.
static void step_opened(struct lockstep_session *session,
                        const struct lockstep_step_options *options)
{
    text_copy(session->step.phase, sizeof(session->step.phase),
              !options->phase ? "" : options->phase);
    if (!session->step.window_open)
        places_window_begin(session);
    for (uint32_t i = 0; i < session->module_count && !session->step.window_open; i++)
        module_window_begin(session->modules[i]);
    if (session->config.virtual_ranks > 0 && !session->step.window_open)
        leaves_window_begin(session);
    if (!session->step.window_open)
        session->step.number++;
    session->step.is_open = true;
    session->step.accumulating = options->accumulate != 0;
    session->step.learning = false;
    session->step.weight = options->weight;
    session->step.keeps_weight = session->step.exhausted && options->keep_weight != 0;
    step_reset_times(session);
    for (uint32_t i = 0; i < session->module_count; i++)
        module_step_begin(session->modules[i]);
    atomic_store_explicit(&session->progress->step, session->step.number, memory_order_relaxed);
    trace_event(&session->trace, TRACE_STEP_BEGIN, session->step.number, TRACE_NO_MODULE, 0, 0, 0);
}

// Tells the engine that a step has begun, unless the step only accumulates.
static void step_begun(struct lockstep_session *session)
{
    const uint64_t phase = sets_phase(session);
    if (session->config.solo)
        return;
    // The trainer may read the plans here: between steps the engine does not change them.
    session->step.learning = !order_plan_of(session->engine.order, phase);
    session_post(session, (struct command){.kind = COMMAND_STEP_BEGIN, .phase = phase});
}

static int step_begin(struct lockstep_session *session, const struct lockstep_step_options *options,
                      struct lockstep_step_view *view)
{
    struct lockstep_step_options whole = LOCKSTEP_STEP_INIT;
    uint32_t exhausted = 0;
    int status = step_options(options, &whole);
    if (status == 0)
        status = step_check_leaf(session, &whole);
    if (status == 0)
        status = step_device_land(session, COND_NO_DEADLINE);
    if (status == 0)
        status = overlap_check_moved(session);
    if (status == 0)
        status = deferral_check_weight(
            session, whole.exhausted != 0 && whole.keep_weight == 0 ? 0 : whole.weight);
    if (status == 0)
        status = uneven_check(session, &whole);
    if (status == 0)
        status = step_check_window(session, !whole.phase ? "" : whole.phase);
    if (status == 0)
        uneven_skip(session);
    // A rank without data learns the phase in uneven_agree, and enters its sets after that.
    if (status == 0 && !session->step.window_open && whole.exhausted == 0)
        status = sets_enter(session, !whole.phase ? "" : whole.phase);
    if (status == 0 && session->step.uneven != LOCKSTEP_UNEVEN_NONE && whole.accumulate == 0)
        status = uneven_agree(session, &whole, &exhausted);
    if (status == 0 && whole.exhausted != 0)
        status = sets_enter(session, !whole.phase ? "" : whole.phase);
    if (status != 0)
        return status;
    step_opened(session, &whole);
    if (!session->step.accumulating)
        step_begun(session);
    for (uint32_t i = 0; i < session->module_count && !session->step.accumulating; i++) {
        if (session->modules[i]->made.aborted_step == session->step.number)
            call_withdraw(session->modules[i]); // In an earlier step of the window.
    }
    step_fill_view(session, exhausted, view);
    return 0;
}

int lockstep_step_begin(lockstep_session *session, const struct lockstep_step_options *options,
                        struct lockstep_step_view *view)
{
    const int status = step_check_begin(session, view);
    if (status < 0)
        return status;
    if (session->step.finished)
        return LOCKSTEP_FINISHED;
    const struct visit visit =
        progress_enter(&session->tracker, API_STEP_BEGIN, PROGRESS_NO_MODULE, 0);
    return progress_leave(&visit, step_begin(session, options, view));
}

// ---- step_end ----------------------------------------------------------------------------------

static enum unused_severity step_severity(const struct lockstep_module *module,
                                          const struct gradient *gradient)
{
    if (gradient->excused || module->unused == LOCKSTEP_UNUSED_ACCEPT)
        return UNUSED_IS_ACCEPTED;
    return module->unused == LOCKSTEP_UNUSED_WARN ? UNUSED_IS_WARNING : UNUSED_IS_ERROR;
}

// Adds a contribution's unused parameters of one severity. The caller goes through the severities
// in turn, because the wave's list is sorted by severity first.
static void step_contribute_unused(const struct lockstep_session *session,
                                   const struct contribution *contribution,
                                   enum unused_severity severity, struct commit_wave *wave)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        const struct gradient *gradient = &contribution->gradients[p];
        if (!module->shapes[p].trainable || !gradient->unused ||
            step_severity(module, gradient) != severity)
            continue;
        wave->unused_total++;
        wave->unused_errors += severity == UNUSED_IS_ERROR;
        wave->unused_warnings += severity == UNUSED_IS_WARNING;
        if (wave->unused_named < ORDER_UNUSED_NAMED)
            wave->unused[wave->unused_named++] =
                (struct unused_parameter){.module = module->index,
                                          .parameter = p,
                                          .rank = session->world.rank,
                                          .severity = (uint32_t)severity,
                                          .call = contribution->index};
    }
}

// Adds an aborted call. order_commit_merge names errors before accepted aborts, if not all fit.
static void step_contribute_aborted(const struct lockstep_module *module, struct commit_wave *wave)
{
    const bool accepted = module->on_abort == LOCKSTEP_ABORT_ACCEPT;
    struct commit_wave one = {
        .aborted_total = 1,
        .aborted_errors = accepted ? 0 : 1,
        .aborted_named = 1,
        .aborted = {
            {.module = module->index, .rank = module->session->world.rank, .accepted = accepted}}};
    order_commit_merge(wave, &one);
}

// Adds the modules that this rank has called, and those with an aborted call. A call of a rank with
// weight 0 still counts as weighted if it carries deferred gradients.
static void step_contribute_calls(const struct lockstep_session *session, struct commit_wave *wave)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        if (module->made.called_step != session->step.number)
            continue;
        const uint64_t weight = module->leaves ? leaves_weight(module) : session->step.weight;
        wave->called |= (uint64_t)1 << m;
        wave->weighted |= (uint64_t)(weight > 0 || module->made.carries) << m;
        if (session->modules[m]->made.aborted_step != session->step.number)
            continue;
        step_contribute_aborted(session->modules[m], wave);
    }
}

// Fills in this rank's part of the commit wave: its calls, the parameters that these did not use,
// its counters and its metrics. Unused parameters of a module with an aborted call are left out.
static void step_contribute(struct lockstep_session *session)
{
    struct commit_wave *wave = &session->step.contribution;
    mutex_lock(&session->mutex);
    memset(wave, 0, sizeof(*wave));
    step_contribute_calls(session, wave);
    for (int severity = UNUSED_IS_ERROR; severity <= UNUSED_IS_ACCEPTED; severity++) {
        for (uint32_t m = 0; m < session->module_count; m++) {
            const struct lockstep_module *module = session->modules[m];
            if (module->made.called_step != session->step.number ||
                module->made.aborted_step == session->step.number)
                continue;
            for (uint32_t i = 0; i < module->contribution_count; i++)
                step_contribute_unused(session, &module->contributions[i],
                                       (enum unused_severity)severity, wave);
        }
    }
    counter_contribute(session, wave);
    metrics_contribute(session, wave);
    mutex_unlock(&session->mutex);
}

// Adds up the squares of the results of a solo session.
static void step_square(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    struct kernels_before before;
    kernels_enter(&before);
    for (uint32_t p = 0; contribution->squares && p < module->parameter_count; p++) {
        const void *memory = atomic_load(&contribution->gradients[p].memory);
        if (contribution->used_anywhere[p] && memory)
            contribution->squares[p] =
                kernel_squares(module->shapes[p].dtype, memory, module->shapes[p].elements);
    }
    kernels_leave(&before);
}

// Only a gradient that was handed over, is used and was not withdrawn gets a result.
int step_settle_contribution(struct contribution *contribution, uint64_t weight)
{
    const struct lockstep_module *module = contribution->module;
    if (module->leaves) {
        leaves_settle(contribution);
        return 0;
    }
    int status = device_events_await(contribution);
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        struct gradient *gradient = &contribution->gradients[p];
        if (!module->shapes[p].trainable || atomic_load(&gradient->awaited) > 0 ||
            gradient->unused || gradient->withdrawn || weight == 0)
            continue;
        contribution->used_anywhere[p] = true;
        if (status == 0 && module->replicas > 1 && replica_is_on_devices(module, p))
            status = replica_settle(contribution, p);
        if (weight > 1 && module->gradient_kind == LOCKSTEP_GRADIENT_SUM && status == 0)
            status = step_device_divide(module, p, atomic_load(&gradient->memory), weight);
    }
    if (status == 0)
        step_square(contribution);
    return status;
}

// Settles the step of a solo session: does on this thread what the engine and the transport do
// otherwise.
static int step_settle_alone(struct lockstep_session *session, void *stream)
{
    int status = device_events_await_end(session, stream);
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->contribution_count; i++) {
            if (!module->contributions[i].returned && status == 0)
                status = step_settle_contribution(&module->contributions[i], session->step.weight);
        }
    }
    atomic_store(&session->tallies.weight_total, session->step.leaf_weight + session->step.weight);
    mutex_lock(&session->mutex);
    session->step.outcome = session->step.contribution;
    counter_apply(session, &session->step.outcome);
    metrics_apply(session, &session->step.outcome);
    session->step.settled = session->step.number;
    mutex_unlock(&session->mutex);
    return status;
}

static int step_check_end(struct lockstep_session *session, void *stream)
{
    const char *trouble;
    const int status = session_check(session);
    if (status < 0)
        return status;
    if (!session->step.is_open)
        return error_set(LOCKSTEP_E_INVALID, "no step is open: call lockstep_step_begin first");
    if (stream && !session->devices.first)
        return error_set(LOCKSTEP_E_INVALID,
                         "step %" PRIu64 ": a stream is given, and this rank "
                         "has no device: set config.device",
                         session->step.number);
    trouble = device_events_trouble(session, stream);
    if (trouble)
        return error_set(LOCKSTEP_E_INVALID, "step %" PRIu64 ": the stream that is given %s",
                         session->step.number, trouble);
    if (atomic_load(&session->waiting) > 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "step %" PRIu64
                         ": a thread waits for a call (lockstep_call_wait): end the "
                         "step when it has returned",
                         session->step.number);
    for (uint32_t i = 0; i < session->module_count; i++) {
        if (atomic_load(&session->modules[i]->open) != 0)
            return error_set(LOCKSTEP_E_INVALID,
                             "module '%s' has an open call: call "
                             "lockstep_call_end before lockstep_step_end",
                             session->modules[i]->name);
    }
    return 0;
}

// Tells the engine that this rank has ended the step. Buffers on the device are read after the work
// that `stream` has been given by now.
static int step_enter_end(struct lockstep_session *session, void *stream)
{
    int status = 0;
    session->step.ending = true;
    trace_event(&session->trace, TRACE_STEP_END, session->step.number, TRACE_NO_MODULE, 0, 0, 0);
    mutex_lock(&session->mutex);
    session->step.times.end = clock_now_us();
    mutex_unlock(&session->mutex);
    call_finish(session);
    step_contribute(session);
    device_events_say_end(session, stream);
    buffers_begin(session, session->step.number, stream);
    if (session->config.solo)
        status = step_settle_alone(session, stream);
    else
        session_post(session, (struct command){.kind = COMMAND_STEP_END, .by_stream = stream});
    return status;
}

// Sets gradients to zeros that only ranks with weight 0 have contributed. Such a gradient has no
// mean, and without this each rank would keep its own values. A module that only ranks with weight
// 0 have called makes the step an error; then this function changes nothing.
static void step_clear_weightless(struct lockstep_session *session,
                                  const struct commit_wave *outcome)
{
    if ((outcome->called & ~outcome->weighted) != 0)
        return;
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->contribution_count; i++)
            contribution_clear_weightless(&module->contributions[i]);
    }
}

// The step has settled. Copies results to replicas and fills in the report. Returns the verdict.
static int step_leave_end(struct lockstep_session *session)
{
    struct commit_wave outcome;
    mutex_lock(&session->mutex);
    outcome = session->step.outcome;
    mutex_unlock(&session->mutex);
    deferral_put_back(session);
    step_clear_weightless(session, &outcome);
    const int copied = replica_copy_results(session);
    if (copied < 0)
        return copied;
    step_report_fill(session);
    session->step.report.unused = outcome.unused_total;
    session->step.report.aborted = outcome.aborted_total;
    step_report_count(session);
    return step_verdict(session, &outcome);
}

static int step_end(struct lockstep_session *session, void *stream, uint32_t timeout_ms)
{
    const uint64_t deadline_ms =
        timeout_ms == LOCKSTEP_WAIT_FOREVER ? COND_NO_DEADLINE : clock_now_ms() + timeout_ms;
    char late[SESSION_LATE_BYTES];
    int status = 0;
    int buffers;
    session->step.window_open = session->step.accumulating;
    if (session->step.accumulating && session->config.virtual_ranks > 0)
        leaves_close(session);
    if (session->step.accumulating) {
        session->step.is_open = false;
        mutex_lock(&session->mutex);
        session->step.accumulates = false;
        mutex_unlock(&session->mutex);
        return 0;
    }
    if (!session->step.ending)
        status = step_enter_end(session, stream);
    if (status == 0)
        status =
            step_await(session, NULL, &session->step.settled, session->step.number, deadline_ms);
    if (status == LOCKSTEP_E_TIMEOUT) {
        session_late_text(session, late);
        return error_set(LOCKSTEP_E_TIMEOUT,
                         "step %" PRIu64 " is not over after %" PRIu32 " ms: wait on with "
                         "lockstep_step_wait or lockstep_step_end%s",
                         session->step.number, timeout_ms, late);
    }
    session->step.is_open = session->step.ending = false;
    buffers = buffers_await(session);
    if (status == 0)
        status = buffers;
    if (status == 0)
        status = step_device_await(session, stream);
    return status < 0 ? status : step_leave_end(session);
}

static int step_end_within(struct lockstep_session *session, void *stream, uint32_t timeout_ms)
{
    const int status = step_check_end(session, stream);
    if (status < 0)
        return status;
    const struct visit visit =
        progress_enter(&session->tracker, API_STEP_END, PROGRESS_NO_MODULE, 0);
    await_enter(API_STEP_END, LOCKSTEP_MAX_MODULES);
    return progress_leave(&visit, step_end(session, stream, timeout_ms));
}

int lockstep_step_end(lockstep_session *session, void *stream)
{
    return step_end_within(session, stream, LOCKSTEP_WAIT_FOREVER);
}

int lockstep_step_wait(lockstep_session *session, void *stream, uint32_t timeout_ms)
{
    return step_end_within(session, stream, timeout_ms);
}
