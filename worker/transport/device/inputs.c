// SPDX-License-Identifier: Apache-2.0
//
// See inputs.h. A stream of its own, DEVICE_READY, waits for the gradients, so that no other work
// waits for the trainer.

#include "worker/transport/device/inputs.h"

#include "worker/transport/device/devices.h"
#include "worker/transport/device/parts.h"

static bool inputs_lack(struct device *device, const struct device_ready *ready, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ready[i].pending && device_happened(device, ready[i].event) == 0)
            return true;
    }
    return false;
}

bool inputs_are_made(const struct devices *devices, const struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    for (uint32_t i = 0; i < collective->replica_count; i++) {
        const struct collective_replica *replica = &collective->replicas[i];
        device_enter(replica->device);
        const bool lacks = inputs_lack(replica->device, replica->ready, replica->ready_count);
        device_leave(replica->device);
        if (lacks)
            return false;
    }
    return !inputs_lack(devices->device, collective->ready, collective->ready_count);
}

int inputs_ring(struct devices *devices, const struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    int status = devices_await_ready(devices, flow, DEVICE_READY);
    for (uint32_t i = 0; i < collective->replica_count && status == 0; i++)
        status = devices_await(devices->device, DEVICE_READY, collective->replicas[i].ready,
                               collective->replicas[i].ready_count);
    return status < 0 ? -1 : device_ring(devices->device, DEVICE_READY);
}
