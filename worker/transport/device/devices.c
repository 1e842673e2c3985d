// SPDX-License-Identifier: Apache-2.0
//
// Collectives on devices: launch, progress, events and the end. The driver's thread. The ways of
// reducing are in staged.c, nccl.c and mixed.c, forming a communicator in rendezvous.c;
// docs/internals/data-plane.md explains the design.
//
// Nothing here waits for a device. Enqueued work ends with an event and a host function. The host
// function wakes the driver, which checks the events of all flows in progress. A failed device
// calls no host function, so the driver also checks events and NCCL's errors every DEVICES_LOOK_MS.

#include "worker/transport/device/devices.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/device/memory.h"
#include "worker/transport/device/device_flow.h"
#include "worker/transport/device/inputs.h"
#include "worker/transport/device/mixed.h"
#include "worker/transport/device/nccl.h"
#include "worker/transport/device/offload.h"
#include "worker/transport/device/parts.h"
#include "worker/transport/device/rendezvous.h"
#include "worker/transport/device/replicas.h"
#include "worker/transport/device/segments.h"
#include "worker/transport/device/staged.h"
#include "worker/transport/device/table_cache.h"
#include "worker/transport/device/teardown.h"

#include <assert.h>
#include <stdlib.h>

#define DEVICES_ABORT_MS 5000
#define DEVICES_LOOK_MS 20
// How long NCCL may take to finish the work that a peer did before its goodbye.
#define DEVICES_LEFT_MS 1000
// How long a rank that could go on after a death waits for word of one when NCCL has failed. The
// host of a rank may be silent for 20 s before the rank counts as dead.
#define DEVICES_WORD_MS 30000

// ---- failure ------------------------------------------------------------------------------------

struct device *devices_broken(const struct devices *devices)
{
    for (uint32_t i = 0; i < devices->device_count; i++) {
        if (device_failed(devices->all[i]))
            return devices->all[i];
    }
    return NULL;
}

// Returns why a device, or NCCL on it, has failed. NCCL also reports an error when a device is
// lost, so the devices are checked first.
static const char *devices_reason(const struct devices *devices)
{
    list_for_each (node, &devices->working) {
        const struct device_flow *flow = list_entry(node, struct device_flow, turn);
        (void)device_event_query(devices->device, flow->event);
    }
    const struct device *broken = devices_broken(devices);
    if (broken)
        return device_failed(broken);
    return devices->communicator ? communicator_text(devices->communicator) : "no reason is known";
}

bool devices_await_word(const struct devices *devices)
{
    return devices->flows->recovers && devices->failed_ms != 0 && !devices_broken(devices) &&
           clock_now_ms() < devices->failed_ms + DEVICES_WORD_MS;
}

static void devices_fail(struct devices *devices)
{
    if (devices->failed)
        return;
    devices->failed = true;
    devices->failed_ms = clock_now_ms();
    text_copy(devices->text, sizeof(devices->text), devices_reason(devices));
}

// ---- flows --------------------------------------------------------------------------------------

static void devices_free_flow(struct devices *devices, struct device_flow *flow)
{
    if (flow->event)
        device_event_free(devices->device, flow->event);
    if (flow->sum_event)
        device_event_free(devices->device, flow->sum_event);
    free(flow->extents);
    free(flow);
}

static struct device_flow *devices_make_flow(struct devices *devices)
{
    struct device_flow *flow = calloc(1, sizeof(*flow));
    if (!flow) {
        device_fail(devices->device, "out of memory here");
        return NULL;
    }
    list_init(&flow->turn);
    flow->event = device_event_make(devices->device);
    flow->sum_event = flow->event ? device_event_make(devices->device) : NULL;
    if (!flow->sum_event) {
        devices_free_flow(devices, flow);
        return NULL;
    }
    devices->flow_count++;
    return flow;
}

