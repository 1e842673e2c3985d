// SPDX-License-Identifier: Apache-2.0
//
// Collectives of devices that the hosts carry. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_STAGED_H
#define WORKER_TRANSPORT_DEVICE_STAGED_H

#include <stdint.h>

struct collective;
struct device_flow;
struct devices;

int staged_work(struct devices *devices, struct device_flow *flow);
// The input of the flow's share is in the row on the host.
int staged_travel(struct devices *devices, struct device_flow *flow);
int staged_travelled(struct devices *devices, struct device_flow *flow);
uint64_t staged_bytes(const struct collective *collective); // Size of the row on the host.
// Its result, which has come to the host, goes to the device as soon as it may.
int staged_deliver(struct devices *devices, struct device_flow *flow);

#endif
