// SPDX-License-Identifier: Apache-2.0
//
// Several replicas of a module in one process, with their gradients on one device or on several.
// Lockstep adds their contributions on the devices, and every replica finds the result behind the
// stream that ends the step. Nothing waits on the host. The devices are fakes that begin each
// operation as late as possible, so a missing wait fails the test; the fakes also detect kernels
// that access memory of another device.
//
// Rank 0 has the replicas. The other ranks have one replica, on a device of their own or in host
// memory. All replicas hold the same bits after every step.

#include "tests/fake_gpu/fake_gpu.h"
#include "tests/support/cluster.h"
#include "tests/support/fake_gpu.h"
#include "worker/device/cuda.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PARAMETERS 6
#define MOST 4 // Maximum number of replicas.
#define STEPS 6
#define STREAMS 2 // Number of streams of a replica that make gradients.
#define LOST_CODE 719 // CUDA_ERROR_LAUNCH_FAILED, which breaks the context.

static const int64_t sizes[PARAMETERS] = {1000, 3, 4099, 17, 1, 700};

// The places of the replicas of rank 0.
struct layout {
    const char *name;
    const char *device; // The device of the rank's session.
    uint32_t count; // Number of replicas.
    uint32_t devices[MOST]; // The device of each replica.
    bool on_host; // True if the replicas are in host memory.
    bool has_larger; // True if a normal run tests the next layout instead of this one.
};

struct story {
    const struct layout *layout;
    lockstep_gradient_kind kind;
    bool noise; // True: gradients are numbers whose sums depend on the order of summation.
    bool some; // True: some replicas do not report some gradients; see reports().
    lockstep_wire wire;
};

// ---- One rank ----------------------------------------------------------------------------------

struct replica {
    int device;
    void *context; // NULL: the replica is in host memory.
    void *makes[STREAMS];
    void *reads;
    void *ended; // An event, recorded after the end of the step.
    float *data[PARAMETERS];
    float *gradients[PARAMETERS];
    float *made[PARAMETERS]; // In host memory: the values that streams copy to gradients later.
};

struct trainer {
    const struct story *story;
    const struct cuda *cuda; // NULL: this rank has no device.
    uint32_t count;
    struct replica replicas[MOST];
    char names[PARAMETERS][8];
    float *result; // In host memory; as large as the largest parameter.
    lockstep_module *module;
};

#define CUDA(rank, trainer, call) RANK_TRUE(rank, (trainer)->cuda->call == CUDA_OK)

static bool lies_on_device(const struct rank *rank, const struct trainer *trainer)
{
    return rank->rank < rank->setting->devices &&
           !(rank->rank == 0 && trainer->story->layout->on_host);
}

static void replica_enter(struct rank *rank, const struct trainer *trainer,
                          const struct replica *replica)
{
    if (replica->context)
        CUDA(rank, trainer, ctx_set_current(replica->context));
}

static void replica_streams(struct rank *rank, const struct trainer *trainer,
                            struct replica *replica)
{
    int device;
    CUDA(rank, trainer, device_get(&device, replica->device));
    CUDA(rank, trainer, device_primary_ctx_retain(&replica->context, device));
    replica_enter(rank, trainer, replica);
    for (uint32_t i = 0; i < STREAMS; i++)
        CUDA(rank, trainer,
             stream_create_with_priority(&replica->makes[i], CUDA_STREAM_NON_BLOCKING, 0));
    CUDA(rank, trainer, stream_create_with_priority(&replica->reads, CUDA_STREAM_NON_BLOCKING, 0));
    CUDA(rank, trainer, event_create(&replica->ended, CUDA_EVENT_DISABLE_TIMING));
}

static void *replica_allocate(struct rank *rank, const struct trainer *trainer,
                              const struct replica *replica, int64_t elements)
{
    const size_t bytes = (size_t)elements * sizeof(float);
    uint64_t address = 0;
    if (!replica->context)
        return calloc(1, bytes);
    CUDA(rank, trainer, mem_alloc(&address, bytes));
    CUDA(rank, trainer, memset_d8_async(address, 0, bytes, replica->reads));
    CUDA(rank, trainer, stream_synchronize(replica->reads));
    return (void *)(uintptr_t)address; // NOLINT: trainers pass device addresses as pointers.
}