int devices_reserve_flows(struct devices *devices, uint64_t count)
{
    while (devices->flow_count < count) {
        struct device_flow *flow = devices_make_flow(devices);
        if (!flow)
            return -1;
        list_push_back(&devices->idle, &flow->turn);
    }
    return 0;
}

static struct device_flow *devices_take_flow(struct devices *devices)
{
    struct list *node = list_pop_front(&devices->idle);
    return node ? list_entry(node, struct device_flow, turn) : devices_make_flow(devices);
}

void devices_give(struct device *device, struct device_block **block)
{
    if (*block)
        device_give(device, *block);
    *block = NULL;
}

static bool devices_reduces(const struct devices *devices)
{
    list_for_each (node, &devices->working) {
        const struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (device_flow_reduces(flow) && flow->stage != STAGE_WAITING)
            return true;
    }
    return false;
}

// Allocates a block. The device must be current for that.
static struct device_block *devices_make(struct device *device, enum device_memory kind,
                                         size_t bytes)
{
    device_enter(device);
    struct device_block *block = device_take(device, kind, bytes);
    device_leave(device);
    return block;
}

bool devices_take(struct devices *devices, struct device *device, struct device_block **block,
                  enum device_memory kind, size_t bytes)
{
    if (!*block)
        *block = device_find(device, kind, bytes);
    while (!*block && offload_make_room(devices))
        *block = device_find(device, kind, bytes);
    if (!*block && !devices_reduces(devices) && !offload_is_leaving(devices))
        *block = devices_make(device, kind, bytes);
    return *block != NULL;
}

void devices_give_all(struct devices *devices, struct device_flow *flow)
{
    offload_release(flow);
    table_cache_release(&flow->cached);
    replicas_release(devices, flow);
    devices_give(devices->device, &flow->packed);
    devices_give(devices->device, &flow->pinned);
    devices_give(devices->device, &flow->note);
    devices_give(devices->device, &flow->words);
}

void devices_release(struct devices *devices, struct device_flow *flow)
{
    devices_give_all(devices, flow);
    segments_release(devices, flow);
    flow->collective = NULL;
    flow->untold = flow->summed = flow->summed_untold = flow->whole = false;
    list_remove(&flow->turn);
    list_push_front(&devices->idle, &flow->turn);
}

int devices_await(struct device *device, enum device_stream stream,
                  const struct device_ready *ready, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ready[i].pending && device_wait(device, stream, ready[i].event) < 0)
            return -1;
    }
    return 0;
}

int devices_await_ready(struct devices *devices, const struct device_flow *flow,
                        enum device_stream stream)
{
    const struct collective *collective = flow->collective;
    return devices_await(devices->device, stream, collective->ready, collective->ready_count);
}

int devices_enqueued(struct devices *devices, struct device_flow *flow, enum device_stream stream)
{
    flow->untold = flow->stage == STAGE_DELIVERING;
    if (device_record(devices->device, stream, flow->event) < 0)
        return -1;
    return device_ring(devices->device, stream);
}

void devices_done(struct devices *devices, struct device_flow *flow)
{
    flow->stage = STAGE_DONE;
    list_remove(&flow->turn);
    list_push_back(&devices->done, &flow->turn);
}

// ---- open and close -----------------------------------------------------------------------------

static void devices_rung(void *context)
{
    attention_ask(context);
}

int devices_open(struct flows *flows, const struct transport_config *config)
{
    if (!config->device)
        return 0;
    struct devices *devices = flows->devices = calloc(1, sizeof(*devices));
    if (!devices)
        return -1;
    devices->flows = flows;
    devices->device = config->device;
    devices->all[devices->device_count++] = config->device;
    for (uint32_t i = 0; i < config->further_count; i++)
        devices->all[devices->device_count++] = config->further[i];
    devices->abort_ms = config->abort_ms == 0 ? DEVICES_ABORT_MS : config->abort_ms;
    devices->segment_bytes = config->segment_bytes;
    struct list *const lists[] = {&devices->working, &devices->done, &devices->left, &devices->idle,
                                  &devices->segment_events};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        list_init(lists[i]);
    device_enter(devices->device);
    devices->revoked =
        device_take(devices->device, MEMORY_PINNED, DEVICE_REVOKED_WORDS * sizeof(uint32_t));
    device_leave(devices->device);
    if (!devices->revoked)
        return -1;
    device_bell(devices->device, devices_rung, &flows->attention);
    return 0;
}

