// SPDX-License-Identifier: Apache-2.0
// Thin wrappers over pthreads: named threads that take no signals, a check that a structure is used
// by the thread that owns it, and a mutex and a condition that know their owner and their clock.
// Not a pool. What can only fail through a bug of ours asserts; what the world can cause is
// returned.
#ifndef LOCKSTEP_BASE_THREAD_H
#define LOCKSTEP_BASE_THREAD_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// ---- threads ------------------------------------------------------------------------------------

#define THREAD_NAME_BYTES 16 // the kernel's bound, with the NUL

struct thread {
    // set at start, then constant
    pthread_t id;
    void (*run)(void *argument);
    void *argument;
    char name[THREAD_NAME_BYTES];
};

// Starts run(argument) on a new thread with all signals blocked, so that a trainer's handlers keep
// running on the trainer's threads; only those that a fault raises are left (SIGSEGV and its kin).
// A longer name is cut. Returns 0 or an errno value. thread and argument are borrowed until the
// join.
int thread_start(struct thread *thread, const char *name, void (*run)(void *argument),
                 void *argument);

// Waits for its end. Blocks without bound; not from the thread itself.
void thread_join(struct thread *thread);

// ---- who runs it --------------------------------------------------------------------------------

// What tells a thread from all others that live, in one load: a variable of a thread would be a
// function call in a shared library.
static inline uintptr_t thread_self(void)
{
    uintptr_t self;
#if defined(__x86_64__)
    __asm__("mov %%fs:0, %0" : "=r"(self));
#elif defined(__aarch64__)
    __asm__("mrs %0, tpidr_el0" : "=r"(self));
#else
    self = (uintptr_t)pthread_self();
#endif
    return self;
}

// Names the one thread that may touch a structure. Zero: nobody yet, and every thread passes.
struct thread_id_check {
    _Atomic(uintptr_t) owner;
};

void thread_own(struct thread_id_check *check); // The calling thread is the owner from now on.
void thread_disown(struct thread_id_check *check); // Nobody is.
bool thread_owned(const struct thread_id_check *check); // The calling thread is, or nobody is.

// Asserts that the owner runs this. First line of a function that is for one thread only.
#define thread_assert(check) assert(thread_owned(check))

// ---- a moment -----------------------------------------------------------------------------------

// Waits for another thread that is about to write something, and is in no lock: a few instructions
// at first, then the rest of the time slice, then naps of up to a millisecond. *tries begins with 0
// and is counted on. Nobody has to wake the thread that waits, so the other one writes one word.
void thread_moment(uint32_t *tries);

// ---- mutex and condition ------------------------------------------------------------------------

struct mutex {
    pthread_mutex_t mutex;
    struct thread_id_check holder;
};

#define MUTEX_INITIALIZER \
    { \
        .mutex = PTHREAD_MUTEX_INITIALIZER \
    }

void mutex_init(struct mutex *mutex);
void mutex_fini(struct mutex *mutex);
void mutex_lock(struct mutex *mutex); // Asserts that the caller does not hold it already.
void mutex_unlock(struct mutex *mutex);

// Whether the calling thread holds it; for assert in functions that end in _locked.
bool mutex_held(const struct mutex *mutex);
#define mutex_assert_held(mutex) assert(mutex_held(mutex))

// Waits are on CLOCK_MONOTONIC, the clock of base/clock.h: setting the date moves no deadline.
struct cond {
    pthread_cond_t cond;
};

#define COND_NO_DEADLINE UINT64_MAX

void cond_init(struct cond *cond);
void cond_fini(struct cond *cond);
void cond_signal(struct cond *cond);
void cond_broadcast(struct cond *cond);

// Releases the mutex, sleeps, and holds it again. As with pthreads a return proves nothing: look
// at the state, and call again.
void cond_wait(struct cond *cond, struct mutex *mutex);

// The same until deadline_ms, in clock_now_ms; false when that has passed.
bool cond_wait_until(struct cond *cond, struct mutex *mutex, uint64_t deadline_ms);

#endif
