// SPDX-License-Identifier: Apache-2.0
//
// The only file that knows the names of libcuda's symbols. See worker/device/cuda.h.

#include "worker/device/cuda.h"

#include "base/text.h"
#include "worker/support/foreign.h"

static struct cuda table;

#define NEEDED(field, name) \
    { \
        name, offsetof(struct cuda, field), false \
    }
#define OPTIONAL(field, name) \
    { \
        name, offsetof(struct cuda, field), true \
    }

// foreign_path reports the file that the first symbol comes from.
static const struct foreign_symbol symbols[] = {
    NEEDED(init, "cuInit"),
    NEEDED(driver_version, "cuDriverGetVersion"),
    NEEDED(get_error_name, "cuGetErrorName"),
    NEEDED(get_error_string, "cuGetErrorString"),
    NEEDED(device_get, "cuDeviceGet"),
    NEEDED(device_get_count, "cuDeviceGetCount"),
    NEEDED(device_get_name, "cuDeviceGetName"),
    NEEDED(device_get_uuid, "cuDeviceGetUuid_v2"),
    NEEDED(device_get_attribute, "cuDeviceGetAttribute"),
    NEEDED(device_primary_ctx_retain, "cuDevicePrimaryCtxRetain"),
    NEEDED(device_primary_ctx_release, "cuDevicePrimaryCtxRelease_v2"),
    NEEDED(ctx_get_current, "cuCtxGetCurrent"),
    NEEDED(ctx_push_current, "cuCtxPushCurrent_v2"),
    NEEDED(ctx_pop_current, "cuCtxPopCurrent_v2"),
    NEEDED(ctx_get_device, "cuCtxGetDevice"),
    NEEDED(ctx_get_stream_priority_range, "cuCtxGetStreamPriorityRange"),
    NEEDED(stream_create_with_priority, "cuStreamCreateWithPriority"),
    NEEDED(stream_destroy, "cuStreamDestroy_v2"),
    NEEDED(stream_wait_event, "cuStreamWaitEvent"),
    NEEDED(stream_query, "cuStreamQuery"),
    NEEDED(stream_get_ctx, "cuStreamGetCtx"),
    NEEDED(stream_synchronize, "cuStreamSynchronize"),
    NEEDED(stream_is_capturing, "cuStreamIsCapturing"),
    NEEDED(thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode"),
    NEEDED(event_create, "cuEventCreate"),
    NEEDED(event_destroy, "cuEventDestroy_v2"),
    NEEDED(event_record, "cuEventRecord"),
    NEEDED(event_query, "cuEventQuery"),
    NEEDED(launch_host_func, "cuLaunchHostFunc"),
    NEEDED(mem_alloc, "cuMemAlloc_v2"),
    NEEDED(mem_free, "cuMemFree_v2"),
    NEEDED(mem_host_alloc, "cuMemHostAlloc"),
    NEEDED(mem_free_host, "cuMemFreeHost"),
    NEEDED(mem_host_get_device_pointer, "cuMemHostGetDevicePointer_v2"),
    NEEDED(pointer_get_attribute, "cuPointerGetAttribute"),
    NEEDED(memcpy_async, "cuMemcpyAsync"),
    NEEDED(module_load_data, "cuModuleLoadData"),
    NEEDED(module_unload, "cuModuleUnload"),
    NEEDED(module_get_function, "cuModuleGetFunction"),
    NEEDED(launch_kernel, "cuLaunchKernel"),
    OPTIONAL(ctx_set_current, "cuCtxSetCurrent"),
    OPTIONAL(event_synchronize, "cuEventSynchronize"),
    OPTIONAL(event_elapsed_time, "cuEventElapsedTime"),
    OPTIONAL(mem_host_register, "cuMemHostRegister_v2"),
    OPTIONAL(mem_host_unregister, "cuMemHostUnregister"),
    OPTIONAL(memcpy_htod_async, "cuMemcpyHtoDAsync_v2"),
    OPTIONAL(memcpy_dtoh_async, "cuMemcpyDtoHAsync_v2"),
    OPTIONAL(memcpy_dtod_async, "cuMemcpyDtoDAsync_v2"),
    OPTIONAL(memcpy_peer_async, "cuMemcpyPeerAsync"),
    OPTIONAL(memset_d8_async, "cuMemsetD8Async"),
    OPTIONAL(memset_d32_async, "cuMemsetD32Async"),
    OPTIONAL(stream_wait_value32, "cuStreamWaitValue32_v2"),
    OPTIONAL(stream_write_value32, "cuStreamWriteValue32_v2"),
};

static_assert(sizeof(table) == sizeof(symbols) / sizeof(*symbols) * sizeof(table.init),
              "every function has its symbol");

static struct foreign library = {
    .file = "libcuda.so.1",
    .variable = "LOCKSTEP_CUDA_LIBRARY",
    .advice = "; it comes with NVIDIA's driver",
    .age = "its driver is older than 11.4",
    .symbols = symbols,
    .symbol_count = sizeof(symbols) / sizeof(*symbols),
    .table = &table,
    .mutex = MUTEX_INITIALIZER,
};

const struct cuda *cuda_load(char *error, size_t error_bytes)
{
    return foreign_load(&library, FOREIGN_ANYWHERE, error, error_bytes) ? &table : NULL;
}

const struct cuda *cuda_present(char *error, size_t error_bytes)
{
    return foreign_load(&library, FOREIGN_PRESENT, error, error_bytes) ? &table : NULL;
}

bool cuda_is_misnamed(char *error, size_t error_bytes)
{
    return foreign_is_misnamed(&library, error, error_bytes);
}

const char *cuda_path(void)
{
    return foreign_path(&library);
}

void cuda_describe(const struct cuda *cuda, int result, const char *call, char *out, size_t bytes)
{
    const char *reason = NULL;
    struct text text;
    if (cuda->get_error_string(result, &reason) != CUDA_OK || !reason)
        reason = "unknown error";
    text_init(&text, out, bytes);
    text_append(&text, "%s: %s (%d)", call, reason, result);
}