static void replica_open(struct rank *rank, const struct trainer *trainer, struct replica *replica)
{
    if (lies_on_device(rank, trainer))
        replica_streams(rank, trainer, replica);
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        replica->data[p] = replica_allocate(rank, trainer, replica, sizes[p]);
        replica->gradients[p] = replica_allocate(rank, trainer, replica, sizes[p]);
        replica->made[p] = calloc((size_t)sizes[p], sizeof(float));
    }
}

static void trainer_open(struct rank *rank, struct trainer *trainer)
{
    char error[256];
    *trainer = (struct trainer){.story = rank->context, .count = 1};
    if (lies_on_device(rank, trainer)) {
        trainer->cuda = cuda_load(error, sizeof(error));
        RANK_TRUE(rank, trainer->cuda != NULL);
        CUDA(rank, trainer, init(0));
    }
    if (rank->rank == 0)
        trainer->count = trainer->story->layout->count;
    for (uint32_t r = 0; r < trainer->count; r++) {
        trainer->replicas[r].device =
            (int)(rank->rank == 0 ? trainer->story->layout->devices[r] : rank->rank);
        replica_open(rank, trainer, &trainer->replicas[r]);
    }
    for (uint32_t p = 0; p < PARAMETERS; p++)
        snprintf(trainer->names[p], sizeof(trainer->names[p]), "p%u", (unsigned)p % 100);
    trainer->result = calloc((size_t)sizes[2], sizeof(float));
}

static void replica_release(struct rank *rank, const struct trainer *trainer,
                            const struct replica *replica, void *memory)
{
    if (!replica->context)
        free(memory);
    else
        CUDA(rank, trainer, mem_free((uint64_t)(uintptr_t)memory));
}

static void replica_close(struct rank *rank, const struct trainer *trainer, struct replica *replica)
{
    int device;
    replica_enter(rank, trainer, replica);
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        replica_release(rank, trainer, replica, replica->data[p]);
        replica_release(rank, trainer, replica, replica->gradients[p]);
        free(replica->made[p]);
    }
    if (!replica->context)
        return;
    for (uint32_t i = 0; i < STREAMS; i++)
        CUDA(rank, trainer, stream_destroy(replica->makes[i]));
    CUDA(rank, trainer, stream_destroy(replica->reads));
    CUDA(rank, trainer, event_destroy(replica->ended));
    CUDA(rank, trainer, device_get(&device, replica->device));
    CUDA(rank, trainer, ctx_set_current(NULL));
    CUDA(rank, trainer, device_primary_ctx_release(device));
}

static void trainer_close(struct rank *rank, struct trainer *trainer)
{
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    for (uint32_t r = 0; r < trainer->count; r++)
        replica_close(rank, trainer, &trainer->replicas[r]);
    free(trainer->result);
}

static void trainer_register(struct rank *rank, struct trainer *trainer)
{
    struct lockstep_parameter parameters[MOST * PARAMETERS];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    for (uint32_t i = 0; i < trainer->count * PARAMETERS; i++) {
        const struct replica *replica = &trainer->replicas[i / PARAMETERS];
        const uint32_t p = i % PARAMETERS;
        parameters[i] = (struct lockstep_parameter){.name = trainer->names[p],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = &sizes[p],
                                                    .data = replica->data[p],
                                                    .gradient = replica->gradients[p]};
    }
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = PARAMETERS;
    config.replicas = trainer->count;
    config.gradient_kind = trainer->story->kind;
    config.wire = trainer->story->wire;
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &trainer->module));
    RANK_OK(rank, lockstep_start(rank->session));
}

// ---- Numbers -----------------------------------------------------------------------------------

// The known gradient of an element: a small integer, so that sums are exact in any order, or noise.
static float known(const struct story *story, uint32_t rank, uint32_t replica, uint64_t step,
                   uint32_t parameter, int64_t element)
{
    const uint64_t mixed = rank * 5 + replica * 13 + step * 3 + parameter * 7 + (uint64_t)element;
    if (story->noise)
        return (float)(mixed * 2654435761u % 100003) / (float)(1 + mixed % 977);
    return (float)(mixed % 31) - 11;
}

// True if the replica reports the gradient. With story->some, only the first replica of a rank
// reports p0, only the last one reports p1, no replica of rank 0 reports p3, and no replica of any
// rank reports p4.
static bool reports(const struct story *story, uint32_t rank, uint32_t replica, uint32_t parameter)
{
    if (!story->some)
        return true;
    switch (parameter) {
    case 0:
        return replica == 0;
    case 1:
        return rank > 0 || replica == story->layout->count - 1;
    case 3:
        return rank > 0;
    case 4:
        return false;
    default:
        return true;
    }
}

