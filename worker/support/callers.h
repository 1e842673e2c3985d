// SPDX-License-Identifier: Apache-2.0
//
// Which threads of this process have called a session, and which of them was the last. A thread is
// known from its first call until it ends; a process has LOCKSTEP_STACK_THREADS places, and threads
// beyond them are not known. Kept for whoever explains a stall; nothing is decided by it.

#ifndef WORKER_SUPPORT_CALLERS_H
#define WORKER_SUPPORT_CALLERS_H

#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Of one session; all zero: nobody has called it. Its address stands for the session and is not
// read once the session is closed.
struct callers {
    // atomic
    _Atomic(uintptr_t) thread; // Thread pointer of the last caller, ...
    _Atomic(uint32_t) ended; // ... and callers_ended as it called: it may be another thread's now.
    _Atomic(uint64_t) last; // Number of the last caller; 0: nobody, or a thread that is not known.
};

struct thread_note {
    uint32_t tid;
    pthread_t id;
    bool last; // No other thread has called the session since.
    uintptr_t stack; // An address on its stack.
    size_t alternate; // Bytes of its stack for signal handlers, as of its first call; 0: none.
};

extern _Atomic(uint32_t) callers_ended; // Known threads that have ended.

// The calling thread calls the session, and was not the last to do so. Any thread.
void callers_note_change(struct callers *callers);

// The calling thread calls the session. Any thread; first of all in every public function.
static inline void callers_note(struct callers *callers)
{
    if (atomic_load_explicit(&callers->thread, memory_order_relaxed) != thread_self() ||
        atomic_load_explicit(&callers->ended, memory_order_relaxed) !=
            atomic_load_explicit(&callers_ended, memory_order_relaxed))
        callers_note_change(callers);
}

// The threads that have called this session, the last caller first; a thread that calls several may
// be missing where it is not the last caller. NULL: of all sessions. Returns how many notes were
// written, `most` at most. Any thread.
uint32_t callers_list(const struct callers *callers, struct thread_note *notes, uint32_t most);

#endif
