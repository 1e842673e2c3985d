// SPDX-License-Identifier: Apache-2.0
//
// Reports the last failure of a process that ends without lockstep_close. A failure of a call wakes
// the watch, which sends a heartbeat with it. So the report is sent a moment after the call has
// returned, and a later _exit, abort or signal loses nothing. On exit or a return from main, the
// destructor below waits until the report is sent. It sends nothing itself and allocates nothing.
// It does nothing in a forked child, and nothing if no call has failed or the coordinator is gone.
// An abort has no such moment: its call returns OK, and the process may end at once. So the call
// itself waits until the reason is sent.

#include "worker/session/exit.h"

#include "base/clock.h"
#include "worker/control/control.h"
#include "worker/control/grpc.h"
#include "worker/session/fork.h"
#include "worker/session/session.h"
#include "worker/watch/watch.h"

#include <pthread.h>
#include <time.h>

#define EXIT_MS 100 // How long the end of a process waits at most until its report is sent.
#define EXIT_ABORT_MS 1000 // How long an abort waits at most until its reason is sent.

static const struct timespec exit_moment = {.tv_nsec = 200000};

// Not the list of fork.c: its mutex may be held for EXIT_MS, and a fork must not wait so long.
static pthread_mutex_t exit_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct lockstep_session *exit_sessions; // guarded by exit_mutex

void exit_watch(struct lockstep_session *session)
{
    pthread_mutex_lock(&exit_mutex);
    session->telling.next = exit_sessions;
    exit_sessions = session;
    atomic_store(&session->telling.tells, true);
    pthread_mutex_unlock(&exit_mutex);
}

void exit_unwatch(struct lockstep_session *session)
{
    pthread_mutex_lock(&exit_mutex);
    atomic_store(&session->telling.tells, false);
    for (struct lockstep_session **at = &exit_sessions; *at; at = &(*at)->telling.next) {
        if (*at == session) {
            *at = session->telling.next;
            break;
        }
    }
    pthread_mutex_unlock(&exit_mutex);
}

void exit_note(struct lockstep_session *session)
{
    if (atomic_load_explicit(&session->telling.tells, memory_order_acquire))
        watch_note(session->watch, false);
}

static bool exit_has_told(struct lockstep_session *session)
{
    return atomic_load(&session->gate.alone) ||
           (watch_has_told(session->watch) && control_is_idle(session->control));
}

// The driver queues the reason for the coordinator before it sets `aborted`. A session that has
// failed before has no reason to send any more.
static bool exit_has_told_abort(struct lockstep_session *session)
{
    const bool done = atomic_load(&session->gate.aborted) || atomic_load(&session->gate.failed);
    return atomic_load(&session->gate.alone) || (done && control_is_idle(session->control));
}

void exit_abort_begins(struct lockstep_session *session)
{
    atomic_fetch_add(&session->telling.aborts, 1);
}

void exit_tell_abort(struct lockstep_session *session)
{
    const uint64_t deadline_ms = clock_now_ms() + EXIT_ABORT_MS;
    while (atomic_load(&session->telling.tells) && !exit_has_told_abort(session) &&
           clock_now_ms() < deadline_ms)
        nanosleep(&exit_moment, NULL);
    atomic_fetch_sub(&session->telling.aborts, 1);
}

void exit_await_aborts(struct lockstep_session *session)
{
    while (atomic_load(&session->telling.aborts) > 0)
        nanosleep(&exit_moment, NULL);
}

static void exit_tell(struct lockstep_session *session, uint64_t deadline_ms)
{
    if (!atomic_load(&session->note.noted) || atomic_load(&session->gate.alone))
        return;
    watch_note(session->watch, true);
    while (!exit_has_told(session) && clock_now_ms() < deadline_ms)
        nanosleep(&exit_moment, NULL);
}

// Waits for nothing if another thread holds the mutex: that thread is opening or closing a session.
static __attribute__((destructor)) void exit_of_process(void)
{
    if (fork_in_child() || pthread_mutex_trylock(&exit_mutex) != 0)
        return;
    const uint64_t deadline_ms = clock_now_ms() + EXIT_MS;
    for (struct lockstep_session *s = exit_sessions; s; s = s->telling.next)
        exit_tell(s, deadline_ms);
    pthread_mutex_unlock(&exit_mutex);
}
