// SPDX-License-Identifier: Apache-2.0
//
// DEVICE_WAY_STAGED: collectives on devices that the hosts reduce. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_STAGED_H
#define WORKER_TRANSPORT_DEVICE_STAGED_H

#include <stdint.h>

struct collective;
struct device_flow;
struct devices;

int staged_work(struct devices *devices, struct device_flow *flow);
// Called when the input of the flow's share is on the host, at least its first segments: launches
// the collective of the hosts. 0 or -1.
int staged_travel(struct devices *devices, struct device_flow *flow);
int staged_travelled(struct devices *devices, struct device_flow *flow);
uint64_t staged_bytes(const struct collective *collective); // Size of the row on the host.
// Delivers a result on the host to the device, or holds it until the trainer has named the events
// to wait for. 0 or -1.
int staged_deliver(struct devices *devices, struct device_flow *flow);

#endif
