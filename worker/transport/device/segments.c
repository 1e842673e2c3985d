// SPDX-License-Identifier: Apache-2.0
//
// Copies a row of a device to the host and back, in segments, so that three stages of one
// collective run at the same time. The driver's thread.
//
//   device to host   segment i + 1
//   the hosts        what has landed: a prefix of the row, which grows
//   host to device   what the hosts have made final: a prefix, too
//
// The copies to the host are enqueued together, and an event after each tells when it has landed.
// When the first segment has landed, the collective of the hosts is launched, with a counter
// (`landed`) of the elements that it may read or write; it opens no stripe and takes no piece
// beyond that. All copies of a row follow one another on one stream, so a segment that has not
// landed waits for this device only: no other rank waits longer than if the whole row had landed
// first.
//
// Final bytes go to the row on the device, which is no longer read there, and not to gradients: one
// kernel writes these at the end, all or none, as without segments. If there is no such row,
// because a single extent needs no kernel, or if the result has to wait for the trainer
// (dependency.c), everything is copied back at the end.
//
// Collectives that do not run by stripes or pieces (pairs, shots, eager rings, a world of one) are
// small, and begin when the whole row has landed. Segments are equally long, and at most
// DEVICE_SEGMENTS.
//
// The events after segments are kept for the reserved rows that are longer than one segment. A row
// uses them until it has landed.

#include "worker/transport/device/segments.h"

#include "worker/kernels/kernels.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/flow/flow.h"

#include <stdlib.h>

// A copy of one segment takes 40 to 80 us, many times the fixed cost of a copy.
#define SEGMENT_BYTES (2 * 1024 * 1024)
#define SEGMENT_LINE 64 // Elements: copies begin at whole cache lines.

static uint64_t segments_bytes(const struct devices *devices)
{
    return devices->segment_bytes == 0 ? SEGMENT_BYTES : devices->segment_bytes;
}

// Elements of a segment.
static uint64_t segments_each(const struct devices *devices, const struct device_flow *flow)
{
    const struct collective *collective = flow->collective;
    const uint64_t least = (collective->elements + DEVICE_SEGMENTS - 1) / DEVICE_SEGMENTS;
    const uint64_t most = segments_bytes(devices) / dtype_size(collective->dtype);
    const uint64_t each = most > least ? most : least;
    return (each + SEGMENT_LINE - 1) / SEGMENT_LINE * SEGMENT_LINE;
}

// ---- events -------------------------------------------------------------------------------------

static void segments_free_events(struct devices *devices, struct segment_events *events)
{
    for (uint32_t i = 0; i < DEVICE_SEGMENTS - 1 && events->after[i]; i++)
        device_event_free(devices->device, events->after[i]);
    free(events);
}

static struct segment_events *segments_make_events(struct devices *devices)
{
    struct segment_events *events = calloc(1, sizeof(*events));
    if (!events) {
        device_fail(devices->device, "out of memory here");
        return NULL;
    }
    list_init(&events->turn);
    for (uint32_t i = 0; i < DEVICE_SEGMENTS - 1; i++) {
        events->after[i] = device_event_make(devices->device);
        if (!events->after[i]) {
            segments_free_events(devices, events);
            return NULL;
        }
    }
    return events;
}

static struct segment_events *segments_take_events(struct devices *devices)
{
    struct list *node = list_pop_front(&devices->segment_events);
    return node ? list_entry(node, struct segment_events, turn) : segments_make_events(devices);
}

int segments_reserve(struct devices *devices, uint32_t rows, uint64_t bytes)
{
    for (uint32_t i = 0; i < rows && bytes > segments_bytes(devices); i++) {
        struct segment_events *events = segments_make_events(devices);
        if (!events)
            return -1;
        list_push_back(&devices->segment_events, &events->turn);
    }
    return 0;
}

void segments_release(struct devices *devices, struct device_flow *flow)
{
    if (flow->segment_events)
        list_push_front(&devices->segment_events, &flow->segment_events->turn);
    flow->segment_events = NULL;
}

void segments_fini(struct devices *devices)
{
    struct list *node = NULL;
    while ((node = list_pop_front(&devices->segment_events)))
        segments_free_events(devices, list_entry(node, struct segment_events, turn));
}

