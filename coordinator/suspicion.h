// SPDX-License-Identifier: Apache-2.0
//
// Members that others have lost without a proof of death. Runs inside coordinator_step.

#ifndef COORDINATOR_SUSPICION_H
#define COORDINATOR_SUSPICION_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct up_lost;
struct worker;

// A link between two members has ended, and nothing proves that `peer` is dead. Returns true if
// that is not enough to go on without it: a proof is sought, and nothing follows from the loss yet.
bool suspicion_awaits(struct coordinator *core, const struct worker *accuser, struct worker *peer,
                      const struct up_lost *lost);
// The link between two members is cut, and both are alive. Returns the one that is removed: the one
// of whose host fewer ranks are left, so that a cut between two hosts takes the ranks of one of
// them; else the accused one.
struct worker *suspicion_loser(struct coordinator *core, const struct job *job,
                               const struct worker *accuser, struct worker *accused);
void suspicion_tick(struct coordinator *core, struct job *job);
// When suspicion_tick is due; UINT64_MAX: never.
uint64_t suspicion_deadline(const struct job *job);

#endif
