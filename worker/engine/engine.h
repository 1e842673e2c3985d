// SPDX-License-Identifier: Apache-2.0
//
// The functions of engine.c that other files call.

#ifndef WORKER_ENGINE_ENGINE_H
#define WORKER_ENGINE_ENGINE_H

#include <stdbool.h>

struct lockstep_session;

int engine_start(struct lockstep_session *session);
// Ends the thread; leave: in good order. Afterwards nothing touches user memory.
void engine_stop(struct lockstep_session *session, bool leave);

#endif
