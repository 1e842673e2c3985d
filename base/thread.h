// SPDX-License-Identifier: Apache-2.0
//
// Thin wrappers over pthreads: named threads that take no signals, and a check that a structure is
// used by the thread that owns it. Not a pool. A failure that only a bug of ours can cause asserts;
// other failures are returned. Mutexes are in mutex.h, conditions in cond.h.
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

// ---- owners -------------------------------------------------------------------------------------

// A number that no other living thread has, in one load. A thread-local variable would be a
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

#endif
