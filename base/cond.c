// SPDX-License-Identifier: Apache-2.0
//
// Conditions; cond.h has the contract. Any thread.

#include "base/cond.h"

#include <assert.h>
#include <errno.h>
#include <time.h>

void cond_init(struct cond *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    int status = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    assert(status == 0);
    status = pthread_cond_init(&cond->cond, &attributes);
    assert(status == 0);
    (void)status;
    pthread_condattr_destroy(&attributes);
}

void cond_fini(struct cond *cond)
{
    pthread_cond_destroy(&cond->cond);
}

void cond_signal(struct cond *cond)
{
    pthread_cond_signal(&cond->cond);
}

void cond_broadcast(struct cond *cond)
{
    pthread_cond_broadcast(&cond->cond);
}

void cond_wait(struct cond *cond, struct mutex *mutex)
{
    (void)cond_wait_until(cond, mutex, COND_NO_DEADLINE);
}

bool cond_wait_until(struct cond *cond, struct mutex *mutex, uint64_t deadline_ms)
{
    int status;
    mutex_assert_held(mutex);
    // The wait releases the mutex, so another thread may hold it meanwhile.
    thread_disown(&mutex->holder);
    if (deadline_ms == COND_NO_DEADLINE) {
        status = pthread_cond_wait(&cond->cond, &mutex->mutex);
    } else {
        struct timespec until = {
            .tv_sec = (time_t)(deadline_ms / 1000),
            .tv_nsec = (long)(deadline_ms % 1000) * 1000000,
        };
        status = pthread_cond_timedwait(&cond->cond, &mutex->mutex, &until);
    }
    assert(status == 0 || status == ETIMEDOUT);
    thread_own(&mutex->holder);
    return status == 0;
}
