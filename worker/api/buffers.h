// SPDX-License-Identifier: Apache-2.0
//
// The functions of buffers.c that other files call. Trainer.

#ifndef WORKER_API_BUFFERS_H
#define WORKER_API_BUFFERS_H

#include <stdint.h>

struct lockstep_session;

// Puts the buffers with a policy that repeats into groups. 0, or LOCKSTEP_E_SYSTEM.
int buffers_make(struct lockstep_session *session);
// Begins to make those buffers equal that are due in this step. stream: the buffers on the device
// are read when the work that the stream has been given until now is done; NULL: at once.
void buffers_begin(struct lockstep_session *session, uint64_t step, void *stream);
// Waits until they are equal on all ranks.
int buffers_await(struct lockstep_session *session);
void buffers_fini(struct lockstep_session *session);

#endif
