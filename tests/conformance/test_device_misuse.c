// SPDX-License-Identifier: Apache-2.0
//
// Misuse of devices, which Lockstep refuses with an error that names the tensor: streams and memory
// on another device than registered, tensors on the devices of some ranks only, and policies that
// defer gradients. Also a device that is lost. Runs on fake devices without unified memory.

#include "tests/fake_gpu/fake_gpu.h"
#include "tests/support/cluster.h"
#include "worker/device/cuda.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ELEMENTS 8
#define MANY_STREAMS 9

static const int64_t shape[1] = {ELEMENTS};

static void *fake_find(const char *name)
{
    void *library = dlopen(getenv("LOCKSTEP_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    void *function = !library ? NULL : dlsym(library, name);
    if (!function)
        fail_msg("the fake driver has no %s", name);
    return function;
}

// ---- Memory and streams ------------------------------------------------------------------------

struct place {
    const struct cuda *cuda; // NULL: this rank has no device.
    void *context;
    float host[4][ELEMENTS];
    float *device[4]; // Memory of this rank's device; host memory if the rank has no device.
    float *other; // Memory of device 7, which no rank uses.
    void *stream; // A stream of device 7.
};

static void place_make_current(struct rank *rank, struct place *place, uint32_t number)
{
    int device;
    RANK_TRUE(rank, place->cuda->device_get(&device, (int)number) == CUDA_OK);
    RANK_TRUE(rank, place->cuda->device_primary_ctx_retain(&place->context, device) == CUDA_OK);
    RANK_TRUE(rank, place->cuda->ctx_set_current(place->context) == CUDA_OK);
}

static float *place_allocate(struct rank *rank, const struct place *place)
{
    uint64_t address = 0;
    RANK_TRUE(rank, place->cuda->mem_alloc(&address, sizeof(place->host[0])) == CUDA_OK);
    return (float *)(uintptr_t)address;
}

static void place_open(struct rank *rank, struct place *place)
{
    char error[256];
    memset(place, 0, sizeof(*place));
    for (uint32_t i = 0; i < 4; i++)
        place->device[i] = place->host[i];
    if (rank->rank >= rank->setting->devices)
        return;
    place->cuda = cuda_load(error, sizeof(error));
    RANK_TRUE(rank, place->cuda != NULL);
    RANK_TRUE(rank, place->cuda->init(0) == CUDA_OK);
    place_make_current(rank, place, 7); // No rank uses this device.
    place->other = place_allocate(rank, place);
    RANK_TRUE(rank, place->cuda->stream_create_with_priority(
                        &place->stream, CUDA_STREAM_NON_BLOCKING, 0) == CUDA_OK);
    place_make_current(rank, place, rank->rank);
    for (uint32_t i = 0; i < 4; i++)
        place->device[i] = place_allocate(rank, place);
}

// Closes the session before the memory is freed.
static void place_close(struct rank *rank, struct place *place)
{
    int device;
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    if (!place->cuda)
        return;
    for (uint32_t i = 0; i < 4; i++)
        RANK_TRUE(rank, place->cuda->mem_free((uint64_t)(uintptr_t)place->device[i]) == CUDA_OK);
    RANK_TRUE(rank, place->cuda->device_get(&device, (int)rank->rank) == CUDA_OK);
    RANK_TRUE(rank, place->cuda->ctx_set_current(NULL) == CUDA_OK);
    RANK_TRUE(rank, place->cuda->device_primary_ctx_release(device) == CUDA_OK);
}

static struct lockstep_parameter parameter(const char *name, float *data, float *gradient)
{
    return (struct lockstep_parameter){.name = name,
                                       .dtype = LOCKSTEP_FLOAT32,
                                       .dims = 1,
                                       .shape = shape,
                                       .data = data,
                                       .gradient = gradient};
}

static struct lockstep_module_config describe(const struct lockstep_parameter *parameters,
                                              uint32_t count)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = count;
    return config;
}

// Registers parameter "a" in device memory and "b" in host memory.
static lockstep_module *place_register(struct rank *rank, const struct place *place)
{
    static _Thread_local float host[2][ELEMENTS];
    const struct lockstep_parameter parameters[] = {
        parameter("a", place->device[0], place->device[1]), parameter("b", host[0], host[1])};
    const struct lockstep_module_config config = describe(parameters, 2);
    lockstep_module *module;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    return module;
}

// ---- Reports -----------------------------------------------------------------------------------

static void report_from_elsewhere(struct rank *rank, lockstep_module *module,
                                  const struct place *place)
{
    float here[ELEMENTS];
    void *const stream = CUDA_STREAM_PER_THREAD;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_grad_ready(module, NULL, 0, here, NULL));
    RANK_SAYS(rank,
              "the gradient of 'a' is in host memory here, and lockstep_start has agreed that "
              "it is in the memory of a device");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_grad_ready(module, NULL, 1, place->device[2], stream));
    RANK_SAYS(rank, "the gradient of 'b' is in the memory of a device here");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_grad_ready(module, NULL, 1, NULL, stream));
    RANK_SAYS(rank, "a stream is given for 'b', whose gradient is in host memory");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_grad_ready(module, NULL, 0, place->other, stream));
    RANK_SAYS(rank, "the gradient of 'a' is in the memory of another device than cuda:");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_grad_ready(module, NULL, 0, NULL, place->stream));
    RANK_SAYS(rank, "the stream that is given for 'a' in replica 0 belongs to another device than "
                    "its gradient, which is on cuda:");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_parameter_move(module, 0, NULL, here));
}

