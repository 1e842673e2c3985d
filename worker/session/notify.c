// SPDX-License-Identifier: Apache-2.0
//
// Tells the trainer that asynchronous work is done: notify.h has the contract. No function of the
// trainer runs under the session's mutex.
//
// Order. The work is marked as done before its function runs, because the function may make another
// thread ask for it. The thread that waits for the work frees it only after the function has
// returned (notify_end_locked), because the function uses memory of the trainer.

#include "worker/session/notify.h"

#include "worker/session/session.h"
#include "worker/support/error.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void notify_init(struct notify *notify)
{
    notify->fd = -1;
    cond_init(&notify->called);
}

void notify_fini(struct notify *notify)
{
    if (notify->fd >= 0)
        (void)close(notify->fd);
    notify->fd = -1;
    cond_fini(&notify->called);
}

static void notify_ring_locked(const struct lockstep_session *session)
{
    const uint64_t one = 1;
    mutex_assert_held(&session->mutex);
    if (session->works.notify.fd < 0)
        return;
    const ssize_t written = write(session->works.notify.fd, &one, sizeof(one));
    (void)written; // The write fails only if the counter is full, and then it is readable.
}

// True if the descriptor has to be readable from the beginning.
static bool notify_is_due_locked(const struct lockstep_session *session)
{
    mutex_assert_held(&session->mutex);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_PLAIN; i++) {
        const struct lockstep_work *work = &session->works.all[i];
        if (work->asynchronous && work->state == WORK_DONE)
            return true;
    }
    return session->gate.failure != 0;
}

int notify_open(struct lockstep_session *session, int *fd)
{
    char reason[64];
    int status = 0;
    mutex_lock(&session->mutex);
    if (session->works.notify.fd < 0) {
        session->works.notify.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (session->works.notify.fd < 0)
            status = error_set(LOCKSTEP_E_SYSTEM, "no descriptor for lockstep_session_fd: %s",
                               strerror_r(errno, reason, sizeof(reason)));
        else if (notify_is_due_locked(session))
            notify_ring_locked(session);
    }
    *fd = session->works.notify.fd;
    mutex_unlock(&session->mutex);
    return status;
}

static void notify_call_locked(struct lockstep_work *work)
{
    struct lockstep_session *session = work->session;
    const struct notify_function told = work->notify;
    mutex_assert_held(&session->mutex);
    if (!told.function)
        return;
    work->notify.function = NULL;
    work->notify.running = true;
    mutex_unlock(&session->mutex);
    session_call_trainer(told.function, told.context);
    mutex_lock(&session->mutex);
    work->notify.running = false;
    cond_broadcast(&session->works.notify.called);
}

int notify_set(struct lockstep_work *work, void (*function)(void *context), void *context)
{
    struct lockstep_session *session = work->session;
    int status = 0;
    mutex_lock(&session->mutex);
    if (work->state == WORK_FREE)
        status = error_set(LOCKSTEP_E_INVALID,
                           "collective '%s' was waited for already: its work is free", work->name);
    else if (work->notify.given)
        status = error_set(LOCKSTEP_E_INVALID, "collective '%s': its work has a function already",
                           work->name);
    else {
        work->notify =
            (struct notify_function){.function = function, .context = context, .given = true};
        if (work->state == WORK_DONE || session->gate.failure != 0)
            notify_call_locked(work);
    }
    mutex_unlock(&session->mutex);
    return status;
}

void notify_done_locked(struct lockstep_work *work)
{
    notify_ring_locked(work->session);
    notify_call_locked(work);
}

void notify_failed(struct lockstep_session *session)
{
    mutex_lock(&session->mutex);
    notify_ring_locked(session);
    for (uint32_t i = 0; session->works.taken > 0 && i < LOCKSTEP_MAX_PLAIN; i++)
        notify_call_locked(&session->works.all[i]);
    mutex_unlock(&session->mutex);
}

void notify_end_locked(struct lockstep_work *work)
{
    mutex_assert_held(&work->session->mutex);
    work->notify.function = NULL;
    while (work->notify.running)
        cond_wait(&work->session->works.notify.called, &work->session->mutex);
    work->notify.given = false;
}
