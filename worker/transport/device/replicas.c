// SPDX-License-Identifier: Apache-2.0
//
// Replicas of collectives on devices: several copies of the same gradients in this process, on one
// device or on several. A collective sends one row, on the first device: this file makes that row
// from the contributions of all replicas, and takes the result to them. The driver's thread,
// between device_enter and device_leave of the first device.
//
//   first device:  wait for replica 0 -> gather it into the row
//   for each further one, from the first to the last:
//     its device:    wait for it -> gather it into a row there
//     first device:  copy that row to the landing row -> add that to the row
//
//   first device:  ... the result, written to replica 0
//   for each further one:
//     its device:    copy the result -> write it as the first device has done
//
// A replica on the first device needs no copy: it is gathered into the landing row, and written
// from the row of the result. Devices wait for each other by events (device_follow), and the host
// does not wait. Kernels access memory of their own device only: rows are copied from device to
// device, directly where the hardware allows it, else through the host.
//
// The sum is the same as for replicas in host memory (worker/session/module/replicas.c): it begins
// with the first replica that contributes to a gradient, the next ones are added in their order,
// each sum is rounded, and then the sum is divided. The same kernel writes the result to every
// replica, from the same bytes and by the same decision, so either all replicas get the result,
// with the same bits, or none does.

#include "worker/transport/device/replicas.h"

#include "worker/kernels/kernels.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/table_cache.h"

static bool replicas_abroad(const struct devices *devices, const struct device_part *part)
{
    return part->device != devices->device;
}

// Returns the collective with the extents of one replica.
static struct collective replicas_view(const struct collective *collective, uint32_t replica)
{
    struct collective view = *collective;
    view.extents = collective->replicas[replica].extents;
    view.extent_count = collective->replicas[replica].extent_count;
    return view;
}

// ---- what they need -----------------------------------------------------------------------------

bool replicas_hold_own(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    if (flow->cached)
        return true;
    if (collective->replica_count == 0) {
        flow->cached = table_cache_hold(devices, devices->device, collective);
    } else {
        const struct collective view = replicas_view(collective, 0);
        flow->cached = table_cache_hold(devices, devices->device, &view);
    }
    return flow->cached != NULL;
}

// Bytes of a row: it must hold the elements in their dtype and in the dtype of the transfer.
static size_t replicas_row_bytes(const struct collective *collective)
{
    const size_t size = dtype_size(collective->dtype);
    const size_t wire = collective->partial == DTYPE_NONE ? size : dtype_size(collective->partial);
    return collective->elements * (wire > size ? wire : size);
}

static bool replicas_take_part(struct devices *devices, struct device_flow *flow, uint32_t replica)
{
    const struct collective *collective = flow->collective;
    const size_t words = (2 + (size_t)collective->unit_count) * sizeof(uint64_t);
    struct device_part *part = &flow->parts[replica];
    part->device = collective->replicas[replica].device;
    if (!part->cached) {
        const struct collective view = replicas_view(collective, replica);
        part->cached = table_cache_hold(devices, part->device, &view);
    }
    if (!part->cached || !replicas_abroad(devices, part))
        return part->cached != NULL;
    return devices_take(devices, part->device, &part->row, MEMORY_SCRATCH,
                        replicas_row_bytes(collective)) &&
           devices_take(devices, part->device, &part->words, MEMORY_SCRATCH, words);
}

bool replicas_take_parts(struct devices *devices, struct device_flow *flow)
{
    for (uint32_t r = 1; r < flow->collective->replica_count; r++) {
        if (!replicas_take_part(devices, flow, r))
            return false;
    }
    return true;
}

bool replicas_take(struct devices *devices, struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    if (collective->replica_count == 0)
        return true;
    if (!replicas_take_parts(devices, flow))
        return false;
    return devices_take(devices, devices->device, &flow->landing, MEMORY_SCRATCH,
                        replicas_row_bytes(collective));
}

bool replicas_take_sum(struct devices *devices, struct device_flow *flow, bool packs)
{
    const struct collective *collective = flow->collective;
    if (collective->replica_count == 0)
        return true;
    if (!devices_take(devices, devices->device, &flow->sum, MEMORY_SCRATCH,
                      collective->elements * dtype_size(collective->dtype)))
        return false;
    if (!packs || flow->sum_table)
        return true;
    flow->sum_extent = (struct extent){.in = (const void *)(uintptr_t)flow->sum->address,
                                       .elements = collective->elements};
    const struct collective whole = {.dtype = collective->dtype,
                                     .elements = collective->elements,
                                     .extents = &flow->sum_extent,
                                     .extent_count = 1};
    flow->sum_table = table_cache_hold(devices, devices->device, &whole);
    return flow->sum_table != NULL;
}

void replicas_release(struct devices *devices, struct device_flow *flow)
{
    for (uint32_t r = 1; r < LOCKSTEP_MAX_REPLICAS && flow->parts[r].device; r++) {
        struct device_part *part = &flow->parts[r];
        table_cache_release(&part->cached);
        devices_give(part->device, &part->row);
        devices_give(part->device, &part->words);
        part->device = NULL;
    }
    table_cache_release(&flow->sum_table);
    devices_give(devices->device, &flow->landing);
    devices_give(devices->device, &flow->sum);
}