static double contributed(const struct story *story, uint32_t rank, uint64_t step,
                          uint32_t parameter, int64_t element)
{
    const uint32_t count = rank == 0 ? story->layout->count : 1;
    double sum = 0;
    for (uint32_t r = 0; r < count; r++) {
        if (reports(story, rank, r, parameter))
            sum += (double)known(story, rank, r, step, parameter, element);
    }
    return story->kind == LOCKSTEP_GRADIENT_SUM ? sum : sum / count;
}

// True if some replica of some rank reports the gradient. If none does, the gradient stays as it
// was in every replica.
static bool is_used(const struct rank *rank, const struct story *story, uint32_t parameter)
{
    return !story->some || (parameter != 4 && (parameter != 3 || rank->world_size > 1));
}

static float expected(const struct rank *rank, const struct story *story, uint32_t replica,
                      uint64_t step, uint32_t parameter, int64_t element)
{
    double sum = 0;
    if (!is_used(rank, story, parameter))
        return known(story, rank->rank, replica, step, parameter, element);
    for (uint32_t r = 0; r < rank->world_size; r++)
        sum += contributed(story, r, step, parameter, element);
    return (float)sum / (float)rank->world_size;
}

// ---- Steps -------------------------------------------------------------------------------------

static bool ends_by_stream(uint64_t step)
{
    return step % 3 != 0;
}

// Returns the stream that makes a gradient. A gradient that is not reported is made by the stream
// that ends the step, or by the legacy default stream if the host ends the step.
static void *replica_stream(const struct rank *rank, const struct trainer *trainer, uint32_t r,
                            uint32_t p, uint64_t step)
{
    const struct replica *replica = &trainer->replicas[r];
    if (!replica->context)
        return NULL;
    if (reports(trainer->story, rank->rank, r, p))
        return replica->makes[p % STREAMS];
    return ends_by_stream(step) ? trainer->replicas[step % trainer->count].reads
                                : CUDA_STREAM_LEGACY;
}

// Makes a gradient: in a stream, or at once in host memory. Returns the stream.
static void *replica_make(struct rank *rank, const struct trainer *trainer, uint32_t r, uint32_t p,
                          uint64_t step)
{
    const struct replica *replica = &trainer->replicas[r];
    void *stream = replica_stream(rank, trainer, r, p, step);
    float *made = !stream ? replica->gradients[p] : replica->made[p];
    for (int64_t i = 0; i < sizes[p]; i++)
        made[i] = known(trainer->story, rank->rank, r, step, p, i);
    replica_enter(rank, trainer, replica);
    if (stream)
        CUDA(rank, trainer,
             memcpy_htod_async((uint64_t)(uintptr_t)replica->gradients[p], made,
                               (size_t)sizes[p] * sizeof(float), stream));
    return stream;
}

static void backward(struct rank *rank, const struct trainer *trainer, uint64_t step)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(trainer->module, &call));
    for (uint32_t i = trainer->count * PARAMETERS; i-- > 0;) {
        const uint32_t r = (uint32_t)(i + step) % trainer->count;
        const uint32_t p = i / trainer->count;
        void *stream = replica_make(rank, trainer, r, p, step);
        if (reports(trainer->story, rank->rank, r, p))
            RANK_OK(rank, lockstep_replica_ready(trainer->module, call, r, p, NULL, stream));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

static void replica_expect(struct rank *rank, const struct trainer *trainer, uint32_t r,
                           uint64_t step)
{
    const struct replica *replica = &trainer->replicas[r];
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        const size_t bytes = (size_t)sizes[p] * sizeof(float);
        const float *result = replica->gradients[p];
        if (replica->context) {
            memset(trainer->result, 0xee, bytes);
            replica_enter(rank, trainer, replica);
            CUDA(rank, trainer,
                 memcpy_dtoh_async(trainer->result, (uint64_t)(uintptr_t)replica->gradients[p],
                                   bytes, replica->reads));
            CUDA(rank, trainer, stream_synchronize(replica->reads));
            result = trainer->result;
        }
        const bool exact = !trainer->story->noise && trainer->story->wire == LOCKSTEP_WIRE_SAME;
        for (int64_t i = 0; i < sizes[p] && exact; i++) {
            const float wanted = expected(rank, trainer->story, r, step, p, i);
            if (!(result[i] >= wanted && result[i] <= wanted))
                rank_fail(rank, __FILE__, __LINE__,
                          "step %u: replica %u p%u element %d is %g, not %g", (unsigned)step,
                          (unsigned)r, (unsigned)p, (int)i, (double)result[i], (double)wanted);
        }
        if (!is_used(rank, trainer->story, p))
            continue;
        if (r == 0)
            rank_digest(rank, result, bytes);
        if (r == 0)
            memcpy(replica->made[p], result, bytes);
        else
            RANK_TRUE(rank, memcmp(result, trainer->replicas[0].made[p], bytes) == 0);
    }
}

