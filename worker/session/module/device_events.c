// SPDX-License-Identifier: Apache-2.0
//
// Events for gradients on devices; see device_events.h.

#include "worker/session/module/device_events.h"

#include "worker/session/module/replicas.h"

#include "worker/device/device.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#define READY_LOOK_NS 20000 // Time between two queries of an event, in a solo session.

static uint32_t device_events_bucket_count(const struct lockstep_module *module)
{
    const uint32_t count = module->parameter_count;
    return count < LOCKSTEP_MAX_BUCKETS ? count : LOCKSTEP_MAX_BUCKETS;
}

// The number of gates of a contribution, those of all replicas.
static uint32_t device_events_gate_count(const struct lockstep_module *module)
{
    return device_events_bucket_count(module) * module->replicas;
}

static struct ready_gate *device_events_gate(const struct contribution *contribution,
                                             uint32_t replica, uint32_t bucket)
{
    return &contribution
                ->gates[replica * device_events_bucket_count(contribution->module) + bucket];
}

const struct device_ready *device_events_of(const struct contribution *contribution,
                                            uint32_t replica, uint32_t bucket)
{
    return device_events_gate(contribution, replica, bucket)->ready;
}

bool device_events_init(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    const uint32_t count = device_events_gate_count(module);
    if (!module->session->devices.first)
        return true;
    contribution->gates = calloc((size_t)count + 1, sizeof(*contribution->gates));
    for (uint32_t b = 0; contribution->gates && b < count; b++)
        mutex_init(&contribution->gates[b].mutex);
    return contribution->gates != NULL;
}

void device_events_fini(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    const uint32_t count = !contribution->gates ? 0 : device_events_gate_count(module);
    for (uint32_t b = 0; b < count; b++) {
        struct ready_gate *gate = &contribution->gates[b];
        for (uint32_t i = 0; i < LOCKSTEP_READY_STREAMS; i++) {
            if (gate->ready[i].event)
                device_event_free(module->devices[b / device_events_bucket_count(module)],
                                  gate->ready[i].event);
        }
        mutex_fini(&gate->mutex);
    }
    free(contribution->gates);
    contribution->gates = NULL;
}

static void device_events_gate_clear(struct ready_gate *gate)
{
    for (uint32_t i = 0; i < LOCKSTEP_READY_STREAMS; i++)
        gate->taken[i] = gate->ready[i].pending = false;
}

void device_events_window_begin(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    const uint32_t count = !contribution->gates ? 0 : module->layout.bucket_count;
    for (uint32_t r = 0; r < module->replicas; r++) {
        for (uint32_t b = 0; b < count; b++)
            device_events_gate_clear(device_events_gate(contribution, r, b));
    }
}

// ---- Reports -----------------------------------------------------------------------------------

static struct ready_gate *device_events_gate_of(const struct contribution *contribution,
                                                const struct ready_report *report)
{
    return device_events_gate(contribution, report->replica,
                              contribution->module->bucket_of[report->parameter]);
}

// The index of the event in a gate for a stream of the calling thread. If the stream has none, a
// free one: preferably one that was never used, else one of a stream that has not used it in this
// window. LOCKSTEP_READY_STREAMS: there is none.
static uint32_t device_events_place_locked(const struct ready_gate *gate, const void *stream)
{
    const uint64_t thread = device_stream_thread(stream);
    uint32_t place = LOCKSTEP_READY_STREAMS;
    mutex_assert_held(&gate->mutex);
    for (uint32_t i = 0; i < LOCKSTEP_READY_STREAMS; i++) {
        const struct device_ready *ready = &gate->ready[i];
        if (ready->event && ready->stream == stream && ready->thread == thread)
            return i;
        if (!gate->taken[i] &&
            (place == LOCKSTEP_READY_STREAMS || (!ready->event && gate->ready[place].event)))
            place = i;
    }
    return place;
}

// Reports the first failed device of this rank.
int device_events_failed(const struct lockstep_session *session)
{
    const char *text = NULL;
    for (uint32_t i = 0; i < session->devices.count && !text; i++)
        text = device_failed(session->devices.all[i]);
    return error_set(LOCKSTEP_E_SYSTEM, "the device has failed: %s",
                     !text ? "it has not said why" : text);
}

