// SPDX-License-Identifier: Apache-2.0
//
// The numbers of ranks when a generation ends: what a session knows by them takes the numbers of
// the new generation, or is forgotten. Driver only.

#ifndef WORKER_ENGINE_CARRY_H
#define WORKER_ENGINE_CARRY_H

#include <stdint.h>

struct commit_wave;
struct down_prepare;
struct lockstep_session;

// The present generation is over, without the set `removed` of its ranks. step: the first one of
// the next generation. Caller holds the session's mutex.
void carry_ends_locked(struct lockstep_session *session, const uint64_t *removed, uint64_t step);
// What this rank knows of losses is about ranks with other numbers.
void carry_forget_losses(struct lockstep_session *session);
// The suspects of a ballot are losses that this rank tells another coordinator if this one ends.
void carry_note(struct lockstep_session *session, const struct down_prepare *prepare);
// This rank's part of the commit wave of a step was filled when the rank may have had another
// number: sets the number. If a rank was lost in that step, all modules count as called with a
// weight: the lost rank may have been the only one that had one. The merged wave gives all
// survivors the same verdict. Caller holds the session's mutex.
void carry_adapt_locked(const struct lockstep_session *session, uint64_t step,
                        struct commit_wave *own);

#endif
