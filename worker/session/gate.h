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
    atomic_bool failed; // failure != 0
    atomic_bool aborting; // True if this rank gives up: failure is about to be set.
    atomic_bool alone; // True if the coordinator is gone, and the session goes on without it.
    _Atomic(uint64_t) alone_ms; // clock_now_ms when it became so.
    struct callers callers;

    // guarded by the session's mutex
    int failure; // 0, or the status that every call returns.
    char failure_text[LOCKSTEP_REPORT_BYTES];
};

// First line of every public function: 0 when the handle is a live session of this process that has
// not failed; else the status, with the error text set. Any thread.
int session_check(struct lockstep_session *session);
// The same, but a failed session passes.
int session_check_handle(struct lockstep_session *session);
// 0, or a failure: the thread is in the trainer's log sink. Any thread.
int session_check_sink(void);
// 0, or a failure: the thread holds a mutex of the session, so a signal has interrupted it there.
int session_check_interrupted(const struct lockstep_session *session);
// Puts a command into the inbox and wakes the driver. Any thread. A full inbox fails the session.
void session_post(struct lockstep_session *session, struct command command);
// Frees what a command was given, if anything: it was carried out, or never will be.
void session_drop(const struct command *command);
// This rank gives up: the other ranks are told why, and every call that waits or comes later
// returns this status and text. Any thread. 0, or LOCKSTEP_E_SYSTEM.
int session_abort(struct lockstep_session *session, int status, const char *reason);
// Records the first failure and wakes all waiters. Any thread. The driver must have let go of user
// memory before. Later failures change nothing.
void session_fail(struct lockstep_session *session, int status, const char *text);
// 0, or the failure with its text set for this thread. Caller holds the mutex.
int session_failure_locked(struct lockstep_session *session);

// The end of later error texts: "; the coordinator is gone ...", or "" while it is there. Any
// thread.
const char *session_alone_text(const struct lockstep_session *session);
// Writes the end of the text of a wait whose time is over: which coordinator is gone since when, or
// "" while it is there. Any thread.
#define SESSION_LATE_BYTES (LOCKSTEP_ADDRESS_BYTES + 128)
void session_late_text(const struct lockstep_session *session, char text[SESSION_LATE_BYTES]);

// Hands a log line to the trainer's sink. context: the session's struct config.
void session_log_sink(void *context, enum log_level level, const char *line, size_t size);

#endif
