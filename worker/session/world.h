// SPDX-License-Identifier: Apache-2.0
//
// The functions of world.c that other files call.

#ifndef WORKER_SESSION_WORLD_H
#define WORKER_SESSION_WORLD_H

#include "protos/tuning.h"
#include "protos/types.h"

struct collective;
struct lockstep_session;

// What the rule of protos/tuning.h asks of the world.
struct tuning_world world_of_tuning(const struct lockstep_session *session);
// How a collective of such a kind, dtype and elements travels: the same on all ranks.
enum plan_algorithm world_algorithm(const struct lockstep_session *session,
                                    const struct collective *collective);

#endif
