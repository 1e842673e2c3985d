// SPDX-License-Identifier: Apache-2.0
//
// What collectives on this rank's device wait for, to explain a stall. Changes no state. The
// driver's thread; not between device_enter and device_leave.

#include "worker/transport/device/inspect.h"

#include "base/text.h"
#include "worker/transport/device/dependency.h"
#include "worker/transport/device/parts.h"

static const struct device_ready *
devices_first_unready(struct device *device, const struct device_ready *ready, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ready[i].pending && device_event_query(device, ready[i].event) == 0)
            return &ready[i];
    }
    return NULL;
}

static const struct device_ready *devices_unready(const struct devices *devices,
                                                  const struct collective *collective)
{
    const struct device_ready *unready =
        devices_first_unready(devices->device, collective->ready, collective->ready_count);
    for (uint32_t r = 1; r < collective->replica_count && !unready; r++) {
        const struct collective_replica *replica = &collective->replicas[r];
        unready = devices_first_unready(replica->device, replica->ready, replica->ready_count);
    }
    return unready;
}

// The stream of the trainer that a flow waits for; NULL: none.
static const struct device_ready *devices_awaited(const struct devices *devices,
                                                  const struct device_flow *flow)
{
    const bool has_input = flow->way != DEVICE_WAY_NCCL && flow->stage > STAGE_COLLECTING;
    const struct device_ready *ready =
        has_input ? NULL : devices_unready(devices, flow->collective);
    return ready ? ready : dependency_awaited(devices, flow);
}

// True if only the device is awaited.
static bool devices_is_at_work(const struct device_flow *flow)
{
    return flow->stage == STAGE_COLLECTING || flow->stage == STAGE_OFFLOADING ||
           flow->stage == STAGE_DELIVERING;
}

// Collectives of NCCL start one after the other, so this stops at the first that waits for other
// ranks: later ones cannot be the cause of a stall.
struct device_held device_inspect(struct flows *flows)
{
    const struct devices *devices = flows->devices;
    thread_assert(&flows->thread);
    if (!devices)
        return (struct device_held){.hold = DEVICE_HOLD_NONE};
    list_for_each (node, &devices->working) {
        const struct device_flow *flow = list_entry(node, struct device_flow, turn);
        const struct device_ready *ready = devices_awaited(devices, flow);
        if (ready)
            return (struct device_held){DEVICE_HOLD_STREAM, flow->collective, ready};
        if (device_flow_needs_ranks(flow))
            return (struct device_held){.hold = DEVICE_HOLD_NCCL};
        if (devices_is_at_work(flow))
            return (struct device_held){DEVICE_HOLD_STREAM, flow->collective, NULL};
    }
    return (struct device_held){.hold = DEVICE_HOLD_NONE};
}

void device_inspect_nccl(const struct flows *flows, char *text, size_t bytes)
{
    const struct devices *devices = flows->devices;
    text[0] = '\0';
    thread_assert(&flows->thread);
    if (devices && devices->communicator)
        communicator_said(devices->communicator, text, bytes);
}
