// SPDX-License-Identifier: Apache-2.0
//
// Which threads of this process have called a session, and which of them was the last. A thread is
// known from its first call until it ends; a process has LOCKSTEP_STACK_THREADS places, and threads
// beyond them are not known. Kept for whoever explains a stall; nothing is decided by it.

#ifndef WORKER_THREADS_H
#define WORKER_THREADS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct thread_place;

// Of one session; all zero: nobody has called it. Its address stands for the session and is not
// read once the session is closed.
struct thread_callers {
    _Atomic(struct thread_place *) last; // atomic
};

struct thread_note {
    uint32_t tid;
    pthread_t id;
    bool last; // No other thread has called the session since.
};

// The calling thread calls this session. Two loads and two comparisons when it did so before and
// nobody else did since. Any thread.
void threads_note(struct thread_callers *callers);

// The threads that have called this session and no other one since; of any session: NULL. Returns
// how many notes were written, `most` at most, the last caller first. Any thread.
uint32_t threads_list(const struct thread_callers *callers, struct thread_note *notes,
                      uint32_t most);

#endif