// The device may still use the blocks of these flows: device_close waits for it before it frees
// them.
static void devices_free_flows(struct devices *devices, struct list *list)
{
    struct list *node = NULL;
    while ((node = list_first(list))) {
        struct device_flow *flow = list_entry(node, struct device_flow, turn);
        devices_release(devices, flow);
        list_remove(&flow->turn);
        devices_free_flow(devices, flow);
    }
}

void devices_close(struct flows *flows)
{
    struct devices *devices = flows->devices;
    if (!devices)
        return;
    device_bell(devices->device, NULL, NULL);
    teardown_forget(flows, false);
    devices_free_flows(devices, &devices->left);
    devices_free_flows(devices, &devices->idle);
    segments_fini(devices);
    table_cache_fini(devices);
    offload_fini(devices);
    devices_give(devices->device, &devices->revoked);
    free(devices);
    flows->devices = NULL;
}

int devices_reserve(struct flows *flows, uint32_t collectives, uint64_t bytes, uint32_t extents,
                    uint32_t units)
{
    struct devices *devices = flows->devices;
    const size_t note = (2 + (size_t)units) * sizeof(uint64_t);
    const struct transport_world *world = &flows->world;
    thread_assert(&flows->thread);
    if (!devices)
        return 0;
    const uint64_t row = bytes + (world->devices_meet ? mixed_spare_bytes(world) : 0);
    if (devices_reserve_flows(devices, devices->flow_count + collectives) < 0 ||
        segments_reserve(devices, collectives, bytes) < 0 ||
        device_reserve(devices->device, MEMORY_SCRATCH, row, collectives) < 0 ||
        device_reserve(devices->device, MEMORY_SCRATCH, note, collectives) < 0 ||
        device_reserve(devices->device, MEMORY_PINNED, note, collectives) < 0)
        return -1;
    if ((flows->recovers || device_ranks(world) < world->world_size) &&
        device_reserve(devices->device, MEMORY_PINNED, bytes, collectives) < 0)
        return -1;
    device_enter(devices->device);
    rendezvous_register(devices);
    device_leave(devices->device);
    return table_cache_reserve(devices, devices->device, extents + units, bytes, collectives);
}

int devices_reserve_tables(struct flows *flows, struct device *device, uint32_t collectives,
                           uint64_t bytes, uint32_t extents)
{
    struct devices *devices = flows->devices;
    thread_assert(&flows->thread);
    return devices ? table_cache_reserve(devices, device, extents, bytes, collectives) : 0;
}

int devices_reserve_rows(struct flows *flows, struct device *device, uint32_t rows, uint64_t bytes,
                         uint32_t units)
{
    const size_t note = (2 + (size_t)units) * sizeof(uint64_t);
    thread_assert(&flows->thread);
    if (!flows->devices)
        return 0;
    return device_reserve(device, MEMORY_SCRATCH, bytes, rows) < 0
               ? -1
               : device_reserve(device, MEMORY_SCRATCH, note, rows);
}

// ---- working ------------------------------------------------------------------------------------

static int devices_work_flow(struct devices *devices, struct device_flow *flow)
{
    if (flow->stage == STAGE_OFFLOADING || flow->stage == STAGE_OFFLOADED)
        return offload_work(devices, flow);
    if (flow->way == DEVICE_WAY_NCCL)
        return nccl_work(devices, flow);
    return device_flow_reduces(flow) ? mixed_work(devices, flow) : staged_work(devices, flow);
}

