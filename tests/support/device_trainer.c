// SPDX-License-Identifier: Apache-2.0
//
// Trainers whose gradients streams of a fake device make; see device_trainer.h.

#include "tests/support/device_trainer.h"

#include "tests/support/bounds.h"

#include "tests/fake_gpu/fake_gpu.h"

#include <assert.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const int64_t device_sizes[DEVICE_PARAMETERS] = {1000, 3,   4096, 17, 5000, 1,
                                                 64,   257, 2000, 8,  33,   700};

// ---- One rank ----------------------------------------------------------------------------------

static int64_t largest(void)
{
    int64_t most = 0;
    for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++)
        most = device_sizes[p] > most ? device_sizes[p] : most;
    return most;
}

static void device_trainer_streams(struct rank *rank, struct device_trainer *trainer)
{
    char error[256];
    int device;
    trainer->cuda = cuda_load(error, sizeof(error));
    RANK_TRUE(rank, trainer->cuda != NULL);
    DEVICE_CUDA(rank, trainer, init(0));
    DEVICE_CUDA(rank, trainer, device_get(&device, (int)rank->rank));
    DEVICE_CUDA(rank, trainer, device_primary_ctx_retain(&trainer->context, device));
    DEVICE_CUDA(rank, trainer, ctx_set_current(trainer->context));
    for (uint32_t i = 0; i < DEVICE_MAKERS; i++)
        DEVICE_CUDA(rank, trainer,
                    stream_create_with_priority(&trainer->makes[i], CUDA_STREAM_NON_BLOCKING, 0));
    DEVICE_CUDA(rank, trainer,
                stream_create_with_priority(&trainer->reads, CUDA_STREAM_NON_BLOCKING, 0));
}

void *device_trainer_allocate(struct rank *rank, const struct device_trainer *trainer,
                              int64_t elements)
{
    const size_t bytes = (size_t)elements * sizeof(float);
    uint64_t address = 0;
    void *memory = NULL;
    if (!trainer->cuda) {
        memory = calloc(1, bytes);
    } else {
        DEVICE_CUDA(rank, trainer, mem_alloc(&address, bytes));
        memory = (void *)(uintptr_t)address; // NOLINT: trainers pass device addresses as pointers.
        DEVICE_CUDA(rank, trainer, memset_d8_async(address, 0, bytes, trainer->reads));
        DEVICE_CUDA(rank, trainer, stream_synchronize(trainer->reads));
    }
    return memory;
}

void device_trainer_open(struct rank *rank, struct device_trainer *trainer)
{
    memset(trainer, 0, sizeof(*trainer));
    if (rank->rank < rank->setting->devices)
        device_trainer_streams(rank, trainer);
    for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++) {
        snprintf(trainer->names[p], sizeof(trainer->names[p]), "p%u", (unsigned)p % 100);
        trainer->data[p] = device_trainer_allocate(rank, trainer, device_sizes[p]);
        trainer->gradients[p] = device_trainer_allocate(rank, trainer, device_sizes[p]);
        trainer->made[p] = calloc((size_t)device_sizes[p], sizeof(float));
    }
    trainer->buffer = device_trainer_allocate(rank, trainer, device_sizes[0]);
    trainer->made_buffer = calloc((size_t)device_sizes[0], sizeof(float));
    trainer->result = calloc((size_t)largest(), sizeof(float));
}

void device_trainer_release(struct rank *rank, const struct device_trainer *trainer, void *memory)
{
    if (!trainer->cuda)
        free(memory);
    else
        DEVICE_CUDA(rank, trainer, mem_free((uint64_t)(uintptr_t)memory));
}

void device_trainer_close(struct rank *rank, struct device_trainer *trainer)
{
    int device;
    if (rank->session)
        RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++) {
        device_trainer_release(rank, trainer, trainer->data[p]);
        device_trainer_release(rank, trainer, trainer->gradients[p]);
        free(trainer->made[p]);
    }
    device_trainer_release(rank, trainer, trainer->buffer);
    free(trainer->made_buffer);
    free(trainer->result);
    if (!trainer->cuda)
        return;
    for (uint32_t i = 0; i < DEVICE_MAKERS; i++)
        DEVICE_CUDA(rank, trainer, stream_destroy(trainer->makes[i]));
    DEVICE_CUDA(rank, trainer, stream_destroy(trainer->reads));
    DEVICE_CUDA(rank, trainer, device_get(&device, (int)rank->rank));
    DEVICE_CUDA(rank, trainer, ctx_set_current(NULL));
    DEVICE_CUDA(rank, trainer, device_primary_ctx_release(device));
}

