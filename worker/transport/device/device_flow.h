// SPDX-License-Identifier: Apache-2.0
//
// The functions of device_flow.c that other files call.

#ifndef WORKER_TRANSPORT_DEVICE_DEVICE_FLOW_H
#define WORKER_TRANSPORT_DEVICE_DEVICE_FLOW_H

#include "worker/transport/device/devices.h"

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct transport_world;

enum device_way device_way_of(const struct transport_world *world,
                              const struct collective *collective);
// How many ranks of the world have a device.
uint32_t device_ranks(const struct transport_world *world);
// Whether some collectives of this world have to be launched in one order on all ranks that have a
// device, because NCCL sums them: there are two of these at least, and all have one, or they meet.
bool transport_is_strict(const struct transport_world *world);

#endif
