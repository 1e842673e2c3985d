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

// Marks the withdrawn gradients of a contribution that was handed over. The marks stay valid when
// the layout changes. Trainer.
void call_note_withdrawn(struct contribution *contribution);
// A call of the module was aborted in this window, and no travelling call follows. Withdraws all
// gradients of the module. Trainer, in the last step of a window.
void call_withdraw(struct lockstep_module *module);
// Hands over the gradients that the calls of the step have left over. Trainer, at step_end.
void call_finish(struct lockstep_session *session);

#endif
