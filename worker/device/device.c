// SPDX-License-Identifier: Apache-2.0
//
// A device at work: failures, contexts, events, streams, and closing. open.c makes the device.
// device.h says which thread runs which function.
//
// Every change of the context is a push and a pop, so the trainer's current context stays the same.

#include "worker/device/device.h"

#include "worker/device/memory.h"
#include "worker/device/parts.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/device/kernels.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

// The time in which enqueued work has to end when the device is closed.
#define DEVICE_CLOSE_MS 2000

// ---- failure ------------------------------------------------------------------------------------

void device_fail(struct device *device, const char *text)
{
    int good = HEALTH_GOOD;
    if (!atomic_compare_exchange_strong(&device->health, &good, HEALTH_ENDING))
        return;
    text_copy(device->text, sizeof(device->text), text);
    atomic_store_explicit(&device->health, HEALTH_FAILED, memory_order_release);
}

int device_check(struct device *device, int result, const char *call)
{
    char text[DEVICE_TEXT_BYTES];
    if (result == CUDA_OK)
        return device_failed(device) ? -1 : 0;
    cuda_describe(device->cuda, result, call, text, sizeof(text));
    device_fail(device, text);
    return -1;
}

const char *device_failed(const struct device *device)
{
    switch (atomic_load_explicit(&device->health, memory_order_acquire)) {
    case HEALTH_GOOD:
        return NULL;
    case HEALTH_FAILED:
        return device->text;
    default:
        return "the device fails"; // Another thread is writing the reason.
    }
}

// ---- close --------------------------------------------------------------------------------------

static void device_pause(void)
{
    const struct timespec pause = {.tv_nsec = 200 * 1000};
    (void)nanosleep(&pause, NULL);
}

// Waits for all enqueued work, at most DEVICE_CLOSE_MS. True if it is done.
static bool device_at_rest(const struct device *device)
{
    const uint64_t deadline_ms = clock_now_ms() + DEVICE_CLOSE_MS;
    for (int i = 0; i < DEVICE_STREAMS; i++) {
        while (device->streams[i] &&
               device->cuda->stream_query(device->streams[i]) == CUDA_NOT_READY) {
            if (clock_now_ms() >= deadline_ms)
                return false;
            device_pause();
        }
    }
    while (device->bell && atomic_load(&device->bell->awaited) > 0 && !device_failed(device)) {
        if (clock_now_ms() >= deadline_ms)
            return false;
        device_pause();
    }
    return true;
}

static void device_destroy(struct device *device)
{
    const struct cuda *cuda = device->cuda;
    device_memory_fini(device);
    if (device->copies)
        (void)cuda->stream_destroy(device->copies);
    for (int i = 0; i < DEVICE_STREAMS; i++) {
        if (device->follow[i])
            (void)cuda->event_destroy(device->follow[i]);
        if (device->crossed[i])
            (void)cuda->event_destroy(device->crossed[i]);
        if (device->streams[i])
            (void)cuda->stream_destroy(device->streams[i]);
    }
    if (device->module)
        (void)cuda->module_unload(device->module);
}

void device_close(struct device *device)
{
    if (!device)
        return;
    device_bell(device, NULL, NULL);
    device_enter(device);
    const bool at_rest = device_at_rest(device);
    if (at_rest)
        device_destroy(device);
    device_leave(device);
    if (!at_rest)
        return; // Freeing would wait for the device, which may still read this memory.
    if (device->retained)
        (void)device->cuda->device_primary_ctx_release(device->handle);
    if (device->bell && atomic_load(&device->bell->awaited) == 0) {
        mutex_fini(&device->bell->mutex);
        free(device->bell);
    }
    mutex_fini(&device->pin_mutex);
    free(device);
}

const struct device_facts *device_facts(const struct device *device)
{
    return &device->facts;
}

// ---- contexts -----------------------------------------------------------------------------------

// Number of open device_enter calls of this thread that failed to push a context. Their
// device_leave must not pop, because the current context is the trainer's.
static _Thread_local unsigned refused_entries;

// The open device_enter calls of this thread, and the mode of captures that it had before.
static _Thread_local unsigned entries;
static _Thread_local int capture_mode;

// Calls of this thread go on while a program captures streams into graphs.
static void device_relax(const struct device *device)
{
    int mode = CUDA_CAPTURE_RELAXED;
    if (entries++ == 0)
        capture_mode = device->cuda->thread_exchange_capture_mode(&mode) == CUDA_OK
                           ? mode
                           : CUDA_CAPTURE_RELAXED;
}

static void device_tighten(const struct device *device)
{
    if (--entries == 0 && capture_mode != CUDA_CAPTURE_RELAXED)
        (void)device->cuda->thread_exchange_capture_mode(&capture_mode);
}

