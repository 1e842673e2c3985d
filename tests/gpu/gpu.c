// SPDX-License-Identifier: Apache-2.0
//
// A GPU through the fence. One thread.

#include "tests/gpu/gpu.h"

#include "worker/device/image.h"
#include "worker/device/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *result_name(const struct gpu_rig *gpu, int result)
{
    const char *name = NULL;
    if (gpu->cuda->get_error_name(result, &name) != CUDA_OK || !name)
        return "an unknown error";
    return name;
}

void gpu_check(const struct gpu_rig *gpu, int result, const char *call)
{
    if (result == CUDA_OK)
        return;
    fprintf(stderr, "%s: %s (%d)\n", call, result_name(gpu, result), result);
    exit(1);
}

// ---- opening ------------------------------------------------------------------------------------

static int attribute(const struct gpu_rig *gpu, int which)
{
    int value = 0;
    gpu_check(gpu, gpu->cuda->device_get_attribute(&value, which, gpu->device),
              "cuDeviceGetAttribute");
    return value;
}

static void gpu_learn(struct gpu_rig *gpu)
{
    const struct cuda *cuda = gpu->cuda;
    gpu_check(gpu, cuda->driver_version(&gpu->driver), "cuDriverGetVersion");
    gpu_check(gpu, cuda->device_get_name(gpu->name, sizeof(gpu->name), gpu->device),
              "cuDeviceGetName");
    gpu->capability = 10 * attribute(gpu, CUDA_DEVICE_CAPABILITY_MAJOR) +
                      attribute(gpu, CUDA_DEVICE_CAPABILITY_MINOR);
    gpu->multiprocessors = attribute(gpu, CUDA_DEVICE_MULTIPROCESSORS);
    gpu->fake = strstr(gpu->name, "Fake") != NULL;
}

static int gpu_refuse(const struct gpu_rig *gpu, int result, const char *call, char *why,
                      size_t bytes)
{
    snprintf(why, bytes, "%s: %s", call, result_name(gpu, result));
    return -1;
}

int gpu_open(struct gpu_rig *gpu, char *why, size_t why_bytes)
{
    *gpu = (struct gpu_rig){.cuda = cuda_load(why, why_bytes)};
    if (!gpu->cuda)
        return -1;
    const struct cuda *cuda = gpu->cuda;
    int result = cuda->init(0);
    if (result != CUDA_OK)
        return gpu_refuse(gpu, result, "cuInit", why, why_bytes);
    result = cuda->device_get(&gpu->device, 0);
    if (result != CUDA_OK)
        return gpu_refuse(gpu, result, "cuDeviceGet", why, why_bytes);
    gpu_learn(gpu);
    if (!device_image_present() && !gpu->fake) { // A stand-in needs no machine code.
        snprintf(why, why_bytes, "%s", device_image_missing);
        return -1;
    }
    result = cuda->device_primary_ctx_retain(&gpu->context, gpu->device);
    if (result != CUDA_OK)
        return gpu_refuse(gpu, result, "cuDevicePrimaryCtxRetain", why, why_bytes);
    gpu_check(gpu, cuda->ctx_set_current(gpu->context), "cuCtxSetCurrent");
    result = cuda->module_load_data(&gpu->module, device_image());
    if (result != CUDA_OK)
        return gpu_refuse(gpu, result, "cuModuleLoadData", why, why_bytes);
    gpu_check(gpu, cuda->stream_create_with_priority(&gpu->stream, CUDA_STREAM_NON_BLOCKING, 0),
              "cuStreamCreateWithPriority");
    return 0;
}

void gpu_open_or_skip(struct gpu_rig *gpu)
{
    char why[256];
    if (gpu_open(gpu, why, sizeof(why)) == 0)
        return;
    printf("no usable GPU: %s\n", why);
    exit(GPU_SKIPPED);
}

void gpu_close(struct gpu_rig *gpu)
{
    const struct cuda *cuda = gpu->cuda;
    gpu_check(gpu, cuda->stream_destroy(gpu->stream), "cuStreamDestroy");
    gpu_check(gpu, cuda->module_unload(gpu->module), "cuModuleUnload");
    gpu_check(gpu, cuda->device_primary_ctx_release(gpu->device), "cuDevicePrimaryCtxRelease");
}

// ---- memory -------------------------------------------------------------------------------------

uint64_t gpu_alloc(const struct gpu_rig *gpu, size_t bytes)
{
    uint64_t address = 0;
    gpu_check(gpu, gpu->cuda->mem_alloc(&address, bytes > 0 ? bytes : 1), "cuMemAlloc");
    return address;
}

void gpu_free(const struct gpu_rig *gpu, uint64_t address)
{
    gpu_check(gpu, gpu->cuda->mem_free(address), "cuMemFree");
}

void gpu_upload(const struct gpu_rig *gpu, uint64_t to, const void *from, size_t bytes)
{
    if (bytes == 0)
        return;
    gpu_check(gpu, gpu->cuda->memcpy_htod_async(to, from, bytes, gpu->stream), "cuMemcpyHtoDAsync");
    gpu_wait(gpu);
}

void gpu_download(const struct gpu_rig *gpu, void *to, uint64_t from, size_t bytes)
{
    if (bytes == 0)
        return;
    gpu_check(gpu, gpu->cuda->memcpy_dtoh_async(to, from, bytes, gpu->stream), "cuMemcpyDtoHAsync");
    gpu_wait(gpu);
}

uint64_t gpu_copy(const struct gpu_rig *gpu, const void *from, size_t bytes)
{
    const uint64_t address = gpu_alloc(gpu, bytes);
    gpu_upload(gpu, address, from, bytes);
    return address;
}

// ---- kernels ------------------------------------------------------------------------------------

void *gpu_kernel(const struct gpu_rig *gpu, const char *name)
{
    void *kernel = NULL;
    gpu_check(gpu, gpu->cuda->module_get_function(&kernel, gpu->module, name),
              "cuModuleGetFunction");
    return kernel;
}

void gpu_launch(const struct gpu_rig *gpu, void *kernel, uint64_t elements, const void *parameters)
{
    void *row[1];
    memcpy(row, &parameters, sizeof(parameters)); // The driver reads it, and takes it as not const.
    gpu_check(gpu,
              gpu->cuda->launch_kernel(kernel, device_blocks(elements), 1, 1, DEVICE_THREADS, 1, 1,
                                       0, gpu->stream, row, NULL),
              "cuLaunchKernel");
}

void gpu_wait(const struct gpu_rig *gpu)
{
    gpu_check(gpu, gpu->cuda->stream_synchronize(gpu->stream), "cuStreamSynchronize");
}

// ---- times --------------------------------------------------------------------------------------

double gpu_now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static int compare_doubles(const void *one, const void *other)
{
    const double a = *(const double *)one;
    const double b = *(const double *)other;
    return (a > b) - (a < b);
}

double gpu_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare_doubles);
    return values[count / 2];
}
