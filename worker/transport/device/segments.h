// SPDX-License-Identifier: Apache-2.0
//
// A row goes to the host and back by segments. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_SEGMENTS_H
#define WORKER_TRANSPORT_DEVICE_SEGMENTS_H

#include "worker/device/device.h"

#include <stdbool.h>
#include <stdint.h>

struct device_flow;
struct devices;

// Events for so many more rows of so many bytes at most, where these are several segments. 0 or -1.
int segments_reserve(struct devices *devices, uint32_t rows, uint64_t bytes);
void segments_release(struct devices *devices, struct device_flow *flow);
void segments_fini(struct devices *devices);
// Nothing of the flow goes to the host.
void segments_none(struct device_flow *flow);
// Enqueues the copies of the flow's share, which begins at `from`, to its row on the host; they are
// the last that it does on the stream (STAGE_COLLECTING). 0 or -1.
int segments_collect(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                     uint64_t from);
// Whether more has landed since: 1 or 0; -1. flow->landed says how much.
int segments_look(struct devices *devices, struct device_flow *flow);
// True if the hosts can begin with what has landed.
bool segments_may_travel(const struct devices *devices, const struct device_flow *flow);
// Enqueues the way back, to the row on the device, of what has become final, on DEVICE_DELIVER; ...
int segments_return(struct devices *devices, struct device_flow *flow);
// ... of all the rest, which is final, on that stream. 0 or -1.
int segments_return_rest(struct devices *devices, struct device_flow *flow,
                         enum device_stream stream);
// True if the device may still copy something of a flow that travels; ...
bool segments_are_under_way(const struct device_flow *flow);
// ... what DEVICE_DELIVER is given from now on comes behind all of that. 0 or -1.
int segments_gather(struct devices *devices, struct device_flow *flow);

#endif
