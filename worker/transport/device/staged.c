// SPDX-License-Identifier: Apache-2.0
//
// Collectives on devices that the hosts reduce. The driver's thread.
//
//   COLLECT:  wait for the gradients -> gather into one row on the device -> copy it to the host
//   then:     a collective of the hosts over that row, as if the memory had been there
//   DELIVER:  copy it to the device -> scatter what somebody used to where it belongs
//             (dependency.c: BEHIND, when that may be written which this rank has not reported)
//
// The two copies and the hosts overlap, by segments of the row: segments.c.
//
// A single extent needs no kernel, and no row on the device. The driver never waits: each of the
// three lines ends with a host function that wakes the driver, which checks the event
// (device_happened). The hosts compute as for host memory, so the result has the same bits as in a
// job without devices, and a rank without a device does not notice.
//
// The row on the host has the extents of the collective; extents without input have no input there
// either.

#include "worker/transport/device/staged.h"

#include "worker/kernels/kernels.h"
#include "worker/transport/device/dependency.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/offload.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/replicas.h"
#include "worker/transport/device/segments.h"
#include "worker/transport/device/table_cache.h"
#include "worker/transport/flow/flow.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint64_t staged_bytes(const struct collective *collective)
{
    return collective->elements * dtype_size(collective->dtype);
}

static bool staged_is_root(const struct devices *devices, const struct collective *collective)
{
    return collective->kind == COLLECTIVE_BROADCAST &&
           collective->root == devices->flows->world.rank;
}

// ---- to the host --------------------------------------------------------------------------------

static bool staged_has_input(const struct devices *devices, const struct collective *collective)
{
    if (collective->kind == COLLECTIVE_BROADCAST && !staged_is_root(devices, collective))
        return false;
    for (uint32_t i = 0; i < collective->extent_count; i++) {
        if (collective->extents[i].in && collective->extents[i].elements > 0)
            return true;
    }
    return false;
}

static int staged_gather(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    struct device_gather gather = {.dtype = (uint32_t)collective->dtype};
    if (table_cache_row(flow->cached, DEVICE_COLLECT, &gather.row) < 0)
        return -1;
    gather.packed = (void *)(uintptr_t)flow->packed->address;
    return device_run(devices->device, DEVICE_COLLECT, DEVICE_KERNEL_GATHER,
                      device_blocks(collective->elements), &gather);
}

// Makes the row on the device.
static int staged_make_row(struct devices *devices, struct device_flow *flow)
{
    return flow->collective->replica_count > 0
               ? replicas_collect(devices, flow, DEVICE_COLLECT, flow->packed)
               : staged_gather(devices, flow);
}

// Returns the single extent of a collective that needs no kernel; NULL: it needs one.
static const struct extent *staged_only(const struct collective *collective)
{
    return collective->extent_count == 1 && collective->replica_count == 0 ? &collective->extents[0]
                                                                           : NULL;
}

static int staged_collect(struct devices *devices, struct device_flow *flow)
{
    const struct extent *only = staged_only(flow->collective);
    if (devices_await_ready(devices, flow, DEVICE_COLLECT) < 0 ||
        (!only && staged_make_row(devices, flow) < 0))
        return -1;
    return segments_collect(devices, flow, DEVICE_COLLECT,
                            only ? (uint64_t)(uintptr_t)only->in : flow->packed->address);
}

// ---- between hosts ------------------------------------------------------------------------------

static bool staged_goes_on(const struct extent *before, const struct extent *next)
{
    return !before->in == !next->in && !before->out == !next->out;
}

static void staged_append(struct device_flow *flow, struct extent next)
{
    struct extent *last =
        flow->host.extent_count > 0 ? &flow->extents[flow->host.extent_count - 1] : NULL;
    if (next.elements == 0)
        return;
    if (last && staged_goes_on(last, &next))
        last->elements += next.elements;
    else
        flow->extents[flow->host.extent_count++] = next;
}