void devices_launch(struct flows *flows, struct collective *collective, enum device_way way)
{
    struct devices *devices = flows->devices;
    assert(devices && collective->device == devices->device);
    collective->weight_total = 0;
    collective->first_sent_us = 0;
    collective->last_received_us = 0;
    struct device_flow *flow = devices->failed ? NULL : devices_take_flow(devices);
    collective->state = flow;
    if (!flow) {
        devices_fail(devices);
        return;
    }
    flow->collective = collective;
    flow->way = way;
    list_push_back(&devices->working, &flow->turn);
    flow->stage = STAGE_WAITING;
    device_enter(devices->device);
    int launched = devices_work_flow(devices, flow);
    flow->rings = launched == 0 && nccl_waits_for_trainer(devices, flow);
    if (flow->rings)
        launched = inputs_ring(devices, flow);
    device_leave(devices->device);
    if (launched < 0)
        devices_fail(devices);
}

void devices_work_left(struct devices *devices)
{
    list_for_each_safe (node, &devices->left) {
        struct device_flow *flow = list_entry(node, struct device_flow, turn);
        // NCCL may still be taking the group: no event is recorded after it yet.
        if (flow->stage == STAGE_TAKING || device_happened(devices->device, flow->event) == 0)
            continue;
        devices_release(devices, flow);
    }
}

static void devices_work_flows(struct devices *devices)
{
    list_for_each_safe (node, &devices->working) {
        if (devices_work_flow(devices, list_entry(node, struct device_flow, turn)) < 0) {
            devices_fail(devices);
            return;
        }
    }
}

static bool devices_has_nccl(const struct devices *devices)
{
    list_for_each (node, &devices->working) {
        if (device_flow_needs_ranks(list_entry(node, struct device_flow, turn)))
            return true;
    }
    return false;
}

// NCCL reports an error of work in flight only when it is polled. It may also report that a rank
// has left, which has taken its part in all sums.
static void devices_work_errors(struct devices *devices)
{
    if (devices_broken(devices) ||
        (devices->stage == DEVICES_FORMED && devices_has_nccl(devices) &&
         communicator_poll(devices->communicator) == COMMUNICATOR_BROKEN))
        devices_fail(devices);
}

void devices_work(struct flows *flows, struct rendezvous *rendezvous)
{
    struct devices *devices = flows->devices;
    if (!devices) {
        rendezvous_work(flows, rendezvous);
        return;
    }
    if (flows->formed_reported && list_empty(&devices->working) && list_empty(&devices->left))
        return;
    device_enter(devices->device);
    rendezvous_work(flows, rendezvous);
    if (!devices->failed)
        devices_work_left(devices);
    if (!devices->failed && !list_empty(&devices->working))
        devices_work_errors(devices);
    if (!devices->failed)
        devices_work_flows(devices);
    device_leave(devices->device);
}

// ---- events -------------------------------------------------------------------------------------

static void devices_tell(struct devices *devices, struct device_flow *flow)
{
    const struct transport_events *events = &devices->flows->events;
    flow->untold = false;
    if (events->enqueued)
        events->enqueued(events->context, flow->collective);
}

static bool devices_report_enqueued(struct devices *devices)
{
    list_for_each (node, &devices->working) {
        struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (!flow->untold)
            continue;
        devices_tell(devices, flow);
        return true;
    }
    return false;
}

// Collectives with on_devices unset are not the caller's: it hears of their end only.
static bool devices_report_summed(struct devices *devices)
{
    const struct transport_events *events = &devices->flows->events;
    list_for_each (node, &devices->working) {
        struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (!flow->summed_untold)
            continue;
        flow->summed_untold = false;
        if (events->summed && flow->collective->on_devices)
            events->summed(events->context, flow->collective);
        return true;
    }
    return false;
}

// The flow of a collective that is done, and of which nothing else is to be told. NULL: none.
static struct device_flow *devices_first_done(const struct devices *devices)
{
    struct list *node = list_first(&devices->done);
    struct device_flow *flow = node ? list_entry(node, struct device_flow, turn) : NULL;
    return flow && !flow->untold ? flow : NULL;
}

