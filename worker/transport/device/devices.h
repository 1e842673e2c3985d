// SPDX-License-Identifier: Apache-2.0
//
// Collectives whose memory is on devices: the interface for the rest of the transport. Only files
// of the transport include it. docs/internals/data-plane.md, "Devices", explains the design.

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

// On a rank without a device flows->devices is NULL, and these functions do nothing.
int devices_open(struct flows *flows, const struct transport_config *config);
void devices_close(struct flows *flows);

void devices_launch(struct flows *flows, struct collective *collective, enum device_way way);
// Checks which device work has finished, and continues the collectives, without waiting.
void devices_work(struct flows *flows, struct rendezvous *rendezvous);
// Reports one event of a collective on devices, except its end. False if there was none.
bool devices_report(struct flows *flows);
// Takes the next collective that is done and all of whose other events were reported. NULL: none.
struct collective *devices_next_done(struct flows *flows);
// Returns a collective on this device that is not done, by its index. NULL: there are no more.
struct collective *devices_whole(struct flows *flows, uint32_t index);
// Returns the collective whose part between hosts is `collective`; NULL: it is no such part.
struct collective *devices_outer(struct flows *flows, const struct collective *collective);
void devices_travelled(struct flows *flows, const struct collective *collective);
// True if NCCL work on this rank waits for a peer that has said goodbye, and has waited for
// DEVICES_LEFT_MS.
bool devices_needs(struct flows *flows, const struct peer_link *peer);
bool devices_idle(const struct flows *flows);
// The time in ms at which the driver must check devices again even if nothing wakes it; UINT64_MAX:
// never.
uint64_t devices_deadline(const struct flows *flows, uint64_t now_ms);
// Takes a block of memory, unless *block is set already. False: no block is free now, or the device
// has failed. New memory is allocated only while NCCL has no work in flight here: an allocation
// waits until the device is idle, and NCCL may wait for a rank that has died. So try again later.
bool devices_take(struct devices *devices, struct device *device, struct device_block **block,
                  enum device_memory kind, size_t bytes);
void devices_give(struct device *device, struct device_block **block);
// Releases a flow that the device no longer uses: frees its memory and makes it idle.
void devices_release(struct devices *devices, struct device_flow *flow);
// Releases forgotten flows whose work on the device has finished.
void devices_work_left(struct devices *devices);
// Frees all memory of a flow. The device must no longer use it.
void devices_give_all(struct devices *devices, struct device_flow *flow);
// Makes idle flows until there are `count` flows in all. 0 or -1.
int devices_reserve_flows(struct devices *devices, uint64_t count);
// True if NCCL has failed, and a death, of which this rank has not heard yet, may be the cause.
// Then the failure is not reported yet: the generation may be frozen soon.
bool devices_await_word(const struct devices *devices);
// Returns the first of this rank's devices that has failed. NULL: none.
struct device *devices_broken(const struct devices *devices);
// Called after work of the flow was enqueued on the stream: records flow->event, and a wake-up of
// the driver, after it. 0 or -1.
int devices_enqueued(struct devices *devices, struct device_flow *flow, enum device_stream stream);
// Makes the stream wait for the events of the streams that produce the collective's gradients. 0 or
// -1.
int devices_await_ready(struct devices *devices, const struct device_flow *flow,
                        enum device_stream stream);
// As devices_await_ready, for one device and its events.
int devices_await(struct device *device, enum device_stream stream,
                  const struct device_ready *ready, uint32_t count);
// Marks the collective as done: the next devices_report reports it.
void devices_done(struct devices *devices, struct device_flow *flow);
// Reserves for `collectives` more collectives on the first device, each of at most `bytes`,
// `extents` and `units`. May synchronize with the device. 0, or -1 if the device has no memory.
int devices_reserve(struct flows *flows, uint32_t collectives, uint64_t bytes, uint32_t extents,
                    uint32_t units);
// Reserves the extent tables of `collectives` more collectives on `device`, each of at most `bytes`
// and `extents`. Every array of extents keeps its own table, also while its collective is not in
// flight. Returns as devices_reserve.
int devices_reserve_tables(struct flows *flows, struct device *device, uint32_t collectives,
                           uint64_t bytes, uint32_t extents);
// Reserves `rows` more rows of replicas on `device`, each of at most `bytes` and `units`. Returns
// as devices_reserve.
int devices_reserve_rows(struct flows *flows, struct device *device, uint32_t rows, uint64_t bytes,
                         uint32_t units);

#endif
