// SPDX-License-Identifier: Apache-2.0
//
// The step as the trainer sees it: begin, end, report. Runs on the trainer's thread; it tells the
// engine when the step has begun and ended. What lies between them, calls and gradients, is in
// call.c; what then happens is decided in order.c.

#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "worker/error.h"
#include "worker/kernels.h"
#include "worker/session.h"

#include <inttypes.h>
#include <string.h>

// ---- step_begin --------------------------------------------------------------------------------

// Widened when the caller is older than this library: the first version ended before accumulate.
static int step_options(const struct lockstep_step_options *given,
                        struct lockstep_step_options *whole)
{
    const struct lockstep_step_options defaults = LOCKSTEP_STEP_INIT;
    *whole = defaults;
    if (given == NULL)
        return 0;
    if (given->struct_bytes < offsetof(struct lockstep_step_options, accumulate) ||
        given->struct_bytes > sizeof(*whole))
        return error_set(LOCKSTEP_E_INVALID,
                         "the step's options have %zu bytes; begin with LOCKSTEP_STEP_INIT, and "
                         "load a library that is not older than the header",
                         given->struct_bytes);
    memcpy(whole, given, given->struct_bytes);
    if (whole->accumulate > 1 || whole->exhausted > 1)
        return error_set(LOCKSTEP_E_INVALID, "the step's accumulate and exhausted are 0 or 1");
    if (whole->exhausted != 0)
        return error_set(LOCKSTEP_E_UNSUPPORTED, "exhausted ranks are not supported yet");
    if (whole->accumulate != 0 && whole->weight != 1)
        return error_set(LOCKSTEP_E_INVALID,
                         "a window has one weight, given with its last step: leave it at 1 with "
                         "accumulate");
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

static int step_check_window(const struct lockstep_session *session, const char *phase)
{
    if (!session->window_open || strcmp(session->phase, phase) == 0)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "step %" PRIu64 ": phase '%s' inside a window that accumulates for phase '%s'",
                     session->step, phase, session->phase);
}

// What every step does, also one that only accumulates.
static void step_opened(struct lockstep_session *session,
                        const struct lockstep_step_options *options)
{
    text_copy(session->phase, sizeof(session->phase), options->phase == NULL ? "" : options->phase);
    for (uint32_t i = 0; i < session->module_count && !session->window_open; i++)
        module_forget_gradients(session->modules[i]);
    if (!session->window_open)
        session->step++;
    session->step_open = true;
    session->accumulating = options->accumulate != 0;
    session->weight = options->weight;
    step_reset_times(session);
    for (uint32_t i = 0; i < session->module_count; i++)
        module_step_begin(session->modules[i]);
    atomic_store_explicit(&session->progress.step, session->step, memory_order_relaxed);
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
    if (status == 0)
        status = step_check_window(session, whole.phase == NULL ? "" : whole.phase);
    if (status < 0)
        return status;
    step_opened(session, &whole);
    if (session->accumulating) {
        step_fill_view(session, false, view);
        return 0;
    }
    phase = hash64(session->phase, strlen(session->phase));
    // Between steps the engine leaves the plans alone.
    learning = !session->config.solo && order_plan_of(session->order, phase) == NULL;
    step_fill_view(session, learning, view);
    session->report.learning = learning ? 1 : 0;
    if (!session->config.solo)
        session_post(session, (struct command){.kind = COMMAND_STEP_BEGIN, .value = phase});
    return 0;
}

// ---- step_end ----------------------------------------------------------------------------------

static enum unused_severity step_severity(const struct lockstep_module *module,
                                          const struct gradient *gradient)
{
    if (gradient->excused || module->unused == LOCKSTEP_UNUSED_ACCEPT)
        return UNUSED_IS_ACCEPTED;
    return module->unused == LOCKSTEP_UNUSED_WARN ? UNUSED_IS_WARNING : UNUSED_IS_ERROR;
}

