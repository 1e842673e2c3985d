// SPDX-License-Identifier: Apache-2.0
//
// The functions of start.c that other files call.

#ifndef WORKER_API_START_H
#define WORKER_API_START_H

#include <stdint.h>

struct lockstep_session;

// Makes the values of all parameters and buffers those of rank root. Trainer; blocks.
int state_broadcast(struct lockstep_session *session, uint32_t root);
// Begins to make those buffers equal that are due in this step, or with step 0 all whose policy
// repeats; and waits for it. stream: what it was given until now is to be done before those on the
// device are read; NULL: it is. Trainer.
void state_begin(struct lockstep_session *session, uint64_t step, void *stream);
int state_await(struct lockstep_session *session);
void state_fini(struct lockstep_session *session);

#endif
