// SPDX-License-Identifier: Apache-2.0
//
// The device of this rank; see device.h, which says which thread runs what.
//
// Every context change is a push and a pop, so that a trainer's own current context is what it was.
// Streams do not synchronize with the legacy default stream, and have the highest priority: what
// they do is short, and other ranks wait for it.

#include "worker/device/device.h"

#include "worker/device/memory.h"
#include "worker/device/parts.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/device/image.h"
#include "worker/device/kernels.h"
#include "worker/device/nccl.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEVICE_CLOSE_MS 2000 // How long what is enqueued may take to end when the device is closed.

// ---- failure ------------------------------------------------------------------------------------

static void device_describe(const struct cuda *cuda, int result, const char *call, char *out,
                            size_t bytes)
{
    const char *reason = NULL;
    struct text text;
    if (cuda->get_error_string(result, &reason) != CUDA_OK || !reason)
        reason = "unknown error";
    text_init(&text, out, bytes);
    text_append(&text, "%s: %s (%d)", call, reason, result);
}

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
    device_describe(device->cuda, result, call, text, sizeof(text));
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
        return "the device fails"; // Another thread writes why, at this moment.
    }
}

// ---- open ---------------------------------------------------------------------------------------

// A device that is being opened, and where to say what goes wrong.
struct opening {
    struct device *device;
    char *error;
    size_t error_bytes;
};

static int opening_check(const struct opening *opening, int result, const char *call)
{
    if (result == CUDA_OK)
        return 0;
    device_describe(opening->device->cuda, result, call, opening->error, opening->error_bytes);
    return -1;
}

static int opening_fail(const struct opening *opening, const char *sentence)
{
    text_copy(opening->error, opening->error_bytes, sentence);
    return -1;
}

// The context that is current here. 1: there is none.
static int device_adopt_current(const struct opening *opening)
{
    struct device *device = opening->device;
    const struct cuda *cuda = device->cuda;
    void *primary = NULL;
    if (cuda->ctx_get_current(&device->context) != CUDA_OK || !device->context)
        return 1;
    if (opening_check(opening, cuda->ctx_get_device(&device->handle), "cuCtxGetDevice") < 0)
        return -1;
    // A primary context is held, so that it lasts; another one is the trainer's to keep.
    if (cuda->device_primary_ctx_retain(&primary, device->handle) != CUDA_OK)
        return 0;
    if (primary == device->context)
        device->retained = true;
    else
        (void)cuda->device_primary_ctx_release(device->handle);
    return 0;
}

static int device_retain(const struct opening *opening, int ordinal)
{
    struct device *device = opening->device;
    const struct cuda *cuda = device->cuda;
    if (opening_check(opening, cuda->device_get(&device->handle, ordinal), "cuDeviceGet") < 0 ||
        opening_check(opening, cuda->device_primary_ctx_retain(&device->context, device->handle),
                      "cuDevicePrimaryCtxRetain") < 0)
        return -1;
    device->retained = true;
    return 0;
}

// N of "cuda:N"; -1: it is something else.
static int device_ordinal(const char *choice)
{
    char *end = NULL;
    if (strncmp(choice, "cuda:", 5) != 0 || choice[5] < '0' || choice[5] > '9')
        return -1;
    const unsigned long ordinal = strtoul(choice + 5, &end, 10);
    return *end == '\0' && ordinal < 1024 ? (int)ordinal : -1;
}

static int device_find_ordinal(struct device *device)
{
    int count = 0;
    int handle = 0;
    if (device->cuda->device_get_count(&count) != CUDA_OK)
        return 0;
    for (int i = 0; i < count; i++) {
        if (device->cuda->device_get(&handle, i) == CUDA_OK && handle == device->handle)
            return i;
    }
    return 0;
}

static void device_find_nccl(struct device_facts *facts)
{
    int version = 0;
    const struct nccl *nccl = nccl_load(facts->nccl_missing, sizeof(facts->nccl_missing));
    if (!nccl)
        return;
    if (nccl->get_version(&version) == NCCL_OK && version > 0)
        facts->nccl_version = (uint32_t)version;
    else
        text_copy(facts->nccl_missing, sizeof(facts->nccl_missing),
                  "NCCL does not say its version");
}

