// SPDX-License-Identifier: Apache-2.0
//
// Ranks of the world are removed, and the others get other numbers: what the session keeps of ranks
// gets them, too. Driver, unless a function says otherwise.

#ifndef WORKER_SESSION_RENUMBER_H
#define WORKER_SESSION_RENUMBER_H

#include <stdint.h>

struct lockstep_session;

// The first world of `size` ranks forms. Caller holds the session's mutex, as for the next one.
void renumber_begin_locked(struct lockstep_session *session, uint32_t size);
// The present world loses the set `removed`, of which this rank is none. Called before the session
// has the rank and the size of the new world.
void renumber_locked(struct lockstep_session *session, const uint64_t *removed);

// The trainer hears of all changes so far. Only now do the receives that it has not waited for name
// their sender by its number of now: the trainer could not know that number before. Caller holds
// the session's mutex. Trainer.
void renumber_tell_locked(struct lockstep_session *session);

#endif
