// SPDX-License-Identifier: Apache-2.0
//
// How a plain collective ends in a session that goes on after a death (config.on_failure). When a
// rank has the result, it joins one more small collective, the *agreement*. So no rank completes
// the work before all ranks have the result. What becomes of works that a death has hit is decided
// in worker/engine/accord.c; their *outcomes* are kept here, because a rank may begin such a
// collective later, and because another death may come before all ranks know them.

#ifndef WORKER_SESSION_AGREEMENT_H
#define WORKER_SESSION_AGREEMENT_H

#include "protos/limits.h"
#include "worker/transport/flow/collective.h"

#include <stdbool.h>
#include <stdint.h>

struct lockstep_session;
struct lockstep_work;

struct agreement {
    // set when the work is made, then constant
    bool wanted;
    bool attempt; // True if the work belongs to an attempt of the library (attempt.h).
    // driver only while in flight
    bool reached; // True if this rank has the result of the work.
    struct collective collective;
    struct extent extent;
    int32_t element;
};

#define OUTCOME_ATTEMPT UINT64_MAX

enum outcome_kind {
    OUTCOME_NONE = 0,
    OUTCOME_DONE, // All ranks have the result.
    OUTCOME_CHANGED, // It fails on all ranks.
};

struct outcome {
    uint64_t space; // Of the tag of the collective, as the next one.
    uint32_t slot;
    // The space of the group whose collective it is; 0: of all ranks. OUTCOME_ATTEMPT: of an
    // attempt, in which no rank begins a collective after the next change.
    uint64_t group;
    enum outcome_kind kind;
    uint64_t generation; // Number of the generation in which it was decided.
};

// guarded by the session's mutex
struct outcomes {
    uint32_t count;
    struct outcome all[LOCKSTEP_MAX_PLAIN];
};

// True if the session goes on after a death.
bool agreement_is_on(const struct lockstep_session *session);
// The work, which wants an agreement, has just been made, or is to be launched again. Caller holds
// the mutex.
void agreement_make(struct lockstep_work *work);
// The collectives of the work are done. True: the agreement is launched. Driver.
bool agreement_follows(struct lockstep_work *work);
// Sets the text and returns LOCKSTEP_E_CHANGED; the trainer knows the change from now on. Caller
// holds the mutex.
int agreement_error_locked(struct lockstep_session *session, const char *kind, const char *name);
// The same for a send or receive whose other rank is gone.
int agreement_parted_locked(struct lockstep_session *session, const char *kind, const char *name);
// 0, or LOCKSTEP_E_CHANGED once if the trainer does not know yet that ranks may have other numbers.
// Caller holds the mutex.
int agreement_numbers_locked(struct lockstep_session *session);
// 0, or LOCKSTEP_E_CHANGED if the world has changed since this number of changes. Caller holds the
// mutex.
int agreement_same_locked(struct lockstep_session *session, uint64_t changes);
enum outcome_kind agreement_outcome(const struct outcomes *outcomes, uint64_t space, uint32_t slot);
// Returns false if there is no room.
bool agreement_keep(struct outcomes *outcomes, const struct outcome *outcome);

#endif