// ---- adding up ----------------------------------------------------------------------------------

// What one replica does to a run of the row.
enum joining {
    JOINING_NONE, // It does not contribute to the run.
    JOINING_BEGINS, // It is the first replica that contributes.
    JOINING_ADDS,
};

struct joined_run {
    enum joining joining;
    uint64_t first; // Its first element in the row.
    uint64_t elements;
};

static struct cached_table *replicas_cut(const struct device_flow *flow, uint32_t replica)
{
    return replica == 0 ? flow->cached : flow->parts[replica].cached;
}

// True if a replica contributes to a piece. All replicas have the same pieces: one for each unit
// that has elements.
static bool replicas_contributes(const struct device_flow *flow, uint32_t replica, uint32_t piece)
{
    return table_cache_pieces(replicas_cut(flow, replica))[piece].in != NULL;
}

static enum joining replicas_joining(const struct device_flow *flow, uint32_t replica,
                                     uint32_t piece)
{
    if (!replicas_contributes(flow, replica, piece))
        return JOINING_NONE;
    for (uint32_t r = 0; r < replica; r++) {
        if (replicas_contributes(flow, r, piece))
            return JOINING_ADDS;
    }
    return JOINING_BEGINS;
}

// The run of pieces from *piece on that the replica treats alike. Moves *piece behind it.
static struct joined_run replicas_next_run(const struct device_flow *flow, uint32_t replica,
                                           uint32_t *piece)
{
    const struct device_piece *pieces = table_cache_pieces(flow->cached);
    struct joined_run run = {.joining = replicas_joining(flow, replica, *piece),
                             .first = pieces[*piece].first};
    while (*piece < flow->cached->count && replicas_joining(flow, replica, *piece) == run.joining)
        ++*piece;
    run.elements = pieces[*piece].first - run.first;
    return run;
}

// True if every replica contributes to every piece: then the last addition also divides.
static bool replicas_are_whole(const struct device_flow *flow)
{
    for (uint32_t r = 0; r < flow->collective->replica_count; r++) {
        for (uint32_t piece = 0; piece < flow->cached->count; piece++) {
            if (!replicas_contributes(flow, r, piece))
                return false;
        }
    }
    return true;
}

static int replicas_add(struct devices *devices, enum device_stream stream, struct device_add *add)
{
    return device_run(devices->device, stream, DEVICE_KERNEL_ADD, device_blocks(add->elements),
                      add);
}

static int replicas_join_run(struct devices *devices, const struct device_flow *flow,
                             enum device_stream stream, const struct device_block *sum,
                             const struct joined_run *run, uint64_t divisor)
{
    const size_t size = dtype_size(flow->collective->dtype);
    const uint64_t acc = sum->address + run->first * size;
    const uint64_t in = flow->landing->address + run->first * size;
    struct device_add add = {.acc = (void *)(uintptr_t)acc,
                             .in = (const void *)(uintptr_t)in,
                             .elements = run->elements,
                             .divisor = divisor,
                             .dtype = (uint32_t)flow->collective->dtype};
    if (run->joining == JOINING_NONE)
        return 0;
    if (run->joining == JOINING_BEGINS)
        return device_transfer(devices->device, stream, acc, in, run->elements * size);
    return replicas_add(devices, stream, &add);
}

static int replicas_gather(struct cached_table *cached, enum device_stream stream,
                           const struct collective *collective, uint64_t packed)
{
    struct device_gather gather = {.packed = (void *)(uintptr_t)packed,
                                   .dtype = (uint32_t)collective->dtype};
    if (table_cache_row(cached, stream, &gather.row) < 0)
        return -1;
    return device_run(cached->device, stream, DEVICE_KERNEL_GATHER,
                      device_blocks(collective->elements), &gather);
}

static int replicas_await(const struct device_flow *flow, uint32_t replica, struct device *device,
                          enum device_stream stream)
{
    const struct collective_replica *from = &flow->collective->replicas[replica];
    return devices_await(device, stream, from->ready, from->ready_count);
}

static int replicas_gather_abroad(const struct device_flow *flow, uint32_t replica)
{
    const struct device_part *part = &flow->parts[replica];
    device_enter(part->device);
    int status = replicas_await(flow, replica, part->device, DEVICE_COLLECT);
    if (status == 0)
        status =
            replicas_gather(part->cached, DEVICE_COLLECT, flow->collective, part->row->address);
    device_leave(part->device);
    return status;
}

// Enqueues on `stream`: brings the contribution of a replica to the landing row.
static int replicas_land(struct devices *devices, const struct device_flow *flow, uint32_t replica,
                         enum device_stream stream)
{
    const struct collective *collective = flow->collective;
    const struct device_part *part = &flow->parts[replica];
    if (!replicas_abroad(devices, part))
        return replicas_await(flow, replica, part->device, stream) < 0
                   ? -1
                   : replicas_gather(part->cached, stream, collective, flow->landing->address);
    if (replicas_gather_abroad(flow, replica) < 0 ||
        device_follow(devices->device, stream, part->device, DEVICE_COLLECT) < 0)
        return -1;
    return device_transfer(devices->device, stream, flow->landing->address, part->row->address,
                           collective->elements * dtype_size(collective->dtype));
}

