// SPDX-License-Identifier: Apache-2.0
//
// Chooses how a collective on devices is reduced: see device_flow.h. Pure.

#include "worker/transport/device/device_flow.h"

#include "base/bits.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/flow/collective.h"
#include "worker/transport/flow/events.h"

uint32_t device_ranks(const struct transport_world *world)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < world->world_size; rank++)
        count += bits_has(world->devices, rank);
    return count;
}

bool device_flow_is_strict(const struct transport_world *world)
{
    const uint32_t count = device_ranks(world);
    return !world->by_hosts && count >= 2 && (count == world->world_size || world->devices_meet);
}

// True if NCCL computes the collective as docs/numbers.md specifies.
static bool device_way_sums(const struct collective *collective)
{
    return collective->kind == COLLECTIVE_ALLREDUCE && dtype_is_float(collective->dtype) &&
           (collective->op == REDUCE_SUM || collective->op == REDUCE_MEAN);
}

// True if NCCL's sum can be the input of the hosts. The sum is sent to them unchanged, as float32
// or float64, so the gradients must have that dtype. A barrier has no elements to sum.
static bool device_way_shares(const struct collective *collective)
{
    return !dtype_is_small(collective->dtype) && collective->elements > 0;
}

enum device_way device_way_of(const struct transport_world *world,
                              const struct collective *collective)
{
    if (!collective->device)
        return DEVICE_WAY_HOST;
    if (!collective->on_devices)
        return DEVICE_WAY_STAGED;
    // NCCL adds in an order of its own.
    if (!device_flow_is_strict(world) || !device_way_sums(collective) ||
        collective->algorithm == ALGORITHM_DIRECT)
        return DEVICE_WAY_STAGED;
    if (device_ranks(world) == world->world_size)
        return DEVICE_WAY_NCCL;
    return device_way_shares(collective) ? DEVICE_WAY_MIXED : DEVICE_WAY_STAGED;
}