int device_events_reserve(struct contribution *contribution, const struct ready_report *report)
{
    const struct lockstep_module *module = contribution->module;
    struct ready_gate *gate = device_events_gate_of(contribution, report);
    uint32_t place;
    bool whole = true;
    mutex_lock(&gate->mutex);
    place = device_events_place_locked(gate, report->stream);
    if (place < LOCKSTEP_READY_STREAMS) {
        struct device_ready *ready = &gate->ready[place];
        if (!ready->event)
            ready->event = device_event_make(module->devices[report->replica]);
        whole = ready->event != NULL;
        ready->stream = report->stream;
        ready->thread = device_stream_thread(report->stream);
        gate->taken[place] = true;
    }
    mutex_unlock(&gate->mutex);
    if (!whole)
        return device_events_failed(module->session);
    if (place < LOCKSTEP_READY_STREAMS)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': gradients of the bucket of '%s' come from more than %d streams",
                     module->name, module->parameters[report->parameter].name,
                     LOCKSTEP_READY_STREAMS);
}

int device_events_record(struct contribution *contribution, const struct ready_report *report)
{
    const struct lockstep_module *module = contribution->module;
    struct ready_gate *gate = device_events_gate_of(contribution, report);
    int result = -1;
    mutex_lock(&gate->mutex);
    const uint32_t place = device_events_place_locked(gate, report->stream);
    if (place < LOCKSTEP_READY_STREAMS) {
        struct device_ready *ready = &gate->ready[place];
        ready->parameter = report->parameter;
        ready->pending = true;
        result =
            device_event_record(module->devices[report->replica], ready->event, report->stream);
    }
    mutex_unlock(&gate->mutex);
    return result < 0 ? device_events_failed(module->session) : 0;
}

// ---- Results of gradients that were not reported -----------------------------------------------

void device_events_open(struct lockstep_session *session)
{
    for (uint32_t i = 0; i < session->devices.count; i++) {
        session->devices.end_ready[i].event = device_event_make(session->devices.all[i]);
        session->devices.wait_ready[i].event = device_event_make(session->devices.all[i]);
        session->devices.wait_ready[i].pending = session->devices.wait_ready[i].event != NULL;
    }
}

void device_events_close(struct lockstep_session *session)
{
    for (uint32_t i = 0; i < session->devices.count; i++) {
        if (session->devices.end_ready[i].event)
            device_event_free(session->devices.all[i], session->devices.end_ready[i].event);
        if (session->devices.wait_ready[i].event)
            device_event_free(session->devices.all[i], session->devices.wait_ready[i].event);
    }
}

bool device_events_is_stream_of(const struct lockstep_session *session, uint32_t device,
                                void *stream)
{
    if (session->devices.count == 1 || !stream || device_is_default_stream(stream))
        return true;
    return device_has_stream(session->devices.all[device], stream);
}

const char *device_events_trouble(const struct lockstep_session *session, void *stream)
{
    const char *trouble = NULL;
    for (uint32_t i = 0; stream && i < session->devices.count && !trouble; i++) {
        if (device_has_stream(session->devices.all[i], stream))
            trouble = device_stream_trouble(session->devices.all[i], stream);
    }
    return trouble;
}

// Marks the events to record: those of all devices for a default stream, else that of the stream's
// device.
static void device_events_mark_stream(const struct lockstep_session *session,
                                      struct device_ready *ready, void *stream)
{
    for (uint32_t i = 0; i < session->devices.count; i++) {
        ready[i].stream = stream;
        ready[i].pending = ready[i].event && device_events_is_stream_of(session, i, stream);
    }
}

static int device_events_record_streams(const struct lockstep_session *session,
                                        const struct device_ready *ready, void *stream)
{
    int result = 0;
    for (uint32_t i = 0; i < session->devices.count && result == 0; i++) {
        if (ready[i].pending)
            result = device_event_record(session->devices.all[i], ready[i].event, stream);
    }
    return result;
}

// True if some replica has not reported the parameter's gradient.
static bool device_events_is_left_out(const struct contribution *contribution, uint32_t parameter)
{
    const struct lockstep_module *module = contribution->module;
    const struct gradient *gradient = &contribution->gradients[parameter];
    if (module->shapes[parameter].elements == 0)
        return false;
    if (module->replicas == 1)
        return !atomic_load_explicit(&gradient->used, memory_order_relaxed);
    for (uint32_t r = 0; r < module->replicas; r++) {
        const struct report *report =
            r == 0 ? &gradient->report : &replica_gradient(contribution, r, parameter)->report;
        if (!atomic_load_explicit(&report->used, memory_order_relaxed))
            return true;
    }
    return false;
}

