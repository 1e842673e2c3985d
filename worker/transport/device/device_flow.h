// SPDX-License-Identifier: Apache-2.0
//
// Chooses how a collective on devices is reduced: by the hosts, by NCCL, or by both. Pure; any
// thread.

#ifndef WORKER_TRANSPORT_DEVICE_DEVICE_FLOW_H
#define WORKER_TRANSPORT_DEVICE_DEVICE_FLOW_H

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct transport_world;

// How this rank runs a collective. NCCL or not depends only on facts that all ranks know, so all
// ranks choose the same. HOST or STAGED depends on this rank alone; other ranks do not notice it.
enum device_way {
    DEVICE_WAY_HOST, // The memory is in host memory.
    // Ranks with a device copy to the host, take part in a collective of all hosts, and copy back.
    // Works for any kind, dtype, operation and world; the result has the same bits as in a job
    // without devices.
    DEVICE_WAY_STAGED,
    // Every rank has a device: NCCL between them. Sums and means of floats. These are launched in
    // one order on all ranks.
    DEVICE_WAY_NCCL,
    // Two or more ranks have a device, others have none: NCCL sums between devices, each device
    // copies a share of the sum to its host, and all hosts reduce the shares as in STAGED. Launched
    // in one order on the ranks that have a device.
    DEVICE_WAY_MIXED,
};

enum device_way device_way_of(const struct transport_world *world,
                              const struct collective *collective);
// How many ranks of the world have a device.
uint32_t device_ranks(const struct transport_world *world);
// True if all ranks with a device must launch some collectives in one order, because NCCL sums
// them: at least two ranks have a device, and either all ranks have one or world.devices_meet is
// set. Never with world.by_hosts.
bool device_flow_is_strict(const struct transport_world *world);

#endif
