// SPDX-License-Identifier: Apache-2.0
//
// Memory that plain collectives borrow until the trainer has waited for them. Trainer threads.

#ifndef WORKER_SESSION_LENT_H
#define WORKER_SESSION_LENT_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct lockstep_session;
struct lockstep_work;

#define LENT_OF_WORK 2 // Ranges of one collective: its input and its output.
#define LENT_MOST (LENT_OF_WORK * LOCKSTEP_MAX_PLAIN)

struct lent_range {
    uintptr_t begin;
    uintptr_t end;
    bool written; // True if the collective writes to the memory; false if it only reads it.
    bool gaps; // True if it has parts with offsets, and so may have gaps: these count as borrowed.
};

// guarded by the session's mutex
struct lent {
    struct lent_entry {
        struct lent_range range;
        struct lockstep_work *work; // The work that has borrowed it.
        uint32_t place; // Index in work.lent.
    } entries[LENT_MOST]; // [count]
    uint32_t count;
};

// Records memory that the work borrows. Overlaps are checked until the trainer has waited for the
// work, even if the work is done earlier: otherwise the check would depend on timing. Caller holds
// the session's mutex, as for the other functions.
void lent_add_locked(struct lockstep_work *work, const struct lent_range *range);
void lent_remove_locked(struct lockstep_work *work); // All ranges of the work.
// A failure if the range overlaps memory of another collective, and one of the two writes it: the
// result would depend on which one is done first. name and use: of the collective that wants it.
int lent_check_locked(const struct lockstep_session *session, const char *name, uint32_t use,
                      const struct lent_range *range);
// Returns a work that has borrowed a byte of [begin, end); NULL: none has.
const struct lockstep_work *lent_find_locked(const struct lockstep_session *session,
                                             uintptr_t begin, uintptr_t end);

#endif