// Appends an extent of the collective, which begins at element `first` of the row, to
// flow->extents. Elements outside the share have no input. With MIXED all elements of the share
// have an input, because it is the sum of several ranks.
static void staged_lay(struct device_flow *flow, const struct extent *extent, uint64_t first)
{
    const uint64_t ends[] = {flow->share.first, flow->share.first + flow->share.count, UINT64_MAX};
    const uint64_t end = first + extent->elements;
    const size_t element = dtype_size(flow->collective->dtype);
    for (uint32_t part = 0; part < 3; part++) {
        const uint64_t until = ends[part] < end ? ends[part] : end;
        uint8_t *at = flow->pinned ? flow->pinned->host + first * element : NULL;
        const bool in = part == 1 && (flow->way == DEVICE_WAY_MIXED || extent->in);
        if (until <= first)
            continue;
        staged_append(flow, (struct extent){.in = in ? at : NULL,
                                            .out = extent->out ? at : NULL,
                                            .elements = until - first});
        first = until;
    }
}

static int staged_extents(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    const uint32_t room = collective->extent_count + 2; // A share may cut two extents.
    uint64_t first = 0;
    if (room > flow->extent_room) {
        struct extent *more = realloc(flow->extents, room * sizeof(*more));
        if (!more) {
            device_fail(devices->device, "out of memory here");
            return -1;
        }
        flow->extents = more;
        flow->extent_room = room;
    }
    flow->host.extents = flow->extents;
    flow->host.extent_count = 0;
    for (uint32_t i = 0; i < collective->extent_count; i++) {
        staged_lay(flow, &collective->extents[i], first);
        first += collective->extents[i].elements;
    }
    return 0;
}

// True if this rank has output memory that does not already hold the result.
static bool staged_has_place(const struct devices *devices, const struct collective *collective)
{
    const bool root = staged_is_root(devices, collective);
    for (uint32_t i = 0; i < collective->extent_count; i++) {
        const struct extent *extent = &collective->extents[i];
        if (extent->out && extent->elements > 0 && !(root && extent->out == extent->in))
            return true;
    }
    return false;
}

int staged_travel(struct devices *devices, struct device_flow *flow)
{
    flow->host = *flow->collective;
    flow->host.on_devices = false;
    flow->host.device = NULL;
    flow->host.ready = NULL;
    flow->host.ready_count = 0;
    flow->host.behind = NULL;
    flow->host.context = flow;
    flow->host.landed = &flow->landed;
    flow->returns =
        flow->packed && !flow->collective->behind && staged_has_place(devices, flow->collective);
    flow->returned = 0;
    if (flow->way == DEVICE_WAY_MIXED)
        flow->host.input_is_sum = flow->host.input_counts = true;
    flow->stage = STAGE_TRAVELLING;
    if (staged_extents(devices, flow) < 0)
        return -1;
    flow_launch(devices->flows, &flow->host);
    return 0;
}

// ---- to the device ------------------------------------------------------------------------------

// True if a result has to be written to the device.
static bool staged_has_output(const struct devices *devices, const struct collective *collective)
{
    if (collective->elements == 0 ||
        (collective->op == REDUCE_MEAN && collective->kind == COLLECTIVE_ALLREDUCE &&
         collective->weight_total == 0))
        return false;
    if (units_usage(collective->used, (struct unit_range){0, collective->unit_count}) == USAGE_NONE)
        return false;
    return staged_has_place(devices, collective);
}

// Copies the used bits to the device. *used: their address; 0: all units are used.
static int staged_used(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                       uint64_t *used)
{
    const struct collective *collective = flow->collective;
    const size_t bytes = units_words(collective->unit_count) * sizeof(uint64_t);
    *used = 0;
    if (units_usage(collective->used, (struct unit_range){0, collective->unit_count}) == USAGE_ALL)
        return 0;
    memcpy(flow->note->host, collective->used, bytes);
    *used = flow->words->address;
    return device_transfer(devices->device, stream, flow->words->address, flow->note->address,
                           bytes);
}