static void wrong_reports(struct rank *rank)
{
    struct place place;
    lockstep_call *call;
    void *gradients[2];
    place_open(rank, &place);
    lockstep_module *module = place_register(rank, &place);
    RANK_OK(rank, lockstep_start(rank->session));
    if (place.cuda) {
        float here[ELEMENTS];
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_gradients(module, gradients, 2));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_parameter_move(module, 0, NULL, here));
        RANK_SAYS(rank, "the gradient of 'a' is in host memory here");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_parameter_move(module, 1, place.other, NULL));
        RANK_SAYS(rank, "the data of 'b' is in the memory of another device");
    }
    RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_OK(rank, lockstep_call_begin(module, &call));
    if (place.cuda)
        report_from_elsewhere(rank, module, &place);
    RANK_OK(rank, lockstep_grad_ready(module, call, 1, NULL, NULL));
    RANK_OK(rank, lockstep_grad_ready(module, call, 0, place.device[3],
                                      !place.cuda ? NULL : CUDA_STREAM_LEGACY));
    RANK_OK(rank, lockstep_call_end(call));
    RANK_OK(rank, lockstep_step_end(rank->session, !place.cuda ? NULL : CUDA_STREAM_LEGACY));
    place_close(rank, &place);
}

// ---- Streams that cannot be used ---------------------------------------------------------------

static void *place_stream(struct rank *rank, const struct place *place, void *context)
{
    void *stream = NULL;
    RANK_TRUE(rank, place->cuda->ctx_push_current(context) == CUDA_OK);
    RANK_TRUE(rank, place->cuda->stream_create_with_priority(&stream, CUDA_STREAM_NON_BLOCKING,
                                                             0) == CUDA_OK);
    RANK_TRUE(rank, place->cuda->ctx_pop_current(NULL) == CUDA_OK);
    return stream;
}

// A stream that is refused changes nothing: the step goes on, also while another stream is being
// captured.
static void unusable_streams(struct rank *rank)
{
    struct place place;
    lockstep_call *call;
    void *foreign = NULL;
    void *own = NULL;
    fake_gpu_capture_function *capture;
    fake_gpu_context_function *context;
    *(void **)&capture = fake_find("fake_gpu_capture");
    *(void **)&context = fake_find("fake_gpu_context");
    place_open(rank, &place);
    lockstep_module *module = place_register(rank, &place);
    RANK_OK(rank, lockstep_start(rank->session));
    if (place.cuda) {
        own = place_stream(rank, &place, place.context);
        foreign = place_stream(rank, &place, context((int)rank->rank));
    }
    for (int step = 0; step < 3; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(module, &call));
        if (place.cuda) {
            capture(own, true);
            RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_grad_ready(module, call, 0, NULL, own));
            RANK_SAYS(rank, "the stream that is given for 'a' is being captured into a CUDA graph");
            RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                       lockstep_grad_ready(module, call, 0, NULL, foreign));
            RANK_SAYS(rank, "the stream that is given for 'a' belongs to another CUDA context");
        }
        RANK_OK(rank, lockstep_grad_ready(module, call, 1, NULL, NULL));
        RANK_OK(rank, lockstep_grad_ready(module, call, 0, NULL,
                                          !place.cuda ? NULL : CUDA_STREAM_PER_THREAD));
        RANK_OK(rank, lockstep_call_end(call));
        if (place.cuda) {
            RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, own));
            RANK_SAYS(rank, "the stream that is given is being captured");
            RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, foreign));
        }
        RANK_OK(rank, lockstep_step_end(rank->session, NULL));
        if (place.cuda)
            capture(own, false);
        RANK_OK(rank, lockstep_state_check(rank->session));
    }
    rank_meet(rank); // No rank captures any more.
    if (place.cuda) {
        RANK_TRUE(rank, place.cuda->stream_destroy(own) == CUDA_OK);
        RANK_TRUE(rank, place.cuda->stream_destroy(foreign) == CUDA_OK);
    }
    place_close(rank, &place);
}

