// SPDX-License-Identifier: Apache-2.0
//
// The functions of uneven.c that step.c calls. Trainer.

#ifndef WORKER_API_UNEVEN_H
#define WORKER_API_UNEVEN_H

#include <stdint.h>

struct lockstep_session;
struct lockstep_step_options;

// Checks what the options say of this rank's data.
int uneven_check(const struct lockstep_session *session,
                 const struct lockstep_step_options *options);
// The first step after lockstep_uneven_set begins. If ranks had finished before, a number is left
// out.
void uneven_skip(struct lockstep_session *session);
// Agrees with all ranks on which of them still have data, and sets *exhausted to the number of the
// others. If this rank has none, its options become the agreed phase, and weight 0 unless it keeps
// its weight. LOCKSTEP_FINISHED: no step follows.
int uneven_agree(struct lockstep_session *session, struct lockstep_step_options *options,
                 uint32_t *exhausted);

#endif
