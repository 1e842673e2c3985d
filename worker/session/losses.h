// SPDX-License-Identifier: Apache-2.0
//
// The losses that a rank has seen or was told of, and the lost rank that it names when no
// coordinator names one. Pure.
//
// When a rank dies, its neighbours end because of it, and then their neighbours. Every rank should
// name the first rank of this cascade. Before a rank ends its own links, it tells its neighbours
// which ranks are lost, and it passes on what neighbours tell. So all ranks soon know the same
// losses, and choose by the same rule:
//
//   A lost rank that has told of the loss of another rank was alive then, so it is not the cause.
//   Of the other lost ranks, the lowest is named.

#ifndef WORKER_SESSION_LOSSES_H
#define WORKER_SESSION_LOSSES_H

#include "protos/farewell.h"
#include "protos/types.h"

#include <stdbool.h>

struct losses {
    uint32_t count;
    struct farewell of[LOCKSTEP_LOSSES]; // [count]: of kind FAREWELL_LOST, one for each lost rank.
};

// Adds the loss of a rank, unless one of that rank is known or there are LOCKSTEP_LOSSES already.
void losses_add(struct losses *losses, const struct farewell *farewell);
// The loss that rank `own` names; NULL: no rank is lost. The loss of `own` itself is chosen last,
// since that rank is alive.
const struct farewell *losses_first(const struct losses *losses, uint32_t own);

// The step that a rank names when it passes on a loss that a witness told it. present: the step
// that this rank is in. The loss names the step of the witness, if any, which may be one step
// ahead: this rank may still be able to complete its present step.
uint64_t losses_word_step(const struct farewell *loss, uint64_t present);

// Combines a known verdict with one that this rank has just seen. The result, *now, has the cause
// of the known verdict and the earlier of the two steps. known: the pending verdict; NULL: there is
// none. False: the known verdict stays as it is, and *now is not written. now may equal known.
bool losses_change(const struct down_halt *known, const struct down_halt *seen,
                   struct down_halt *now);

#endif
