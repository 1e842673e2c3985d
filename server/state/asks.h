// SPDX-License-Identifier: Apache-2.0
//
// Questions from the HTTP thread to workers, on their way to the core thread: a ring that is full
// after ASKS of them. What comes back goes to the archive.

#ifndef LOCKSTEP_SERVER_STATE_ASKS_H
#define LOCKSTEP_SERVER_STATE_ASKS_H

#include "base/mutex.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define ASKS 16

struct ask {
    char job[LOCKSTEP_JOB_NAME_BYTES];
    uint32_t rank;
    uint32_t what; // Bits of enum inspect.
};

struct asks {
    // guarded by mutex
    struct mutex mutex;
    struct ask ring[ASKS];
    uint32_t posted; // Ever, modulo 2^32.
    uint32_t taken;
};

void asks_init(struct asks *asks);
void asks_fini(struct asks *asks);

// HTTP thread. Copies; false: it is full.
bool asks_post(struct asks *asks, const char *job, uint32_t rank, uint32_t what);
// Core thread. The oldest; false: there is none.
bool asks_take(struct asks *asks, struct ask *ask);

#endif
