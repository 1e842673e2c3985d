// SPDX-License-Identifier: Apache-2.0
//
// Collectives of every kind and of groups, as the trainer describes them (struct
// lockstep_collective). plain.c turns a description into a struct lockstep_work; from then on
// work.c has it.

#ifndef WORKER_SESSION_PLAIN_H
#define WORKER_SESSION_PLAIN_H

#include <lockstep/lockstep.h>
#include <stdbool.h>
#include <stdint.h>

struct lockstep_group;
struct lockstep_session;
struct lockstep_work;

// Checks the description and begins the collective. Returns 0, or a failure. Trainer.
int plain_begin(struct lockstep_session *session, const struct lockstep_collective *what,
                struct lockstep_work **begun);
// The same for a collective of the library itself: its name may be one of the library's, and the
// session's descriptor says nothing of its end.
int plain_begin_library(struct lockstep_session *session, const struct lockstep_collective *what,
                        struct lockstep_work **begun);
// As plain_begin, and waits for it. After LOCKSTEP_E_TIMEOUT the work is still in flight. told:
// true if the wait may be reported (await.h).
int plain_call(struct lockstep_session *session, const struct lockstep_collective *what,
               uint32_t timeout_ms, bool told, struct lockstep_work **begun);
// Waits until all members of a new group have made it. Returns 0, or a failure.
int plain_meet(struct lockstep_group *group);
// Returns the space of the tag of a send and its receive. from and to: places in the group, or
// among all ranks. Caller holds the session's mutex.
uint64_t plain_pair_space(const struct lockstep_session *session, const char *name,
                          const struct lockstep_group *group, uint32_t tag, uint32_t from,
                          uint32_t to);
// The work is freed: gives up what plain_begin has allocated for it. Caller holds the session's
// mutex.
void plain_end_locked(struct lockstep_work *work);

#endif
