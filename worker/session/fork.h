// SPDX-License-Identifier: Apache-2.0
//
// The functions of fork.c that other files call.

#ifndef WORKER_SESSION_FORK_H
#define WORKER_SESSION_FORK_H

#include <stdbool.h>

struct lockstep_session;

// Called at open and at close. A child that is forked between them closes the session's sockets.
void fork_watch(struct lockstep_session *session);
void fork_unwatch(struct lockstep_session *session);
// True in a child that was forked while the process had an open session.
bool fork_in_child(void);
// True in a child that was forked after the process had opened a session with a coordinator. Such a
// child cannot open one.
bool fork_is_late(void);
int fork_refuse(void); // LOCKSTEP_E_FORKED, with the text for such a child.

#endif
