// SPDX-License-Identifier: Apache-2.0
//
// Trainers whose gradients are made by streams of a device, and whose results are read by another
// one. The host never waits between: whoever does not wait on the device reads what was there
// before. The devices are fakes (tests/fake_gpu) that begin an operation as late as they may, so a
// wait that is missing shows each time, and whose memory faults when the host touches it.
//
// In each world some ranks compute on the host; all hold the same bits after every step.

#include "tests/fake_gpu/fake_gpu.h"
#include "tests/support/cluster.h"
#include "worker/cuda.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PARAMETERS 12
#define STEPS 6
#define STREAMS 2 // That make gradients.

static const int64_t sizes[PARAMETERS] = {1000, 3, 4096, 17, 5000, 1, 64, 257, 2000, 8, 33, 700};

// ---- One rank ----------------------------------------------------------------------------------

struct trainer {
    const struct cuda *cuda; // NULL: this rank has no device.
    void *context;
    void *makes[STREAMS];
    void *reads;
    char names[PARAMETERS][8];
    float *data[PARAMETERS];
    float *gradients[PARAMETERS]; // Of the device, or of the host.
    float *buffer;
    float *made[PARAMETERS]; // Of the host: what is copied to gradients, late.
    float *made_buffer;
    float *result; // Of the host; of the largest.
    lockstep_module *module;
};

#define CUDA(rank, trainer, call) RANK_TRUE(rank, (trainer)->cuda->call == CUDA_OK)

static int64_t largest(void)
{
    int64_t most = 0;
    for (uint32_t p = 0; p < PARAMETERS; p++)
        most = sizes[p] > most ? sizes[p] : most;
    return most;
}

static void trainer_streams(struct rank *rank, struct trainer *trainer)
{
    char error[256];
    int device;
    trainer->cuda = cuda_load(error, sizeof(error));
    RANK_TRUE(rank, trainer->cuda != NULL);
    CUDA(rank, trainer, init(0));
    CUDA(rank, trainer, device_get(&device, (int)rank->rank));
    CUDA(rank, trainer, device_primary_ctx_retain(&trainer->context, device));
    CUDA(rank, trainer, ctx_set_current(trainer->context));
    for (uint32_t i = 0; i < STREAMS; i++)
        CUDA(rank, trainer,
             stream_create_with_priority(&trainer->makes[i], CUDA_STREAM_NON_BLOCKING, 0));
    CUDA(rank, trainer, stream_create_with_priority(&trainer->reads, CUDA_STREAM_NON_BLOCKING, 0));
}

static void *trainer_allocate(struct rank *rank, const struct trainer *trainer, int64_t elements)
{
    const size_t bytes = (size_t)elements * sizeof(float);
    uint64_t address = 0;
    void *memory = NULL;
    if (trainer->cuda == NULL) {
        memory = calloc(1, bytes);
    } else {
        CUDA(rank, trainer, mem_alloc(&address, bytes));
        memory = (void *)(uintptr_t)address; // NOLINT: that is what a trainer passes.
        CUDA(rank, trainer, memset_d8_async(address, 0, bytes, trainer->reads));
        CUDA(rank, trainer, stream_synchronize(trainer->reads));
    }
    return memory;
}

static void trainer_open(struct rank *rank, struct trainer *trainer)
{
    memset(trainer, 0, sizeof(*trainer));
    if (rank->rank < rank->setting->devices)
        trainer_streams(rank, trainer);
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        snprintf(trainer->names[p], sizeof(trainer->names[p]), "p%u", (unsigned)p % 100);
        trainer->data[p] = trainer_allocate(rank, trainer, sizes[p]);
        trainer->gradients[p] = trainer_allocate(rank, trainer, sizes[p]);
        trainer->made[p] = calloc((size_t)sizes[p], sizeof(float));
    }
    trainer->buffer = trainer_allocate(rank, trainer, sizes[0]);
    trainer->made_buffer = calloc((size_t)sizes[0], sizeof(float));
    trainer->result = calloc((size_t)largest(), sizeof(float));
}

