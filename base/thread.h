// SPDX-License-Identifier: Apache-2.0
//
// Thin wrappers over pthreads: named threads that take no signals, and a check that only the owning
// thread uses a structure. There is no thread pool. Failures that only our own bugs can cause are
// asserted; other failures are returned. Mutexes are in mutex.h, condition variables in cond.h.
#ifndef LOCKSTEP_BASE_THREAD_H
#define LOCKSTEP_BASE_THREAD_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// ---- threads ------------------------------------------------------------------------------------

#define THREAD_NAME_BYTES 16 // The kernel's limit, including the NUL.

struct thread {
    // set at start, then constant
    pthread_t id;
    void (*run)(void *argument);
    void *argument;
    char name[THREAD_NAME_BYTES];
};

// Starts run(argument) on a new thread. The thread blocks all signals except those of faults (such
// as SIGSEGV), so that a trainer's handlers run on the trainer's threads only. A longer name is
// cut. Returns 0 or an errno value. thread and argument are borrowed until the join.
int thread_start(struct thread *thread, const char *name, void (*run)(void *argument),
                 void *argument);

// Waits until the thread has ended. Blocks without limit. The thread itself must not call it.
void thread_join(struct thread *thread);

// ---- owners -------------------------------------------------------------------------------------

// A number that no other living thread has. Reading it takes one load; a thread-local variable
// would take a function call in a shared library.
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

// The one thread that may use a structure. 0: there is no owner, and every thread may use it.
struct thread_id_check {
    _Atomic(uintptr_t) owner;
};

void thread_own(struct thread_id_check *check); // Makes the calling thread the owner.
void thread_disown(struct thread_id_check *check); // Removes the owner.
// True if the calling thread is the owner, or there is none.
bool thread_owned(const struct thread_id_check *check);

// Asserts that the calling thread is the owner, if there is one. It is the first line of a function
// that only one thread may call.
#define thread_assert(check) assert(thread_owned(check))

// ---- polling ------------------------------------------------------------------------------------

// Waits a moment. For loops that poll a word which another thread is about to write, without a
// lock. The first calls spin for a few instructions, the next ones yield the processor, and later
// ones sleep for up to a millisecond. *tries begins at 0, and each call increments it. The other
// thread only writes its word; it wakes no one.
void thread_moment(uint32_t *tries);

#endif
