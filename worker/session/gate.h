// SPDX-License-Identifier: Apache-2.0
//
// The checks with which every public function begins, and the failure of a session: see gate.c.

#ifndef WORKER_SESSION_GATE_H
#define WORKER_SESSION_GATE_H

#include "base/log.h"
#include "protos/limits.h"
#include "worker/session/command.h"
#include "worker/support/callers.h"

#include <stdatomic.h>

struct lockstep_session;

struct gate {
    // atomic
    atomic_bool failed; // True if failure is not 0.
    atomic_bool aborting; // True if this rank has given up: the driver is about to set failure.
    atomic_bool aborted; // True if the driver has carried out the abort, and queued its reason.
    atomic_bool alone; // True if the coordinator is gone, and the session goes on without it.
    _Atomic(uint64_t) alone_ms; // clock_now_ms when the coordinator was lost.
    struct callers callers;

    // guarded by the session's mutex
    int failure; // 0, or the status that every call returns.
    char failure_text[LOCKSTEP_REPORT_BYTES];
};

// The first line of every public function calls one of these two. 0 if the handle is a live session
// of this process that has not failed; else the status, with the error text set. Any thread.
int session_check(struct lockstep_session *session);
// The same, but returns 0 for a session that has failed.
int session_check_handle(struct lockstep_session *session);
// A failure if this thread is in a function that the trainer gave to the library: its log sink, or
// that of lockstep_work_notify. Else 0. Any thread.
int session_check_sink(void);
// A failure if this thread holds a mutex of the session: a signal handler has then called the
// library. Else 0.
int session_check_interrupted(const struct lockstep_session *session);
// Puts a command into the inbox and wakes the driver. Any thread. A full inbox fails the session.
void session_post(struct lockstep_session *session, struct command command);
// The same for a complete bucket, except that the engine's thread goes on sleeping where every core
// computes.
void session_post_bucket(struct lockstep_session *session, struct command command);
// Frees the memory that was given with a command. Call it after the command was carried out, or
// when it will never be.
void session_drop(const struct command *command);
// This rank gives up. The other ranks are told the reason, and every waiting or later call returns
// this status with this reason. Any thread. 0, or LOCKSTEP_E_SYSTEM.
int session_abort(struct lockstep_session *session, int status, const char *reason);
// Records the first failure and wakes all waiters; a later failure changes nothing. From this call
// on the driver must not touch user memory. Any thread.
void session_fail(struct lockstep_session *session, int status, const char *text);
// 0, or the failure with its text set for this thread. Caller holds the mutex.
int session_failure_locked(struct lockstep_session *session);

// The end of an error text: "; the connection to the coordinator is lost ..."; "" if it is not
// lost. Any thread.
const char *session_alone_text(const struct lockstep_session *session);
// Writes the end of the error text of a wait that timed out: which coordinator is lost, and since
// when; "" if it is not lost. Any thread.
#define SESSION_LATE_BYTES (LOCKSTEP_ADDRESS_BYTES + 128)
void session_late_text(const struct lockstep_session *session, char text[SESSION_LATE_BYTES]);

// Calls a function of the trainer (lockstep_work_notify). No mutex is held.
void session_call_trainer(void (*function)(void *context), void *context);
// Opens the session's log: to the trainer's sink, else to stderr if LOCKSTEP_LOG is set, else to
// nothing.
void session_log_init(struct lockstep_session *session);

#endif
