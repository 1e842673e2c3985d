// SPDX-License-Identifier: Apache-2.0
//
// What a rank that goes on after a death does with collectives that are no slots of the order:
// those of the buffers of modules. Driver only.

#ifndef WORKER_ENGINE_REPEAT_H
#define WORKER_ENGINE_REPEAT_H

#include <stdbool.h>

struct lockstep_session;
struct lockstep_work;

// The transport has been frozen, or is about to be. Returns NULL, or why the rank cannot go on.
const char *repeat_freeze(struct lockstep_session *session);
// True if the rank is frozen: the work is not to be launched now.
bool repeat_holds(struct lockstep_session *session, struct lockstep_work *work);
// The rank goes on, in the step that is open if there is one. The caller tells the order core
// afterwards.
void repeat_go_on(struct lockstep_session *session);

#endif
