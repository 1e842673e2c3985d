// SPDX-License-Identifier: Apache-2.0
//
// The functions of exit.c that other files call.

#ifndef WORKER_SESSION_EXIT_H
#define WORKER_SESSION_EXIT_H

#include <stdatomic.h>

struct lockstep_session;

struct telling {
    struct lockstep_session *next; // guarded by the list of exit.c
    atomic_bool tells; // True while the watch and the control stream are there.
};

// While the control stream of a session may be used: a failure of a call is told to the
// coordinator, and a process that exits waits, for EXIT_MS at most, until the last one is on its
// way.
void exit_watch(struct lockstep_session *session);
void exit_unwatch(struct lockstep_session *session);
// A call has failed. Any thread.
void exit_note(struct lockstep_session *session);

#endif
