// SPDX-License-Identifier: Apache-2.0
//
// Mutexes; mutex.h has the contract. Any thread.

#include "base/mutex.h"

#include <assert.h>

void mutex_init(struct mutex *mutex)
{
    *mutex = (struct mutex)MUTEX_INITIALIZER;
}

void mutex_fini(struct mutex *mutex)
{
    int status = pthread_mutex_destroy(&mutex->mutex);
    assert(status == 0); // EBUSY means that a thread still holds the mutex.
    (void)status;
}

bool mutex_held(const struct mutex *mutex)
{
    return atomic_load_explicit(&mutex->holder.owner, memory_order_relaxed) == thread_self();
}

void mutex_lock(struct mutex *mutex)
{
    assert(!mutex_held(mutex));
    int status = pthread_mutex_lock(&mutex->mutex);
    assert(status == 0);
    (void)status;
    thread_own(&mutex->holder);
}

void mutex_unlock(struct mutex *mutex)
{
    mutex_assert_held(mutex);
    thread_disown(&mutex->holder);
    int status = pthread_mutex_unlock(&mutex->mutex);
    assert(status == 0);
    (void)status;
}
