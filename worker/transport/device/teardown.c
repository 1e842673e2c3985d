// SPDX-License-Identifier: Apache-2.0
//
// Ends a generation on devices: forgets all launched collectives. The driver's thread.
//
// A rank that gives up a generation first sets a word that the device reads (`revoked`): from then
// on no finish kernel begins to write. Then it aborts the communicator, which ends the kernels of
// NCCL, and waits for the kernels that already write. Flows whose work still waits, for example for
// a stream of the trainer, keep their blocks until the device has finished that work.
//
// The kernels of a rank that aborts may let those of other ranks end as if nothing had happened,
// with garbage. So a rank that freezes does not abort: another rank, which is not frozen yet, would
// take the garbage for final. It aborts when the next generation forms. By then all of its members
// are frozen, and no member looks at what NCCL still does.

#include "worker/transport/device/teardown.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/inputs.h"
#include "worker/transport/device/offload.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/segments.h"

#include <time.h>

static void teardown_revoke(struct devices *devices)
{
    uint32_t *words = (uint32_t *)(void *)devices->revoked->host;
    __atomic_store_n(&words[devices->generation % DEVICE_REVOKED_WORDS], 1, __ATOMIC_SEQ_CST);
}

static void teardown_end_communicator(struct devices *devices, bool in_order)
{
    char sentence[DEVICE_TEXT_BYTES];
    struct text text;
    if (!devices->communicator)
        return;
    if (!communicator_end(devices->communicator, in_order, devices->abort_ms)) {
        text_init(&text, sentence, sizeof(sentence));
        text_append(&text, "NCCL has not given up a communicator within %llu ms, and keeps it",
                    (unsigned long long)devices->abort_ms);
        device_fail(devices->device, sentence);
    }
    devices->communicator = NULL;
}

// Forgets a flow. If the device may still use it, moves it to devices->left, and records its event
// if that has not been done; else releases it.
static void teardown_leave_flow(struct devices *devices, struct device_flow *flow)
{
    const bool travels = flow->stage == STAGE_TRAVELLING && segments_are_under_way(flow);
    flow->collective->state = NULL;
    flow->awaits = !inputs_are_made(devices, flow);
    if (travels && segments_gather(devices, flow) == 0)
        (void)device_record(devices->device, DEVICE_DELIVER, flow->event);
    if (travels || flow->stage == STAGE_TAKING || flow->stage == STAGE_COLLECTING ||
        flow->stage == STAGE_HELD || flow->stage == STAGE_OFFLOADING ||
        flow->stage == STAGE_DELIVERING) {
        list_remove(&flow->turn);
        list_push_back(&devices->left, &flow->turn);
    } else {
        devices_release(devices, flow);
    }
}

static void teardown_leave_all(struct devices *devices)
{
    list_for_each_safe (node, &devices->working)
        teardown_leave_flow(devices, list_entry(node, struct device_flow, turn));
    list_for_each_safe (node, &devices->done)
        teardown_leave_flow(devices, list_entry(node, struct device_flow, turn));
    offload_forget(devices);
}

// Records the events of flows whose group NCCL was taking. It takes none any more.
static void teardown_record_taken(struct devices *devices)
{
    list_for_each (node, &devices->left) {
        struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (flow->stage != STAGE_TAKING)
            continue;
        (void)device_record(devices->device, DEVICE_REDUCE, flow->event);
        flow->stage = STAGE_COLLECTING;
    }
}

// True if a flow in devices->left may be writing gradients.
static bool teardown_writes(const struct devices *devices)
{
    list_for_each (node, &devices->left) {
        if (list_entry(node, struct device_flow, turn)->stage == STAGE_DELIVERING)
            return true;
    }
    return false;
}

// True if a flow in devices->left may be reading gradients and will finish. Enqueued work runs in
// order: if one flow waits for the trainer, others may wait after it, so then this returns false.
static bool teardown_reads(const struct devices *devices)
{
    bool reads = false;
    list_for_each (node, &devices->left) {
        const struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (flow->awaits)
            return false;
        reads = reads || (flow->stage >= STAGE_TAKING && flow->stage <= STAGE_TRAVELLING) ||
                (flow->stage == STAGE_HELD && device_flow_reduces(flow));
    }
    return reads;
}

static void teardown_settle(struct devices *devices, uint64_t deadline_ms)
{
    const struct timespec pause = {.tv_nsec = 100 * 1000};
    devices_work_left(devices);
    while ((teardown_writes(devices) || teardown_reads(devices)) && !devices_broken(devices)) {
        if (clock_now_ms() >= deadline_ms) {
            device_fail(devices->device, "the device does not come to the end of its work");
            return;
        }
        (void)nanosleep(&pause, NULL);
        devices_work_left(devices);
    }
}

// Ends flows whose results are in gradients by now. True if some are still being written.
static bool teardown_delivers(struct devices *devices)
{
    bool any = false;
    list_for_each_safe (node, &devices->working) {
        struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (flow->stage != STAGE_DELIVERING)
            continue;
        if (device_happened(devices->device, flow->event) > 0)
            devices_done(devices, flow);
        else
            any = true;
    }
    return any;
}

void teardown_deliver(struct flows *flows)
{
    struct devices *devices = flows->devices;
    const struct timespec pause = {.tv_nsec = 50 * 1000};
    if (!devices)
        return;
    const uint64_t deadline_ms = clock_now_ms() + devices->abort_ms;
    device_enter(devices->device);
    while (!devices_broken(devices) && teardown_delivers(devices)) {
        if (clock_now_ms() >= deadline_ms) {
            device_fail(devices->device, "the device does not come to the end of its work");
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
    device_leave(devices->device);
}

void teardown_forget(struct flows *flows, bool in_order)
{
    struct devices *devices = flows->devices;
    if (!devices)
        return;
    const uint64_t deadline_ms = clock_now_ms() + devices->abort_ms;
    const bool ends_well = in_order && list_empty(&devices->working) && !devices->failed;
    device_enter(devices->device);
    if (!ends_well)
        teardown_revoke(devices);
    teardown_end_communicator(devices, ends_well);
    teardown_leave_all(devices);
    teardown_record_taken(devices);
    teardown_settle(devices, deadline_ms);
    device_leave(devices->device);
    devices->stage = DEVICES_IDLE;
}

void teardown_freeze(struct flows *flows)
{
    struct devices *devices = flows->devices;
    if (!devices)
        return;
    if (!devices->communicator) {
        teardown_forget(flows, false);
        return;
    }
    device_enter(devices->device);
    teardown_leave_all(devices);
    device_leave(devices->device);
    devices->stage = DEVICES_IDLE;
    devices->failed = devices_broken(devices) != NULL;
    devices->failed_ms = 0;
}
