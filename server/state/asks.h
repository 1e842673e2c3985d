// SPDX-License-Identifier: Apache-2.0
//
// Questions from the HTTP thread to workers, on their way to the core thread. They wait in a ring
// of ASKS places. The answers go to the archive.

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
    uint32_t posted; // Questions posted since the start, modulo 2^32.
    uint32_t taken;
};

void asks_init(struct asks *asks);
void asks_fini(struct asks *asks);

// HTTP thread. Copies the question into the ring. Returns false if the ring is full.
bool asks_post(struct asks *asks, const char *job, uint32_t rank, uint32_t what);
// Core thread. Takes the oldest question out. Returns false if there is none.
bool asks_take(struct asks *asks, struct ask *ask);

#endif