static void streams_that_cannot_be_used(const struct setting *setting)
{
    ranks_run(setting, unusable_streams, NULL);
}

static void reports_that_are_elsewhere(const struct setting *setting)
{
    ranks_run(setting, wrong_reports, NULL);
}

static void many_streams(struct rank *rank)
{
    struct place place;
    lockstep_call *call;
    void *streams[MANY_STREAMS] = {NULL};
    place_open(rank, &place);
    const struct lockstep_parameter one = parameter("a", place.device[0], place.device[1]);
    struct lockstep_parameter counted = one;
    counted.ready_count = 2 * MANY_STREAMS;
    const struct lockstep_module_config config = describe(&counted, 1);
    lockstep_module *module;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < MANY_STREAMS && place.cuda; i++)
        RANK_TRUE(rank, place.cuda->stream_create_with_priority(
                            &streams[i], CUDA_STREAM_NON_BLOCKING, 0) == CUDA_OK);
    for (uint32_t step = 0; step < 3; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(module, &call));
        // Each step uses other streams, so events of streams that the step does not use are reused.
        for (uint32_t i = 0; i < MANY_STREAMS - 1; i++)
            RANK_OK(rank,
                    lockstep_grad_ready(module, call, 0, NULL, streams[(i + step) % MANY_STREAMS]));
        if (place.cuda) {
            RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                       lockstep_grad_ready(module, call, 0, NULL,
                                           streams[(MANY_STREAMS - 1 + step) % MANY_STREAMS]));
            RANK_SAYS(rank, "gradients of the bucket of 'a' come from more than 8 streams");
        }
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    }
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    for (uint32_t i = 0; i < MANY_STREAMS && place.cuda; i++)
        RANK_TRUE(rank, place.cuda->stream_destroy(streams[i]) == CUDA_OK);
}

static void more_streams_than_events(const struct setting *setting)
{
    ranks_run(setting, many_streams, NULL);
}

// ---- Registration and start --------------------------------------------------------------------

static void wrong_modules(struct rank *rank)
{
    struct place place;
    lockstep_module *module;
    lockstep_group *group;
    const uint32_t first_two[] = {0, 1};
    place_open(rank, &place);
    if (rank->rank < 2)
        RANK_OK(rank, lockstep_group_create(rank->session, first_two, 2, "g", &group));
    if (place.cuda && rank->rank < 2) {
        const struct lockstep_parameter here = parameter("here", place.device[0], NULL);
        struct lockstep_module_config config = describe(&here, 1);
        config.group = group;
        RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED,
                   lockstep_module_register(rank->session, &config, &module));
        RANK_SAYS(rank, "of group 'g': it has tensors in the memory of a device");
    }
    if (place.cuda) {
        const struct lockstep_parameter abroad = parameter("far", place.other, NULL);
        const struct lockstep_parameter half = parameter("half", place.device[0], place.other);
        struct lockstep_parameter copies[] = {parameter("p", place.device[0], NULL),
                                              parameter("p", place.host[1], NULL)};
        struct lockstep_module_config config = describe(&abroad, 1);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_module_register(rank->session, &config, &module));
        RANK_SAYS(rank, "the data of 'far' is in the memory of another device");
        config = describe(&half, 1);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_module_register(rank->session, &config, &module));
        RANK_SAYS(rank, "the gradient of 'half' is in the memory of another device");
        config = describe(copies, 1);
        config.replicas = 2;
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_module_register(rank->session, &config, &module));
        RANK_SAYS(rank, "the data of 'p' is in host memory in replica 1, and in the memory of a "
                        "device in replica 0");
        copies[1] = parameter("p", place.device[1], place.host[1]);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_module_register(rank->session, &config, &module));
        RANK_SAYS(rank, "the gradient of 'p' is in host memory in replica 1, and in the memory of "
                        "a device in replica 0");
        copies[1] = parameter("p", place.device[1], place.other);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_module_register(rank->session, &config, &module));
        RANK_SAYS(rank, "the gradient of 'p' is in the memory of another device");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_allreduce(rank->session, "far", place.other, ELEMENTS, LOCKSTEP_FLOAT32,
                                      LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
        RANK_SAYS(rank, "collective 'far': its data is in the memory of another device");
    }
    place_close(rank, &place);
}

