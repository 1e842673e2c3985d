// SPDX-License-Identifier: Apache-2.0
//
// The function in which the trainer is blocked, as it is reported to the coordinator. Ranks that
// wait in different functions wait for ever; the coordinator finds such ranks from these reports. A
// call that blocks records what it waits for (struct standing). The watch reads the record, and
// puts it into a heartbeat if the same wait was there at its last reading. So short waits are not
// sent.
//
// A wait is reported only if the trainer does nothing else until all ranks have done what it waits
// for, or the session has failed. So a wait whose timeout lets the trainer go on is not reported
// (lockstep_step_wait, lockstep_work_wait, lockstep_call_wait). A blocking collective with a
// timeout is reported, because its timeout fails the session.

#ifndef WORKER_SESSION_AWAIT_H
#define WORKER_SESSION_AWAIT_H

#include "protos/types.h"

struct lockstep_session;
struct lockstep_work;

// What one thread waits for. On the stack of that thread.
struct standing {
    struct await_key key;
    enum api_function function;
    uint32_t module; // Index of the function's module; LOCKSTEP_MAX_MODULES: it has none.
    const struct lockstep_work *work; // The awaited work, for AWAIT_COLLECTIVE; else NULL.
};

// The trainer's present wait. guarded by the session's mutex
struct awaiting {
    const struct standing *standing; // NULL: there is no wait to report.
    uint64_t number; // Counts the trainer's waits.
    uint32_t blocked; // Threads inside calls that block.
    // True once two threads were blocked at a time, or one thread was blocked while another began a
    // collective.
    bool several;
};

// This thread enters a public function. Its collectives are reported under that function from now
// on. module: index of the function's module; LOCKSTEP_MAX_MODULES: it has none. Trainer threads.
void await_enter(enum api_function function, uint32_t module);

// Describes the wait of this thread for the work of a plain collective.
struct standing await_work(const struct lockstep_work *work);
// Describes a wait of any other kind.
struct standing await_other(enum await_kind kind, enum api_function function, uint64_t number);
// A call that blocks begins or ends its wait. standing: NULL if the wait is not to be reported.
// Caller holds the session's mutex.
void await_begin_locked(struct lockstep_session *session, const struct standing *standing);
void await_end_locked(struct lockstep_session *session);
// A thread begins a collective. If another thread is blocked meanwhile, this rank never reports a
// wait again: nobody knows what its other threads will do. Caller holds the session's mutex.
void await_begun_locked(struct lockstep_session *session);

// Fills in the wait to report, and those keys of the query that this rank has not done yet. *await
// is zero if there is no wait to report. *seen is the number of the wait at the last reading, and
// becomes that of the present wait. Watch thread.
void await_read(struct lockstep_session *session, const struct down_query *query, uint64_t *seen,
                struct await *await);

#endif
