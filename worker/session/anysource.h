// SPDX-License-Identifier: Apache-2.0
//
// Receives from any source. Such a receive has no tag of the data plane until it has its message:
// the tag contains the sender. Until then it is not launched.

#ifndef WORKER_SESSION_ANYSOURCE_H
#define WORKER_SESSION_ANYSOURCE_H

#include "worker/session/work.h"

struct lockstep_session;

// True if the work is a receive from any source that has no message yet.
static inline bool anysource_is(const struct lockstep_work *work)
{
    return work->kind == LOCKSTEP_RECEIVE && work->member == LOCKSTEP_ANY_SOURCE;
}

// The receive waits for a message from now on. It is launched here if one is there. Driver.
void anysource_begin(struct lockstep_work *work);
// The receive takes its place behind those that have no message yet. It gets one only once
// anysource_begin was called. Caller holds the session's mutex. Driver.
void anysource_queue_locked(struct lockstep_work *work);
// After a death all receives are launched again: messages are given to them from now on. Driver.
void anysource_release(struct lockstep_session *session);
// A message may have arrived, or a member may have left: launches the receives that have their
// message now. Driver.
void anysource_match(struct lockstep_session *session);
// The work is freed without a message. Caller holds the session's mutex.
void anysource_forget_locked(struct lockstep_work *work);

#endif
