// SPDX-License-Identifier: Apache-2.0
//
// The functions of exit.c that other files call.

#ifndef WORKER_SESSION_EXIT_H
#define WORKER_SESSION_EXIT_H

#include <stdatomic.h>

struct lockstep_session;

struct telling {
    struct lockstep_session *next; // guarded by the list of exit.c
    atomic_bool tells; // True while the session has a watch and a control stream.
    atomic_uint aborts; // Number of threads between exit_abort_begins and exit_tell_abort.
};

// Between exit_watch and exit_unwatch, failures of calls are reported to the coordinator. A process
// that exits waits, for EXIT_MS at most, until its last report is sent.
void exit_watch(struct lockstep_session *session);
void exit_unwatch(struct lockstep_session *session);
// A thread is about to post an abort. exit_tell_abort follows.
void exit_abort_begins(struct lockstep_session *session);
// Waits, for EXIT_ABORT_MS at most, until the coordinator has been sent the reason of an abort that
// was posted. Then nothing that the process does loses it. Without a coordinator the function does
// not wait. Any thread; the caller holds no mutex.
void exit_tell_abort(struct lockstep_session *session);
// Waits until no thread is in exit_tell_abort any more. The session may be freed then.
void exit_await_aborts(struct lockstep_session *session);
// A call has failed: the watch reports the failure. Any thread.
void exit_note(struct lockstep_session *session);

#endif