static void trainer_release(struct rank *rank, const struct trainer *trainer, void *memory)
{
    if (trainer->cuda == NULL)
        free(memory);
    else
        CUDA(rank, trainer, mem_free((uint64_t)(uintptr_t)memory));
}

static void trainer_close(struct rank *rank, struct trainer *trainer)
{
    int device;
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        trainer_release(rank, trainer, trainer->data[p]);
        trainer_release(rank, trainer, trainer->gradients[p]);
        free(trainer->made[p]);
    }
    trainer_release(rank, trainer, trainer->buffer);
    free(trainer->made_buffer);
    free(trainer->result);
    if (trainer->cuda == NULL)
        return;
    for (uint32_t i = 0; i < STREAMS; i++)
        CUDA(rank, trainer, stream_destroy(trainer->makes[i]));
    CUDA(rank, trainer, stream_destroy(trainer->reads));
    CUDA(rank, trainer, device_get(&device, (int)rank->rank));
    CUDA(rank, trainer, ctx_set_current(NULL));
    CUDA(rank, trainer, device_primary_ctx_release(device));
}

struct described {
    uint64_t calls_per_step;
    bool buffer; // Mean of all ranks, every step.
};

static void trainer_register(struct rank *rank, struct trainer *trainer,
                             const struct described *described)
{
    struct lockstep_parameter parameters[PARAMETERS];
    struct lockstep_buffer buffer = LOCKSTEP_BUFFER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    for (uint32_t p = 0; p < PARAMETERS; p++)
        parameters[p] = (struct lockstep_parameter){.name = trainer->names[p],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = &sizes[p],
                                                    .data = trainer->data[p],
                                                    .gradient = trainer->gradients[p]};
    buffer.name = "running";
    buffer.dtype = LOCKSTEP_FLOAT32;
    buffer.dims = 1;
    buffer.shape = &sizes[0];
    buffer.data = trainer->buffer;
    buffer.policy = LOCKSTEP_BUFFER_MEAN;
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = PARAMETERS;
    config.buffers = &buffer;
    config.buffer_count = described->buffer ? 1 : 0;
    config.calls_per_step = described->calls_per_step;
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &trainer->module));
    RANK_OK(rank, lockstep_start(rank->session));
}

// ---- Numbers -----------------------------------------------------------------------------------

// Small integers, so that sums are exact in any order.
static float known(uint32_t rank, uint64_t step, uint32_t parameter, int64_t element)
{
    return (float)((rank * 5 + step * 3 + parameter * 7 + (uint64_t)element) % 31) - 11;
}

static float known_mean(const struct rank *rank, uint64_t step, uint32_t parameter, int64_t element)
{
    float sum = 0;
    for (uint32_t r = 0; r < rank->world_size; r++)
        sum += known(r, step, parameter, element);
    return sum / (float)rank->world_size;
}

// Begins to make a tensor; where there is a stream, on it.
static void trainer_make(struct rank *rank, struct trainer *trainer, uint32_t parameter,
                         uint64_t step, float *to, void *stream)
{
    const size_t bytes = (size_t)sizes[parameter] * sizeof(float);
    float *made = stream == NULL          ? to
                  : to == trainer->buffer ? trainer->made_buffer
                                          : trainer->made[parameter];
    for (int64_t i = 0; i < sizes[parameter]; i++)
        made[i] = known(rank->rank, step, parameter, i);
    if (stream != NULL)
        CUDA(rank, trainer, memcpy_htod_async((uint64_t)(uintptr_t)to, made, bytes, stream));
}

static void *trainer_stream(const struct trainer *trainer, uint32_t parameter)
{
    return trainer->cuda == NULL ? NULL : trainer->makes[parameter % STREAMS];
}

