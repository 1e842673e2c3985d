// SPDX-License-Identifier: Apache-2.0
//
// Staging of a collective whose memory is on a device: the collective runs in pinned memory of the
// host. plain.c copies the input there before the collective is launched. The output is copied back
// before the collective is complete.

#ifndef WORKER_SESSION_STAGE_H
#define WORKER_SESSION_STAGE_H

#include <stdbool.h>

struct lockstep_session;
struct shape;
struct stage; // Opaque.

// If a side of the collective is in the memory of this rank's device, makes a stage, copies the
// input, and lets the shape's sides name the stage's memory. Otherwise *stage is NULL. keeps: true
// if the collective may leave the output unwritten. Returns 0, or a failure with the error text
// set. Blocks. Trainer.
int stage_begin(const struct lockstep_session *session, struct shape *shape, bool keeps,
                struct stage **stage);
// Copies the output to the device. Blocks. Returns 0, or -1: the device has failed, and the session
// is aborted. Driver, or the thread of stage_begin.
int stage_deliver(struct lockstep_session *session, const struct stage *stage);
void stage_free(struct stage *stage); // NULL is allowed. Any thread.

#endif