// Ends the step by a stream of replica `by`. The reading streams of the other replicas then wait
// for this stream.
static void end_by_stream(struct rank *rank, const struct trainer *trainer, uint32_t by)
{
    const struct replica *ends = &trainer->replicas[by];
    RANK_OK(rank, lockstep_step_end(rank->session, ends->reads));
    if (!ends->context)
        return;
    replica_enter(rank, trainer, ends);
    CUDA(rank, trainer, event_record(ends->ended, ends->reads));
    for (uint32_t r = 0; r < trainer->count; r++) {
        replica_enter(rank, trainer, &trainer->replicas[r]);
        CUDA(rank, trainer, stream_wait_event(trainer->replicas[r].reads, ends->ended, 0));
    }
}

// Ends the step without a stream, and waits for the legacy default streams, which make the
// gradients that are not reported.
static void end_by_host(struct rank *rank, const struct trainer *trainer)
{
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    for (uint32_t r = 0; r < trainer->count && trainer->cuda; r++) {
        replica_enter(rank, trainer, &trainer->replicas[r]);
        CUDA(rank, trainer, stream_synchronize(CUDA_STREAM_LEGACY));
    }
}

static void steps(struct rank *rank)
{
    struct trainer trainer;
    trainer_open(rank, &trainer);
    trainer_register(rank, &trainer);
    for (uint64_t step = 1; step <= STEPS; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        backward(rank, &trainer, step);
        if (ends_by_stream(step))
            end_by_stream(rank, &trainer, (uint32_t)step % trainer.count);
        else
            end_by_host(rank, &trainer);
        for (uint32_t r = 0; r < trainer.count; r++)
            replica_expect(rank, &trainer, r, step);
    }
    trainer_close(rank, &trainer);
}

// A world of one rank without a coordinator: no gradient travels, but the replicas are averaged.
static void alone(struct rank *rank)
{
    const struct story *story = rank->context;
    struct lockstep_config config = rank_config(rank);
    struct trainer trainer;
    config.coordinator = NULL;
    config.world_size = 0;
    config.device = story->layout->device;
    RANK_OK(rank, lockstep_open(&config, &rank->session));
    trainer_open(rank, &trainer);
    trainer_register(rank, &trainer);
    for (uint64_t step = 1; step <= STEPS; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        backward(rank, &trainer, 3 * step);
        end_by_host(rank, &trainer);
        for (uint32_t r = 0; r < trainer.count; r++)
            replica_expect(rank, &trainer, r, 3 * step);
    }
    trainer_close(rank, &trainer);
}

// ---- Objects of the driver ---------------------------------------------------------------------

static void expect_nothing_is_left(void)
{
    struct fake_gpu_live live = {0};
    char complaint[512] = "";
    fake_gpu_install()->live(&live);
    fake_gpu_install()->complaint(complaint, sizeof(complaint));
    assert_string_equal(complaint, "");
    assert_int_equal(live.contexts, 0);
    assert_int_equal(live.streams, 0);
    assert_int_equal(live.events, 0);
    assert_int_equal(live.device_allocations, 0);
    assert_int_equal(live.host_allocations, 0);
}

static const char *const makers[] = {"cuMemAlloc_v2", "cuMemHostAlloc", "cuEventCreate",
                                     "cuStreamCreateWithPriority", "cuModuleLoadData"};
#define MAKERS (sizeof(makers) / sizeof(makers[0]))
#define ALLOCATORS 2

static uint64_t made_so_far(size_t count)
{
    uint64_t made = 0;
    for (size_t i = 0; i < count; i++)
        made += fake_gpu_install()->calls(makers[i]);
    return made;
}

