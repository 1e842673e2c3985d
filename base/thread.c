// SPDX-License-Identifier: Apache-2.0
// Threads, owners, moments, locks. Any thread.
#include "base/thread.h"

#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

// ---- threads ------------------------------------------------------------------------------------

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    // A name is for people; a kernel that refuses it does no harm.
    (void)pthread_setname_np(pthread_self(), thread->name);
    thread->run(thread->argument);
    return NULL;
}

int thread_start(struct thread *thread, const char *name, void (*run)(void *argument),
                 void *argument)
{
    // A blocked SIGSEGV would end the process without the trainer's own crash handler.
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    *thread = (struct thread){.run = run, .argument = argument};
    text_copy(thread->name, sizeof(thread->name), name);
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&blocked, faults[i]);
    // The new thread inherits the mask, so there is no moment at which it would take a signal.
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int status = pthread_create(&thread->id, NULL, thread_main, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

void thread_join(struct thread *thread)
{
    int status = pthread_join(thread->id, NULL);
    assert(status == 0);
    (void)status;
}

// ---- who runs it --------------------------------------------------------------------------------

void thread_own(struct thread_id_check *check)
{
    atomic_store_explicit(&check->owner, thread_self(), memory_order_relaxed);
}

void thread_disown(struct thread_id_check *check)
{
    atomic_store_explicit(&check->owner, 0, memory_order_relaxed);
}

bool thread_owned(const struct thread_id_check *check)
{
    uintptr_t owner = atomic_load_explicit(&check->owner, memory_order_relaxed);
    return owner == 0 || owner == thread_self();
}

// ---- a moment -----------------------------------------------------------------------------------

#define MOMENT_SPINS 64
#define MOMENT_YIELDS 16
#define MOMENT_NAP_NS 20000 // Nanoseconds of the first nap. Each nap is twice as long.
#define MOMENT_LONGEST 5 // Naps after this one are as long as this one.

void thread_moment(uint32_t *tries)
{
    const uint32_t tried = (*tries)++;
    if (tried < MOMENT_SPINS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return;
    }
    if (tried < MOMENT_SPINS + MOMENT_YIELDS) {
        (void)sched_yield();
        return;
    }
    const uint32_t naps = tried - MOMENT_SPINS - MOMENT_YIELDS;
    const struct timespec nap = {.tv_nsec = MOMENT_NAP_NS
                                            << (naps < MOMENT_LONGEST ? naps : MOMENT_LONGEST)};
    (void)nanosleep(&nap, NULL);
    if (*tries == UINT32_MAX)
        *tries = MOMENT_SPINS + MOMENT_YIELDS + MOMENT_LONGEST;
}

// ---- mutex and condition ------------------------------------------------------------------------

void mutex_init(struct mutex *mutex)
{
    *mutex = (struct mutex)MUTEX_INITIALIZER;
}

void mutex_fini(struct mutex *mutex)
{
    int status = pthread_mutex_destroy(&mutex->mutex);
    assert(status == 0); // EBUSY: somebody still holds it.
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
    // The mutex changes hands inside the wait.
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