static int staged_scatter_row(struct devices *devices, struct device_flow *flow,
                              struct device *device, enum device_stream stream,
                              const struct device_row *row, uint64_t packed, uint64_t words)
{
    struct device_scatter scatter = {.row = *row,
                                     .packed = (const void *)(uintptr_t)packed,
                                     .used = (const uint64_t *)(uintptr_t)words,
                                     .dtype = (uint32_t)flow->collective->dtype};
    (void)devices;
    return device_run(device, stream, DEVICE_KERNEL_SCATTER,
                      device_blocks(flow->collective->elements), &scatter);
}

// Writes the result with the scatter kernel. Other devices copy the row and the used bits from the
// first device.
static int staged_scatter(struct devices *devices, struct device_flow *flow,
                          enum device_stream stream, enum device_stream *last)
{
    const struct collective *collective = flow->collective;
    struct device_row row;
    struct device_spread spread = {.row = flow->packed->address,
                                   .row_bytes = staged_bytes(collective),
                                   .words_bytes =
                                       units_words(collective->unit_count) * sizeof(uint64_t),
                                   .awaits = !staged_has_input(devices, collective),
                                   .write = staged_scatter_row};
    if (staged_used(devices, flow, stream, &spread.words) < 0 ||
        table_cache_row(flow->cached, stream, &row) < 0 ||
        segments_return_rest(devices, flow, stream) < 0 ||
        staged_scatter_row(devices, flow, devices->device, stream, &row, spread.row, spread.words) <
            0)
        return -1;
    return replicas_spread(devices, flow, stream, &spread, last);
}

// Copies a whole row to its extent; from the row on the device if a part of it was already copied
// back there.
static int staged_put(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                      const struct extent *only)
{
    const uint64_t out = (uint64_t)(uintptr_t)only->out;
    const size_t bytes = staged_bytes(flow->collective);
    if (flow->returned == 0)
        return device_transfer(devices->device, stream, out, flow->pinned->address, bytes);
    return segments_return_rest(devices, flow, stream) < 0
               ? -1
               : device_transfer(devices->device, stream, out, flow->packed->address, bytes);
}

// Writes the result to the device. A collective without input here has not waited for its `ready`
// events yet, so this waits for them.
static int staged_write(struct devices *devices, struct device_flow *flow,
                        enum device_stream stream)
{
    const struct collective *collective = flow->collective;
    const struct extent *only = staged_only(collective);
    enum device_stream last = stream;
    const bool whole =
        units_usage(collective->used, (struct unit_range){0, collective->unit_count}) == USAGE_ALL;
    if (!staged_has_input(devices, collective) && devices_await_ready(devices, flow, stream) < 0)
        return -1;
    const int moved = only && whole ? staged_put(devices, flow, stream, only)
                                    : staged_scatter(devices, flow, stream, &last);
    flow->stage = STAGE_DELIVERING;
    return moved < 0 ? -1 : devices_enqueued(devices, flow, last);
}

int staged_deliver(struct devices *devices, struct device_flow *flow)
{
    assert(segments_are_whole(flow));
    if (!dependency_matters(flow))
        return staged_write(devices, flow, DEVICE_DELIVER);
    assert(flow->returned == 0); // An offloaded result must be entirely on the host.
    flow->stage = STAGE_HELD;
    offload_summed(flow);
    if (!dependency_is_known(flow))
        return 0;
    if (dependency_wait(devices, flow) < 0)
        return -1;
    return staged_write(devices, flow, DEVICE_BEHIND);
}

// Ends a flow without a result to write. Hosts can know that before all segments have landed, so
// this waits for the copies.
static int staged_drop(struct devices *devices, struct device_flow *flow)
{
    flow->stage = STAGE_DELIVERING;
    return segments_gather(devices, flow) < 0 ? -1
                                              : devices_enqueued(devices, flow, DEVICE_DELIVER);
}

