// SPDX-License-Identifier: Apache-2.0
//
// The functions of counter.c that other files call.

#ifndef WORKER_API_COUNTER_H
#define WORKER_API_COUNTER_H

struct commit_wave;
struct lockstep_session;

void counter_contribute(struct lockstep_session *session, struct commit_wave *wave);
void counter_apply(struct lockstep_session *session, const struct commit_wave *result);

#endif
