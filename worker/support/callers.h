// SPDX-License-Identifier: Apache-2.0
//
// Which threads of this process have called a session, and which of these threads called last. A
// thread is known from its first call until it ends. The process has room for
// LOCKSTEP_STACK_THREADS threads; further threads are not known. The list is only used to explain
// stalls; no decision depends on it.

#ifndef WORKER_SUPPORT_CALLERS_H
#define WORKER_SUPPORT_CALLERS_H

#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The callers of one session; all zero if no thread has called the session. The address of the
// struct identifies the session; the struct is not read after the session is closed.
struct callers {
    // atomic
    // Thread pointer of the last caller. After that thread has ended, a later thread may have the
    // same thread pointer.
    _Atomic(uintptr_t) thread;
    _Atomic(uint32_t) ended; // The value of callers_ended during the last call.
    // Number of the last caller; 0: no thread has called, or the thread is not known. A thread
    // named lockstep-c10d does not count.
    _Atomic(uint64_t) last;
};

struct thread_note {
    uint32_t tid;
    pthread_t id;
    bool last; // True if no other thread has called the session after this thread.
    uintptr_t stack; // An address on the thread's stack.
    // Bytes of the thread's alternate signal stack at its first call; 0: it had none.
    size_t alternate;
};

extern _Atomic(uint32_t) callers_ended; // Number of known threads that have ended.

// Notes a call of the session by the calling thread, which was not the last caller. Any thread.
void callers_note_change(struct callers *callers);

// Notes a call of the session by the calling thread. Every public function begins with this call.
// Any thread.
static inline void callers_note(struct callers *callers)
{
    if (atomic_load_explicit(&callers->thread, memory_order_relaxed) != thread_self() ||
        atomic_load_explicit(&callers->ended, memory_order_relaxed) !=
            atomic_load_explicit(&callers_ended, memory_order_relaxed))
        callers_note_change(callers);
}

// Lists the threads that have called this session, the last caller first. callers NULL: the callers
// of all sessions. A thread that calls several sessions may be missing from the list of a session
// of which it is not the last caller. Returns the number of notes written, at most `most`. Any
// thread.
uint32_t callers_list(const struct callers *callers, struct thread_note *notes, uint32_t most);

#endif