// From step 2 on, which has a plan, steps allocate no memory on any device. Later steps also make
// no streams, events or modules.
static void steady(struct rank *rank)
{
    struct trainer trainer;
    uint64_t allocated = 0;
    uint64_t before = 0;
    trainer_open(rank, &trainer);
    trainer_register(rank, &trainer);
    for (uint64_t step = 1; step <= 2 * STEPS; step++) {
        rank_meet(rank);
        if (step == 2)
            allocated = made_so_far(ALLOCATORS);
        if (step == STEPS)
            before = made_so_far(MAKERS);
        rank_meet(rank);
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        backward(rank, &trainer, step);
        end_by_stream(rank, &trainer, 0);
    }
    rank_meet(rank);
    RANK_EQUAL(rank, made_so_far(ALLOCATORS), allocated);
    RANK_EQUAL(rank, made_so_far(MAKERS), before);
    rank_meet(rank);
    trainer_close(rank, &trainer);
}

// ---- Misuse and lost devices -------------------------------------------------------------------

// Registers two replicas of one parameter and expects an error with the text `part`. `memory` has
// the data and the gradient of each replica.
static void expect_refusal(struct rank *rank, float *const memory[4], const char *part)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameters[2];
    lockstep_module *module;
    for (uint32_t r = 0; r < 2; r++)
        parameters[r] = (struct lockstep_parameter){.name = "p",
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = &sizes[1],
                                                    .data = memory[2 * r],
                                                    .gradient = memory[2 * r + 1]};
    config.name = "refused";
    config.parameters = parameters;
    config.parameter_count = 1;
    config.replicas = 2;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_register(rank->session, &config, &module));
    RANK_SAYS(rank, part);
}

// Misuse of replicas, in the layout "two_devices".
static void refusals(struct rank *rank)
{
    struct trainer trainer;
    lockstep_call *call;
    trainer_open(rank, &trainer);
    if (rank->rank == 0) {
        const struct replica *first = &trainer.replicas[0];
        const struct replica *second = &trainer.replicas[1];
        float *const swapped[] = {second->data[0], second->gradients[0], first->data[0],
                                  first->gradients[0]};
        float *const split[] = {first->data[0], first->gradients[0], first->data[1],
                                second->gradients[0]};
        expect_refusal(rank, swapped,
                       "the data of 'p' is on cuda:5, and what is not a further replica's is on "
                       "the first device of this session, cuda:0");
        expect_refusal(rank, split,
                       "the gradient of 'p' in replica 1 is on cuda:5, and others of that replica "
                       "are on cuda:0");
    }
    trainer_register(rank, &trainer);
    RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
    if (rank->rank == 0) {
        const struct replica *first = &trainer.replicas[0];
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_replica_ready(trainer.module, call, 1, 0, first->gradients[0], NULL));
        RANK_SAYS(rank, "the gradient of 'p0' in replica 1 is on cuda:0, and that replica was "
                        "registered on cuda:5");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_replica_ready(trainer.module, call, 1, 0, NULL, first->makes[0]));
        RANK_SAYS(rank, "the stream that is given for 'p0' in replica 1 belongs to another device "
                        "than its gradient, which is on cuda:5");
    }
    RANK_OK(rank, lockstep_call_end(call));
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    trainer_close(rank, &trainer);
}

static int step(struct rank *rank, struct trainer *trainer)
{
    lockstep_call *call;
    int status = lockstep_step_begin(rank->session, NULL, NULL);
    if (status == 0)
        status = lockstep_call_begin(trainer->module, &call);
    for (uint32_t i = 0; i < trainer->count * PARAMETERS && status == 0; i++)
        status = lockstep_replica_ready(trainer->module, call, i / PARAMETERS, i % PARAMETERS, NULL,
                                        NULL);
    if (status == 0)
        status = lockstep_call_end(call);
    return status == 0 ? lockstep_step_end(rank->session, NULL) : status;
}

// Frees only the host memory, because nothing on a lost device can be freed.
static void trainer_abandon(struct trainer *trainer)
{
    for (uint32_t i = 0; i < trainer->count * PARAMETERS; i++)
        free(trainer->replicas[i / PARAMETERS].made[i % PARAMETERS]);
    free(trainer->result);
}

