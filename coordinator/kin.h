// SPDX-License-Identifier: Apache-2.0
//
// Compares the generation of a returning member with the job's. They differ if another coordinator
// of the job has decided meanwhile. Runs inside coordinator_step.

#ifndef COORDINATOR_KIN_H
#define COORDINATOR_KIN_H

#include "coordinator/coordinator.h"
#include "protos/types.h"

#include <stdbool.h>

struct job;
struct worker;

enum kinship {
    KIN_UNKNOWN, // The two cannot be compared: not of one first generation.
    KIN_SAME, // They are one.
    KIN_BEHIND, // The member's is older, and the member is one of the job's, too.
    KIN_AHEAD, // The member's is newer: it is to become the job's.
    KIN_REMOVED, // The member's is older, and the others have gone on without the member.
};

enum kinship kin_of(const struct job *job, const struct up_hello *hello);
// True if the chain of a hello ends with the generation that the hello names.
bool kin_is_coherent(const struct up_resume *resume);
// Makes the newest generation of the hello the job's. Members that are connected, and that have
// started an older one, are behind. Returns NULL, or why that is not possible.
const char *kin_adopt(struct coordinator *core, struct job *job, const struct up_hello *hello);
// A member that is behind has a proof that a rank of its own generation is dead. Returns the rank
// in the job's generation, or CORE_NONE: it has none, and the proof is noted.
uint32_t kin_dead(struct job *job, const struct worker *behind, uint32_t rank);
// Says to a rank that the others have gone on without it. generation: the rank's own. now: that of
// the others.
void kin_exclude(struct coordinator *core, coordinator_peer peer, struct generation_id generation,
                 struct generation_id now, const char *text);
// Removes a member that the decision of `ballot` left out, and that was told so. The stream of a
// member that obeys stays open until the member has ended. A member that has promised more does not
// obey (M6): its stream ends, and it is told again when it comes back (M7). member: its rank in the
// job's first generation.
void kin_remove(struct coordinator *core, struct job *job, struct worker *worker, uint32_t member,
                struct generation_id ballot);
// The same for a removed rank that has come back and obeys. Returns false if there is no room.
bool kin_seat_removed(struct coordinator *core, struct job *job, coordinator_peer peer,
                      const struct up_hello *hello, uint32_t member);
// A removed rank has ended: it has left, or there is proof. A quorum may be there now (M2).
void kin_ended(struct coordinator *core, struct job *job, const struct worker *worker);

#endif