void device_enter(struct device *device)
{
    device_relax(device);
    const int result = device->cuda->ctx_push_current(device->context);
    refused_entries += result != CUDA_OK;
    (void)device_check(device, result, "cuCtxPushCurrent");
}

void device_leave(struct device *device)
{
    void *popped = NULL;
    if (refused_entries > 0)
        refused_entries--;
    else
        (void)device->cuda->ctx_pop_current(&popped);
    device_tighten(device);
}

// ---- where memory is ----------------------------------------------------------------------------

enum memory_place device_place(struct device *device, const void *memory)
{
    const struct cuda *cuda = device->cuda;
    const uint64_t address = (uint64_t)(uintptr_t)memory;
    unsigned kind = 0;
    unsigned managed = 0;
    int ordinal = -1;
    enum memory_place place = MEMORY_ON_HOST;
    device_enter(device);
    if (cuda->pointer_get_attribute(&kind, CUDA_POINTER_MEMORY_TYPE, address) == CUDA_OK &&
        kind == CUDA_MEMORY_DEVICE) {
        (void)cuda->pointer_get_attribute(&managed, CUDA_POINTER_IS_MANAGED, address);
        if (cuda->pointer_get_attribute(&ordinal, CUDA_POINTER_DEVICE, address) != CUDA_OK)
            ordinal = device->facts.ordinal;
        place =
            managed != 0 || ordinal == device->facts.ordinal ? MEMORY_ON_DEVICE : MEMORY_ELSEWHERE;
    }
    device_leave(device);
    return place;
}

int device_copy_on(struct device *device, void *stream, void *to, const void *from, size_t bytes)
{
    int status = 0;
    device_enter(device);
    if (bytes > 0)
        status = device_check(device,
                              device->cuda->memcpy_async((uint64_t)(uintptr_t)to,
                                                         (uint64_t)(uintptr_t)from, bytes, stream),
                              "cuMemcpyAsync");
    device_leave(device);
    return status;
}

int device_copy(struct device *device, void *to, const void *from, size_t bytes)
{
    int status = device_copy_on(device, device->copies, to, from, bytes);
    device_enter(device);
    if (status == 0)
        status = device_check(device, device->cuda->stream_synchronize(device->copies),
                              "cuStreamSynchronize");
    device_leave(device);
    return status;
}

// ---- events and the trainer's streams -----------------------------------------------------------

void *device_event_make(struct device *device)
{
    void *event = NULL;
    device_enter(device);
    const int made = device->cuda->event_create(&event, CUDA_EVENT_DISABLE_TIMING);
    device_leave(device);
    return device_check(device, made, "cuEventCreate") < 0 ? NULL : event;
}

void device_event_free(struct device *device, void *event)
{
    device_enter(device);
    (void)device->cuda->event_destroy(event);
    device_leave(device);
}

int device_event_record(struct device *device, void *event, void *stream)
{
    device_enter(device);
    const int recorded = device->cuda->event_record(event, stream);
    device_leave(device);
    return device_check(device, recorded, "cuEventRecord");
}

int device_event_query(struct device *device, void *event)
{
    device_enter(device);
    const int happened = device->cuda->event_query(event);
    device_leave(device);
    if (happened == CUDA_NOT_READY)
        return 0;
    return device_check(device, happened, "cuEventQuery") < 0 ? -1 : 1;
}

// True if the context belongs to this device. A device may have several contexts.
static bool device_has_context(const struct device *device, void *context)
{
    const struct cuda *cuda = device->cuda;
    void *popped = NULL;
    int handle = device->handle;
    if (context == device->context || cuda->ctx_push_current(context) != CUDA_OK)
        return true;
    const int found = cuda->ctx_get_device(&handle);
    (void)cuda->ctx_pop_current(&popped);
    return found != CUDA_OK || handle == device->handle;
}

bool device_is_default_stream(const void *stream)
{
    return stream == CUDA_STREAM_LEGACY || stream == CUDA_STREAM_PER_THREAD;
}

uint64_t device_stream_thread(const void *stream)
{
    static atomic_uint_fast64_t threads;
    static _Thread_local uint64_t number; // Unlike the kernel's number, it is never given again.
    if (stream != CUDA_STREAM_PER_THREAD)
        return 0;
    if (number == 0)
        number = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;
    return number;
}

bool device_has_stream(struct device *device, void *stream)
{
    void *context = NULL;
    if (device_is_default_stream(stream))
        return true;
    device_enter(device);
    const int found = device->cuda->stream_get_ctx(stream, &context);
    device_leave(device);
    return found != CUDA_OK || device_has_context(device, context);
}

static bool device_captures(const struct device *device, void *stream)
{
    int status = 0;
    const int asked = device->cuda->stream_is_capturing(stream, &status);
    return asked == CUDA_CAPTURE_IMPLICIT || (asked == CUDA_OK && status != 0);
}

