// SPDX-License-Identifier: Apache-2.0
//
// The driver's answer to the watch: its links, and what the step waits for. Driver only.

#include "worker/engine/inspect.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/engine/landing.h"
#include "worker/session/group.h"
#include "worker/session/module/claims.h"
#include "worker/session/session.h"
#include "worker/session/shape.h"
#include "worker/transport/inspect.h"
#include "worker/watch/watch.h"

#include <inttypes.h>
#include <stdio.h>

static const char *inspect_kind(const struct lockstep_work *work)
{
    if (work->creates)
        return "group_create";
    if (work->kind != 0)
        return shape_name(work->kind);
    return work->collective.kind == COLLECTIVE_BROADCAST ? "broadcast" : "allreduce";
}

static void inspect_doing(struct lockstep_session *session, char *doing, size_t bytes)
{
    struct text text;
    text_init(&text, doing, bytes);
    mutex_lock(&session->mutex);
    const struct lockstep_work *work = session->works.awaited;
    if (work)
        text_append(&text, "%s '%s' #%" PRIu32, inspect_kind(work), work->name,
                    work->collective.tag.slot);
    if (work && work->group && !work->creates)
        text_append(&text, " of group '%s'", work->group->name);
    mutex_unlock(&session->mutex);
}

static void inspect_modules(const struct lockstep_session *session, const char *phase,
                            struct answer_place *place)
{
    text_copy(place->phase, sizeof(place->phase), phase);
    for (uint32_t i = 0; i < session->module_count && place->missing_total == 0; i++)
        call_missing(session->modules[i], place);
}

// Names the missing gradients of the first module that lacks any. Reads modules only while a step
// is open: no module is closed then. The driver itself ends a step that travels. The trainer ends
// one that only accumulates, and needs the mutex for that.
static void inspect_missing(struct lockstep_session *session, struct answer_place *place)
{
    if (session->end.over || atomic_load(&session->gate.failed))
        return;
    mutex_lock(&session->mutex);
    const bool accumulates = session->step.accumulates;
    if (accumulates)
        inspect_modules(session, session->step.phase, place);
    mutex_unlock(&session->mutex);
    if (!accumulates && session->engine.order->open)
        inspect_modules(session, session->engine.phase, place);
}

// Names NCCL as what is awaited, with its last error, if it has reported one.
static void inspect_nccl(const struct lockstep_session *session, struct answer_place *place)
{
    char said[LOCKSTEP_NAME_BYTES];
    transport_inspect_nccl(session->transport, said, sizeof(said));
    if (said[0] != '\0')
        snprintf(place->awaited, sizeof(place->awaited), "NCCL (it said last: '%s')", said);
}

// Finds what this rank's device waits for. The awaited collective is in flight, so its module is
// not closed meanwhile.
static enum device_hold inspect_held(struct lockstep_session *session, struct answer_place *place)
{
    const struct device_held held = transport_inspect_device(session->transport);
    if (held.hold == DEVICE_HOLD_STREAM) {
        engine_describe_held(session, &held, place->awaited, sizeof(place->awaited));
        place->stream = held.ready ? (uint64_t)(uintptr_t)held.ready->stream : 0;
    }
    if (held.hold == DEVICE_HOLD_NCCL)
        inspect_nccl(session, place);
    return held.hold;
}

void inspect_answer(struct lockstep_session *session)
{
    struct watch_driven driven = {.link_count = 0};
    driven.held = inspect_held(session, &driven.place);
    driven.link_count =
        transport_inspect(session->transport, clock_now_ms(), driven.links, LOCKSTEP_LINKS_NAMED);
    inspect_missing(session, &driven.place);
    inspect_doing(session, driven.place.doing, sizeof(driven.place.doing));
    watch_driven(session->watch, &driven);
}
