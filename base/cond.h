// SPDX-License-Identifier: Apache-2.0
//
// A condition variable of a mutex. Any thread.

#ifndef LOCKSTEP_BASE_COND_H
#define LOCKSTEP_BASE_COND_H

#include "base/mutex.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

// Waits use CLOCK_MONOTONIC, the clock of base/clock.h, so setting the date moves no deadline.
struct cond {
    pthread_cond_t cond;
};

#define COND_NO_DEADLINE UINT64_MAX

void cond_init(struct cond *cond);
void cond_fini(struct cond *cond);
void cond_signal(struct cond *cond);
void cond_broadcast(struct cond *cond);

// Releases the mutex, sleeps, and locks the mutex again. As with pthreads, the wait may end without
// a signal: check the state, and wait again if needed.
void cond_wait(struct cond *cond, struct mutex *mutex);

// The same, but waits until deadline_ms (in clock_now_ms) at most. Returns false if the deadline
// has passed.
bool cond_wait_until(struct cond *cond, struct mutex *mutex, uint64_t deadline_ms);

#endif