static bool devices_report_last(struct devices *devices)
{
    struct list *node = list_first(&devices->done);
    if (!node || devices_first_done(devices))
        return false;
    devices_tell(devices, list_entry(node, struct device_flow, turn));
    return true;
}

struct collective *devices_next_done(struct flows *flows)
{
    struct devices *devices = flows->devices;
    struct device_flow *flow = devices ? devices_first_done(devices) : NULL;
    struct collective *collective = flow ? flow->collective : NULL;
    if (!flow)
        return NULL;
    collective->state = NULL;
    devices_release(devices, flow);
    return collective;
}

static bool devices_report_failed(struct devices *devices)
{
    const struct transport_events *events = &devices->flows->events;
    if (!devices->failed || devices->failure_reported || devices_await_word(devices))
        return false;
    devices->failure_reported = true;
    if (events->device_failed)
        events->device_failed(events->context, devices->text);
    return true;
}

bool devices_report(struct flows *flows)
{
    struct devices *devices = flows->devices;
    return devices && (devices_report_enqueued(devices) || devices_report_summed(devices) ||
                       devices_report_last(devices) || devices_report_failed(devices));
}

struct collective *devices_whole(struct flows *flows, uint32_t index)
{
    if (!flows->devices)
        return NULL;
    list_for_each (node, &flows->devices->working)
        if (index-- == 0)
            return list_entry(node, struct device_flow, turn)->collective;
    return NULL;
}

static struct device_flow *devices_flow_of(struct flows *flows, const struct collective *collective)
{
    if (!flows->devices)
        return NULL;
    list_for_each (node, &flows->devices->working) {
        struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (collective == &flow->host)
            return flow;
    }
    return NULL;
}

struct collective *devices_outer(struct flows *flows, const struct collective *collective)
{
    const struct device_flow *flow = devices_flow_of(flows, collective);
    return flow ? flow->collective : NULL;
}

void devices_travelled(struct flows *flows, const struct collective *collective)
{
    struct devices *devices = flows->devices;
    device_enter(devices->device);
    const int travelled = staged_travelled(devices, devices_flow_of(flows, collective));
    device_leave(devices->device);
    if (travelled < 0)
        devices_fail(devices);
}

// ---- waiting ------------------------------------------------------------------------------------

// NCCL's data and the goodbye travel on different connections. So work of a peer that has left may
// still finish, and DEVICES_LEFT_MS are allowed for it.
bool devices_needs(struct flows *flows, const struct peer_link *peer)
{
    struct devices *devices = flows->devices;
    if (!devices || !peer->left || !devices_has_nccl(devices)) {
        if (devices && !devices_has_nccl(devices))
            devices->left_ms = 0;
        return false;
    }
    if (devices->left_ms == 0)
        devices->left_ms = clock_now_ms();
    return clock_now_ms() >= devices->left_ms + DEVICES_LEFT_MS;
}

bool devices_idle(const struct flows *flows)
{
    const struct devices *devices = flows->devices;
    return !devices || (list_empty(&devices->working) && list_empty(&devices->done));
}

static bool devices_has_to_look(const struct devices *devices)
{
    if (devices->stage == DEVICES_JOINING)
        return true;
    list_for_each (node, &devices->working) {
        const struct device_flow *flow = list_entry(node, struct device_flow, turn);
        if (flow->stage <= STAGE_TAKING && !flow->rings)
            return true;
    }
    return false;
}

uint64_t devices_deadline(const struct flows *flows, uint64_t now_ms)
{
    const struct devices *devices = flows->devices;
    if (devices && devices_await_word(devices))
        return devices->failed_ms + DEVICES_WORD_MS;
    if (!devices || devices->failed)
        return UINT64_MAX;
    if (devices_has_to_look(devices))
        return now_ms + 1;
    return list_empty(&devices->working) ? UINT64_MAX : now_ms + DEVICES_LOOK_MS;
}
