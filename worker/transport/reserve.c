// SPDX-License-Identifier: Apache-2.0
//
// See reserve.h. Engine thread.

#include "worker/transport/reserve.h"

#include "worker/transport/device/devices.h"
#include "worker/transport/device/offload.h"
#include "worker/transport/state.h"

void transport_reserve(struct transport *transport, uint32_t collectives)
{
    transport->flows.reserved = collectives;
    flows_reserve(&transport->flows);
}

int transport_reserve_device(struct transport *transport, uint32_t collectives, uint64_t bytes,
                             uint32_t extents, uint32_t units)
{
    return devices_reserve(&transport->flows, collectives, bytes, extents, units);
}

int transport_reserve_tables(struct transport *transport, struct device *device,
                             uint32_t collectives, uint64_t bytes, uint32_t extents)
{
    return devices_reserve_tables(&transport->flows, device, collectives, bytes, extents);
}

int transport_reserve_rows(struct transport *transport, struct device *device, uint32_t rows,
                           uint64_t bytes, uint32_t units)
{
    return devices_reserve_rows(&transport->flows, device, rows, bytes, units);
}

int transport_reserve_offload(struct transport *transport, uint32_t collectives, uint64_t bytes,
                              uint64_t largest, uint32_t units)
{
    return offload_reserve(&transport->flows, collectives, bytes, largest, units);
}