// The second device of rank 0 fails. The job ends, and the error of every rank names the device.
static void lost(struct rank *rank)
{
    struct trainer trainer;
    trainer_open(rank, &trainer);
    trainer_register(rank, &trainer);
    RANK_OK(rank, step(rank, &trainer));
    RANK_OK(rank, step(rank, &trainer));
    rank_meet(rank);
    if (rank->rank == 0)
        fake_gpu_install()->lose(5, LOST_CODE);
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, step(rank, &trainer));
    RANK_SAYS(rank, "rank 0 (");
    RANK_SAYS(rank, "its device failed, cuda:5: ");
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_step_begin(rank->session, NULL, NULL));
    if (rank->rank > 0)
        trainer_close(rank, &trainer);
    else
        trainer_abandon(&trainer);
}

// ---- Worlds ------------------------------------------------------------------------------------

static const struct layout layouts[] = {
    {.name = "one_device", .device = "cuda:0", .count = 2, .devices = {0, 0}, .has_larger = true},
    {.name = "one_device_of_four", .device = "cuda:0", .count = 4, .devices = {0, 0, 0, 0}},
    {.name = "two_devices",
     .device = "cuda:0,5",
     .count = 2,
     .devices = {0, 5},
     .has_larger = true},
    {.name = "three_devices_of_four", .device = "cuda:0,5,6", .count = 4, .devices = {0, 5, 6, 5}},
};
#define LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))
#define TWO_DEVICES 2 // Index of the layout "two_devices".

static void configure(struct rank *rank, struct lockstep_config *config)
{
    const struct story *story = rank->context;
    config->bucket_first_bytes = config->bucket_last_bytes = 2000;
    config->bucket_bytes = 5000;
    if (rank->rank == 0)
        config->device = story->layout->device;
}

static uint64_t run(const struct setting *setting, void (*body)(struct rank *rank),
                    struct story *story)
{
    const struct cluster_test test = {
        .setting = setting, .configure = configure, .body = body, .context = story};
    const uint64_t digest = ranks_run_test(&test);
    expect_nothing_is_left();
    return digest;
}

static void replicas_are_averaged(const struct setting *setting, const struct layout *layout)
{
    struct story story = {.layout = layout, .kind = LOCKSTEP_GRADIENT_MEAN};
    run(setting, steps, &story);
}

static void replicas_are_added_up(const struct setting *setting, const struct layout *layout)
{
    struct story story = {.layout = layout, .kind = LOCKSTEP_GRADIENT_SUM};
    run(setting, steps, &story);
}

static void some_replicas_report(const struct setting *setting, const struct layout *layout)
{
    struct story story = {.layout = layout, .kind = LOCKSTEP_GRADIENT_MEAN, .some = true};
    run(setting, steps, &story);
    story.kind = LOCKSTEP_GRADIENT_SUM;
    run(setting, steps, &story);
}

static struct layout layout_on_host(const struct layout *layout)
{
    struct layout on_host = *layout;
    on_host.device = "none";
    on_host.on_host = true;
    return on_host;
}

// The first value of `some`: a sanitizer sees all with replicas of which some do not report.
static int first_some(void)
{
    return test_slow() > 1 ? 1 : 0;
}

// Unless NCCL sums, replicas on devices end with the same bits as replicas in host memory.
static void bits_are_those_of_hosts(const struct setting *setting, const struct layout *layout)
{
    const bool nccl = setting->devices > 1 && setting->world_size > 1;
    const struct setting ring = setting_on_ring(setting);
    const struct layout on_host = layout_on_host(layout);
    struct story story = {.layout = layout, .kind = LOCKSTEP_GRADIENT_MEAN, .noise = true};
    for (int some = first_some(); some < 2; some++) {
        story.layout = layout;
        story.some = some != 0;
        const uint64_t digest = run(&ring, steps, &story);
        story.layout = &on_host;
        if (!nccl)
            assert_true(run(&ring, steps, &story) == digest);
    }
}

// With bfloat16 on the wire, replicas on devices end with the same bits as replicas in host memory,
// also over NCCL: sums of small integers are exact in any order, so only the result is rounded.
static void sixteen_bits_travel(const struct setting *setting, const struct layout *layout)
{
    const struct layout on_host = layout_on_host(layout);
    struct story story = {
        .layout = layout, .kind = LOCKSTEP_GRADIENT_SUM, .wire = LOCKSTEP_WIRE_BFLOAT16};
    for (int some = first_some(); some < 2; some++) {
        story.layout = layout;
        story.some = some != 0;
        const uint64_t digest = run(setting, steps, &story);
        story.layout = &on_host;
        assert_true(run(setting, steps, &story) == digest);
    }
}