// The unused parameters of one severity: a wave's list is sorted by it first.
static void step_contribute_unused(const struct lockstep_session *session,
                                   const struct lockstep_module *module,
                                   enum unused_severity severity, struct commit_wave *wave)
{
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        const struct gradient *gradient = &module->contributions[0].gradients[p];
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
                                          .rank = session->rank,
                                          .severity = (uint32_t)severity};
    }
}

// Which modules this rank has called, and of which it gave a call up.
static void step_contribute_calls(const struct lockstep_session *session, struct commit_wave *wave)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        if (session->modules[m]->called_step != session->step)
            continue;
        wave->called |= (uint64_t)1 << m;
        wave->weighted |= (uint64_t)(session->weight > 0) << m;
        if (session->modules[m]->aborted_step != session->step)
            continue;
        wave->aborted_total++;
        if (wave->aborted_named < ORDER_ABORTED_NAMED)
            wave->aborted[wave->aborted_named++] =
                (struct aborted_call){.module = m, .rank = session->rank};
    }
}

// What this rank says in the commit wave: its calls, which parameters these did not use, and its
// counters. Of a module whose call was given up it says no more than that.
static void step_contribute(struct lockstep_session *session)
{
    struct commit_wave *wave = &session->contribution;
    mutex_lock(&session->mutex);
    memset(wave, 0, sizeof(*wave));
    step_contribute_calls(session, wave);
    for (int severity = UNUSED_IS_ERROR; severity <= UNUSED_IS_ACCEPTED; severity++) {
        for (uint32_t m = 0; m < session->module_count; m++) {
            if (session->modules[m]->called_step == session->step &&
                session->modules[m]->aborted_step != session->step)
                step_contribute_unused(session, session->modules[m], (enum unused_severity)severity,
                                       wave);
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
            const struct gradient *gradient = &module->contributions[0].gradients[p];
            if (module->called_step == session->step && module->aborted_step != session->step &&
                module->shapes[p].trainable && !gradient->unused && session->weight > 1 &&
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
    report->weight_total = atomic_load(&session->weight_total);
    report->buckets = atomic_load(&session->buckets_travelled);
    report->zero_filled = atomic_load(&session->zero_filled);
    report->control_messages = atomic_load(&session->control_messages);
}

// Names the unused parameters of one severity. The same on every rank, because the commit wave gave
// all ranks the same list.
static void step_name_unused(const struct lockstep_session *session,
                             const struct commit_wave *outcome, enum unused_severity severity,
                             const char *separator, struct text *text)
{
    uint64_t more = severity == UNUSED_IS_ERROR ? outcome->unused_errors : outcome->unused_warnings;
    text_append(text, "step %" PRIu64 ": %" PRIu64 " gradient%s not produced by the backward pass:",
                session->step, more, more == 1 ? " was" : "s were");
    for (uint32_t i = 0; i < outcome->unused_named; i++) {
        const struct unused_parameter *unused = &outcome->unused[i];
        const struct lockstep_module *module = session->modules[unused->module];
        if (unused->severity != (uint32_t)severity)
            continue;
        more--;
        text_append(text, "%smodule '%s' parameter '%s' on rank %" PRIu32, separator, module->name,
                    module->parameters[unused->parameter].name, unused->rank);
    }
    if (more > 0)
        text_append(text, "%sand %" PRIu64 " more", separator, more);
}

static int step_unused_error(const struct lockstep_session *session,
                             const struct commit_wave *outcome)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    text_init(&text, bytes, sizeof(bytes));
    step_name_unused(session, outcome, UNUSED_IS_ERROR, "\n  ", &text);
    return error_set(LOCKSTEP_E_UNUSED, "%s", bytes);
}

static void step_warn(struct lockstep_session *session, const struct commit_wave *outcome)
{
    char bytes[LOCKSTEP_TEXT_BYTES];
    struct text text;
    if (outcome->unused_warnings == 0 || !log_enabled(&session->log, LOG_LEVEL_WARN))
        return;
    text_init(&text, bytes, sizeof(bytes));
    step_name_unused(session, outcome, UNUSED_IS_WARNING, " ", &text);
    log_event(&session->log, LOG_LEVEL_WARN, "unused_parameters",
              "step=%" PRIu64 " count=%" PRIu64 " text=%s", session->step, outcome->unused_warnings,
              bytes);
}

static int step_aborted_error(const struct lockstep_session *session,
                              const struct commit_wave *outcome)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    text_init(&text, bytes, sizeof(bytes));
    text_append(&text, "step %" PRIu64 ": a backward pass was given up (lockstep_call_abort):",
                session->step);
    for (uint32_t i = 0; i < outcome->aborted_named; i++)
        text_append(&text, "\n  module '%s' on rank %" PRIu32,
                    session->modules[outcome->aborted[i].module]->name, outcome->aborted[i].rank);
    if (outcome->aborted_total > outcome->aborted_named)
        text_append(&text, "\n  and %" PRIu32 " more",
                    outcome->aborted_total - outcome->aborted_named);
    text_append(&text, "\ndo not use the gradients of this step");
    return error_set(LOCKSTEP_E_UNUSED, "%s", bytes);
}

// Modules that were called, but by nobody with a weight: there is no mean, and nothing was written.
static int step_weightless_error(const struct lockstep_session *session, uint64_t modules)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    text_init(&text, bytes, sizeof(bytes));
    text_append(&text, "step %" PRIu64 ": all ranks gave weight 0, so there is no mean of",
                session->step);
    for (uint32_t m = 0; m < session->module_count; m++) {
        if ((modules >> m & 1) != 0)
            text_append(&text, " module '%s'", session->modules[m]->name);
    }
    return error_set(LOCKSTEP_E_INVALID, "%s; the gradients are as they were", bytes);
}

