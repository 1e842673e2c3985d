// SPDX-License-Identifier: Apache-2.0
//
// Collectives of worlds in which two or more ranks have a device and others have none: how the sum
// of the devices gets to the hosts. The rest is in staged.c. The driver's thread.
//
// On DEVICE_REDUCE, all steps enqueued at once:
//
//   wait for the gradients -> pack -> reduce-scatter of the row, and sum of its header -> copy the
//   header, and this rank's share by segments (segments.c), to the host
//
// Then all hosts reduce the row. A rank with a device contributes only its share, as a sum
// (input_counts); each rank reports its own weight. The counts in the header become the used bits
// of all ranks with a device. The result is final and is delivered as a staged one. So gradients
// are only ever inputs or final results, even if NCCL fails.
//
// NCCL gets one group per collective, in the order of the launches, and waits only for the launches
// of the other ranks with a device. NCCL never waits for hosts, so a result never waits for
// gradients that another rank has not produced yet.
//
// The row is cut into equally long shares, one for each device, in the order of ranks, each a
// multiple of SHARE_ELEMENTS. The row beyond the elements of the collective holds garbage, which no
// one reads.

#include "worker/transport/device/mixed.h"

#include "worker/kernels/kernels.h"
#include "worker/transport/device/device_flow.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/nccl.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/rendezvous.h"
#include "worker/transport/device/replicas.h"
#include "worker/transport/device/segments.h"
#include "worker/transport/device/staged.h"

#include "base/clock.h"

#define SHARE_ELEMENTS 32

static uint64_t mixed_each(const struct devices *devices, uint64_t elements)
{
    const uint64_t unit = (uint64_t)SHARE_ELEMENTS * device_ranks(&devices->flows->world);
    return (elements + unit - 1) / unit * SHARE_ELEMENTS;
}

uint64_t mixed_spare_bytes(const struct transport_world *world)
{
    return (uint64_t)device_ranks(world) * SHARE_ELEMENTS * sizeof(double);
}

// First element of this rank's share in the row that NCCL gets.
static uint64_t mixed_place(const struct devices *devices, const struct device_flow *flow)
{
    return rendezvous_place(&devices->flows->world) *
           mixed_each(devices, flow->collective->elements);
}

static struct ring_span mixed_share(const struct devices *devices, const struct device_flow *flow)
{
    const uint64_t elements = flow->collective->elements;
    const uint64_t each = mixed_each(devices, elements);
    const uint64_t place = mixed_place(devices, flow);
    const uint64_t first = place < elements ? place : elements;
    return (struct ring_span){first, elements - first < each ? elements - first : each};
}

// Takes all memory that the flow may need, before any work starts. False: not free now.
static bool mixed_take(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    const size_t element = dtype_size(collective->dtype);
    const size_t note = note_words(collective) * sizeof(uint64_t);
    const uint64_t row =
        device_ranks(&devices->flows->world) * mixed_each(devices, collective->elements) * element;
    struct device *device = devices->device;
    return devices_take(devices, device, &flow->note, MEMORY_PINNED, note) &&
           devices_take(devices, device, &flow->words, MEMORY_SCRATCH, note) &&
           devices_take(devices, device, &flow->pinned, MEMORY_PINNED,
                        collective->elements * element) &&
           devices_take(devices, device, &flow->packed, MEMORY_SCRATCH, row) &&
           replicas_hold_own(devices, flow) && replicas_take(devices, flow) &&
           replicas_take_sum(devices, flow, true);
}

static int mixed_begin(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    const uint64_t offset = mixed_place(devices, flow) * dtype_size(collective->dtype);
    if (!mixed_take(devices, flow))
        return devices_broken(devices) ? -1 : 0;
    flow->share = mixed_share(devices, flow);
    nccl_write_note(flow);
    if (nccl_collect(devices, flow) < 0 || nccl_pack(devices, flow, collective->dtype) < 0)
        return -1;
    flow->stage = STAGE_TAKING;
    return communicator_reduce_scatter(devices->communicator, flow->packed->address,
                                       flow->packed->address + offset,
                                       mixed_each(devices, collective->elements), collective->dtype,
                                       flow->words->address + NOTE_WEIGHT * sizeof(uint64_t),
                                       note_words(collective) - NOTE_WEIGHT);
}

// NCCL has taken the group: enqueues the copies to the host.
static int mixed_collect(struct devices *devices, struct device_flow *flow)
{
    const uint64_t offset = flow->share.first * dtype_size(flow->collective->dtype);
    if (device_transfer(devices->device, DEVICE_REDUCE, flow->note->address, flow->words->address,
                        note_words(flow->collective) * sizeof(uint64_t)) < 0)
        return -1;
    return segments_collect(devices, flow, DEVICE_REDUCE, flow->packed->address + offset);
}

int mixed_work(struct devices *devices, struct device_flow *flow)
{
    const struct nccl_part part = {mixed_begin, mixed_collect};
    if (flow->stage <= STAGE_TAKING)
        return nccl_advance(devices, flow, &part);
    const int landed = segments_look(devices, flow);
    if (landed <= 0)
        return landed;
    // The sum was whole before anything of it was copied: what NCCL says now holds for all of it.
    if (!nccl_is_sound(devices))
        return -1;
    if (!segments_may_travel(devices, flow))
        return 0;
    nccl_read_used(flow);
    return staged_travel(devices, flow);
}
