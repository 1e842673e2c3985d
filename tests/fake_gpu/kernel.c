// SPDX-License-Identifier: Apache-2.0
//
// libcuda-fake.so: modules and kernels. A module accepts any image, even an empty one, because no
// code of the image runs. A kernel is found by its name among the references of
// tests/support/device_reference.h and the kernels of tests in fake_gpu.h. Grids and blocks are
// checked against CUDA's limits, and otherwise ignored.
#include "tests/fake_gpu/driver.h"

#include <string.h>

// ---- kernels of tests ---------------------------------------------------------------------------

static void fill_u32(const void *parameters, device_reach *reach)
{
    const struct fake_fill *fill = parameters;
    uint32_t *to = reach(fill->to, fill->count * sizeof(*to));
    for (uint64_t i = 0; i < fill->count; i++)
        to[i] = fill->value;
}

static void add_u32(const void *parameters, device_reach *reach)
{
    const struct fake_add *add = parameters;
    uint32_t *to = reach(add->to, add->count * sizeof(*to));
    const uint32_t *from = reach(add->from, add->count * sizeof(*from));
    for (uint64_t i = 0; i < add->count; i++)
        to[i] += from[i];
}

static void add_f32(const void *parameters, device_reach *reach)
{
    const struct fake_add *add = parameters;
    float *to = reach(add->to, add->count * sizeof(*to));
    const float *from = reach(add->from, add->count * sizeof(*from));
    for (uint64_t i = 0; i < add->count; i++)
        to[i] += from[i];
}

static const struct device_reference own[] = {
    {"fake_fill", sizeof(struct fake_fill), fill_u32},
    {"fake_add_u32", sizeof(struct fake_add), add_u32},
    {"fake_add_f32", sizeof(struct fake_add), add_f32},
};

enum {
    OWN_COUNT = sizeof(own) / sizeof(own[0])
};

static const struct device_reference *reference_find(const char *name)
{
    for (size_t i = 0; i < OWN_COUNT; i++)
        if (strcmp(own[i].name, name) == 0)
            return &own[i];
    return device_reference_find(name);
}

// ---- modules ------------------------------------------------------------------------------------

static struct module *module_of_locked(const void *handle)
{
    uint32_t index, life;
    if (!handle_read(handle, HANDLE_MODULE, &index, &life) || index >= MODULES_MAX)
        return NULL;
    struct module *module = &driver.modules[index];
    return module->alive && module->life == life ? module : NULL;
}

EXPORTED int cuModuleLoadData(void **handle, const void *image);
int cuModuleLoadData(void **handle, const void *image)
{
    struct context *context;
    int result = call_enter_context("cuModuleLoadData", &context);
    if (!result)
        result = image ? context_wait_perhaps_locked(context) : CUDA_INVALID_VALUE;
    uint32_t index = 0;
    while (index < MODULES_MAX && driver.modules[index].alive)
        index++;
    if (!result && index == MODULES_MAX)
        result = CUDA_OUT_OF_MEMORY;
    if (!result) {
        struct module *module = &driver.modules[index];
        *module = (struct module){.alive = true, .life = module->life + 1, .context = context};
        *handle = handle_make(HANDLE_MODULE, index, module->life);
    }
    return call_leave(result);
}

EXPORTED int cuModuleUnload(void *handle);
int cuModuleUnload(void *handle)
{
    struct context *context;
    int result = call_enter_context("cuModuleUnload", &context);
    struct module *module = module_of_locked(handle);
    if (!module)
        return call_leave(CUDA_INVALID_HANDLE);
    const int error = context_wait_perhaps_locked(module->context);
    module->alive = false;
    return call_leave(result ? result : error);
}

// ---- functions ----------------------------------------------------------------------------------
// The handle of a function holds the index of its module and the function's index in `asked`, the
// list of all functions that programs have looked up.

enum {
    FUNCTIONS_MAX = 64,
    FUNCTION_SHIFT = 12
};

static const struct device_reference *asked[FUNCTIONS_MAX];

static uint32_t function_place(const struct device_reference *reference)
{
    uint32_t place = 0;
    while (place < FUNCTIONS_MAX && asked[place] && asked[place] != reference)
        place++;
    if (place < FUNCTIONS_MAX)
        asked[place] = reference;
    return place;
}

EXPORTED int cuModuleGetFunction(void **function, void *module_handle, const char *name);
int cuModuleGetFunction(void **function, void *module_handle, const char *name)
{
    enum {
        NOT_FOUND = 500
    };
    struct context *context;
    int result = call_enter_context("cuModuleGetFunction", &context);
    const struct module *module = module_of_locked(module_handle);
    const struct device_reference *reference = reference_find(name);
    if (!result && !module)
        result = CUDA_INVALID_HANDLE;
    const uint32_t place = reference ? function_place(reference) : FUNCTIONS_MAX;
    if (!result && place == FUNCTIONS_MAX)
        result = NOT_FOUND;
    if (!result)
        *function = handle_make(HANDLE_FUNCTION,
                                place << FUNCTION_SHIFT | (uint32_t)(module - driver.modules),
                                module->life);
    return call_leave(result);
}

static const struct device_reference *function_of_locked(const void *handle,
                                                         const struct context *context)
{
    uint32_t index, life;
    if (!handle_read(handle, HANDLE_FUNCTION, &index, &life))
        return NULL;
    const struct module *module = &driver.modules[index & ((1u << FUNCTION_SHIFT) - 1)];
    if (!module->alive || module->life != life || module->context != context)
        return NULL;
    return asked[index >> FUNCTION_SHIFT];
}

static bool is_launchable(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes)
{
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    return grid[0] && grid[1] && grid[2] && grid[0] <= INT32_MAX && grid[1] <= UINT16_MAX &&
           grid[2] <= UINT16_MAX && threads && threads <= 1024 && block[2] <= 64 &&
           shared_bytes <= 48 * 1024;
}

EXPORTED int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, void *handle, void **parameters, void **extra);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *handle, void **parameters, void **extra)
{
    struct stream *stream;
    int result = call_enter_stream("cuLaunchKernel", handle, &stream);
    if (result)
        return call_leave(result);
    const struct device_reference *reference = function_of_locked(function, stream->context);
    if (!reference) {
        complain_locked("cuLaunchKernel: there is no such function in the stream's context");
        return call_leave(CUDA_INVALID_HANDLE);
    }
    const unsigned grid[3] = {grid_x, grid_y, grid_z};
    const unsigned block[3] = {block_x, block_y, block_z};
    if (!is_launchable(grid, block, shared_bytes) || !parameters || extra ||
        reference->parameter_bytes > PARAMETER_BYTES) {
        complain_locked("cuLaunchKernel: %s: %u x %u x %u blocks of %u x %u x %u threads",
                        reference->name, grid_x, grid_y, grid_z, block_x, block_y, block_z);
        return call_leave(CUDA_INVALID_VALUE);
    }
    struct operation operation = {
        .kind = OPERATION_KERNEL, .name = reference->name, .kernel = {.reference = reference}};
    memcpy(operation.kernel.parameters, parameters[0], reference->parameter_bytes);
    return call_leave(stream_push_locked(stream, &operation));
}
