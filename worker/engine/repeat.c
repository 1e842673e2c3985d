// SPDX-License-Identifier: Apache-2.0
//
// Repeats the buffers of a step after a death: see repeat.h.
//
// A rank joins the commit wave of a step when its buffers are final (commit_held). So if one rank
// has settled the step, all buffers are final on every rank. Otherwise all members have the step
// open, and all of them put back their copies (struct buffer_group.kept) and exchange them again. A
// broadcast comes from the root, or from the next rank if the root is gone, and always as a whole.
// A rank that is not in step_end yet exchanges its buffers when it is. Driver only.

#include "worker/engine/repeat.h"

#include "worker/device/device.h"
#include "worker/engine/accord.h"
#include "worker/engine/tell.h"
#include "worker/kernels/kernels.h"
#include "worker/session/session.h"
#include "worker/session/work.h"

#include <string.h>

const char *repeat_freeze(struct lockstep_session *session)
{
    struct engine_state *engine = &session->engine;
    const char *why = accord_freeze(session);
    if (engine->buffers_in_flight > 0 && !engine->order->open)
        why = "lockstep_state_sync is in flight";
    if (why)
        return why;
    engine->plain_in_flight = engine->buffers_in_flight = 0;
    engine->commit_held = false;
    return NULL;
}

static bool repeat_is_buffers(const struct lockstep_session *session,
                              const struct lockstep_work *work)
{
    return work >= session->works.all + LOCKSTEP_MAX_PLAIN && session->engine.order->open;
}

bool repeat_holds(struct lockstep_session *session, struct lockstep_work *work)
{
    if (accord_holds(session, work))
        return true;
    if (!session->engine.order->recovery.frozen)
        return false;
    if (repeat_is_buffers(session, work)) {
        work->step = session->engine.order->step;
        return true;
    }
    session->end.over_abruptly = true;
    engine_fail(session, LOCKSTEP_E_PEER_LOST,
                "a rank was lost, and this rank cannot go on without it: a collective of the "
                "library was begun");
    return true;
}

// Nothing has been exchanged on a device before the trainer's stream has come to the exchange, and
// the copies may not be there before that.
static void repeat_put_back(const struct lockstep_session *session,
                            const struct buffer_group *group)
{
    const struct collective *collective = &group->work->collective;
    struct device *device = group->on_devices ? session->devices.first : NULL;
    const uint8_t *kept = group->kept;
    if (device && group->ready.pending && device_event_query(device, group->ready.event) == 0)
        return;
    for (uint32_t i = 0; i < collective->extent_count; i++) {
        const uint64_t bytes = collective->extents[i].elements * dtype_size(collective->dtype);
        if (device)
            (void)device_copy(device, collective->extents[i].out, kept, bytes);
        else
            memcpy(collective->extents[i].out, kept, bytes);
        kept += bytes;
    }
}

void repeat_go_on(struct lockstep_session *session)
{
    const struct order *order = session->engine.order;
    if (!order->open) // The trainer may be making the groups.
        return;
    for (uint32_t g = 0; g < session->buffers.group_count; g++) {
        const struct buffer_group *group = &session->buffers.groups[g];
        struct lockstep_work *work = group->work;
        if (work->step != order->step)
            continue;
        repeat_put_back(session, group);
        work->collective.state = NULL;
        mutex_lock(&session->mutex);
        work->state = WORK_IN_FLIGHT;
        mutex_unlock(&session->mutex);
        work_launch(work);
    }
}
