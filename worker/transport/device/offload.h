// SPDX-License-Identifier: Apache-2.0
//
// Results that wait for the trainer leave the device for memory of the host. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_OFFLOAD_H
#define WORKER_TRANSPORT_DEVICE_OFFLOAD_H

#include <stdbool.h>
#include <stdint.h>

struct device_flow;
struct devices;
struct flows;

// The flow is held and summed.
void offload_summed(struct device_flow *flow);
// Puts one that is held aside, so that others have what it held. False: nothing is free by that, or
// not yet.
bool offload_make_room(struct devices *devices);
// True if one that was held will give back what it has, and waits for no other rank.
bool offload_is_leaving(const struct devices *devices);
// Goes on with a flow that is put aside. 0, or -1 when the device has failed.
int offload_work(struct devices *devices, struct device_flow *flow);
// The flow gives back what it has borrowed.
void offload_release(struct device_flow *flow);
// No flow is asked for any more.
void offload_forget(struct devices *devices);
void offload_fini(struct devices *devices);
// Room for results that wait for what `behind` is told: for so many collectives of so many bytes in
// all, in memory of the host that is not touched before it is needed, and for the way of the
// largest one there and back, of so many bytes and units. The same otherwise.
int offload_reserve(struct flows *flows, uint32_t collectives, uint64_t bytes, uint64_t largest,
                    uint32_t units);

#endif
