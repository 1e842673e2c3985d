// SPDX-License-Identifier: Apache-2.0
//
// Buckets in the memory of this rank's device: when such a bucket counts as final, and what memory
// is reserved for it. How it travels is in worker/transport/device. Driver only.
//
// A bucket on the device is final when its results are in memory: the transport then reports it as
// done, like any other bucket. A trainer that ends its step by a stream needs less: all work must
// be enqueued, because its stream waits for that work on the device. So once the last bucket of the
// step is launched, the engine tells the order core that the enqueued buckets are final. The step
// has *landed* when the last of these buckets is done. Until then the next step waits, and so does
// a trainer that reads results of the step on the host.
//
// In a learning step buckets do not become final early: layouts change when the step has settled,
// and buckets in flight still use the old layouts.

#include "worker/engine/landing.h"

#include "base/text.h"
#include "worker/engine/decisions.h"
#include "worker/engine/parts.h"
#include "worker/engine/progress.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/device/inspect.h"
#include "worker/transport/reserve.h"

#include <string.h>

const char engine_no_room[] =
    "the device has no memory for the buckets that are in flight in a step: smaller ones "
    "(config.bucket_bytes) need less";

static struct bucket_run *engine_run(struct collective *collective)
{
    return (struct bucket_run *)(void *)((char *)collective -
                                         offsetof(struct bucket_run, collective));
}

void engine_enqueued(void *context, struct collective *collective)
{
    struct lockstep_session *session = context;
    // The collective is no bucket. A thread waits for its work directly.
    if (!collective->on_devices)
        return;
    engine_run(collective)->enqueued = true;
    session->landing.any_enqueued = true;
}

// The bucket's sum is complete, and only this rank's trainer is awaited. The order core is told, so
// that no other rank has to wait for this trainer.
void engine_summed(void *context, struct collective *collective)
{
    struct lockstep_session *session = context;
    order_slot_summed(session->engine.order, collective->tag.slot);
    progress_order(session);
}

// ---- Buckets that count as final ---------------------------------------------------------------

void engine_end_by_stream(struct lockstep_session *session)
{
    session->landing.by_stream = !session->engine.order->learning;
}

// True if all buckets of the step are launched. A bucket that counts as final makes room in the
// window for another launch. So if buckets counted as final early before this, more of them would
// be in flight than the device has room for.
static bool engine_all_launched(const struct order *order)
{
    uint32_t i = order->low;
    while (i < order->slot_count && order->slots[i].state >= SLOT_LAUNCHED)
        i++;
    return order->closed && i == order->slot_count;
}

bool engine_device_is_due(const struct lockstep_session *session)
{
    return session->landing.by_stream && session->landing.any_enqueued &&
           engine_all_launched(session->engine.order);
}

static void engine_set_landed(struct lockstep_session *session, bool landed)
{
    mutex_lock(&session->mutex);
    session->landing.landed = landed;
    drive_changed_locked(session);
    mutex_unlock(&session->mutex);
}

static void engine_tell(struct lockstep_session *session, struct bucket_run *run)
{
    run->enqueued = false;
    run->told = true;
    if (session->landing.unlanded++ == 0)
        engine_set_landed(session, false);
    engine_slot_final(session, &run->collective);
}

static void engine_tell_contribution(struct lockstep_session *session,
                                     struct contribution *contribution)
{
    for (uint32_t b = 0; b < contribution->module->layout.bucket_count; b++) {
        if (contribution->runs[b].enqueued)
            engine_tell(session, &contribution->runs[b]);
    }
}

void engine_device_attend(struct lockstep_session *session)
{
    while (engine_device_is_due(session) && !session->end.over) {
        session->landing.any_enqueued = false;
        for (uint32_t m = 0; m < session->module_count; m++) {
            struct lockstep_module *module = session->modules[m];
            for (uint32_t i = 0; i < module->contribution_count; i++)
                engine_tell_contribution(session, &module->contributions[i]);
        }
    }
}

bool engine_device_done(struct lockstep_session *session, struct collective *collective)
{
    struct bucket_run *run = engine_run(collective);
    const bool told = run->told;
    run->enqueued = run->told = false;
    if (told && --session->landing.unlanded == 0)
        engine_set_landed(session, true);
    return told;
}

// ---- Names for people ---------------------------------------------------------------------------