int staged_travelled(struct devices *devices, struct device_flow *flow)
{
    struct collective *collective = flow->collective;
    collective->weight_total = flow->host.weight_total;
    collective->first_sent_us = flow->host.first_sent_us;
    collective->last_received_us = flow->host.last_received_us;
    if (staged_has_output(devices, collective))
        return staged_deliver(devices, flow);
    if (segments_are_under_way(flow))
        return staged_drop(devices, flow);
    devices_done(devices, flow);
    return 0;
}

// ---- life ---------------------------------------------------------------------------------------

// Takes all memory that the flow may need, before any work starts. False: not free now.
static bool staged_take(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    const size_t used = units_words(collective->unit_count) * sizeof(uint64_t);
    if (collective->elements == 0)
        return true;
    if (!devices_take(devices, devices->device, &flow->pinned, MEMORY_PINNED,
                      staged_bytes(collective)))
        return false;
    if (staged_only(collective) && collective->unit_count == 0)
        return true; // A single extent without units needs no kernel.
    return devices_take(devices, devices->device, &flow->packed, MEMORY_SCRATCH,
                        staged_bytes(collective)) &&
           devices_take(devices, devices->device, &flow->note, MEMORY_PINNED, used) &&
           devices_take(devices, devices->device, &flow->words, MEMORY_SCRATCH, used) &&
           replicas_hold_own(devices, flow) && replicas_take(devices, flow);
}

// True in a world of one if the result is already in place. A host makes the result of booleans.
static bool staged_is_there(const struct devices *devices, const struct collective *collective)
{
    if (devices->flows->world.world_size > 1 || collective->replica_count > 0 ||
        (collective->kind == COLLECTIVE_ALLREDUCE && collective->dtype == DTYPE_BOOL) ||
        (collective->op == REDUCE_MEAN && collective->input_is_sum))
        return false;
    for (uint32_t i = 0; i < collective->extent_count; i++) {
        const struct extent *extent = &collective->extents[i];
        if (extent->out && extent->out != extent->in)
            return false;
    }
    return true;
}

// The input is the result: done once the streams that produce it have finished.
static int staged_stay(struct devices *devices, struct device_flow *flow)
{
    struct collective *collective = flow->collective;
    if (collective->op == REDUCE_MEAN)
        collective->weight_total = collective->weight;
    flow->stage = STAGE_DELIVERING;
    if (devices_await_ready(devices, flow, DEVICE_DELIVER) < 0)
        return -1;
    return devices_enqueued(devices, flow, DEVICE_DELIVER);
}

static int staged_launch(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    flow->share = (struct ring_span){.count = collective->elements};
    if (staged_is_there(devices, collective))
        return staged_stay(devices, flow);
    if (!staged_take(devices, flow))
        return devices_broken(devices) ? -1 : 0;
    if (staged_has_input(devices, collective))
        return staged_collect(devices, flow);
    segments_none(flow);
    return staged_travel(devices, flow);
}

static int staged_land(struct devices *devices, struct device_flow *flow)
{
    const int landed = segments_look(devices, flow);
    if (landed <= 0)
        return landed;
    return segments_may_travel(devices, flow) ? staged_travel(devices, flow) : 0;
}

// Tells the hosts which segments have landed, and copies final segments back.
static int staged_go_on(struct devices *devices, struct device_flow *flow)
{
    const int landed = segments_look(devices, flow);
    if (landed < 0)
        return -1;
    if (landed > 0)
        flow_landed(devices->flows, &flow->host);
    return segments_return(devices, flow);
}

int staged_work(struct devices *devices, struct device_flow *flow)
{
    if (flow->stage == STAGE_WAITING)
        return staged_launch(devices, flow);
    if (flow->stage == STAGE_COLLECTING)
        return staged_land(devices, flow);
    if (flow->stage == STAGE_TRAVELLING)
        return staged_go_on(devices, flow);
    if (flow->stage == STAGE_HELD)
        return dependency_is_known(flow) ? staged_deliver(devices, flow) : 0;
    const int happened = device_happened(devices->device, flow->event);
    if (happened > 0)
        devices_done(devices, flow);
    return happened < 0 ? -1 : 0;
}