static void modules_of_another_device(const struct setting *setting)
{
    ranks_run(setting, wrong_modules, NULL);
}

// A tensor is on the device of one rank, and in host memory on another rank that has a device. All
// ranks get an error that names the tensor, and can register the module correctly afterwards.
static void split_tensors(struct rank *rank)
{
    static _Thread_local float host[4][ELEMENTS];
    struct place place;
    lockstep_module *module;
    place_open(rank, &place);
    const bool here = rank->rank == 1;
    struct lockstep_parameter parameters[] = {
        parameter("agreed", place.device[0], NULL),
        parameter("split", here ? place.device[1] : host[0], NULL)};
    struct lockstep_buffer buffer = LOCKSTEP_BUFFER_INIT;
    buffer.name = "running";
    buffer.dtype = LOCKSTEP_FLOAT32;
    buffer.dims = 1;
    buffer.shape = shape;
    buffer.data = here ? place.device[2] : host[1];
    struct lockstep_module_config config = describe(parameters, 2);
    config.buffers = &buffer;
    config.buffer_count = 1;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "2 tensors are in the memory of a device on some ranks, and in host memory on "
                    "others that have a device, too:\n  module 'net' parameter 'split'\n  module "
                    "'net' buffer 'running'");
    RANK_OK(rank, lockstep_module_close(module));
    parameters[1].data = place.device[1];
    buffer.data = host[1];
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_state_check(rank->session));
    place_close(rank, &place);
}

static void tensors_on_some_devices(const struct setting *setting)
{
    if (setting->devices > 1)
        ranks_run(setting, split_tensors, NULL);
}

static void put_off(struct rank *rank)
{
    struct place place;
    place_open(rank, &place);
    (void)place_register(rank, &place);
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED, lockstep_start(rank->session));
    RANK_SAYS(rank, "the gradient of 'a' is on devices, where nothing can be put off yet, and "
                    "unplanned=defer asks for it");
    place_close(rank, &place);
}

static void configure_put_off(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->unplanned = LOCKSTEP_UNPLANNED_DEFER;
}

static void policies_that_put_off(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = configure_put_off, .body = put_off};
    ranks_run_test(&test);
}

// ---- A device that is lost ---------------------------------------------------------------------

#define LOST_STEP 4
#define LOST_CODE 719 // CUDA_ERROR_LAUNCH_FAILED, which breaks the context.

static void lose_device(int device)
{
    fake_gpu_lose_function *lose;
    *(void **)&lose = fake_find("fake_gpu_lose");
    lose(device, LOST_CODE);
}

// Runs a step. Returns the first status that is not OK: any call may fail once another rank has
// ended the job.
static int step(struct rank *rank, lockstep_module *module)
{
    lockstep_call *call;
    int status = lockstep_step_begin(rank->session, NULL, NULL);
    if (status == 0)
        status = lockstep_call_begin(module, &call);
    for (uint32_t p = 0; p < 2 && status == 0; p++)
        status = lockstep_grad_ready(module, call, p, NULL, NULL);
    if (status == 0)
        status = lockstep_call_end(call);
    return status == 0 ? lockstep_step_end(rank->session, NULL) : status;
}

