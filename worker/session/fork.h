// SPDX-License-Identifier: Apache-2.0
//
// The functions of fork.c that other files call.

#ifndef WORKER_SESSION_FORK_H
#define WORKER_SESSION_FORK_H

#include <stdbool.h>

struct lockstep_session;

void fork_watch(struct lockstep_session *session); // From open to close.
void fork_unwatch(struct lockstep_session *session);
bool fork_in_child(void);

#endif
