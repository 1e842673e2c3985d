// SPDX-License-Identifier: Apache-2.0
//
// The functions of call.c that other files call.

#ifndef WORKER_API_CALL_H
#define WORKER_API_CALL_H

#include <stdbool.h>

struct contribution;
struct lockstep_call;
struct lockstep_module;
struct lockstep_session;

// Of a contribution that was handed over: which of its gradients were withdrawn, for when buckets
// are other ones. Trainer.
void call_note_withdrawn(struct contribution *contribution);
// What the calls of the step have left over travels now. Trainer, at step_end.
void call_finish(struct lockstep_session *session);

#endif