// What the stream that reads results finds.
static void trainer_expect(struct rank *rank, struct trainer *trainer, uint32_t parameter,
                           uint64_t step, const float *from)
{
    const size_t bytes = (size_t)sizes[parameter] * sizeof(float);
    const float *result = from;
    if (trainer->cuda != NULL) {
        memset(trainer->result, 0xee, bytes);
        CUDA(rank, trainer,
             memcpy_dtoh_async(trainer->result, (uint64_t)(uintptr_t)from, bytes, trainer->reads));
        CUDA(rank, trainer, stream_synchronize(trainer->reads));
        result = trainer->result;
    }
    for (int64_t i = 0; i < sizes[parameter]; i++) {
        const float expected = known_mean(rank, step, parameter, i);
        if (result[i] < expected || result[i] > expected || result[i] != result[i])
            rank_fail(rank, __FILE__, __LINE__, "step %u: p%u element %d is %g, not %g",
                      (unsigned)step, (unsigned)parameter, (int)i, (double)result[i],
                      (double)expected);
    }
    rank_digest(rank, result, bytes);
}

// ---- Stories -----------------------------------------------------------------------------------

static void report(struct rank *rank, struct trainer *trainer, lockstep_call *call, uint64_t step)
{
    for (uint32_t p = PARAMETERS; p-- > 0;) {
        void *stream = trainer_stream(trainer, p);
        trainer_make(rank, trainer, p, step, trainer->gradients[p], stream);
        RANK_OK(rank, lockstep_grad_ready(trainer->module, call, p, NULL, stream));
    }
}

// The optimizer's stream reads at once what step_end has promised it.
static void steps(struct rank *rank)
{
    struct trainer trainer;
    lockstep_call *call;
    trainer_open(rank, &trainer);
    trainer_register(rank, &trainer, &(struct described){.calls_per_step = 1});
    for (uint64_t step = 1; step <= STEPS; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
        report(rank, &trainer, call, step);
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        for (uint32_t p = 0; p < PARAMETERS; p++)
            trainer_expect(rank, &trainer, p, step, trainer.gradients[p]);
    }
    trainer_close(rank, &trainer);
}

static void case_45_results_follow_gradients(const struct setting *setting)
{
    ranks_run(setting, steps, NULL);
}

