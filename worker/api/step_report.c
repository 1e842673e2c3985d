// SPDX-License-Identifier: Apache-2.0
//
// The report of a settled step, and the session's totals in its trace. Trainer.

#include "worker/api/step_report.h"

#include "base/clock.h"
#include "worker/api/step_device.h"
#include "worker/session/module/contribution.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static uint64_t step_report_since(uint64_t begin, uint64_t at)
{
    return at == 0 ? 0 : at - begin;
}

// The norm of all gradients of the step. Every NaN becomes the same one.
static double step_report_norm(const struct lockstep_session *session)
{
    double sum = 0;
    if (!session->config.gradient_norm)
        return 0;
    for (uint32_t m = 0; m < session->module_count; m++) {
        for (uint32_t i = 0; i < session->modules[m]->contribution_count; i++)
            sum += contribution_squares(&session->modules[m]->contributions[i]);
    }
    return isnan(sum) ? (double)NAN : sqrt(sum);
}

void step_report_fill(struct lockstep_session *session)
{
    struct lockstep_report *report = &session->step.report;
    struct step_times *times = &session->step.times;
    report->step = session->step.number;
    report->first_ready_us = step_report_since(times->begin, atomic_load(&times->first_ready));
    report->last_ready_us =
        step_report_since(times->begin, atomic_load(&session->progress->ready_us));
    report->first_wire_us = step_report_since(times->begin, times->first_sent);
    report->last_wire_us = step_report_since(times->begin, times->last_received);
    report->end_us = step_report_since(times->begin, times->end);
    report->done_us = step_report_since(times->begin, clock_now_us());
    report->in_flight_us = times->in_flight_us;
    report->overlap_us = times->overlap_us;
    report->exposed_us = report->done_us - report->end_us;
    report->learning = session->step.learning ? 1 : 0;
    report->weight_total = atomic_load(&session->tallies.weight_total);
    report->buckets = atomic_load(&session->tallies.buckets_travelled);
    report->zero_filled = atomic_load(&session->tallies.zero_filled);
    report->deferred = atomic_load(&session->tallies.put_off);
    report->runs = atomic_load(&session->tallies.runs);
    report->gradient_norm = step_report_norm(session);
    report->control_messages = atomic_load(&session->tallies.control_messages);
}

static void step_report_add(_Atomic(uint64_t) *total, uint64_t value)
{
    atomic_fetch_add_explicit(total, value, memory_order_relaxed);
}

// Heartbeats send these totals.
void step_report_count(struct lockstep_session *session)
{
    const struct lockstep_report *report = &session->step.report;
    struct progress *progress = session->progress;
    step_report_add(&progress->steps, 1);
    step_report_add(&progress->bytes_copied, report->bytes_copied);
    step_report_add(&progress->in_flight_us, report->in_flight_us);
    step_report_add(&progress->overlap_us, report->overlap_us);
    step_report_add(&progress->exposed_us, report->exposed_us);
    step_report_add(&progress->zero_filled, report->zero_filled);
    step_report_add(&progress->unused, session->step.contribution.unused_total);
}

int lockstep_step_report(lockstep_session *session, uint64_t step, uint32_t timeout_ms,
                         struct lockstep_report *report)
{
    const int status = session_check_handle(session);
    size_t bytes;
    (void)timeout_ms;
    if (status < 0)
        return status;
    if (!report || report->struct_bytes < sizeof(report->struct_bytes))
        return error_set(LOCKSTEP_E_INVALID, "begin the report with LOCKSTEP_REPORT_INIT");
    if (session->step.ending)
        return error_set(LOCKSTEP_E_INVALID,
                         "step %" PRIu64 " is in its end: lockstep_step_end comes first",
                         session->step.number);
    if (step == 0 || step != session->step.report.step)
        return error_set(LOCKSTEP_E_INVALID,
                         "there is no report of step %" PRIu64 "; the last one "
                         "is of step %" PRIu64,
                         step, session->step.report.step);
    // A failure here is ignored: a session that has failed has a report, too.
    (void)step_device_land(session, COND_NO_DEADLINE);
    session->step.report.weight_total = atomic_load(&session->tallies.weight_total);
    bytes = report->struct_bytes < sizeof(*report) ? report->struct_bytes : sizeof(*report);
    session->step.report.struct_bytes = bytes;
    memcpy(report, &session->step.report, bytes);
    return 0;
}
