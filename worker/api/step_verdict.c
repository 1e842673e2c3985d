// SPDX-License-Identifier: Apache-2.0
//
// The result of lockstep_step_end for a step that has settled: warnings, and the status with its
// text. The result is the same on all ranks, unless a gradient has no memory on one rank. Trainer.

#include "worker/api/step_verdict.h"

#include "base/text.h"
#include "worker/session/module/contribution.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>

// Appends the names of the parameters of the same module that share `parameter`.
static void step_name_shared(const struct lockstep_module *module, uint32_t parameter,
                             struct text *text)
{
    for (uint32_t p = parameter + 1; module->shared_count > 0 && p < module->parameter_count; p++) {
        if (module->homes[p].module == module && module->homes[p].parameter == parameter)
            text_append(text, " (also '%s')", module->parameters[p].name);
    }
}

// Adds "module 'encoder'" or "module 'expert' of group 'ep0'".
static void step_name_module(const struct lockstep_module *module, struct text *text)
{
    text_append(text, "module '%s'", module->name);
    if (module_is_grouped(module))
        text_append(text, " of group '%s'", module->grouped.name);
}

// A rank does not know the names of the parameters of a module that only other ranks have.
static void step_name_parameter(const struct lockstep_module *module, uint32_t parameter,
                                struct text *text)
{
    if (module->grouped.absent) {
        text_append(text, " parameter number %" PRIu32, parameter);
        return;
    }
    text_append(text, " parameter '%s'", module->parameters[parameter].name);
    step_name_shared(module, parameter, text);
}

// Names the unused parameters of one severity. The text is the same on all ranks that have the
// modules, because the commit wave gave them the same list.
static void step_name_unused(const struct lockstep_session *session,
                             const struct commit_wave *outcome, enum unused_severity severity,
                             const char *separator, struct text *text)
{
    uint64_t more = severity == UNUSED_IS_ERROR ? outcome->unused_errors : outcome->unused_warnings;
    text_append(text, "step %" PRIu64 ": %" PRIu64 " gradient%s not produced by the backward pass:",
                session->step.number, more, more == 1 ? " was" : "s were");
    for (uint32_t i = 0; i < outcome->unused_named; i++) {
        const struct unused_parameter *unused = &outcome->unused[i];
        const struct lockstep_module *module = session->modules[unused->module];
        if (unused->severity != (uint32_t)severity)
            continue;
        more--;
        text_append(text, "%s", separator);
        step_name_module(module, text);
        if (module->separate_calls)
            text_append(text, " call %" PRIu32, unused->call + 1);
        step_name_parameter(module, unused->parameter, text);
        text_append(text, " on rank %" PRIu32, unused->rank);
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
              "step=%" PRIu64 " count=%" PRIu64 " text=%s", session->step.number,
              outcome->unused_warnings, bytes);
}

// Names the aborted calls. accepted: true for those of modules with LOCKSTEP_ABORT_ACCEPT, false
// for those of other modules.
static void step_name_aborted(const struct lockstep_session *session,
                              const struct commit_wave *outcome, bool accepted,
                              const char *separator, struct text *text)
{
    const uint32_t accepted_total = outcome->aborted_total - outcome->aborted_errors;
    uint32_t more = accepted ? accepted_total : outcome->aborted_errors;
    text_append(text, "step %" PRIu64 ": a backward pass was given up (lockstep_call_abort):",
                session->step.number);
    for (uint32_t i = 0; i < outcome->aborted_named; i++) {
        if ((outcome->aborted[i].accepted != 0) != accepted)
            continue;
        more--;
        text_append(text, "%s", separator);
        step_name_module(session->modules[outcome->aborted[i].module], text);
        text_append(text, " on rank %" PRIu32, outcome->aborted[i].rank);
    }
    if (more > 0)
        text_append(text, "%sand %" PRIu32 " more", separator, more);
}

static void step_warn_aborted(struct lockstep_session *session, const struct commit_wave *outcome)
{
    char bytes[LOCKSTEP_TEXT_BYTES];
    struct text text;
    if (outcome->aborted_total == outcome->aborted_errors ||
        !log_enabled(&session->log, LOG_LEVEL_WARN))
        return;
    text_init(&text, bytes, sizeof(bytes));
    step_name_aborted(session, outcome, true, " ", &text);
    log_event(&session->log, LOG_LEVEL_WARN, "calls_given_up",
              "step=%" PRIu64 " count=%" PRIu32 " text=%s", session->step.number,
              outcome->aborted_total - outcome->aborted_errors, bytes);
}

// True if this module's policy is that a rank need not call it.
static bool step_may_miss(const struct lockstep_module *module)
{
    return module->grouped.absent || module->separate_calls ||
           module->unused == LOCKSTEP_UNUSED_ACCEPT;
}

