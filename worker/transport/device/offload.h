// SPDX-License-Identifier: Apache-2.0
//
// Moves results that wait for the trainer from device memory to host memory. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_OFFLOAD_H
#define WORKER_TRANSPORT_DEVICE_OFFLOAD_H

#include <stdbool.h>
#include <stdint.h>

struct device_flow;
struct devices;
struct flows;

// Marks a held flow as summed: the next devices_report reports it.
void offload_summed(struct device_flow *flow);
// Offloads a held result, so that other flows get its memory. True: some memory was freed. False:
// none can be offloaded, or its copy has only begun.
bool offload_make_room(struct devices *devices);
// True if a held result will free its memory soon, without waiting for another rank.
bool offload_is_leaving(const struct devices *devices);
// Continues a flow that is being offloaded or is offloaded. 0, or -1 if the device has failed.
int offload_work(struct devices *devices, struct device_flow *flow);
// Returns the blocks that the flow has borrowed from way_out or way_back.
void offload_release(struct device_flow *flow);
// Forgets all results on the shelf.
void offload_forget(struct devices *devices);
void offload_fini(struct devices *devices);
// Reserves for results that wait until collective.behind names its events: a shelf of `bytes` of
// host memory for `collectives` collectives, which is not touched before it is needed, and blocks
// for the copies of the largest one, of `largest` bytes and `units`. 0 or -1.
int offload_reserve(struct flows *flows, uint32_t collectives, uint64_t bytes, uint64_t largest,
                    uint32_t units);

#endif
