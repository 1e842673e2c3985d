// SPDX-License-Identifier: Apache-2.0
//
// Where results are that come late (dependency.c), when others need what they hold. A trainer
// may leave out as many gradients as it likes, and do something else before it asks for the means
// of the others. Until then other ranks may need further buckets of the step: so a result that
// waits keeps no place in the window (`summed`), and, where blocks of the device are short, none of
// those either. It is put aside, and comes back when the trainer has said behind what:
//
//   STAGED, MIXED:  HELD, the row is on the host -> copied to the shelf                -> ASIDE
//   NCCL:           HELD -> LEAVING: the row to pinned memory -> it and the note there -> ASIDE
//
//   ASIDE -> both to pinned memory -> to the device as before, on DEVICE_BEHIND
//
// The shelf is plain memory of the host, of what all buckets take together: reserved, and not
// touched before something is put there. Two sets of blocks are kept for the ways there and back,
// so that neither waits for what is in flight; each has one flow at a time. So what comes back,
// comes back one after the other, and the host waits for the device between them. Nothing is put
// aside while there are blocks.
//
// The driver's thread.

#include "worker/transport/device/offload.h"

#include "worker/device/memory.h"
#include "worker/transport/device/dependency.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/nccl.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/replicas.h"
#include "worker/transport/device/staged.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SHELF_ALIGN 64

void offload_summed(struct device_flow *flow)
{
    if (flow->summed)
        return;
    flow->summed = flow->summed_untold = true;
}

// ---- what one takes -----------------------------------------------------------------------------

static size_t offload_row_bytes(const struct device_flow *flow)
{
    return flow->way == DEVICE_WAY_NCCL ? nccl_row_bytes(flow->collective)
                                        : staged_bytes(flow->collective);
}

// Of others the used bits are all there is, and the collective has them.
static size_t offload_note_bytes(const struct device_flow *flow)
{
    return flow->way == DEVICE_WAY_NCCL ? note_words(flow->collective) * sizeof(uint64_t) : 0;
}

static uint64_t offload_bytes(const struct device_flow *flow)
{
    const uint64_t bytes = offload_row_bytes(flow) + offload_note_bytes(flow);
    return (bytes + SHELF_ALIGN - 1) / SHELF_ALIGN * SHELF_ALIGN;
}

// ---- to the shelf -------------------------------------------------------------------------------

// What the trainer has asked for comes to its end by itself.
bool offload_is_leaving(const struct devices *devices)
{
    list_for_each (node, &devices->working) {
        const struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (flow->summed && !flow->borrowed && flow->stage != STAGE_OFFLOADED &&
            dependency_is_known(flow))
            return true;
    }
    return devices->way_out.lent;
}

static void offload_put(struct devices *devices, struct device_flow *flow)
{
    uint8_t *shelf = devices->shelf + devices->shelf_end;
    const size_t row = offload_row_bytes(flow);
    memcpy(shelf, flow->pinned->host, row);
    if (offload_note_bytes(flow) > 0)
        memcpy(shelf + row, flow->note->host, offload_note_bytes(flow));
    flow->shelf_at = devices->shelf_end;
    devices->shelf_end += offload_bytes(flow);
    devices->shelf_count++;
    flow->stage = STAGE_OFFLOADED;
    devices_give_all(devices, flow);
}

// When nothing is left there, the next one is put at the beginning.
static void offload_take_from(struct devices *devices, const struct device_flow *flow)
{
    const uint8_t *shelf = devices->shelf + flow->shelf_at;
    const size_t row = offload_row_bytes(flow);
    memcpy(flow->pinned->host, shelf, row);
    if (offload_note_bytes(flow) > 0)
        memcpy(flow->note->host, shelf + row, offload_note_bytes(flow));
    if (--devices->shelf_count == 0)
        devices->shelf_end = 0;
}

// DEVICE_DELIVER waits for nothing that another rank or a trainer has still to do.
static int offload_leave(struct devices *devices, struct device_flow *flow)
{
    devices->way_out.lent = true;
    flow->borrowed = &devices->way_out;
    flow->pinned = devices->way_out.pinned;
    flow->stage = STAGE_OFFLOADING;
    if (device_transfer(devices->device, DEVICE_DELIVER, flow->pinned->address,
                        flow->packed->address, offload_row_bytes(flow)) < 0)
        return -1;
    return devices_enqueued(devices, flow, DEVICE_DELIVER);
}

// What is borrowed is on its way back, and would be nobody else's.
static bool offload_may_leave(const struct devices *devices, const struct device_flow *flow)
{
    return flow->stage == STAGE_HELD && flow->summed && !flow->borrowed &&
           !dependency_is_known(flow) &&
           devices->shelf_end + offload_bytes(flow) <= devices->shelf_bytes;
}