// Without a stream results are there when step_end, or a wait for the call, returns.
static void steps_of_hosts(struct rank *rank)
{
    struct trainer trainer;
    lockstep_call *call;
    trainer_open(rank, &trainer);
    trainer_register(rank, &trainer, &(struct described){.calls_per_step = 1});
    for (uint64_t step = 1; step <= STEPS; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
        report(rank, &trainer, call, step);
        RANK_OK(rank, lockstep_call_end(call));
        if (step % 2 == 0)
            RANK_OK(rank, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
        else
            RANK_OK(rank, lockstep_step_end(rank->session, NULL));
        for (uint32_t p = 0; p < PARAMETERS; p++)
            trainer_expect(rank, &trainer, p, step, trainer.gradients[p]);
        if (step % 2 == 0)
            RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    }
    trainer_close(rank, &trainer);
}

static void case_45_results_are_there(const struct setting *setting)
{
    ranks_run(setting, steps_of_hosts, NULL);
}

// A gradient that only the first of two calls reports is made by a stream that the second one does
// not name.
static void early_calls(struct rank *rank)
{
    struct trainer trainer;
    lockstep_call *call;
    trainer_open(rank, &trainer);
    trainer_register(rank, &trainer, &(struct described){.calls_per_step = 2});
    for (uint64_t step = 1; step <= STEPS; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        for (uint32_t c = 0; c < 2; c++) {
            RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
            for (uint32_t p = 0; p < PARAMETERS; p++) {
                if (p % 2 != c)
                    continue;
                trainer_make(rank, &trainer, p, step, trainer.gradients[p],
                             trainer_stream(&trainer, p));
                RANK_OK(rank, lockstep_grad_ready(trainer.module, call, p, NULL,
                                                  trainer_stream(&trainer, p)));
            }
            RANK_OK(rank, lockstep_call_end(call));
        }
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        for (uint32_t p = 0; p < PARAMETERS; p++)
            trainer_expect(rank, &trainer, p, step, trainer.gradients[p]);
    }
    trainer_close(rank, &trainer);
}

static void case_45_early_calls_are_waited_for(const struct setting *setting)
{
    ranks_run(setting, early_calls, NULL);
}

// The same over the steps of a window; and a buffer that the stream of step_end makes.
static void windows(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trainer trainer;
    lockstep_call *call;
    trainer_open(rank, &trainer);
    trainer_register(rank, &trainer, &(struct described){.calls_per_step = 1, .buffer = true});
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (uint32_t part = 0; part < 2; part++) {
            options.accumulate = part == 0;
            RANK_OK(rank, lockstep_step_begin(rank->session, &options, NULL));
            RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
            for (uint32_t p = part; p < PARAMETERS; p += 2) {
                trainer_make(rank, &trainer, p, step, trainer.gradients[p],
                             trainer_stream(&trainer, p));
                RANK_OK(rank, lockstep_grad_ready(trainer.module, call, p, NULL,
                                                  trainer_stream(&trainer, p)));
            }
            RANK_OK(rank, lockstep_call_end(call));
            if (part == 1)
                trainer_make(rank, &trainer, 0, step + 1, trainer.buffer, trainer.reads);
            RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        }
        trainer_expect(rank, &trainer, 0, step + 1, trainer.buffer);
        for (uint32_t p = 1; p < PARAMETERS; p++)
            trainer_expect(rank, &trainer, p, step, trainer.gradients[p]);
    }
    trainer_close(rank, &trainer);
}

static void case_45_windows_and_buffers(const struct setting *setting)
{
    ranks_run(setting, windows, NULL);
}

// What the library reads at once: values at start, the hash, the check of the state, and plain
// collectives.
static void states(struct rank *rank)
{
    struct trainer trainer;
    uint64_t hash;
    trainer_open(rank, &trainer);
    for (uint32_t p = 0; p < PARAMETERS; p++)
        trainer_make(rank, &trainer, p, 1, trainer.data[p], trainer.reads);
    if (trainer.cuda != NULL)
        CUDA(rank, &trainer, stream_synchronize(trainer.reads));
    trainer_register(rank, &trainer, &(struct described){.calls_per_step = 1});
    RANK_OK(rank, lockstep_state_check(rank->session));
    RANK_OK(rank, lockstep_state_hash(rank->session, &hash));
    rank_digest(rank, &hash, sizeof(hash));
    trainer_make(rank, &trainer, 4, 3, trainer.gradients[4], trainer.reads);
    if (trainer.cuda != NULL)
        CUDA(rank, &trainer, stream_synchronize(trainer.reads));
    RANK_OK(rank,
            lockstep_allreduce(rank->session, "mean", trainer.gradients[4], (uint64_t)sizes[4],
                               LOCKSTEP_FLOAT32, LOCKSTEP_MEAN, LOCKSTEP_WAIT_FOREVER));
    trainer_expect(rank, &trainer, 4, 3, trainer.gradients[4]);
    trainer_close(rank, &trainer);
}

static void case_45_state_is_there(const struct setting *setting)
{
    ranks_run(setting, states, NULL);
}

// ---- What is made, and what is left ------------------------------------------------------------

