// SPDX-License-Identifier: Apache-2.0
//
// The functions of step_report.c that other files call. Trainer, when the step has settled.

#ifndef WORKER_API_STEP_REPORT_H
#define WORKER_API_STEP_REPORT_H

struct lockstep_session;

// Fills in the report that lockstep_step_report returns.
void step_report_fill(struct lockstep_session *session);
// Adds the step to the totals in struct progress.
void step_report_count(struct lockstep_session *session);

#endif