static void steady_steps_make_nothing(const struct setting *setting, const struct layout *layout)
{
    struct story story = {.layout = layout, .kind = LOCKSTEP_GRADIENT_MEAN};
    run(setting, steady, &story);
}

static void alone_they_meet(const struct setting *setting, const struct layout *layout)
{
    struct story story = {.layout = layout, .kind = LOCKSTEP_GRADIENT_MEAN};
    const struct cluster_test test = {
        .setting = setting, .body = alone, .context = &story, .without_session = true};
    if (setting->world_size > 1)
        return;
    ranks_run_test(&test);
    story.some = true;
    ranks_run_test(&test);
    expect_nothing_is_left();
}

static void refused_by_name(void **state)
{
    struct setting setting = setting_named("staged");
    struct story story = {.layout = &layouts[TWO_DEVICES]};
    (void)state;
    setting.world_size = 2;
    setting.device_memory_only = true;
    run(&setting, refusals, &story);
}

// This test loses the device for good, so it runs last.
static void a_further_device_is_lost(void **state)
{
    struct setting setting = setting_named("nccl");
    struct story story = {.layout = &layouts[TWO_DEVICES]};
    const struct cluster_test test = {
        .setting = &setting, .configure = configure, .body = lost, .context = &story};
    (void)state;
    setting.world_size = 3;
    setting.device_memory_only = true;
    ranks_run_test(&test);
}

struct case_of {
    const char *name;
    void (*run)(const struct setting *setting, const struct layout *layout);
};

static const struct case_of cases[] = {
    {"replicas_are_averaged", replicas_are_averaged},
    {"replicas_are_added_up", replicas_are_added_up},
    {"some_replicas_report", some_replicas_report},
    {"bits_are_those_of_hosts", bits_are_those_of_hosts},
    {"sixteen_bits_travel", sixteen_bits_travel},
    {"steady_steps_make_nothing", steady_steps_make_nothing},
    {"alone_they_meet", alone_they_meet},
};

struct world {
    const char *setting;
    uint32_t world_size;
};

static const struct world worlds[] = {{"staged", 1}, {"staged", 3}, {"mixed", 4}, {"nccl", 3}};

#define CASES (sizeof(cases) / sizeof(cases[0]))
#define WORLDS (sizeof(worlds) / sizeof(worlds[0]))
#define ALL (CASES * WORLDS * LAYOUTS)

struct told {
    const struct case_of *of;
    const struct layout *layout;
    struct setting setting;
    char name[128];
};

static bool is_left_out(const struct layout *layout)
{
    return layout->has_larger && !test_everything() && !getenv("LOCKSTEP_TEST_FILTER");
}

static void tell(void **state)
{
    const struct told *told = *state;
    told->of->run(&told->setting, told->layout);
}

int main(void)
{
    static struct told told[ALL];
    static struct CMUnitTest tests[ALL + 2];
    size_t count = 0;
    for (size_t i = 0; i < ALL; i++) {
        const struct world *world = &worlds[i % WORLDS];
        told[i].of = &cases[i / WORLDS / LAYOUTS];
        told[i].layout = &layouts[i / WORLDS % LAYOUTS];
        if (is_left_out(told[i].layout) || !test_takes(i / WORLDS, i % WORLDS % 2, 2))
            continue;
        told[i].setting = setting_named(world->setting);
        told[i].setting.world_size = world->world_size;
        told[i].setting.device_memory_only = true;
        snprintf(told[i].name, sizeof(told[i].name), "%s/%s/%s/world_%u", told[i].of->name,
                 told[i].layout->name, world->setting, (unsigned)world->world_size);
        tests[count++] =
            (struct CMUnitTest){.name = told[i].name, .test_func = tell, .initial_state = &told[i]};
    }
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(refused_by_name);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(a_further_device_is_lost);
    setenv("FAKE_CUDA_LAZY_US", "20000", 1);
    setenv("FAKE_CUDA_DELAY_US", "0-200", 1);
    setenv("FAKE_CUDA_URGENT_US", "500", 1);
    return _cmocka_run_group_tests("devices: replicas", tests, count, NULL, NULL);
}