// True if an event of the device's context cannot be recorded on the stream.
static bool device_is_foreign(const struct device *device, void *stream)
{
    const struct cuda *cuda = device->cuda;
    void *context = device->context;
    void *event = NULL;
    if (device_is_default_stream(stream) || cuda->stream_get_ctx(stream, &context) != CUDA_OK ||
        context == device->context || cuda->event_create(&event, CUDA_EVENT_DISABLE_TIMING))
        return false;
    const int recorded = cuda->event_record(event, stream);
    (void)cuda->event_destroy(event);
    return recorded == CUDA_INVALID_HANDLE;
}

const char *device_stream_trouble(struct device *device, void *stream)
{
    const char *trouble = NULL;
    device_enter(device);
    if (device_captures(device, stream))
        trouble = "is being captured into a CUDA graph, and steps cannot be part of one";
    else if (device_is_foreign(device, stream))
        trouble = "belongs to another CUDA context than the session's";
    device_leave(device);
    return trouble;
}

// True if the stream writes results to memory of the trainer.
static bool device_writes(enum device_stream stream)
{
    return stream != DEVICE_COLLECT && stream != DEVICE_READY;
}

int device_stream_follow_at(struct device *device, struct device *at, void *stream)
{
    const struct cuda *cuda = device->cuda;
    int status = 0;
    device_enter(at);
    for (int i = 0; i < DEVICE_STREAMS && status == 0; i++) {
        if (!device_writes((enum device_stream)i))
            continue;
        status = device_check(device, cuda->event_record(device->follow[i], device->streams[i]),
                              "cuEventRecord");
        if (status == 0)
            status = device_check(at, cuda->stream_wait_event(stream, device->follow[i], 0),
                                  "cuStreamWaitEvent");
    }
    device_leave(at);
    return status;
}

int device_stream_follow(struct device *device, void *stream)
{
    return device_stream_follow_at(device, device, stream);
}

// ---- for the transport --------------------------------------------------------------------------

void *device_stream(const struct device *device, enum device_stream stream)
{
    return device->streams[stream];
}

int device_wait(struct device *device, enum device_stream stream, void *event)
{
    return device_check(device, device->cuda->stream_wait_event(device->streams[stream], event, 0),
                        "cuStreamWaitEvent");
}

int device_record(struct device *device, enum device_stream stream, void *event)
{
    return device_check(device, device->cuda->event_record(event, device->streams[stream]),
                        "cuEventRecord");
}

// A stream waits for the event's last record before the wait was enqueued, so one event for each
// stream is enough.
int device_follow(struct device *device, enum device_stream stream, struct device *before,
                  enum device_stream stream_before)
{
    if (device_record(before, stream_before, before->crossed[stream_before]) < 0)
        return -1;
    return device_wait(device, stream, before->crossed[stream_before]);
}

int device_happened(struct device *device, void *event)
{
    const int happened = device->cuda->event_query(event);
    if (happened == CUDA_NOT_READY)
        return 0;
    return device_check(device, happened, "cuEventQuery") < 0 ? -1 : 1;
}

int device_transfer(struct device *device, enum device_stream stream, uint64_t to, uint64_t from,
                    size_t bytes)
{
    return device_check(device,
                        device->cuda->memcpy_async(to, from, bytes, device->streams[stream]),
                        "cuMemcpyAsync");
}

int device_run(struct device *device, enum device_stream stream, enum device_kernel kernel,
               uint32_t blocks, void *parameters)
{
    void *list[] = {parameters};
    return device_check(device,
                        device->cuda->launch_kernel(device->kernels[kernel], blocks, 1, 1,
                                                    DEVICE_THREADS, 1, 1, 0,
                                                    device->streams[stream], list, NULL),
                        "cuLaunchKernel");
}

// ---- the bell -----------------------------------------------------------------------------------

// Runs on a thread of CUDA's driver, which must not call CUDA.
static void bell_ring(void *argument)
{
    struct bell *bell = argument;
    mutex_lock(&bell->mutex);
    if (bell->ring)
        bell->ring(bell->context);
    mutex_unlock(&bell->mutex);
    atomic_fetch_sub(&bell->awaited, 1);
}

int device_ring(struct device *device, enum device_stream stream)
{
    atomic_fetch_add(&device->bell->awaited, 1);
    const int asked =
        device->cuda->launch_host_func(device->streams[stream], bell_ring, device->bell);
    if (asked != CUDA_OK)
        atomic_fetch_sub(&device->bell->awaited, 1);
    return device_check(device, asked, "cuLaunchHostFunc");
}

void device_bell(struct device *device, void (*ring)(void *context), void *context)
{
    struct bell *bell = device->bell;
    if (!bell)
        return;
    mutex_lock(&bell->mutex);
    bell->ring = ring;
    bell->context = context;
    mutex_unlock(&bell->mutex);
}
