// SPDX-License-Identifier: Apache-2.0
//
// How the trainer learns of asynchronous work without waiting for it: a function of the trainer for
// each work, and one descriptor for the session.

#ifndef WORKER_SESSION_NOTIFY_H
#define WORKER_SESSION_NOTIFY_H

#include "base/cond.h"

#include <stdbool.h>

struct lockstep_session;
struct lockstep_work;

// guarded by the session's mutex
struct notify {
    int fd; // The eventfd of lockstep_session_fd; -1: the trainer has not asked for it.
    struct cond called; // A function of the trainer has returned.
};

// The function of one work. guarded by the session's mutex
struct notify_function {
    void (*function)(void *context); // NULL: there is none, or it was called.
    void *context;
    bool given; // True if the trainer has named a function for this work.
    bool running; // True while the function runs.
};

void notify_init(struct notify *notify);
void notify_fini(struct notify *notify);
// lockstep_session_fd. Returns 0, or a failure. Trainer.
int notify_open(struct lockstep_session *session, int *fd);
// lockstep_work_notify. Returns 0, or a failure. Trainer.
int notify_set(struct lockstep_work *work, void (*function)(void *context), void *context);
// Asynchronous work of the trainer is done. Caller holds the session's mutex, which is released
// while a function of the trainer runs.
void notify_done_locked(struct lockstep_work *work);
// The session has failed: tells it for all work in flight. Any thread.
void notify_failed(struct lockstep_session *session);
// Waits until the work's function has returned; from now on it is not called. Caller holds the
// session's mutex, and frees the work.
void notify_end_locked(struct lockstep_work *work);

#endif