// The event after a segment; the last segment has the event of the flow.
static void *segments_event(const struct device_flow *flow, uint32_t segment)
{
    return segment + 1 < flow->segment_count ? flow->segment_events->after[segment] : flow->event;
}

// ---- to the host --------------------------------------------------------------------------------

void segments_none(struct device_flow *flow)
{
    flow->segment_count = flow->segments_landed = 0;
    flow->landed = flow->collective->elements;
}

static int segments_copy(struct devices *devices, const struct device_flow *flow,
                         enum device_stream stream, uint64_t from, uint64_t at, uint64_t count)
{
    const size_t element = dtype_size(flow->collective->dtype);
    const uint64_t to = flow->pinned->address + (flow->share.first + at) * element;
    return count == 0
               ? 0
               : device_transfer(devices->device, stream, to, from + at * element, count * element);
}

int segments_collect(struct devices *devices, struct device_flow *flow, enum device_stream stream,
                     uint64_t from)
{
    const uint64_t each = segments_each(devices, flow);
    const uint64_t count = flow->share.count;
    uint64_t at = 0;
    flow->segment_count = count == 0 ? 1 : (uint32_t)((count + each - 1) / each);
    flow->segments_landed = 0;
    flow->landed = flow->share.first;
    flow->stage = STAGE_COLLECTING;
    flow->segment_events = flow->segment_count > 1 ? segments_take_events(devices) : NULL;
    if (flow->segment_count > 1 && !flow->segment_events)
        return -1;
    for (uint32_t i = 0; i + 1 < flow->segment_count; i++, at += each) {
        if (segments_copy(devices, flow, stream, from, at, each) < 0 ||
            device_record(devices->device, stream, flow->segment_events->after[i]) < 0 ||
            device_ring(devices->device, stream) < 0)
            return -1;
    }
    return segments_copy(devices, flow, stream, from, at, count - at) < 0
               ? -1
               : devices_enqueued(devices, flow, stream);
}

int segments_look(struct devices *devices, struct device_flow *flow)
{
    const uint32_t before = flow->segments_landed;
    while (flow->segments_landed < flow->segment_count) {
        const int happened =
            device_happened(devices->device, segments_event(flow, flow->segments_landed));
        if (happened < 0)
            return -1;
        if (happened == 0)
            break;
        flow->segments_landed++;
        flow->landed = flow->share.first + flow->segments_landed * segments_each(devices, flow);
    }
    if (segments_are_whole(flow)) {
        flow->landed = flow->collective->elements;
        segments_release(devices, flow);
    }
    return flow->segments_landed != before;
}

bool segments_may_travel(const struct devices *devices, const struct device_flow *flow)
{
    return segments_are_whole(flow) ||
           (flow->segments_landed > 0 && flow_follows(devices->flows, flow->collective));
}

// ---- to the device ------------------------------------------------------------------------------

static int segments_give(struct devices *devices, struct device_flow *flow,
                         enum device_stream stream, uint64_t until)
{
    const size_t element = dtype_size(flow->collective->dtype);
    const uint64_t offset = flow->returned * element;
    const uint64_t count = until - flow->returned;
    flow->returned = until;
    return count == 0 ? 0
                      : device_transfer(devices->device, stream, flow->packed->address + offset,
                                        flow->pinned->address + offset, count * element);
}

int segments_return(struct devices *devices, struct device_flow *flow)
{
    const uint64_t each = segments_each(devices, flow);
    const uint64_t final = flow->returns ? flow_final_elements(&flow->host) : 0;
    int status = 0;
    while (status == 0 && final >= flow->returned + each)
        status = segments_give(devices, flow, DEVICE_DELIVER, flow->returned + each);
    return status;
}

int segments_return_rest(struct devices *devices, struct device_flow *flow,
                         enum device_stream stream)
{
    return segments_give(devices, flow, stream, flow->collective->elements);
}

bool segments_are_under_way(const struct device_flow *flow)
{
    return !segments_are_whole(flow) || flow->returned > 0;
}

int segments_gather(struct devices *devices, struct device_flow *flow)
{
    return device_wait(devices->device, DEVICE_DELIVER, flow->event);
}
