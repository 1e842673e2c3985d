// SPDX-License-Identifier: Apache-2.0
//
// Which threads of this process have called a session, and which of them was the last. A thread is
// known from its first call until it ends. A process has LOCKSTEP_STACK_THREADS places; further
// threads are not known. The list is for explanations of stalls; nothing is decided by it.

#ifndef WORKER_SUPPORT_CALLERS_H
#define WORKER_SUPPORT_CALLERS_H

#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The callers of one session; all zero if no thread has called it. The address of the struct stands
// for the session, and the struct is not read after the session is closed.
struct callers {
    // atomic
    _Atomic(uintptr_t)
        thread; // Thread pointer of the last caller. A later thread may have the same.
    _Atomic(uint32_t) ended; // The value of callers_ended during the last call.
    _Atomic(uint64_t) last; // Number of the last caller; 0: none, or a thread that is not known.
};

struct thread_note {
    uint32_t tid;
    pthread_t id;
    bool last; // True if no other thread has called the session since.
    uintptr_t stack; // An address on the thread's stack.
    size_t alternate; // Bytes of the thread's stack for signals at its first call; 0: none.
};

extern _Atomic(uint32_t) callers_ended; // Known threads that have ended.

// The calling thread calls the session, and was not the last caller. Any thread.
void callers_note_change(struct callers *callers);

// The calling thread calls the session. Every public function begins with it. Any thread.
static inline void callers_note(struct callers *callers)
{
    if (atomic_load_explicit(&callers->thread, memory_order_relaxed) != thread_self() ||
        atomic_load_explicit(&callers->ended, memory_order_relaxed) !=
            atomic_load_explicit(&callers_ended, memory_order_relaxed))
        callers_note_change(callers);
}

// Lists the threads that have called this session, the last caller first. NULL: the callers of all
// sessions. A thread that calls several sessions may be missing from those of which it is not the
// last caller. Returns how many notes were written, at most `most`. Any thread.
uint32_t callers_list(const struct callers *callers, struct thread_note *notes, uint32_t most);

#endif
