// SPDX-License-Identifier: Apache-2.0
//
// Which way a collective on devices goes. Pure; any thread.

#ifndef WORKER_TRANSPORT_DEVICE_DEVICE_FLOW_H
#define WORKER_TRANSPORT_DEVICE_DEVICE_FLOW_H

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct transport_world;

// How a collective goes on this rank. Whether NCCL carries it is a function of what all ranks know
// alike, so that none has to ask; whether its memory goes through the host is this rank's own
// matter, and the others do not notice.
enum device_way {
    DEVICE_WAY_HOST, // Its memory is on this host.
    // Ranks with a device copy to the host, take part in a collective of all hosts, and copy back.
    // Any kind, dtype, operation and world; the bits are those of a job without devices.
    DEVICE_WAY_STAGED,
    // Every rank has a device: NCCL between them. Sums and means of floats. These are launched in
    // one order on all ranks.
    DEVICE_WAY_NCCL,
    // Two or more ranks have a device, others have none: NCCL sums between devices, each of which
    // takes a share of the sum to its host, and all hosts reduce that as STAGED. Launched in one
    // order on the ranks that have a device.
    DEVICE_WAY_MIXED,
};

enum device_way device_way_of(const struct transport_world *world,
                              const struct collective *collective);
// How many ranks of the world have a device.
uint32_t device_ranks(const struct transport_world *world);
// True if some collectives of this world have to be launched in one order on all ranks that have a
// device, because NCCL sums them: there are two of these at least, and all have one, or they meet.
bool device_flow_is_strict(const struct transport_world *world);

#endif
