// SPDX-License-Identifier: Apache-2.0
//
// The function in which the trainer is blocked, for other ranks. Ranks that wait in different
// functions wait for ever; the coordinator finds such ranks from what each of them says here. A
// call that blocks says what it waits for (struct standing); the watch reads that and puts it into
// a heartbeat when the same wait still stands at its next look. Shorter waits are not sent.
//
// A wait is only told when the trainer makes nothing until all ranks have done what it waits for,
// or the session has failed. So a wait with a timeout is not told when the trainer goes on after it
// (lockstep_step_wait, lockstep_work_wait, lockstep_call_wait). A blocking collective with a
// timeout is told, because its timeout fails the session.

#ifndef WORKER_SESSION_AWAIT_H
#define WORKER_SESSION_AWAIT_H

#include "protos/types.h"

struct lockstep_session;
struct lockstep_work;

// On the stack of the thread that waits.
struct standing {
    struct await_key key;
    enum api_function function;
    uint32_t module; // The function's module; LOCKSTEP_MAX_MODULES: it has none.
    const struct lockstep_work *work; // AWAIT_COLLECTIVE
};

// The trainer's present wait. guarded by the session's mutex
struct awaiting {
    const struct standing *standing; // NULL: there is nothing to be told.
    uint64_t number; // Counts the trainer's waits.
    uint32_t blocked; // Threads inside calls that block.
    bool
        several; // True once two threads were blocked, or one was while another began a collective.
};

// This thread enters a function: the collectives that follow on it are called for that function.
// module: LOCKSTEP_MAX_MODULES, or that of the function. Trainer threads.
void await_enter(enum api_function function, uint32_t module);

// The wait of this thread for the work of a plain collective.
struct standing await_work(const struct lockstep_work *work);
// Waits of every other kind.
struct standing await_other(enum await_kind kind, enum api_function function, uint64_t number);
// A call that blocks begins or ends its wait. standing may be NULL: the wait is not to be told.
// Caller holds the session's mutex.
void await_begin_locked(struct lockstep_session *session, const struct standing *standing);
void await_end_locked(struct lockstep_session *session);
// A thread begins a collective. When another one is blocked meanwhile, this rank tells of no wait
// any more: what its threads will do is not known. Caller holds the session's mutex.
void await_begun_locked(struct lockstep_session *session);

// Fills in what is told now, with those of the keys that this rank has not done. *seen is the
// number of the wait at the last look, and becomes that of this one. Watch thread.
void await_read(struct lockstep_session *session, const struct down_query *query, uint64_t *seen,
                struct await *await);

#endif