// A gradient that others produced and this rank did not, with no memory to put the mean into: its
// parameter would drift apart from theirs, so it is not passed over in silence.
static int step_homeless_error(const struct lockstep_session *session)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        const struct contribution *contribution = &module->contributions[0];
        for (uint32_t p = 0; p < module->parameter_count; p++) {
            if (module->shapes[p].trainable && module->shapes[p].elements > 0 &&
                contribution->used_anywhere[p] && contribution->gradients[p].memory == NULL)
                return error_set(LOCKSTEP_E_UNUSED,
                                 "step %" PRIu64 ": module '%s' parameter '%s' has a mean from "
                                 "other ranks and no memory for it here: register gradient memory, "
                                 "or report it with memory on every rank",
                                 session->step, module->name, module->parameters[p].name);
        }
    }
    return 0;
}

// What all ranks agreed on in the commit wave.
static int step_verdict(struct lockstep_session *session, const struct commit_wave *outcome)
{
    step_warn(session, outcome);
    if (outcome->counter_overflow)
        return error_set(LOCKSTEP_E_INVALID, "the ranks together use more than %d counters",
                         LOCKSTEP_MAX_COUNTERS);
    if (outcome->aborted_total > 0)
        return step_aborted_error(session, outcome);
    if ((outcome->called & ~outcome->weighted) != 0)
        return step_weightless_error(session, outcome->called & ~outcome->weighted);
    if (outcome->unused_errors > 0)
        return step_unused_error(session, outcome);
    return step_homeless_error(session);
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
        if (atomic_load(&session->modules[i]->open) != NULL)
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
    session->window_open = session->accumulating;
    if (session->accumulating) {
        session->step_open = false;
        return 0;
    }
    session->times.end = clock_now_us();
    for (uint32_t i = 0; i < session->module_count; i++)
        call_finish(session->modules[i]);
    step_contribute(session);
    if (session->config.solo)
        step_settle_alone(session);
    else
        session_post(session, (struct command){.kind = COMMAND_STEP_END});
    status = step_await_settled(session);
    session->step_open = false;
    if (status < 0)
        return status;
    mutex_lock(&session->mutex);
    outcome = session->outcome;
    mutex_unlock(&session->mutex);
    step_fill_report(session);
    session->report.unused = outcome.unused_total;
    return step_verdict(session, &outcome);
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