static void lost(struct rank *rank)
{
    const uint32_t devices = rank->setting->devices;
    const uint32_t victim = (devices < rank->world_size ? devices : rank->world_size) - 1;
    char text[64];
    struct place place;
    place_open(rank, &place);
    lockstep_module *module = place_register(rank, &place);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 1; i < LOST_STEP; i++)
        RANK_OK(rank, step(rank, module));
    rank_meet(rank);
    if (rank->rank == victim)
        lose_device((int)victim);
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, step(rank, module));
    snprintf(text, sizeof(text), "rank %u (", (unsigned)victim);
    RANK_SAYS(rank, text);
    snprintf(text, sizeof(text), "its device failed, cuda:%u: ", (unsigned)victim);
    RANK_SAYS(rank, text);
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_step_begin(rank->session, NULL, NULL));
    if (rank->rank != victim)
        place_close(rank, &place);
}

// The last rank's device is lost while its all-gather waits for the other ranks, so the output
// cannot be copied there.
static void lost_in_a_collective(struct rank *rank)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    const uint32_t victim = rank->world_size - 1;
    char text[64];
    lockstep_work *work;
    struct place place;
    place_open(rank, &place);
    what.kind = LOCKSTEP_ALL_GATHER;
    what.name = "shards";
    what.count = ELEMENTS / rank->world_size;
    what.input = place.device[0];
    what.output = place.device[1];
    if (rank->rank != victim)
        rank_meet(rank);
    RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &work));
    if (rank->rank == victim) {
        lose_device((int)victim);
        rank_meet(rank);
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_work_wait(work, LOCKSTEP_WAIT_FOREVER));
    } else {
        RANK_TRUE(rank, lockstep_barrier(rank->session, "b", LOCKSTEP_WAIT_FOREVER) < 0);
    }
    snprintf(text, sizeof(text), "its device failed, cuda:%u: ", (unsigned)victim);
    RANK_SAYS(rank, text);
    if (rank->rank != victim)
        place_close(rank, &place);
}

// Each world loses one device for good, so the largest world runs first.
static void devices_that_are_lost(void **state)
{
    struct setting settings[] = {setting_named("nccl"), setting_named("mixed"),
                                 setting_named("staged")};
    (void)state;
    settings[0].world_size = settings[2].world_size = 3;
    settings[1].world_size = 4;
    for (size_t i = 0; i < 3; i++) {
        settings[i].device_memory_only = true;
        ranks_run(&settings[i], lost, NULL);
    }
}

static void a_device_that_is_lost_in_a_collective(void **state)
{
    struct setting setting = setting_named("nccl");
    (void)state;
    setting.world_size = 4; // The worlds of the other test do not use this device.
    setting.device_memory_only = true;
    ranks_run(&setting, lost_in_a_collective, NULL);
}

// ---- Worlds ------------------------------------------------------------------------------------

struct told {
    const char *name;
    void (*run)(const struct setting *setting);
};

static const struct told all[] = {
    {"reports_that_are_elsewhere", reports_that_are_elsewhere},
    {"streams_that_cannot_be_used", streams_that_cannot_be_used},
    {"more_streams_than_events", more_streams_than_events},
    {"modules_of_another_device", modules_of_another_device},
    {"tensors_on_some_devices", tensors_on_some_devices},
    {"policies_that_put_off", policies_that_put_off},
};
#define ALL (sizeof(all) / sizeof(all[0]))

static void tell(void **state)
{
    const struct told *told = *state;
    static const char *const names[] = {"staged", "mixed", "nccl"};
    for (size_t i = 0; i < 3; i++) {
        struct setting setting = setting_named(names[i]);
        setting.world_size = setting.devices == 2 ? 4 : 2;
        setting.device_memory_only = true;
        told->run(&setting);
    }
}

int main(void)
{
    static struct CMUnitTest tests[ALL + 2];
    static struct told told[ALL];
    for (size_t i = 0; i < ALL; i++) {
        told[i] = all[i];
        tests[i] =
            (struct CMUnitTest){.name = all[i].name, .test_func = tell, .initial_state = &told[i]};
    }
    tests[ALL] = (struct CMUnitTest)cmocka_unit_test(a_device_that_is_lost_in_a_collective);
    tests[ALL + 1] = (struct CMUnitTest)cmocka_unit_test(devices_that_are_lost);
    return _cmocka_run_group_tests("devices: misuse", tests, ALL + 2, NULL, NULL);
}
