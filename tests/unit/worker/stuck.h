// SPDX-License-Identifier: Apache-2.0
//
// Threads that call a session once and then get stuck, each in a function that its stack must show.
#ifndef TESTS_UNIT_WORKER_STUCK_H
#define TESTS_UNIT_WORKER_STUCK_H

#include "worker/support/callers.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct stuck {
    pthread_t id;
    void (*how)(struct stuck *stuck);
    struct callers *callers;
    _Atomic(uint32_t) tid; // Kernel id of the thread; 0: the thread has not begun.
    atomic_bool go_on;
    int pipe[2];
    sem_t sem;
    _Atomic(uint64_t) deaf_until_ms;
    int result; // Result of the system call, when it has ended.
};

// An assertion for threads other than the main thread, where cmocka's assertions do not work.
void must(bool holds);

void stuck_in_read(struct stuck *stuck);
void stuck_in_futex(struct stuck *stuck);
void stuck_in_spin(struct stuck *stuck);
void stuck_in_sleep(struct stuck *stuck);
void stuck_without_signals(struct stuck *stuck); // Stuck in read, with all signals blocked.
// Stuck in read, in a function that the last instruction of stuck_at_its_end calls: the return
// address lies behind the end of stuck_at_its_end.
void stuck_at_its_end(struct stuck *stuck);
// Stuck in read, with an alternate signal stack. result: whether a handler ran on that stack.
void stuck_on_small_stack(struct stuck *stuck);
// Spins, with an alternate signal stack that has little more room than the kernel needs. result:
// whether anything was written below that stack.
void stuck_on_late_stack(struct stuck *stuck);
void stuck_in_state_d(struct stuck *stuck); // Sleeps for half a second.
void stuck_deaf(struct stuck *stuck); // Blocks signals until deaf_until_ms, and spins then.

// Starts a thread, which calls this session and is stuck in this way. It is named "stuck".
void stuck_start(struct stuck *stuck, void (*how)(struct stuck *stuck), struct callers *callers);
// Releases the thread, and waits for its end.
void stuck_free(struct stuck *stuck);

#endif
