// SPDX-License-Identifier: Apache-2.0
//
// Forked children, such as data loaders: the library does nothing in them. Every public function
// returns an error there. The child closes the data sockets that it has inherited at once: if they
// stayed open, peers would not see the death of the parent while the child lives. Descriptors of
// gRPC stay open in the child; nothing depends on them.
//
// gRPC does not survive a fork, also if the parent has closed all its sessions before. gRPC 1.51
// keeps an epoll instance and an eventfd then, which the child would share with its parent and with
// other children. So a child can open a session with a coordinator only if its parents never did.
//
// The child's handler runs before fork returns, where only async-signal-safe calls are allowed. It
// reads a list that the parent's prepare handler has locked, and closes sockets.

#include "worker/session/fork.h"

#include "worker/session/session.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"
#include "worker/transport/descriptors.h"

#include <pthread.h>

static pthread_mutex_t fork_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct lockstep_session *fork_sessions; // guarded by fork_mutex
static bool fork_used; // guarded by fork_mutex; true once a session used gRPC, in a parent, too
static atomic_bool fork_child;
static atomic_bool fork_late;

static void fork_prepare(void)
{
    pthread_mutex_lock(&fork_mutex);
}

static void fork_parent(void)
{
    pthread_mutex_unlock(&fork_mutex);
}

static void fork_in_new_child(void)
{
    for (struct lockstep_session *s = fork_sessions; s; s = s->next_open)
        transport_forked(s->transport);
    if (fork_sessions)
        atomic_store(&fork_child, true);
    if (fork_used)
        atomic_store(&fork_late, true);
    pthread_mutex_unlock(&fork_mutex);
}

static void fork_install(void)
{
    pthread_atfork(fork_prepare, fork_parent, fork_in_new_child);
}

void fork_watch(struct lockstep_session *session)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fork_install);
    pthread_mutex_lock(&fork_mutex);
    session->next_open = fork_sessions;
    fork_sessions = session;
    fork_used = true;
    pthread_mutex_unlock(&fork_mutex);
}

void fork_unwatch(struct lockstep_session *session)
{
    pthread_mutex_lock(&fork_mutex);
    for (struct lockstep_session **at = &fork_sessions; *at; at = &(*at)->next_open) {
        if (*at == session) {
            *at = session->next_open;
            break;
        }
    }
    pthread_mutex_unlock(&fork_mutex);
}

bool fork_in_child(void)
{
    return atomic_load_explicit(&fork_child, memory_order_relaxed);
}

bool fork_is_late(void)
{
    return atomic_load_explicit(&fork_late, memory_order_relaxed);
}

int fork_refuse(void)
{
    return error_set(LOCKSTEP_E_FORKED,
                     "this process was forked from one that had opened a session before: fork "
                     "before the first lockstep_open, or start the rank as a new program");
}
