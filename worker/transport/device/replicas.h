// SPDX-License-Identifier: Apache-2.0
//
// Replicas: several copies of the same gradients in this process. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_REPLICAS_H
#define WORKER_TRANSPORT_DEVICE_REPLICAS_H

#include "worker/device/device.h"

#include <stdbool.h>

struct device_flow;
struct device_spread;
struct devices;

// Takes the table of the flow's gradients; with replicas, of the first replica. False: no memory is
// free now.
bool replicas_hold_own(struct devices *devices, struct device_flow *flow);
// Takes the memory that the further replicas need. True also without replicas. False: no memory is
// free now.
bool replicas_take(struct devices *devices, struct device_flow *flow);
// As replicas_take, but only the memory needed to write a result to the further replicas.
bool replicas_take_parts(struct devices *devices, struct device_flow *flow);
// Takes the row of the sum of the replicas, for NCCL. packs: true if the sum is packed into another
// row before NCCL sends it.
bool replicas_take_sum(struct devices *devices, struct device_flow *flow, bool packs);
// Adds up the contributions of all replicas in the row `sum` of the first device. Enqueued on
// `stream` of that device, after the streams that produce the gradients. 0 or -1.
int replicas_collect(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                     const struct device_block *sum);
// Writes a result to the further replicas, after the work enqueued on `stream`. *last: the stream
// on which all these writes have finished. 0 or -1.
int replicas_spread(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                    const struct device_spread *spread, enum device_stream *last);
// Frees the memory of the replicas of a flow. The devices must no longer use it.
void replicas_release(struct devices *devices, struct device_flow *flow);

#endif
