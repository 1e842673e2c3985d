// SPDX-License-Identifier: Apache-2.0
//
// Copies a row to the host and back in segments. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_SEGMENTS_H
#define WORKER_TRANSPORT_DEVICE_SEGMENTS_H

#include "worker/device/device.h"

#include <stdbool.h>
#include <stdint.h>

struct device_flow;
struct devices;

// Reserves the events for `rows` more rows of at most `bytes`, if such a row has several segments.
// 0 or -1.
int segments_reserve(struct devices *devices, uint32_t rows, uint64_t bytes);
void segments_release(struct devices *devices, struct device_flow *flow);
void segments_fini(struct devices *devices);
// Marks the flow as one without copies to the host: all its elements count as landed.
void segments_none(struct device_flow *flow);
// Enqueues the copies of the flow's share, which begins at address `from`, to its row on the host,
// as its last work on the stream (STAGE_COLLECTING). 0 or -1.
int segments_collect(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                     uint64_t from);
// Checks whether more segments have landed on the host. 1: yes, flow->landed has grown; 0: no; -1:
// the device has failed.
int segments_look(struct devices *devices, struct device_flow *flow);
// True if the hosts can begin with the segments that have landed.
bool segments_may_travel(const struct devices *devices, const struct device_flow *flow);
// Enqueues on DEVICE_DELIVER the copy of segments that have become final, back to the row on the
// device. 0 or -1.
int segments_return(struct devices *devices, struct device_flow *flow);
// Enqueues on `stream` the copy of all remaining elements, which must be final, back to the row on
// the device. 0 or -1.
int segments_return_rest(struct devices *devices, struct device_flow *flow,
                         enum device_stream stream);
// True if the device may still be copying segments of a flow in STAGE_TRAVELLING.
bool segments_are_under_way(const struct device_flow *flow);
// Makes DEVICE_DELIVER wait for all these copies. 0 or -1.
int segments_gather(struct devices *devices, struct device_flow *flow);

#endif