// A function of the fake driver; every rank of this process has the same one.
static void *fake(const char *name)
{
    void *library = dlopen(getenv("LOCKSTEP_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    void *function = library == NULL ? NULL : dlsym(library, name);
    if (function == NULL)
        fail_msg("the fake driver has no %s", name);
    return function;
}

// Memory comes first: what allocates it may wait for all that devices do.
static const char *const makers[] = {"cuMemAlloc_v2", "cuMemHostAlloc", "cuEventCreate",
                                     "cuStreamCreateWithPriority", "cuModuleLoadData"};
#define MAKERS (sizeof(makers) / sizeof(makers[0]))
#define ALLOCATORS 2

static uint64_t made_so_far(size_t count)
{
    fake_gpu_calls_function *calls;
    uint64_t made = 0;
    *(void **)&calls = fake("fake_gpu_calls");
    for (size_t i = 0; i < count; i++)
        made += calls(makers[i]);
    return made;
}

// The first step that has a plan allocates nothing, nor any later one; and when all streams are
// known, steps make nothing on the device. There are more buckets than may be in flight, and those
// that are learned are other ones than those of the start.
static void steady(struct rank *rank)
{
    struct trainer trainer;
    lockstep_call *call;
    uint64_t allocated = 0;
    uint64_t before = 0;
    trainer_open(rank, &trainer);
    trainer_register(rank, &trainer, &(struct described){.calls_per_step = 1, .buffer = true});
    for (uint64_t step = 1; step <= 2 * STEPS; step++) {
        rank_meet(rank);
        if (step == 2)
            allocated = made_so_far(ALLOCATORS);
        if (step == STEPS)
            before = made_so_far(MAKERS);
        rank_meet(rank);
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
        for (uint32_t p = 0; p < PARAMETERS; p++) {
            void *stream = trainer_stream(&trainer, p);
            trainer_make(rank, &trainer, p, step, trainer.gradients[p], stream);
            RANK_OK(rank, lockstep_grad_ready(trainer.module, call, p, NULL, stream));
        }
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, step % 2 == 0 ? trainer.reads : NULL));
    }
    rank_meet(rank);
    RANK_EQUAL(rank, made_so_far(ALLOCATORS), allocated);
    RANK_EQUAL(rank, made_so_far(MAKERS), before);
    rank_meet(rank);
    trainer_close(rank, &trainer);
}

static void configure_steady(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 1;
}

static void case_45_steady_steps_make_nothing(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = configure_steady, .body = steady};
    ranks_run_test(&test);
}

static void expect_nothing_is_left(void)
{
    struct fake_gpu_live live = {0};
    char complaint[512] = "";
    fake_gpu_live_function *look;
    fake_gpu_complaint_function *listen;
    *(void **)&look = fake("fake_gpu_live");
    *(void **)&listen = fake("fake_gpu_complaint");
    look(&live);
    listen(complaint, sizeof(complaint));
    assert_string_equal(complaint, "");
    assert_int_equal(live.streams, 0);
    assert_int_equal(live.events, 0);
    assert_int_equal(live.device_allocations, 0);
    assert_int_equal(live.host_allocations, 0);
    assert_int_equal(live.registrations, 0);
}

// ---- Worlds of one -----------------------------------------------------------------------------

// A world of one without a coordinator: nothing travels, but a sum becomes a mean, and results are
// there when all streams are.
static void alone(struct rank *rank)
{
    struct lockstep_config config = rank_config(rank);
    struct lockstep_module_config module = LOCKSTEP_MODULE_INIT;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct trainer trainer;
    lockstep_call *call;
    config.coordinator = NULL;
    config.world_size = 0;
    RANK_OK(rank, lockstep_open(&config, &rank->session));
    trainer_open(rank, &trainer);
    parameter.name = "p4";
    parameter.dims = 1;
    parameter.shape = &sizes[4];
    parameter.data = trainer.data[4];
    parameter.gradient = trainer.gradients[4];
    module.name = "net";
    module.parameters = &parameter;
    module.parameter_count = 1;
    module.gradient_kind = LOCKSTEP_GRADIENT_SUM;
    RANK_OK(rank, lockstep_module_register(rank->session, &module, &trainer.module));
    RANK_OK(rank, lockstep_start(rank->session));
    options.weight = 2;
    for (uint64_t step = 1; step <= STEPS; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, &options, NULL));
        RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
        trainer_make(rank, &trainer, 4, step, trainer.gradients[4], trainer.makes[0]);
        RANK_OK(rank, lockstep_grad_ready(trainer.module, call, 0, NULL, trainer.makes[0]));
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        CUDA(rank, &trainer,
             memcpy_dtoh_async(trainer.result, (uint64_t)(uintptr_t)trainer.gradients[4],
                               (size_t)sizes[4] * sizeof(float), trainer.reads));
        CUDA(rank, &trainer, stream_synchronize(trainer.reads));
        for (int64_t i = 0; i < sizes[4]; i++)
            RANK_EQUAL(rank, 2 * trainer.result[i], known(0, step, 4, i));
    }
    trainer_close(rank, &trainer);
}

