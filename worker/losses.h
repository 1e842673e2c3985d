// SPDX-License-Identifier: Apache-2.0
//
// What a rank has seen, or was told, of ranks that are gone, and which of them it names when no
// coordinator does. Pure.
//
// When a rank dies, its neighbours end because of it, and theirs because of them: a cascade of
// ends, of which the first one is to be named. Every rank tells its neighbours who is gone before
// it ends its own links, and passes on what it hears. So all ranks soon have the same accounts, and
// choose by the same rule:
//
//   A rank that has told of another one's end was alive then: its own end came later, and is not
//   the cause. Of the others the lowest rank is named.

#ifndef WORKER_LOSSES_H
#define WORKER_LOSSES_H

#include "protos/farewell.h"

#include <stdbool.h>

struct losses {
    uint32_t count;
    struct farewell of[LOCKSTEP_LOSSES]; // All of kind FAREWELL_LOST, one for each rank.
};

// Takes an account. Of each rank the first one is kept; what is too many is dropped.
void losses_add(struct losses *losses, const struct farewell *farewell);
// The one that rank `own` names; NULL: nobody is lost. An account of `own` itself comes last, since
// that rank is alive.
const struct farewell *losses_first(const struct losses *losses, uint32_t own);

#endif
