// SPDX-License-Identifier: Apache-2.0
//
// NCCL sums between devices, and the hosts reduce that. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_MIXED_H
#define WORKER_TRANSPORT_DEVICE_MIXED_H

#include <stdint.h>

struct device_flow;
struct devices;
struct transport_world;

// Until the hosts have it: then it goes on as a staged one.
int mixed_work(struct devices *devices, struct device_flow *flow);
// How much longer than its elements a row has to be.
uint64_t mixed_spare_bytes(const struct transport_world *world);

#endif
