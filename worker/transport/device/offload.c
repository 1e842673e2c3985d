// SPDX-License-Identifier: Apache-2.0
//
// Offloads results that wait for the trainer (dependency.c) when other flows need their device
// memory. A trainer may leave out any number of gradients, and do other work before it waits for
// the results. Meanwhile other ranks may need further buckets of the step. So a waiting result
// keeps no place in the window (`summed`), and if device blocks are short it gives up its blocks,
// too. It moves to the shelf, and comes back when the trainer has named the events to wait for:
//
//   STAGED, MIXED:  HELD, the row is on the host -> copied to the shelf                -> ASIDE
//   NCCL:           HELD -> LEAVING: the row to pinned memory -> it and the note there -> ASIDE
//
//   ASIDE -> both to pinned memory -> to the device as before, on DEVICE_BEHIND
//
// The shelf is plain host memory of the size of all buckets together. It is reserved, and not
// touched before a result is put there. One set of blocks is kept for the copies to the shelf and
// one for the copies back (way_out, way_back), so that these copies do not wait for flows in
// flight. Each set serves one flow at a time, so results come back one after the other, and the
// host waits for the device between them. No result is offloaded while blocks are free.
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

// The other ways have only used bits, which the collective keeps itself.
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

// A result whose events are named finishes without help.
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

// Copies a result from the shelf to pinned memory. Once the shelf is empty, it is filled from the
// beginning again.
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

// Copies a result to the host on DEVICE_DELIVER, which never waits for another rank or for a
// trainer.
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

// True if the flow can be offloaded. A flow with borrowed blocks is on its way back, and offloading
// it would free no memory of the pools.
static bool offload_may_leave(const struct devices *devices, const struct device_flow *flow)
{
    return flow->stage == STAGE_HELD && flow->summed && !flow->borrowed &&
           !dependency_is_known(flow) &&
           devices->shelf_end + offload_bytes(flow) <= devices->shelf_bytes;
}

// A failure of the device here is found at the next devices_work.
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

// Keeps a block of at least `bytes` outside the pools. A smaller one is given to the pools.
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
