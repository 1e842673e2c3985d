// SPDX-License-Identifier: Apache-2.0
//
// The functions of step_verdict.c that other files call.

#ifndef WORKER_API_STEP_VERDICT_H
#define WORKER_API_STEP_VERDICT_H

struct commit_wave;
struct lockstep_session;

// Logs the warnings of a step, and returns its result by the commit wave: 0, or a status with its
// text. Trainer.
int step_verdict(struct lockstep_session *session, const struct commit_wave *outcome);

#endif
