// SPDX-License-Identifier: Apache-2.0
//
// Several replicas of the same gradients in this process. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_REPLICAS_H
#define WORKER_TRANSPORT_DEVICE_REPLICAS_H

#include "worker/device/device.h"

#include <stdbool.h>

struct device_flow;
struct device_spread;
struct devices;

// The table of the flow's own gradients; with replicas, those of the first one. False: no memory
// now.
bool replicas_hold_own(struct devices *devices, struct device_flow *flow);
// Takes what the further replicas need. True without any. False: there is no memory for it now.
bool replicas_take(struct devices *devices, struct device_flow *flow);
// Only what is needed to write a result to them.
bool replicas_take_parts(struct devices *devices, struct device_flow *flow);
// And where NCCL sends their sum; packs: as another row than that.
bool replicas_take_sum(struct devices *devices, struct device_flow *flow, bool packs);
// Adds up what the replicas contribute in a row of the first device: enqueued on that stream of it,
// behind those who produce it. 0 or -1.
int replicas_collect(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                     const struct device_block *sum);
// Writes a result to the further replicas, too, behind what is enqueued on that stream. *last is
// the stream on which all of that has an end. 0 or -1.
int replicas_spread(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                    const struct device_spread *spread, enum device_stream *last);
// The devices have nothing more to do with it.
void replicas_release(struct devices *devices, struct device_flow *flow);

#endif