static const struct buffer_group *engine_held_group(const struct lockstep_session *session,
                                                    const struct device_held *held)
{
    for (uint32_t g = 0; g < session->buffers.group_count; g++) {
        if (held->ready == &session->buffers.groups[g].ready)
            return &session->buffers.groups[g];
    }
    return NULL;
}

// True if `ready` is an element of `all`, which has one event for each device of this rank.
static bool engine_is_one_of(const struct device_ready *all, const struct device_ready *ready)
{
    for (uint32_t i = 0; i < LOCKSTEP_MAX_OWN_DEVICES; i++) {
        if (ready == &all[i])
            return true;
    }
    return false;
}

void engine_describe_held(const struct lockstep_session *session, const struct device_held *held,
                          char *text, size_t bytes)
{
    const struct buffer_group *group = engine_held_group(session, held);
    struct text into;
    text_init(&into, text, bytes);
    if (!held->ready) {
        text_append(&into, "copies and kernels of Lockstep");
        return;
    }
    if (group) {
        text_append(&into, "the buffer '%s'", group->tensors[0]->name);
        return;
    }
    const bool ends = engine_is_one_of(session->devices.end_ready, held->ready);
    if (ends || engine_is_one_of(session->devices.wait_ready, held->ready)) {
        text_append(&into, "the work before %s", ends ? "lockstep_step_end" : "lockstep_call_wait");
        return;
    }
    const struct contribution *contribution = held->collective->context;
    text_append(&into, "the gradient of '%s'",
                contribution->module->parameters[held->ready->parameter].name);
}

// ---- Room --------------------------------------------------------------------------------------

// A CUDA allocation may wait for all work of the device, and so for other ranks. These ranks may
// wait for this one, which would be a deadlock. So nothing is allocated while a step is open:
// memory is reserved when layouts come into force, because their sizes are known then.

// The room that the buckets on this device take.
struct demand {
    // Sizes of the largest buckets, the largest first. At most LOCKSTEP_WINDOW are in flight.
    uint64_t bytes[LOCKSTEP_WINDOW];
    uint32_t members; // Extents and units of one bucket, at most.
    uint32_t slots; // Buckets on the device, counted once for each contribution.
    // For modules with replicas, for each device of this rank: rows of one bucket, at most.
    uint32_t rows[LOCKSTEP_MAX_OWN_DEVICES];
    // For modules with replicas, for each device of this rank: tables of all buckets.
    uint32_t tables[LOCKSTEP_MAX_OWN_DEVICES];
    // Results that may have to wait for the trainer: bytes of all, and of the largest.
    uint64_t late_bytes;
    uint64_t late_largest;
};

static void demand_add(struct demand *demand, uint64_t bytes)
{
    for (uint32_t i = 0; i < LOCKSTEP_WINDOW; i++) {
        const uint64_t smaller = demand->bytes[i];
        if (smaller >= bytes)
            continue;
        demand->bytes[i] = bytes;
        bytes = smaller;
    }
}

static uint32_t demand_rows(const struct demand *demand)
{
    uint32_t rows = 0;
    for (uint32_t d = 0; d < LOCKSTEP_MAX_OWN_DEVICES; d++)
        rows += demand->rows[d];
    return rows;
}

// Adds what the module's replicas take. The first device needs two rows for each bucket: one for a
// replica's contribution and one for the sum. Another device needs a row for each replica on it.
static void demand_add_replicas(struct demand *demand, const struct lockstep_module *module,
                                uint32_t slots)
{
    const struct lockstep_session *session = module->session;
    for (uint32_t d = 0; d < session->devices.count && slots > 0 && module->replicas > 1; d++) {
        uint32_t here = 0;
        for (uint32_t r = 1; r < module->replicas; r++)
            here += module->devices[r] == session->devices.all[d];
        demand->tables[d] += here * slots;
        if (d == 0)
            here = 2;
        if (here > demand->rows[d])
            demand->rows[d] = here;
    }
}

// Adds the room for a bucket's result that waits for the trainer, in the dtype in which it travels.
static void demand_add_late(struct demand *demand, const struct lockstep_module *module,
                            const struct bucket *bucket)
{
    const bool widens = module->wire == LOCKSTEP_WIRE_FLOAT32 && dtype_is_small(bucket->dtype);
    const uint64_t bytes = bucket->elements * dtype_size(widens ? DTYPE_FLOAT32 : bucket->dtype);
    // With one rank and one replica, a gradient is its own result.
    if (module->session->world.size == 1 && module->replicas == 1)
        return;
    demand->late_bytes += bytes * module->contribution_count;
    if (bytes > demand->late_largest)
        demand->late_largest = bytes;
}

