// SPDX-License-Identifier: Apache-2.0
//
// Collectives whose memory is on devices, as the rest of the transport sees them, and the ways in
// which they go. Only files of the transport include it. docs/internals/data-plane.md, "Devices",
// says why it is so.

#ifndef WORKER_TRANSPORT_DEVICE_DEVICES_H
#define WORKER_TRANSPORT_DEVICE_DEVICES_H

#include "worker/device/device.h"
#include <stddef.h>

struct device;
struct device_flow;
struct device_ready;
struct devices;

#include "worker/transport/device/device_flow.h"
#include "worker/transport/flow/collective.h"
#include "worker/transport/flow/events.h"

#include <stdbool.h>
#include <stdint.h>

// ---- for worker/transport/transport.c -----------------------------------------------------------

struct flows;
struct peer_link;
struct rendezvous;

// With transport->devices NULL, on a rank without a device, none of these does anything.
int devices_open(struct flows *flows, const struct transport_config *config);
void devices_close(struct flows *flows);

void devices_launch(struct flows *flows, struct collective *collective, enum device_way way);
// Looks at what devices have done since, without waiting.
void devices_work(struct flows *flows, struct rendezvous *rendezvous);
// Reports one event. True if there was one.
bool devices_report(struct flows *flows);
// The collective of which this one is the part that hosts carry; NULL: it is one by itself.
struct collective *devices_outer(struct flows *flows, const struct collective *collective);
void devices_travelled(struct flows *flows, const struct collective *collective);
// True if something launched here waits for what that peer, which has said goodbye, may not have
// done.
bool devices_needs(struct flows *flows, const struct peer_link *peer);
bool devices_idle(const struct flows *flows);
// When to look again although nothing wakes the driver; UINT64_MAX: never.
uint64_t devices_deadline(const struct flows *flows, uint64_t now_ms);
// A block, unless *block is one already. False: there is none now. It comes when NCCL has nothing
// in flight here, because more memory may be had only when the device is at rest, and NCCL may wait
// for a rank that has died. Or the device has failed.
bool devices_take(struct devices *devices, struct device *device, struct device_block **block,
                  enum device_memory kind, size_t bytes);
void devices_give(struct device *device, struct device_block **block);
// The device has nothing more to do with the flow: it is idle.
void devices_release(struct devices *devices, struct device_flow *flow);
// Releases flows that were forgotten and that the device has come past.
void devices_work_left(struct devices *devices);
// The device has nothing more to do with what the flow holds there.
void devices_give_all(struct devices *devices, struct device_flow *flow);
// Makes idle flows until there are `count` in all. 0 or -1.
int devices_reserve_flows(struct devices *devices, uint64_t count);
// One of this rank's devices has failed: the first of them that has. NULL: none.
struct device *devices_broken(const struct devices *devices);
// All that the flow does on the device is enqueued on the stream. 0 or -1.
int devices_enqueued(struct devices *devices, struct device_flow *flow, enum device_stream stream);
// Waits on the stream for those who produce the collective's gradients. 0 or -1.
int devices_await_ready(struct devices *devices, const struct device_flow *flow,
                        enum device_stream stream);
// The same for one device and its events.
int devices_await(struct device *device, enum device_stream stream,
                  const struct device_ready *ready, uint32_t count);
// The collective is its caller's again, but for the event.
void devices_done(struct devices *devices, struct device_flow *flow);
// The same for collectives on devices with so many bytes, extents and units at most, each. Adds to
// what was reserved before. May synchronize with the device. 0, or -1: the device has no memory.
int devices_reserve(struct flows *flows, uint32_t collectives, uint64_t bytes, uint32_t extents,
                    uint32_t units);
// Room for the tables of so many more collectives with so many bytes and extents at most, each, on
// one of this rank's devices. Every array of extents keeps its own, in flight or not. The same
// otherwise.
int devices_reserve_tables(struct flows *flows, struct device *device, uint32_t collectives,
                           uint64_t bytes, uint32_t extents);
// Room on one of this rank's devices for so many more rows of replicas, of so many bytes and units
// at most, each. The same otherwise.
int devices_reserve_rows(struct flows *flows, struct device *device, uint32_t rows, uint64_t bytes,
                         uint32_t units);

#endif