static void alone_a_sum_becomes_a_mean(void **state)
{
    struct setting setting = setting_named("staged");
    const struct cluster_test test = {.setting = &setting, .body = alone, .without_session = true};
    (void)state;
    setting.world_size = 1;
    setting.device_memory_only = true;
    ranks_run_test(&test);
    expect_nothing_is_left();
}

// ---- Worlds ------------------------------------------------------------------------------------

struct story {
    const char *name;
    void (*run)(const struct setting *setting);
};

static const struct story stories[] = {
    {"case_45_results_follow_gradients", case_45_results_follow_gradients},
    {"case_45_results_are_there", case_45_results_are_there},
    {"case_45_early_calls_are_waited_for", case_45_early_calls_are_waited_for},
    {"case_45_windows_and_buffers", case_45_windows_and_buffers},
    {"case_45_state_is_there", case_45_state_is_there},
    {"case_45_steady_steps_make_nothing", case_45_steady_steps_make_nothing},
};

struct world {
    const char *setting;
    uint32_t devices;
    uint32_t world_size;
};

static const struct world worlds[] = {
    {"staged", 1, 1}, {"staged", 1, 4}, {"mixed", 2, 4}, {"nccl", 8, 2}, {"nccl", 8, 3},
};

#define STORIES (sizeof(stories) / sizeof(stories[0]))
#define WORLDS (sizeof(worlds) / sizeof(worlds[0]))

struct told {
    const struct story *story;
    struct setting setting;
    char name[128];
};

static void tell(void **state)
{
    const struct told *told = *state;
    told->story->run(&told->setting);
    expect_nothing_is_left();
}

int main(void)
{
    static struct told told[STORIES * WORLDS];
    static struct CMUnitTest tests[STORIES * WORLDS + 1];
    for (size_t i = 0; i < STORIES * WORLDS; i++) {
        const struct world *world = &worlds[i % WORLDS];
        told[i].story = &stories[i / WORLDS];
        told[i].setting = setting_named(world->setting);
        told[i].setting.devices = world->devices;
        told[i].setting.world_size = world->world_size;
        told[i].setting.device_memory_only = true;
        snprintf(told[i].name, sizeof(told[i].name), "%s/%s/world_%u", told[i].story->name,
                 world->setting, (unsigned)world->world_size);
        tests[i] =
            (struct CMUnitTest){.name = told[i].name, .test_func = tell, .initial_state = &told[i]};
    }
    tests[STORIES * WORLDS] = (struct CMUnitTest)cmocka_unit_test(alone_a_sum_becomes_a_mean);
    setenv("FAKE_CUDA_LAZY_US", "20000", 1);
    setenv("FAKE_CUDA_DELAY_US", "0-200", 1);
    setenv("FAKE_CUDA_URGENT_US", "500", 1);
    if (getenv("LOCKSTEP_TEST_FILTER") != NULL)
        cmocka_set_test_filter(getenv("LOCKSTEP_TEST_FILTER"));
    return _cmocka_run_group_tests("devices: streams", tests, STORIES * WORLDS + 1, NULL, NULL);
}
