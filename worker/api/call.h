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

// A live call that is the open one of its module. Any thread.
int call_check_open(struct lockstep_call *call);
// The module contributes to the open step: it was called, or a module that shares a parameter of it
// was. Trainer.
bool call_takes_part(const struct lockstep_module *module);
// First line of every public function of a module: 0 when the handle is a live module of a session
// that has not failed; else the status, with the error text set. Any thread.
int module_check(struct lockstep_module *module);
// The same for a function of a call.
int call_check(struct lockstep_call *call);
// Of a contribution that was handed over: which of its gradients were withdrawn, for when buckets
// are other ones. Trainer.
void call_note_withdrawn(struct contribution *contribution);
// What the calls of the step have left over travels now. Trainer, at step_end.
void call_finish(struct lockstep_session *session);

#endif
