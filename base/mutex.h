// SPDX-License-Identifier: Apache-2.0
//
// A mutex that knows its holder, so that functions can assert it. Any thread.

#ifndef LOCKSTEP_BASE_MUTEX_H
#define LOCKSTEP_BASE_MUTEX_H

#include "base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>

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

// Returns true if the calling thread holds the mutex. For assert in functions whose names end in
// _locked.
bool mutex_held(const struct mutex *mutex);
#define mutex_assert_held(mutex) assert(mutex_held(mutex))

#endif
