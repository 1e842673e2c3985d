// SPDX-License-Identifier: Apache-2.0
//
// Results on devices that must wait for a stream which is not known yet. Where a rank has reported
// no gradient, a stream of its trainer may still write there, for instance zeros. The library
// learns which stream that is when the trainer waits for the results (struct device_behind). Until
// then the result is held here; the collective itself has travelled, and other ranks notice
// nothing. Then the result is enqueued on a separate stream, DEVICE_BEHIND, so that no other work
// waits for the trainer.
//
// If no rank has used such a gradient, no result is written there, and none is held. The driver's
// thread.

#include "worker/transport/device/dependency.h"

#include "worker/memory/units.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/parts.h"

static const struct device_ready *dependency_ready(const struct device_flow *flow)
{
    const struct device_behind *behind = flow->collective->behind;
    return behind ? atomic_load_explicit(&behind->ready, memory_order_acquire) : NULL;
}

bool dependency_is_known(const struct device_flow *flow)
{
    return !flow->collective->behind || dependency_ready(flow);
}

// What comes by a broadcast has no input here: this rank is not its root.
static bool dependency_is_written(const struct collective *collective, const struct extent *extents,
                                  uint32_t count)
{
    struct ring_span span = {.first = 0};
    for (uint32_t i = 0; i < count; i++) {
        const struct extent *extent = &extents[i];
        span.first += span.count;
        span.count = extent->elements;
        const bool reported = extent->in && collective->kind != COLLECTIVE_BROADCAST;
        if (reported || !extent->out || extent->elements == 0)
            continue;
        if (units_usage(collective->used, units_met(collective->unit_ends, collective->unit_count,
                                                    span)) != USAGE_NONE)
            return true;
    }
    return false;
}

// Each replica may have gradients without input.
bool dependency_matters(const struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    if (!collective->behind)
        return false;
    for (uint32_t r = 0; r < collective->replica_count; r++) {
        const struct collective_replica *replica = &collective->replicas[r];
        if (dependency_is_written(collective, replica->extents, replica->extent_count))
            return true;
    }
    return collective->replica_count == 0 &&
           dependency_is_written(collective, collective->extents, collective->extent_count);
}

int dependency_wait(struct devices *devices, const struct device_flow *flow)
{
    const struct device_ready *ready = dependency_ready(flow);
    return ready ? devices_await(devices->device, DEVICE_BEHIND, ready, devices->device_count) : 0;
}

const struct device_ready *dependency_awaited(const struct devices *devices,
                                              const struct device_flow *flow)
{
    const struct device_ready *ready = dependency_ready(flow);
    for (uint32_t i = 0; flow->stage == STAGE_DELIVERING && ready && i < devices->device_count;
         i++) {
        if (ready[i].pending && device_event_query(devices->all[i], ready[i].event) == 0)
            return &ready[i];
    }
    return NULL;
}
