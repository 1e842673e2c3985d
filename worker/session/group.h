// SPDX-License-Identifier: Apache-2.0
//
// Groups of ranks that make collectives among themselves. After a death a group has the members
// that are left, in their order, and the numbers that they have in the new world.

#ifndef WORKER_SESSION_GROUP_H
#define WORKER_SESSION_GROUP_H

#include "protos/limits.h"
#include "worker/transport/flow/collective.h"

#include <stdbool.h>
#include <stdint.h>

struct lockstep_session;

struct lockstep_group {
    // set when the group is made, then constant
    struct lockstep_session *session;
    char name[LOCKSTEP_GROUP_NAME_BYTES];
    // Hash of the name and the ranks, and from the meeting of the members on also of how often they
    // had made the group before: each making has names of its own.
    uint64_t space;
    uint64_t changes; // Changes of the world before it.
    uint32_t modules; // trainer; modules of this group that are registered.
    // Written by the driver under the session's mutex when a generation forms.
    uint32_t rank; // This rank's place.
    uint32_t size;
    bool whole; // True if all ranks of the world are members.
    uint64_t members[LOCKSTEP_RANK_WORDS]; // One bit for each rank of the world.
    // All members, for collectives of which they need nothing but the ranks.
    struct collective_parts everyone;
    struct collective_part *ranks; // [size]: the world's ranks of the members, in their order.
    uint32_t *origins; // [size]: the places that the members had when the group was made.
    // guarded by the session's mutex
    uint32_t works; // Work of this group that the trainer has not waited for.
    struct lockstep_group *next; // In works.groups.
};

// Checks the arguments, makes a group, and adds it to the session's. The members have not met yet.
// Returns 0, or a failure. Trainer.
int group_make(struct lockstep_session *session, const uint32_t *ranks, uint32_t count,
               const char *name, struct lockstep_group **made);
// The members have met. making: how often they had made a group of this name and these ranks
// before.
void group_number(struct lockstep_group *group, uint32_t making);
// Removes the group from the session and frees it. Returns 0, or a failure if work of it was not
// waited for. Trainer.
int group_free(struct lockstep_group *group);
// Frees all groups of a session that is being closed.
void group_free_all(struct lockstep_session *session);

// The world of `size` ranks loses the set `removed`, of which this rank is none. Caller holds the
// session's mutex.
void group_renumber_locked(struct lockstep_group *group, const uint64_t *removed, uint32_t size);

// Returns the place of a rank of the world; UINT32_MAX: it is no member. group NULL: all ranks.
uint32_t group_place(const struct lockstep_group *group, uint32_t rank);
// True if this member has the lowest number in the world.
bool group_begins_with(const struct lockstep_group *group, uint32_t rank);
// The world's rank of the member at this place. group NULL: all ranks.
static inline uint32_t group_rank(const struct lockstep_group *group, uint32_t place)
{
    return group ? group->ranks[place].rank : place;
}

#endif