void device_trainer_register(struct rank *rank, struct device_trainer *trainer,
                             const struct device_module *described)
{
    struct lockstep_parameter parameters[DEVICE_PARAMETERS];
    struct lockstep_buffer buffer = LOCKSTEP_BUFFER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++)
        parameters[p] = (struct lockstep_parameter){.name = trainer->names[p],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = &device_sizes[p],
                                                    .data = trainer->data[p],
                                                    .gradient = trainer->gradients[p]};
    buffer.name = "running";
    buffer.dtype = LOCKSTEP_FLOAT32;
    buffer.dims = 1;
    buffer.shape = &device_sizes[0];
    buffer.data = trainer->buffer;
    buffer.policy = LOCKSTEP_BUFFER_MEAN;
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = DEVICE_PARAMETERS;
    config.buffers = &buffer;
    config.buffer_count = described->buffer ? 1 : 0;
    config.calls_per_step = described->calls_per_step;
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    config.wire = described->wire;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &trainer->module));
    RANK_OK(rank, lockstep_start(rank->session));
}

// ---- Numbers -----------------------------------------------------------------------------------

float device_known(uint32_t rank, uint64_t step, uint32_t parameter, int64_t element)
{
    return (float)((rank * 5 + step * 3 + parameter * 7 + (uint64_t)element) % 31) - 11;
}

float device_known_mean(const struct rank *rank, uint64_t step, uint32_t parameter, int64_t element)
{
    float sum = 0;
    for (uint32_t r = 0; r < rank->world_size; r++)
        sum += device_known(r, step, parameter, element);
    return sum / (float)rank->world_size;
}

float *device_trainer_made(const struct device_trainer *trainer, uint32_t parameter,
                           const float *to)
{
    return to == trainer->buffer ? trainer->made_buffer : trainer->made[parameter];
}

void device_trainer_put(struct rank *rank, const struct device_trainer *trainer, uint32_t parameter,
                        float *to, void *stream)
{
    const size_t bytes = (size_t)device_sizes[parameter] * sizeof(float);
    const float *made = device_trainer_made(trainer, parameter, to);
    if (!trainer->cuda)
        memcpy(to, made, bytes);
    else
        DEVICE_CUDA(rank, trainer, memcpy_htod_async((uint64_t)(uintptr_t)to, made, bytes, stream));
}

void device_trainer_make(struct rank *rank, const struct device_trainer *trainer,
                         uint32_t parameter, uint64_t step, float *to, void *stream)
{
    float *made = device_trainer_made(trainer, parameter, to);
    for (int64_t i = 0; i < device_sizes[parameter]; i++)
        made[i] = device_known(rank->rank, step, parameter, i);
    device_trainer_put(rank, trainer, parameter, to, stream);
}

void *device_trainer_stream(const struct device_trainer *trainer, uint32_t parameter)
{
    return !trainer->cuda ? NULL : trainer->makes[parameter % DEVICE_MAKERS];
}

const float *device_trainer_look(struct rank *rank, const struct device_trainer *trainer,
                                 uint32_t parameter, const float *from)
{
    const size_t bytes = (size_t)device_sizes[parameter] * sizeof(float);
    if (!trainer->cuda)
        return from;
    memset(trainer->result, 0xee, bytes);
    DEVICE_CUDA(
        rank, trainer,
        memcpy_dtoh_async(trainer->result, (uint64_t)(uintptr_t)from, bytes, trainer->reads));
    DEVICE_CUDA(rank, trainer, stream_synchronize(trainer->reads));
    return trainer->result;
}

