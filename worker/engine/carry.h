// SPDX-License-Identifier: Apache-2.0
//
// The numbers of ranks when a generation ends. A rank that has the decision takes the numbers of
// the new generation. A frozen rank may miss the decision, because its stream or its coordinator
// ended. The next ballot of the new generation then carries it over (struct down_prepare): it is a
// member that has not made any link yet. Driver only.

#ifndef WORKER_ENGINE_CARRY_H
#define WORKER_ENGINE_CARRY_H

#include <stdbool.h>
#include <stdint.h>

struct down_prepare;
struct generation_id;
struct lockstep_session;

// The present generation is over, without the set `removed` of its ranks. Caller holds the
// session's mutex.
void carry_ends_locked(struct lockstep_session *session, const uint64_t *removed);
// True if this rank is frozen in the generation that the ballot's one has ended, and was kept.
bool carry_applies(const struct lockstep_session *session, const struct down_prepare *prepare);
// This rank becomes a member of `generation`.
void carry_over(struct lockstep_session *session, const struct down_prepare *prepare,
                const struct generation_id *generation);
// True from then on until the rank has a decision.
bool carry_is_on(const struct lockstep_session *session);
// The transport names a rank: sets its number in the present generation. False: it has none.
bool carry_names(const struct lockstep_session *session, uint32_t *rank);
// What this rank knows of losses is about ranks with other numbers.
void carry_forget_losses(struct lockstep_session *session);

#endif