static int device_find_facts(const struct opening *opening)
{
    struct device *device = opening->device;
    const struct cuda *cuda = device->cuda;
    struct device_facts *facts = &device->facts;
    struct cuda_uuid uuid;
    int major = 0;
    int minor = 0;
    int version = 0;
    facts->ordinal = device_find_ordinal(device);
    if (opening_check(opening, cuda->device_get_uuid(&uuid, device->handle), "cuDeviceGetUuid") <
            0 ||
        opening_check(opening,
                      cuda->device_get_name(facts->name, sizeof(facts->name), device->handle),
                      "cuDeviceGetName") < 0 ||
        opening_check(
            opening,
            cuda->device_get_attribute(&major, CUDA_DEVICE_CAPABILITY_MAJOR, device->handle),
            "cuDeviceGetAttribute") < 0 ||
        opening_check(
            opening,
            cuda->device_get_attribute(&minor, CUDA_DEVICE_CAPABILITY_MINOR, device->handle),
            "cuDeviceGetAttribute") < 0 ||
        opening_check(opening, cuda->driver_version(&version), "cuDriverGetVersion") < 0)
        return -1;
    memcpy(facts->uuid, uuid.bytes, sizeof(facts->uuid));
    facts->capability = (uint32_t)(10 * major + minor);
    facts->driver_version = (uint32_t)version;
    device_find_nccl(facts);
    return 0;
}

// All that may load code or take memory inside the driver happens here.
static int device_load_kernels(const struct opening *opening)
{
    static const char *const names[DEVICE_KERNELS] = {
        [DEVICE_KERNEL_PACK] = DEVICE_PACK,     [DEVICE_KERNEL_FINISH] = DEVICE_FINISH,
        [DEVICE_KERNEL_GATHER] = DEVICE_GATHER, [DEVICE_KERNEL_SCATTER] = DEVICE_SCATTER,
        [DEVICE_KERNEL_ADD] = DEVICE_ADD,
    };
    struct device *device = opening->device;
    const struct cuda *cuda = device->cuda;
    const int loaded = cuda->module_load_data(&device->module, device_image());
    if (loaded != CUDA_OK && !device_image_present())
        return opening_fail(opening, device_image_missing);
    if (opening_check(opening, loaded, "cuModuleLoadData") < 0)
        return -1;
    for (int i = 0; i < DEVICE_KERNELS; i++) {
        if (opening_check(opening,
                          cuda->module_get_function(&device->kernels[i], device->module, names[i]),
                          names[i]) < 0)
            return -1;
    }
    return 0;
}

static int device_make_streams(const struct opening *opening)
{
    struct device *device = opening->device;
    const struct cuda *cuda = device->cuda;
    int least = 0;
    int greatest = 0;
    if (opening_check(opening, cuda->ctx_get_stream_priority_range(&least, &greatest),
                      "cuCtxGetStreamPriorityRange") < 0 ||
        opening_check(
            opening,
            cuda->stream_create_with_priority(&device->copies, CUDA_STREAM_NON_BLOCKING, least),
            "cuStreamCreateWithPriority") < 0)
        return -1;
    for (int i = 0; i < DEVICE_STREAMS; i++) {
        if (opening_check(opening,
                          cuda->stream_create_with_priority(&device->streams[i],
                                                            CUDA_STREAM_NON_BLOCKING, greatest),
                          "cuStreamCreateWithPriority") < 0 ||
            opening_check(opening,
                          cuda->event_create(&device->follow[i], CUDA_EVENT_DISABLE_TIMING),
                          "cuEventCreate") < 0 ||
            opening_check(opening,
                          cuda->event_create(&device->crossed[i], CUDA_EVENT_DISABLE_TIMING),
                          "cuEventCreate") < 0)
            return -1;
    }
    return 0;
}

