// SPDX-License-Identifier: Apache-2.0
//
// Chooses the algorithm of a collective in the session's world. protos/tuning.h has the rules. Any
// thread, once the world has formed.

#include "worker/session/world.h"

#include "protos/tuning.h"
#include "worker/kernels/kernels.h"
#include "worker/session/session.h"

struct tuning_world world_of_tuning(const struct lockstep_session *session)
{
    return (struct tuning_world){.world_size = session->world.size, .hosts = session->world.hosts};
}

enum plan_algorithm world_algorithm(const struct lockstep_session *session,
                                    const struct collective *collective)
{
    const struct tuning_world world = world_of_tuning(session);
    return tuning_choose(&session->world.tuning, &world, collective->kind == COLLECTIVE_BROADCAST,
                         collective->elements * dtype_size(collective->dtype));
}