static void demand_add_module(struct demand *demand, const struct lockstep_module *module)
{
    const uint32_t before = demand->slots;
    for (uint32_t b = 0; b < module->layout.bucket_count; b++) {
        const struct bucket *bucket = &module->layout.buckets[b];
        if (!bucket->device)
            continue;
        for (uint32_t i = 0; i < module->contribution_count; i++)
            demand_add(demand, bucket->elements * dtype_size(bucket->dtype));
        demand_add_late(demand, module, bucket);
        demand->slots += module->contribution_count;
        if (bucket->count > demand->members)
            demand->members = bucket->count;
    }
    demand_add_replicas(demand, module, demand->slots - before);
}

static int engine_reserve_replicas(struct lockstep_session *session, const struct demand *demand,
                                   uint64_t bytes)
{
    int result = 0;
    for (uint32_t d = 0; d < session->devices.count && result == 0; d++)
        result = transport_reserve_rows(session->transport, session->devices.all[d],
                                        demand->rows[d], bytes, demand->members);
    return result;
}

static int engine_reserve_tables(struct lockstep_session *session, const struct demand *demand)
{
    int result = transport_reserve_tables(session->transport, session->devices.first, demand->slots,
                                          demand->bytes[0], demand->members);
    for (uint32_t d = 0; d < session->devices.count && result == 0; d++)
        result = transport_reserve_tables(session->transport, session->devices.all[d],
                                          demand->tables[d], demand->bytes[0], demand->members);
    return result;
}

static int engine_reserve_late(struct lockstep_session *session, const struct demand *demand)
{
    int result = 0;
    if (demand->late_bytes == 0)
        return 0;
    // One set of rows more: a deferred bucket may come back while all other sets are in use.
    if (demand_rows(demand) > session->landing.room_late_rows)
        result = engine_reserve_replicas(session, demand, demand->late_largest);
    session->landing.room_late_rows = demand_rows(demand);
    return result < 0
               ? -1
               : transport_reserve_offload(session->transport, demand->slots, demand->late_bytes,
                                           demand->late_largest, demand->members);
}

int engine_reserve_layouts(struct lockstep_session *session)
{
    struct demand demand = {.members = session->landing.room_members};
    int result;
    if (!session->devices.first)
        return 0;
    for (uint32_t m = 0; m < session->module_count; m++)
        demand_add_module(&demand, session->modules[m]);
    result = engine_reserve_tables(session, &demand);
    for (uint32_t i = 0; i < LOCKSTEP_WINDOW && result == 0; i++) {
        if (demand.bytes[i] <= session->landing.room[i] &&
            demand.members == session->landing.room_members &&
            demand_rows(&demand) <= session->landing.room_rows)
            continue;
        if (demand.bytes[i] < session->landing.room[i])
            demand.bytes[i] = session->landing.room[i];
        result = transport_reserve_device(session->transport, 1, demand.bytes[i], demand.members,
                                          demand.members);
        if (result == 0)
            result = engine_reserve_replicas(session, &demand, demand.bytes[i]);
        session->landing.room[i] = demand.bytes[i];
    }
    session->landing.room_members = demand.members;
    session->landing.room_rows = demand_rows(&demand);
    return result < 0 ? -1 : engine_reserve_late(session, &demand);
}

static int engine_reserve_group(const struct lockstep_session *session,
                                const struct buffer_group *group)
{
    uint64_t elements = 0;
    if (!group->on_devices)
        return 0;
    for (uint32_t i = 0; i < group->count; i++)
        elements += group->tensors[i]->elements;
    return transport_reserve_device(session->transport, 1, elements * dtype_size(group->dtype),
                                    group->count, 0);
}

int engine_reserve(struct lockstep_session *session)
{
    int result;
    transport_reserve(session->transport, LOCKSTEP_WINDOW + session->buffers.group_count);
    result = engine_reserve_layouts(session);
    for (uint32_t g = 0; g < session->buffers.group_count && session->devices.first && result == 0;
         g++)
        result = engine_reserve_group(session, &session->buffers.groups[g]);
    return result;
}
