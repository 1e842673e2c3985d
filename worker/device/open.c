// SPDX-License-Identifier: Apache-2.0
//
// Opens a device: its context, facts, kernels and streams. Any thread; the CUDA driver may block
// it.
//
// The communication streams do not synchronize with the legacy default stream. They have the
// highest priority, because their work is short and other ranks wait for it.

#include "worker/device/open.h"

#include "worker/device/device.h"
#include "worker/device/image.h"
#include "worker/device/kernels.h"
#include "worker/device/nccl.h"
#include "worker/device/parts.h"

#include "base/nccl_setting.h"
#include "base/text.h"
#include "protos/types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static_assert((int)DEVICE_FLOAT32 == (int)DTYPE_FLOAT32, "one numbering of dtypes");
static_assert((int)DEVICE_FLOAT64 == (int)DTYPE_FLOAT64, "one numbering of dtypes");
static_assert((int)DEVICE_INT32 == (int)DTYPE_INT32, "one numbering of dtypes");
static_assert((int)DEVICE_INT64 == (int)DTYPE_INT64, "one numbering of dtypes");
static_assert((int)DEVICE_FLOAT16 == (int)DTYPE_FLOAT16, "one numbering of dtypes");
static_assert((int)DEVICE_BFLOAT16 == (int)DTYPE_BFLOAT16, "one numbering of dtypes");
static_assert((int)DEVICE_UINT8 == (int)DTYPE_UINT8, "one numbering of dtypes");
static_assert((int)DEVICE_INT8 == (int)DTYPE_INT8, "one numbering of dtypes");
static_assert((int)DEVICE_INT16 == (int)DTYPE_INT16, "one numbering of dtypes");
static_assert((int)DEVICE_UINT16 == (int)DTYPE_UINT16, "one numbering of dtypes");
static_assert((int)DEVICE_UINT32 == (int)DTYPE_UINT32, "one numbering of dtypes");
static_assert((int)DEVICE_UINT64 == (int)DTYPE_UINT64, "one numbering of dtypes");
static_assert((int)DEVICE_BOOL == (int)DTYPE_BOOL, "one numbering of dtypes");
// Kernels read structs that the host's compiler has laid out, so the structs must have no padding.
static_assert(sizeof(struct device_piece) == 32 && sizeof(struct device_row) == 32, "no holes");
static_assert(sizeof(struct device_pack) == 80 && sizeof(struct device_finish) == 88, "no holes");
static_assert(sizeof(struct device_gather) == 48 && sizeof(struct device_scatter) == 56,
              "no holes");
static_assert(sizeof(struct device_add) == 40, "no holes");
// A device that is being opened, and the place for an error text.
struct opening {
    struct device *device;
    char *error;
    size_t error_bytes;
};

static int opening_check(const struct opening *opening, int result, const char *call)
{
    if (result == CUDA_OK)
        return 0;
    cuda_describe(opening->device->cuda, result, call, opening->error, opening->error_bytes);
    return -1;
}

static int opening_fail(const struct opening *opening, const char *sentence)
{
    text_copy(opening->error, opening->error_bytes, sentence);
    return -1;
}

// Adopts the context that is current on this thread. Returns 1 if there is none.
static int device_adopt_current(const struct opening *opening)
{
    struct device *device = opening->device;
    const struct cuda *cuda = device->cuda;
    void *primary = NULL;
    if (cuda->ctx_get_current(&device->context) != CUDA_OK || !device->context)
        return 1;
    if (opening_check(opening, cuda->ctx_get_device(&device->handle), "cuCtxGetDevice") < 0)
        return -1;
    // A primary context is retained, so that it outlives the trainer's use. The trainer must keep
    // any other context.
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

// Returns N of "cuda:N"; -1 if the choice has another form.
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
    if (nccl_setting_blocks()) {
        text_copy(facts->nccl_missing, sizeof(facts->nccl_missing),
                  "NCCL_COMM_BLOCKING is set, and a rank would wait for lost ones for ever: unset "
                  "it, also in NCCL's files (~/.nccl.conf, /etc/nccl.conf)");
        return;
    }
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

// The kernels have no code that this device and its driver can run.
static int opening_fail_image(const struct opening *opening, int loaded)
{
    const struct device_facts *facts = &opening->device->facts;
    char reason[DEVICE_TEXT_BYTES];
    struct text text;
    cuda_describe(opening->device->cuda, loaded, "cuModuleLoadData", reason, sizeof(reason));
    text_init(&text, opening->error, opening->error_bytes);
    text_append(&text,
                "%s: this liblockstep has kernels for %s (NVCC_TARGETS), the GPU is sm_%u, and its "
                "driver is for CUDA %u.%u",
                reason, device_image_targets(), facts->capability, facts->driver_version / 1000,
                facts->driver_version % 1000 / 10);
    return -1;
}

// Does everything that may load code or allocate memory inside the driver.
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
    if (loaded == CUDA_NO_BINARY_FOR_GPU || loaded == CUDA_UNSUPPORTED_PTX_VERSION)
        return opening_fail_image(opening, loaded);
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

// Fills in everything except the context, which is current on this thread.
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

// Sets the context for the choice. Returns 1 if the choice means no device.
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
        return automatic && !cuda_is_misnamed(opening->error, opening->error_bytes) ? 1 : -1;
    const int ready = device->cuda->init(0);
    if (automatic && ready != CUDA_OK)
        // No context can be current then: a thread with a current context has called cuInit with
        // success.
        return 1;
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
    mutex_init(&made->pin_mutex);
    const int chosen = device_choose(&opening, choice);
    if (chosen != 0) {
        mutex_fini(&made->pin_mutex);
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
