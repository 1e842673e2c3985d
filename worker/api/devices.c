// SPDX-License-Identifier: Apache-2.0
//
// The devices, the driver and the NCCL of this machine, for tools: the public functions
// lockstep_devices_* and lockstep_device_*. Sessions use worker/device/device.h, which is tried out
// here. Any thread.

#include "worker/device/cuda.h"
#include "worker/device/device.h"
#include "worker/device/image.h"
#include "worker/device/nccl.h"
#include "worker/device/open.h"
#include "worker/support/error.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

static_assert(sizeof(((struct lockstep_device *)NULL)->uuid) == sizeof(struct cuda_uuid),
              "a device's uuid is CUDA's");

// Copies a structure to a caller whose header may lack the last fields. The first field becomes the
// number of copied bytes.
static void hand_out(void *to, size_t to_bytes, const void *from, size_t from_bytes)
{
    const size_t bytes = to_bytes < from_bytes ? to_bytes : from_bytes;
    memcpy(to, from, bytes);
    memcpy(to, &bytes, sizeof(bytes));
}

// Writes a result of the driver: "cuInit: CUDA_ERROR_NO_DEVICE, no CUDA-capable device".
static void say_result(const struct cuda *cuda, const char *function, int result, char *text,
                       size_t bytes)
{
    const char *name = NULL;
    const char *meaning = NULL;
    if (cuda->get_error_name(result, &name) != CUDA_OK || !name)
        name = "an unknown result";
    if (cuda->get_error_string(result, &meaning) != CUDA_OK || !meaning)
        meaning = "no text";
    snprintf(text, bytes, "%s: %s, %s", function, name, meaning);
}

// Returns the initialized driver, and sets *count to the number of its devices; or returns NULL,
// with the reason in text.
static const struct cuda *driver(int *count, char *text, size_t bytes)
{
    const struct cuda *cuda = cuda_load(text, bytes);
    if (!cuda)
        return NULL;
    int result = cuda->init(0);
    if (result != CUDA_OK) {
        say_result(cuda, "cuInit", result, text, bytes);
        return NULL;
    }
    result = cuda->device_get_count(count);
    if (result != CUDA_OK) {
        say_result(cuda, "cuDeviceGetCount", result, text, bytes);
        return NULL;
    }
    return cuda;
}

static void find_driver(struct lockstep_devices *devices)
{
    int count = 0;
    int version = 0;
    const struct cuda *cuda = driver(&count, devices->driver_text, sizeof(devices->driver_text));
    if (!cuda)
        return;
    if (cuda->driver_version(&version) == CUDA_OK && version > 0)
        devices->driver_version = (uint32_t)version;
    devices->count = count > 0 ? (uint32_t)count : 0;
    (void)text_copy(devices->driver_text, sizeof(devices->driver_text), cuda_path());
}

static void find_nccl(struct lockstep_devices *devices)
{
    int version = 0;
    const struct nccl *nccl = nccl_load(devices->nccl_text, sizeof(devices->nccl_text));
    if (!nccl)
        return;
    const int result = nccl->get_version(&version);
    if (result != NCCL_OK || version <= 0) {
        snprintf(devices->nccl_text, sizeof(devices->nccl_text), "ncclGetVersion: %s",
                 nccl->get_error_string(result));
        return;
    }
    devices->nccl_version = (uint32_t)version;
    (void)text_copy(devices->nccl_text, sizeof(devices->nccl_text), nccl_path());
}

int lockstep_devices_find(struct lockstep_devices *devices)
{
    struct lockstep_devices found = LOCKSTEP_DEVICES_INIT;
    if (!devices || devices->struct_bytes < sizeof(devices->struct_bytes))
        return error_set(LOCKSTEP_E_INVALID, "devices is NULL, or without LOCKSTEP_DEVICES_INIT");
    find_driver(&found);
    find_nccl(&found);
    (void)text_copy(found.kernels, sizeof(found.kernels), device_image_targets());
    hand_out(devices, devices->struct_bytes, &found, sizeof(found));
    return LOCKSTEP_OK;
}

// ---- one device ---------------------------------------------------------------------------------

// An attribute of the device; 0 if the driver does not know it.
static uint32_t attribute(const struct cuda *cuda, enum cuda_device_attribute which, int device)
{
    int value = 0;
    return cuda->device_get_attribute(&value, (int)which, device) == CUDA_OK && value > 0
               ? (uint32_t)value
               : 0;
}

// Opens the device as a rank does, and closes it again. problem: why it cannot be opened.
static void try_device(uint32_t index, char *problem, size_t bytes)
{
    char choice[32];
    struct device *device = NULL;
    snprintf(choice, sizeof(choice), "cuda:%u", (unsigned)index);
    if (device_open(choice, &device, problem, bytes) == 0)
        device_close(device);
}

int lockstep_device_describe(uint32_t index, struct lockstep_device *device)
{
    struct lockstep_device found = LOCKSTEP_DEVICE_INIT;
    struct cuda_uuid uuid;
    char reason[256];
    int count = 0;
    int handle = 0;
    if (!device || device->struct_bytes < sizeof(device->struct_bytes))
        return error_set(LOCKSTEP_E_INVALID, "device is NULL, or without LOCKSTEP_DEVICE_INIT");
    const struct cuda *cuda = driver(&count, reason, sizeof(reason));
    if (!cuda)
        return error_set(LOCKSTEP_E_INVALID, "there is no device: %s", reason);
    if (index >= (uint32_t)count || cuda->device_get(&handle, (int)index) != CUDA_OK)
        return error_set(LOCKSTEP_E_INVALID, "there is no device %u, of %d", (unsigned)index,
                         count);
    if (cuda->device_get_name(found.name, sizeof(found.name), handle) != CUDA_OK)
        (void)text_copy(found.name, sizeof(found.name), "a device without a name");
    if (cuda->device_get_uuid(&uuid, handle) == CUDA_OK)
        memcpy(found.uuid, uuid.bytes, sizeof(found.uuid));
    found.capability = 10 * attribute(cuda, CUDA_DEVICE_CAPABILITY_MAJOR, handle) +
                       attribute(cuda, CUDA_DEVICE_CAPABILITY_MINOR, handle);
    found.multiprocessors = attribute(cuda, CUDA_DEVICE_MULTIPROCESSORS, handle);
    try_device(index, found.problem, sizeof(found.problem));
    hand_out(device, device->struct_bytes, &found, sizeof(found));
    return LOCKSTEP_OK;
}
