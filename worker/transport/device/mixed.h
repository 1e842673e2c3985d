// SPDX-License-Identifier: Apache-2.0
//
// DEVICE_WAY_MIXED: NCCL sums between devices, and the hosts reduce these sums. The driver's
// thread.

#ifndef WORKER_TRANSPORT_DEVICE_MIXED_H
#define WORKER_TRANSPORT_DEVICE_MIXED_H

#include <stdint.h>

struct device_flow;
struct devices;
struct transport_world;

// Continues a flow until its share is on the host; from then on staged_work continues it. 0 or -1.
int mixed_work(struct devices *devices, struct device_flow *flow);
// Bytes that a row needs in addition to its elements, because shares are equally long.
uint64_t mixed_spare_bytes(const struct transport_world *world);

#endif
