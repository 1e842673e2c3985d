// SPDX-License-Identifier: Apache-2.0
//
// Threads that call a session once and are stuck then, each in a function that is to be seen on its
// stack.
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
    _Atomic(uint32_t) tid; // 0: it has not begun.
    atomic_bool go_on;
    int pipe[2];
    sem_t sem;
    _Atomic(uint64_t) deaf_until_ms;
    int result; // Result of the system call, when it has ended.
};

// Off the main thread, where cmocka's assertions cannot be used.
void must(bool holds);

void stuck_in_read(struct stuck *stuck);
void stuck_in_futex(struct stuck *stuck);
void stuck_in_spin(struct stuck *stuck);
void stuck_in_sleep(struct stuck *stuck);
void stuck_without_signals(struct stuck *stuck); // In read, with all of them blocked.
// In read, in a function that is called by the last instruction of this one: its return address is
// not in it any more.
void stuck_at_its_end(struct stuck *stuck);
// In read, with an alternate stack; leaves in result whether a handler ran there.
void stuck_on_small_stack(struct stuck *stuck);
void stuck_in_state_d(struct stuck *stuck); // Sleeps for half a second.
void stuck_deaf(struct stuck *stuck); // Blocks signals until deaf_until_ms, and spins then.

// Starts a thread, which calls this session and is stuck in this way. It is named "stuck".
void stuck_start(struct stuck *stuck, void (*how)(struct stuck *stuck), struct callers *callers);
// Lets it go, and waits for its end.
void stuck_free(struct stuck *stuck);

#endif