void device_trainer_expect(struct rank *rank, const struct device_trainer *trainer,
                           uint32_t parameter, uint64_t step, const float *from)
{
    const float *result = device_trainer_look(rank, trainer, parameter, from);
    for (int64_t i = 0; i < device_sizes[parameter]; i++) {
        const float expected = device_known_mean(rank, step, parameter, i);
        if (result[i] < expected || result[i] > expected || result[i] != result[i])
            rank_fail(rank, __FILE__, __LINE__, "step %u: p%u element %d is %g, not %g",
                      (unsigned)step, (unsigned)parameter, (int)i, (double)result[i],
                      (double)expected);
    }
    rank_digest(rank, result, (size_t)device_sizes[parameter] * sizeof(float));
}

// ---- Objects of the driver ---------------------------------------------------------------------

void *device_fake(const char *name)
{
    const bool nccl = strncmp(name, "fake_nccl_", 10) == 0;
    const char *path = getenv(nccl ? "LOCKSTEP_NCCL_LIBRARY" : "LOCKSTEP_CUDA_LIBRARY");
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void *function = !library ? NULL : dlsym(library, name);
    if (!function)
        fail_msg("the fakes have no %s", name);
    return function;
}

void device_expect_nothing_is_left(void)
{
    struct fake_gpu_live live = {0};
    char complaint[512] = "";
    fake_gpu_live_function *look;
    fake_gpu_complaint_function *listen;
    *(void **)&look = device_fake("fake_gpu_live");
    *(void **)&listen = device_fake("fake_gpu_complaint");
    look(&live);
    listen(complaint, sizeof(complaint));
    assert_string_equal(complaint, "");
    assert_int_equal(live.streams, 0);
    assert_int_equal(live.events, 0);
    assert_int_equal(live.device_allocations, 0);
    assert_int_equal(live.host_allocations, 0);
    assert_int_equal(live.registrations, 0);
}

// ---- Worlds ------------------------------------------------------------------------------------

struct world {
    const char *setting;
    uint32_t devices;
    uint32_t world_size;
};

static const struct world worlds[] = {
    {"staged", 1, 1}, {"staged", 1, 4}, {"mixed", 2, 4},
    {"mixed", 3, 4},  {"nccl", 8, 2},   {"nccl", 8, 3},
};

#define WORLDS (sizeof(worlds) / sizeof(worlds[0]))

struct told {
    const struct device_story *story;
    struct setting setting;
    char name[128];
};

static void tell(void **state)
{
    const struct told *told = *state;
    told->story->run(&told->setting);
    device_expect_nothing_is_left();
}

static void told_make(struct told *told, const struct device_story *story,
                      const struct world *world)
{
    told->story = story;
    told->setting = setting_named(world->setting);
    told->setting.devices = world->devices;
    told->setting.world_size = world->world_size;
    told->setting.device_memory_only = true;
    snprintf(told->name, sizeof(told->name), "%s/%s/world_%u", story->name, world->setting,
             (unsigned)world->world_size);
}

int device_stories_run(const char *group, const struct device_story *stories, size_t count,
                       const struct CMUnitTest *more, size_t more_count)
{
    static struct told told[DEVICE_STORIES * WORLDS];
    static struct CMUnitTest tests[DEVICE_STORIES * (WORLDS + 1)];
    size_t stamped = 0;
    assert(count <= DEVICE_STORIES && more_count <= DEVICE_STORIES);
    for (size_t i = 0; i < count * WORLDS; i++) {
        // Of each way there are two worlds, of which one stands for both under a sanitizer.
        if (!test_takes(i / WORLDS, i % WORLDS % 2, 2))
            continue;
        told_make(&told[i], &stories[i / WORLDS], &worlds[i % WORLDS]);
        tests[stamped++] =
            (struct CMUnitTest){.name = told[i].name, .test_func = tell, .initial_state = &told[i]};
    }
    for (size_t i = 0; i < more_count; i++)
        tests[stamped + i] = more[i];
    setenv("FAKE_CUDA_LAZY_US", "20000", 1);
    setenv("FAKE_CUDA_DELAY_US", "0-200", 1);
    setenv("FAKE_CUDA_URGENT_US", "500", 1);
    return _cmocka_run_group_tests(group, tests, stamped + more_count, NULL, NULL);
}