static int replicas_join(struct devices *devices, const struct device_flow *flow, uint32_t replica,
                         enum device_stream stream, const struct device_block *sum,
                         uint64_t divisor)
{
    int status = replicas_land(devices, flow, replica, stream);
    for (uint32_t piece = 0; status == 0 && piece < flow->cached->count;) {
        const struct joined_run run = replicas_next_run(flow, replica, &piece);
        status = replicas_join_run(devices, flow, stream, sum, &run, divisor);
    }
    return status;
}

static int replicas_divide(struct devices *devices, const struct device_flow *flow,
                           enum device_stream stream, const struct device_block *sum)
{
    const struct collective *collective = flow->collective;
    struct device_add add = {.acc = (void *)(uintptr_t)sum->address,
                             .elements = collective->elements,
                             .divisor = collective->replica_divisor,
                             .dtype = (uint32_t)collective->dtype};
    return replicas_add(devices, stream, &add);
}

int replicas_collect(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                     const struct device_block *sum)
{
    const struct collective *collective = flow->collective;
    const uint32_t last = collective->replica_count - 1;
    const bool whole = last > 0 && replicas_are_whole(flow);
    int status = replicas_await(flow, 0, devices->device, stream);
    if (status == 0)
        status = replicas_gather(flow->cached, stream, collective, sum->address);
    for (uint32_t r = 1; r <= last && status == 0; r++)
        status = replicas_join(devices, flow, r, stream, sum,
                               whole && r == last ? collective->replica_divisor : 1);
    if (status == 0 && !whole && collective->replica_divisor > 1)
        status = replicas_divide(devices, flow, stream, sum);
    return status;
}

// ---- results ------------------------------------------------------------------------------------

// Writes the result to a replica. If the replica is on another device, copies the row and the words
// there first.
static int replicas_write(struct devices *devices, struct device_flow *flow, uint32_t replica,
                          enum device_stream stream, const struct device_spread *spread)
{
    const struct device_part *part = &flow->parts[replica];
    const bool abroad = replicas_abroad(devices, part);
    const uint64_t packed = abroad ? part->row->address : flow->packed->address;
    const uint64_t words = spread->words == 0 ? 0 : abroad ? part->words->address : spread->words;
    struct device_row row;
    if (spread->awaits && replicas_await(flow, replica, part->device, stream) < 0)
        return -1;
    if (abroad && device_transfer(part->device, stream, packed, spread->row, spread->row_bytes) < 0)
        return -1;
    if (abroad && spread->words != 0 &&
        device_transfer(part->device, stream, words, spread->words, spread->words_bytes) < 0)
        return -1;
    if (table_cache_row(part->cached, stream, &row) < 0)
        return -1;
    return spread->write(devices, flow, part->device, stream, &row, packed, words);
}

// Writes the result to a replica on another device. If `stream` is DEVICE_BEHIND, uses
// DEVICE_BEHIND of that device, too.
static int replicas_write_abroad(struct devices *devices, struct device_flow *flow,
                                 uint32_t replica, enum device_stream stream,
                                 const struct device_spread *spread)
{
    struct device *device = flow->parts[replica].device;
    const bool late = stream == DEVICE_BEHIND;
    const enum device_stream there = late ? DEVICE_BEHIND : DEVICE_DELIVER;
    device_enter(device);
    int status = device_follow(device, there, devices->device, stream);
    if (status == 0)
        status = replicas_write(devices, flow, replica, there, spread);
    device_leave(device);
    if (status < 0)
        return -1;
    return device_follow(devices->device, late ? DEVICE_BEHIND : DEVICE_SPREAD, device, there);
}

// `stream` does not wait for other devices, so that later work on it is not delayed: DEVICE_SPREAD
// waits for them. Only DEVICE_BEHIND waits itself.
int replicas_spread(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                    const struct device_spread *spread, enum device_stream *last)
{
    const uint32_t count = flow->collective->replica_count;
    bool any = false;
    int status = 0;
    *last = stream;
    for (uint32_t r = 1; r < count && status == 0; r++) {
        if (!replicas_abroad(devices, &flow->parts[r]))
            status = replicas_write(devices, flow, r, stream, spread);
        else
            any = true;
    }
    if (!any || status < 0)
        return status;
    *last = stream == DEVICE_BEHIND ? DEVICE_BEHIND : DEVICE_SPREAD;
    for (uint32_t r = 1; r < count && status == 0; r++) {
        if (replicas_abroad(devices, &flow->parts[r]))
            status = replicas_write_abroad(devices, flow, r, stream, spread);
    }
    if (status < 0 || *last == stream)
        return status;
    return device_follow(devices->device, *last, devices->device, stream);
}
