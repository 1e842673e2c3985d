// SPDX-License-Identifier: Apache-2.0
//
// The functions of buffers.c that other files call. Trainer.

#ifndef WORKER_API_BUFFERS_H
#define WORKER_API_BUFFERS_H

#include <stdint.h>

struct lockstep_session;

// Puts the buffers with the policy broadcast, mean or sum into groups. 0, or LOCKSTEP_E_SYSTEM.
int buffers_make(struct lockstep_session *session);
// Begins the collectives of the buffers that are due in this step. Buffers on the device are read
// after the work that `stream` has been given by now; stream NULL: at once.
void buffers_begin(struct lockstep_session *session, uint64_t step, void *stream);
// Waits for these collectives. 0, or a status with its text.
int buffers_await(struct lockstep_session *session);
// Frees the groups.
void buffers_fini(struct lockstep_session *session);

#endif