// With the device's context current.
static int device_furnish(const struct opening *opening)
{
    struct device *device = opening->device;
    device->bell = calloc(1, sizeof(*device->bell));
    if (!device->bell)
        return -2;
    mutex_init(&device->bell->mutex);
    atomic_init(&device->bell->awaited, 0);
    if (device_find_facts(opening) < 0 || device_load_kernels(opening) < 0)
        return -1;
    return device_make_streams(opening);
}

// 1: the choice means no device.
static int device_choose(const struct opening *opening, const char *choice)
{
    const int ordinal = device_ordinal(choice);
    const bool automatic = strcmp(choice, "auto") == 0;
    struct device *device = opening->device;
    struct text text;
    if (!automatic && ordinal < 0) {
        text_init(&text, opening->error, opening->error_bytes);
        text_append(&text, "no device is called \"%s\": \"none\", \"auto\", \"cuda:N\"", choice);
        return -1;
    }
    device->cuda = automatic ? cuda_present(opening->error, opening->error_bytes)
                             : cuda_load(opening->error, opening->error_bytes);
    if (!device->cuda)
        return automatic ? 1 : -1;
    const int ready = device->cuda->init(0);
    if (automatic && ready != CUDA_OK)
        return 1; // Whoever has a current context has called it with success.
    if (opening_check(opening, ready, "cuInit") < 0)
        return -1;
    return automatic ? device_adopt_current(opening) : device_retain(opening, ordinal);
}

int device_open(const char *choice, struct device **device, char *error, size_t error_bytes)
{
    struct opening opening = {.error = error, .error_bytes = error_bytes};
    *device = NULL;
    if (strcmp(choice, "none") == 0)
        return 0;
    struct device *made = opening.device = calloc(1, sizeof(*made));
    if (!made)
        return -2;
    atomic_init(&made->health, HEALTH_GOOD);
    const int chosen = device_choose(&opening, choice);
    if (chosen != 0) {
        free(made);
        return chosen > 0 ? 0 : -1;
    }
    device_enter(made);
    const int furnished = device_failed(made) ? opening_fail(&opening, device_failed(made))
                                              : device_furnish(&opening);
    device_leave(made);
    if (furnished < 0) {
        device_close(made);
        return furnished;
    }
    *device = made;
    return 0;
}

// ---- close --------------------------------------------------------------------------------------

static void device_pause(void)
{
    const struct timespec pause = {.tv_nsec = 200 * 1000};
    (void)nanosleep(&pause, NULL);
}

// Whether nothing that was enqueued is still to happen. Waits for it, but not for ever.
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
        return; // Freeing would wait for the device, and it may still read what we hold.
    if (device->retained)
        (void)device->cuda->device_primary_ctx_release(device->handle);
    if (device->bell && atomic_load(&device->bell->awaited) == 0) {
        mutex_fini(&device->bell->mutex);
        free(device->bell);
    }
    free(device);
}

const struct device_facts *device_facts(const struct device *device)
{
    return &device->facts;
}

// ---- contexts -----------------------------------------------------------------------------------

// Of this thread, entered and not left: so many have pushed nothing, and what they would pop is the
// trainer's.
static _Thread_local unsigned refused_entries;

void device_enter(struct device *device)
{
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

int device_copy(struct device *device, void *to, const void *from, size_t bytes)
{
    const struct cuda *cuda = device->cuda;
    int status = 0;
    device_enter(device);
    if (bytes > 0)
        status = device_check(device,
                              cuda->memcpy_async((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from,
                                                 bytes, device->copies),
                              "cuMemcpyAsync");
    if (status == 0)
        status =
            device_check(device, cuda->stream_synchronize(device->copies), "cuStreamSynchronize");
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

// A stream of another context may be of the same device.
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

// Streams that results are written on.
static bool device_writes(enum device_stream stream)
{
    return stream != DEVICE_COLLECT;
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

// A wait is for the record that was the last when it was enqueued, so one event does for all.
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

// On a thread of the driver, which may call nothing of CUDA.
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