bool device_events_leaves_out(const struct contribution *contribution, uint32_t bucket)
{
    const struct lockstep_module *module = contribution->module;
    const struct bucket *shape = &module->layout.buckets[bucket];
    bool left_out = false;
    if (!shape->device || !module->session->devices.first ||
        (module->session->world.size == 1 && module->replicas == 1))
        return false;
    for (uint32_t i = 0; i < shape->count && !left_out; i++)
        left_out = device_events_is_left_out(contribution, module->layout.order[shape->first + i]);
    return left_out;
}

// True if the contribution has a gradient that was not reported, and no event for its result yet.
static bool device_events_is_unsaid(const struct contribution *contribution)
{
    bool leaves_out = false;
    if (atomic_load_explicit(&contribution->behind.ready, memory_order_relaxed))
        return false;
    for (uint32_t b = 0; b < contribution->module->layout.bucket_count && !leaves_out; b++)
        leaves_out = device_events_leaves_out(contribution, b);
    return leaves_out;
}

// Records the events, and sets them for all contributions that need one. all: false for only those
// that are handed over. Other threads may hand over more meanwhile, so the event is recorded again
// for each one that is found then. If all gradients were reported, no event is recorded. A device
// that fails here fails again when results are written, and is reported there.
static void device_events_say(struct lockstep_session *session, struct device_ready *ready,
                              bool all, void *stream)
{
    bool recorded = false;
    for (uint32_t m = 0; m < session->module_count; m++) {
        struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->contribution_count; i++) {
            struct contribution *contribution = &module->contributions[i];
            if (!(all || atomic_load(&contribution->handed)) ||
                !device_events_is_unsaid(contribution))
                continue;
            if (!(recorded && all))
                (void)device_events_record_streams(session, ready, stream);
            recorded = true;
            atomic_store_explicit(&contribution->behind.ready, ready, memory_order_release);
        }
    }
}

void device_events_say_end(struct lockstep_session *session, void *stream)
{
    if (!session->devices.first || session->config.solo)
        return;
    device_events_mark_stream(session, session->devices.end_ready, stream);
    device_events_say(session, session->devices.end_ready, true, stream);
}

void device_events_say_wait(struct lockstep_session *session)
{
    if (session->devices.first && !session->config.solo)
        device_events_say(session, session->devices.wait_ready, false, NULL);
}

// ---- Solo sessions -----------------------------------------------------------------------------

static int device_events_await_event(const struct lockstep_session *session, struct device *device,
                                     void *event)
{
    const struct timespec pause = {.tv_nsec = READY_LOOK_NS};
    int happened;
    while ((happened = device_event_query(device, event)) == 0)
        nanosleep(&pause, NULL);
    return happened < 0 ? device_events_failed(session) : 0;
}

static int device_events_await_gate(const struct lockstep_module *module, struct device *device,
                                    const struct ready_gate *gate)
{
    int status = 0;
    for (uint32_t i = 0; i < LOCKSTEP_READY_STREAMS && status == 0; i++) {
        if (gate->ready[i].pending)
            status = device_events_await_event(module->session, device, gate->ready[i].event);
    }
    return status;
}

int device_events_await(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    const uint32_t count = !contribution->gates ? 0 : module->layout.bucket_count;
    int status = 0;
    for (uint32_t r = 0; r < module->replicas; r++) {
        for (uint32_t b = 0; b < count && status == 0; b++)
            status = device_events_await_gate(module, module->devices[r],
                                              device_events_gate(contribution, r, b));
    }
    return status;
}

int device_events_await_end(struct lockstep_session *session, void *stream)
{
    bool replicas = false;
    for (uint32_t m = 0; m < session->module_count && session->devices.first; m++)
        replicas = replicas || session->modules[m]->replicas > 1;
    if (!replicas)
        return 0;
    device_events_mark_stream(session, session->devices.end_ready, stream);
    if (device_events_record_streams(session, session->devices.end_ready, stream) < 0)
        return device_events_failed(session);
    int status = 0;
    for (uint32_t i = 0; i < session->devices.count && status == 0; i++) {
        if (session->devices.end_ready[i].pending)
            status = device_events_await_event(session, session->devices.all[i],
                                               session->devices.end_ready[i].event);
    }
    return status;
}
