// SPDX-License-Identifier: Apache-2.0
// Threads, owners, and polling. Any thread.
#include "base/thread.h"

#include "base/text.h"

#include <assert.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

// ---- threads ------------------------------------------------------------------------------------

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    // The name is only for people, so a failure is ignored.
    (void)pthread_setname_np(pthread_self(), thread->name);
    thread->run(thread->argument);
    return NULL;
}

int thread_start(struct thread *thread, const char *name, void (*run)(void *argument),
                 void *argument)
{
    // If SIGSEGV were blocked, a fault would end the process without calling the trainer's crash
    // handler.
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    *thread = (struct thread){.run = run, .argument = argument};
    text_copy(thread->name, sizeof(thread->name), name);
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&blocked, faults[i]);
    // The new thread inherits this mask, so no signal can reach it before it runs.
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

// ---- owners -------------------------------------------------------------------------------------

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

// ---- polling ------------------------------------------------------------------------------------

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
