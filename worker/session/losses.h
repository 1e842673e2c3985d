// SPDX-License-Identifier: Apache-2.0
//
// The ranks that are gone, as far as a rank has seen or was told, and the one that it names when no
// coordinator does. Pure.
//
// When a rank dies, its neighbours end because of it, and theirs because of them: a cascade of
// ends, of which the first one is to be named. Every rank tells its neighbours who is gone before
// it ends its own links, and passes on what it hears. So all ranks soon have the same accounts, and
// choose by the same rule:
//
//   A rank that has told of another one's end was alive then: its own end came later, and is not
//   the cause. Of the others the lowest rank is named.

#ifndef WORKER_SESSION_LOSSES_H
#define WORKER_SESSION_LOSSES_H

#include "protos/farewell.h"
#include "protos/types.h"

#include <stdbool.h>

struct losses {
    uint32_t count;
    struct farewell of[LOCKSTEP_LOSSES]; // All of kind FAREWELL_LOST, one for each rank.
};

// Takes an account. Of each rank the first one is kept; what is too many is dropped.
void losses_add(struct losses *losses, const struct farewell *farewell);
// The one that rank `own` names; NULL: no rank is lost. An account of `own` itself comes last,
// since that rank is alive.
const struct farewell *losses_first(const struct losses *losses, uint32_t own);

// The step that a rank names when it passes on the word of a witness. present: the step that this
// rank is in. A witness speaks of its own step, which may be the next one: that this rank cannot
// complete its present step does not follow.
uint64_t losses_word_step(const struct farewell *loss, uint64_t present);

// What this rank decides when it has seen that a step cannot be completed. known: the verdict that
// it waits for, or that waits for its step; NULL: there is none. The first cause stays, and an
// earlier step moves it forward. False: nothing changes, and *now is left alone. now may be known.
bool losses_change(const struct down_halt *known, const struct down_halt *seen,
                   struct down_halt *now);

#endif
