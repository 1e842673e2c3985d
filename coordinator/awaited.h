// SPDX-License-Identifier: Apache-2.0
//
// Finds out which ranks a blocked rank waits for. Changes no state. Runs inside coordinator_step,
// and in views.

#ifndef COORDINATOR_AWAITED_H
#define COORDINATOR_AWAITED_H

#include "coordinator/coordinator.h"

#include <stdbool.h>
#include <stdint.h>

struct await;
struct worker;

// True if the rank is one of the members. Zeros stand for all ranks.
bool awaited_member(const uint64_t members[LOCKSTEP_RANK_WORDS], uint32_t rank);
// True if the wait needs something of this rank, done or not. A wait that is not reported
// (AWAIT_NONE) may need every rank.
bool awaited_concerns(const struct await *await, uint32_t rank);
// True if the rank has begun the collective that the wait is for, and its device does not hold up
// its part: then the rank is not in the way of the wait.
bool awaited_begun(const struct await *await, const struct worker *worker);
// True if the wait is for this culprit of a stall of this kind. A rank that is silent, or whose
// device holds it up, may have begun the collective and still be in the way.
bool awaited_culprit(const struct await *await, const struct worker *culprit, enum stall_kind kind);

#endif
