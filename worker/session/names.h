// SPDX-License-Identifier: Apache-2.0
//
// The names of plain collectives, and how often this rank has used each. The k-th use of a name on
// this rank meets the k-th use on the other ranks, so the uses of a name are never forgotten while
// they may matter.

#ifndef WORKER_SESSION_NAMES_H
#define WORKER_SESSION_NAMES_H

#include <stdbool.h>
#include <stdint.h>

struct lockstep_group;
struct lockstep_session;

struct name_use {
    uint64_t hash; // Hash of the name; 0: this entry is free.
    uint32_t uses;
    uint64_t group; // The space of the group whose name it is; 0: it is no group's.
    uint64_t last; // works.name_number at the last use; 0: the name is no group's.
};
#define SESSION_MAX_NAMES 4096
// The rest is for the library's own names: lockstep_start has to work when a trainer has used up
// its names.
#define SESSION_NAME_PLACES (SESSION_MAX_NAMES + 256)

// Groups of different names and ranks that one session makes, one after the other. A program that
// makes one in every step reaches it after hours. The table has 64 MiB then.
#define SESSION_MAX_MADE (1 << 20)

// True if the name is one of the library's.
bool names_is_of_library(const char *name);

// Callers of these functions hold the session's mutex.

// Makes room for two more names if there is none: forgets names of closed groups, the one that was
// used longest ago first. A name stays as long as there is room, because another member may still
// be in its last use, and the coordinator may ask whether this rank has been there. When thousands
// of other names were used since, no member is there any more. All pointers to names are invalid
// then.
void names_make_room_locked(struct lockstep_session *session);
// Returns the entry of the name with this hash, or NULL with the error text set. name: tells the
// library's names from a trainer's. group: the group whose name it is, or NULL. A new name makes
// room as above.
struct name_use *names_use_locked(struct lockstep_session *session, const char *name,
                                  const struct lockstep_group *group, uint64_t hash);
// True if the session may have one more name; else the error text is set.
bool names_have_room_locked(const struct lockstep_session *session);
// Sets *use to the entry that counts how often this rank has made the group with this hash of its
// name and ranks, valid until the next call. Such an entry is never forgotten: each making of a
// group has names of its own, and members number the makings alike. E_INVALID for a group too many,
// E_SYSTEM without memory.
int names_made_locked(struct lockstep_session *session, uint64_t hash, struct name_use **use);
// Returns how many collectives with this hash of a name this rank has begun.
uint32_t names_uses_locked(const struct lockstep_session *session, uint64_t hash);

#endif
