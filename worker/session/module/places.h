// SPDX-License-Identifier: Apache-2.0
//
// The functions of places.c that other files call.

#ifndef WORKER_SESSION_MODULE_PLACES_H
#define WORKER_SESSION_MODULE_PLACES_H

#include "base/mutex.h"
#include "worker/session/module/module.h"

#include <stdbool.h>
#include <stdint.h>

struct lockstep_session;

// Memory that was given for a gradient with a report. A node of the tree in places.c. guarded by
// places.mutex
struct given_place {
    struct given_place *before; // The subtrees. No two places in the tree overlap.
    struct given_place *behind;
    uintptr_t begin;
    uintptr_t end;
    uint64_t window; // The place is in the tree if this equals places.window.
    uint64_t priority; // set at register, then constant
    struct home by; // The name under which it was given.
    struct contribution *contribution; // The contribution in which the gradient travels.
    uint32_t parameter; // The gradient's index in that contribution.
    uint32_t replica;
};

enum overlap_kind {
    OVERLAP_DATA = 0,
    OVERLAP_GRADIENT,
    OVERLAP_BUFFER,
};

// The registered memory of one tensor.
struct overlap_place {
    uintptr_t begin;
    uintptr_t end;
    const struct lockstep_module *module;
    uint32_t index; // Number of the parameter or buffer.
    uint32_t replica;
    enum overlap_kind kind;
};

// guarded by mutex, a leaf
struct places {
    struct mutex mutex;
    struct given_place *given; // The root of the tree of given places, or NULL.
    uint64_t window; // Counts windows, from 1.
    struct overlap_place *known; // [known_count]: registered memory, sorted by address. Owned.
    size_t known_count;
    // trainer
    bool moved; // True if a tensor's memory has moved, so overlaps have to be checked again.
};

// A gradient and the memory that is given for it.
struct placed {
    struct contribution *contribution; // The contribution in which the gradient travels.
    uint32_t parameter; // The gradient's index in that contribution.
    uint32_t replica;
    struct home by; // The name under which it is reported.
    void *memory; // NULL: the memory that it has already.
};

// Forgets the places that were given in the last window. Trainer, before a window.
void places_window_begin(struct lockstep_session *session);
// Refuses memory that overlaps a value, a buffer, or another gradient that travels in the window.
// Also refuses a second place for a shared parameter. Any thread, with places.mutex held.
int places_check_locked(struct lockstep_session *session, const struct placed *placed);
// Records memory that was checked. Any thread, in the same critical section.
void places_take_locked(struct lockstep_session *session, const struct placed *placed);
// 0, or a failure if a gradient was given a place in [begin, end) in the open step or window.
// Trainer.
int places_check_free(struct lockstep_session *session, uintptr_t begin, uintptr_t end);
// True if the registered memory of a gradient that this rank has not used was given for another
// gradient in this window. Any thread.
bool places_is_lost(struct lockstep_session *session, const struct placed *placed);

#endif