// Warns once for each module that this rank did not call in a step in which other ranks did. A call
// that is forgotten is no error, and the mean is wrong by this rank's part. Rules under which ranks
// need not call the same modules do not warn.
static void step_warn_missed(struct lockstep_session *session, const struct commit_wave *outcome)
{
    const struct config *config = &session->config;
    if (session->step.report.zero_filled == 0 || !log_enabled(&session->log, LOG_LEVEL_WARN) ||
        session->step.uneven != LOCKSTEP_UNEVEN_NONE || session->step.weight == 0 ||
        config->order == LOCKSTEP_ORDER_ZERO_DEFER || config->unplanned == LOCKSTEP_UNPLANNED_DEFER)
        return;
    for (uint32_t m = 0; m < session->module_count; m++) {
        struct lockstep_module *module = session->modules[m];
        if ((outcome->called >> m & 1) == 0 || module->made.called_step == session->step.number ||
            module->made.missed || step_may_miss(module))
            continue;
        module->made.missed = true;
        log_event(&session->log, LOG_LEVEL_WARN, "module_not_called",
                  "step=%" PRIu64 " module=%s rank=%" PRIu32 " hint=%s", session->step.number,
                  module->name, session->world.rank,
                  "other ranks called the module in this step, and here it counts as zeros; a call "
                  "that is forgotten is not an error");
    }
}

static int step_aborted_error(const struct lockstep_session *session,
                              const struct commit_wave *outcome)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    text_init(&text, bytes, sizeof(bytes));
    step_name_aborted(session, outcome, false, "\n  ", &text);
    text_append(&text, "\ndo not use the gradients of this step");
    return error_set(LOCKSTEP_E_UNUSED, "%s", bytes);
}

// The error for modules that only ranks with weight 0 have called: they have no mean, and no
// gradient was written.
static int step_weightless_error(const struct lockstep_session *session, uint64_t modules)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    text_init(&text, bytes, sizeof(bytes));
    text_append(&text, "step %" PRIu64 ": all ranks gave weight 0, so there is no mean of",
                session->step.number);
    for (uint32_t m = 0; m < session->module_count; m++) {
        if ((modules >> m & 1) == 0)
            continue;
        text_append(&text, " ");
        step_name_module(session->modules[m], &text);
    }
    return error_set(LOCKSTEP_E_INVALID, "%s; the gradients are as they were", bytes);
}

// The error for a gradient that other ranks produced, and that has no memory on this rank for the
// mean. Without the error the parameter would differ between ranks from now on.
static int step_homeless_error(const struct lockstep_session *session)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->contribution_count; i++) {
            const uint32_t p = contribution_homeless(&module->contributions[i]);
            if (p < module->parameter_count)
                return error_set(LOCKSTEP_E_UNUSED,
                                 "step %" PRIu64 ": module '%s' parameter '%s' has a mean from "
                                 "other ranks and no memory for it here (call %" PRIu32
                                 "): register gradient memory, or report it with memory on every "
                                 "rank",
                                 session->step.number, module->name, module->parameters[p].name,
                                 i + 1);
        }
    }
    return 0;
}

// The error for metrics that ranks use differently, or 0.
static int step_metrics_error(struct lockstep_session *session, const struct commit_wave *outcome)
{
    const struct metrics_fault fault = metrics_find_fault(session, outcome);
    if (fault.many)
        return error_set(LOCKSTEP_E_INVALID, "the ranks together use more than %d metrics",
                         LOCKSTEP_MAX_METRICS);
    if (!fault.name)
        return 0;
    const bool ordered = fault.kinds[0] < fault.kinds[1];
    return error_set(LOCKSTEP_E_MISMATCH,
                     "step %" PRIu64 ": metric '%s' is a %s on some ranks and a %s on others: add "
                     "to it with one kind on all ranks; its last value is as it was",
                     session->step.number, fault.name->name,
                     metrics_kind_name(fault.kinds[ordered ? 0 : 1]),
                     metrics_kind_name(fault.kinds[ordered ? 1 : 0]));
}

int step_verdict(struct lockstep_session *session, const struct commit_wave *outcome)
{
    step_warn(session, outcome);
    step_warn_aborted(session, outcome);
    step_warn_missed(session, outcome);
    if (counter_is_many(session, outcome))
        return error_set(LOCKSTEP_E_INVALID, "the ranks together use more than %d counters",
                         LOCKSTEP_MAX_COUNTERS);
    if (outcome->aborted_errors > 0)
        return step_aborted_error(session, outcome);
    if ((outcome->called & ~outcome->weighted) != 0)
        return step_weightless_error(session, outcome->called & ~outcome->weighted);
    if (outcome->unused_errors > 0)
        return step_unused_error(session, outcome);
    const int status = step_homeless_error(session);
    return status < 0 ? status : step_metrics_error(session, outcome);
}