// A device that fails here says so at the next look.
bool offload_make_room(struct devices *devices)
{
    list_for_each (node, &devices->working) {
        struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (!offload_may_leave(devices, flow))
            continue;
        if (flow->way != DEVICE_WAY_NCCL) {
            offload_put(devices, flow);
            return true;
        }
        if (!devices->way_out.lent)
            (void)offload_leave(devices, flow);
    }
    return false;
}

// ---- and back -----------------------------------------------------------------------------------

static void offload_borrow(struct devices *devices, struct device_flow *flow)
{
    struct device_room *room = &devices->way_back;
    room->lent = true;
    flow->borrowed = room;
    flow->packed = room->packed;
    flow->pinned = room->pinned;
    flow->note = room->note;
    flow->words = room->words;
}

static int offload_come_back(struct devices *devices, struct device_flow *flow)
{
    if (!flow->borrowed && devices->way_back.lent)
        return 0;
    if (!flow->borrowed)
        offload_borrow(devices, flow);
    if (!replicas_hold_own(devices, flow) || !replicas_take_parts(devices, flow))
        return devices_broken(devices) ? -1 : 0;
    offload_take_from(devices, flow);
    return flow->way == DEVICE_WAY_NCCL ? nccl_come_back(devices, flow)
                                        : staged_deliver(devices, flow);
}

int offload_work(struct devices *devices, struct device_flow *flow)
{
    if (flow->stage == STAGE_OFFLOADED)
        return dependency_is_known(flow) ? offload_come_back(devices, flow) : 0;
    const int happened = device_happened(devices->device, flow->event);
    if (happened > 0)
        offload_put(devices, flow);
    return happened < 0 ? -1 : 0;
}

void offload_release(struct device_flow *flow)
{
    struct device_room *room = flow->borrowed;
    if (!room)
        return;
    flow->pinned = NULL;
    if (room->packed)
        flow->packed = flow->note = flow->words = NULL;
    flow->borrowed = NULL;
    room->lent = false;
}

void offload_forget(struct devices *devices)
{
    devices->shelf_end = 0;
    devices->shelf_count = 0;
}

// ---- room ---------------------------------------------------------------------------------------

// One that is large enough, beside those that the pools have; another one becomes theirs.
static int offload_keep(struct device *device, struct device_block **block, enum device_memory kind,
                        size_t bytes)
{
    if (*block && (*block)->bytes >= bytes)
        return 0;
    devices_give(device, block);
    if (device_reserve(device, kind, bytes, 1) == 0)
        *block = device_find(device, kind, bytes);
    return *block ? 0 : -1;
}

static int offload_reserve_blocks(struct devices *devices, uint64_t row, size_t note)
{
    struct device *device = devices->device;
    struct device_room *back = &devices->way_back;
    int status = 0;
    device_enter(device);
    if (offload_keep(device, &devices->way_out.pinned, MEMORY_PINNED, row) < 0 ||
        offload_keep(device, &back->pinned, MEMORY_PINNED, row) < 0 ||
        offload_keep(device, &back->packed, MEMORY_SCRATCH, row) < 0 ||
        offload_keep(device, &back->note, MEMORY_PINNED, note) < 0 ||
        offload_keep(device, &back->words, MEMORY_SCRATCH, note) < 0)
        status = -1;
    device_leave(device);
    return status;
}

static int offload_reserve_shelf(struct devices *devices, uint64_t bytes)
{
    if (bytes <= devices->shelf_bytes)
        return 0;
    assert(devices->shelf_count == 0);
    free(devices->shelf);
    devices->shelf_bytes = 0;
    devices->shelf = malloc(bytes);
    if (!devices->shelf) {
        device_fail(devices->device, "out of memory here");
        return -1;
    }
    devices->shelf_bytes = bytes;
    return 0;
}

int offload_reserve(struct flows *flows, uint32_t collectives, uint64_t bytes, uint64_t largest,
                    uint32_t units)
{
    struct devices *devices = flows->devices;
    const size_t note = (NOTE_UNITS + (size_t)units) * sizeof(uint64_t);
    thread_assert(&flows->thread);
    if (!devices)
        return 0;
    if (devices_reserve_flows(devices, collectives) < 0 ||
        offload_reserve_shelf(devices, bytes + collectives * (note + SHELF_ALIGN)) < 0)
        return -1;
    return offload_reserve_blocks(devices, largest, note);
}

void offload_fini(struct devices *devices)
{
    struct device *device = devices->device;
    devices_give(device, &devices->way_out.pinned);
    devices_give(device, &devices->way_back.pinned);
    devices_give(device, &devices->way_back.packed);
    devices_give(device, &devices->way_back.note);
    devices_give(device, &devices->way_back.words);
    free(devices->shelf);
    devices->shelf = NULL;
    devices->shelf_bytes = 0;
}
