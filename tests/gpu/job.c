// SPDX-License-Identifier: Apache-2.0
//
// One rank of a job whose gradients are known, for `lockstep run`. The ranks with the hints that
// --device lists ("0,1") have their tensors on the first GPU, all others in host memory; --device
// none: no rank has a GPU. Several ranks on one GPU need libcuda-shared.so (shared_gpu.c).
//
//   job --check    dtypes, wires, weights and unused gradients of every kind, for some steps. Ends
//                  with a hash of all results, after all ranks have found that theirs is the same.
//                  A job has the same hash wherever its gradients are (docs/gpu.md).
//   job --bench    buckets of 25 MiB of float32: prints how long a step takes.
//   job --try      the same with little, for a stand-in
//   job --long     the same with little, until it is killed
//   job --stall    the same with little; in one step the stream of a GPU stands still for STALL_S
//   job --host     a world of one, many small buckets: what reports and step_end cost the host.
//
// The public functions of the library, and its fence (worker/device/cuda.h) for memory. One thread.

#include "tests/gpu/gpu.h"

#include "base/hash64.h"

#include <lockstep/lockstep.h>

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct gpu_rig gpu;
static bool on_device; // This rank's tensors.

__attribute__((noreturn)) static void fail(const char *what)
{
    fprintf(stderr, "job: %s\n", what);
    exit(1);
}

static void check(int status)
{
    if (status < 0)
        fail(lockstep_error_text());
}

// ---- tensors ------------------------------------------------------------------------------------

struct tensor {
    char name[32];
    lockstep_dtype dtype;
    int64_t elements;
    size_t bytes;
    void *staged; // On the host, pinned where a device reads it.
    void *value; // Where it lives: on the device, or on the host.
    void *gradient;
};

static size_t dtype_bytes(lockstep_dtype dtype)
{
    if (dtype == LOCKSTEP_FLOAT64)
        return 8;
    return dtype == LOCKSTEP_FLOAT32 ? 4 : 2;
}

static void *memory_make(size_t bytes)
{
    if (on_device)
        return (void *)(uintptr_t)gpu_alloc(&gpu, bytes);
    void *memory = calloc(1, bytes + 1);
    if (!memory)
        fail("out of memory");
    return memory;
}

static void *staging_make(size_t bytes)
{
    void *memory = NULL;
    if (!on_device)
        return memory_make(bytes);
    gpu_check(&gpu, gpu.cuda->mem_host_alloc(&memory, bytes + 1, 0), "cuMemHostAlloc");
    return memory;
}

static void tensor_make(struct tensor *tensor, int number, lockstep_dtype dtype, int64_t elements)
{
    snprintf(tensor->name, sizeof(tensor->name), "tensor%d", number);
    tensor->dtype = dtype;
    tensor->elements = elements;
    tensor->bytes = (size_t)elements * dtype_bytes(dtype);
    tensor->staged = staging_make(tensor->bytes);
    tensor->value = memory_make(tensor->bytes);
    tensor->gradient = memory_make(tensor->bytes);
    memset(tensor->staged, 0, tensor->bytes);
    if (on_device)
        gpu_upload(&gpu, (uint64_t)(uintptr_t)tensor->value, tensor->staged, tensor->bytes);
}

// On a device the copy is still on its way when this returns: the stream is what is reported.
static void gradient_put(const struct tensor *tensor)
{
    if (!on_device)
        memcpy(tensor->gradient, tensor->staged, tensor->bytes);
    else if (tensor->bytes > 0)
        gpu_check(&gpu,
                  gpu.cuda->memcpy_htod_async((uint64_t)(uintptr_t)tensor->gradient, tensor->staged,
                                              tensor->bytes, gpu.stream),
                  "cuMemcpyHtoDAsync");
}

static void gradient_get(const struct tensor *tensor)
{
    if (!on_device)
        memcpy(tensor->staged, tensor->gradient, tensor->bytes);
    else
        gpu_download(&gpu, tensor->staged, (uint64_t)(uintptr_t)tensor->gradient, tensor->bytes);
}

static void *stream(void)
{
    return on_device ? gpu.stream : NULL;
}

// ---- a module -----------------------------------------------------------------------------------

#define TENSORS_MAX 64

struct model {
    lockstep_module *module;
    struct tensor tensors[TENSORS_MAX];
    int count;
};

static void model_register(lockstep_session *session, struct model *model,
                           struct lockstep_module_config *config)
{
    struct lockstep_parameter parameters[TENSORS_MAX];
    for (int t = 0; t < model->count; t++) {
        parameters[t] = (struct lockstep_parameter)LOCKSTEP_PARAMETER_INIT;
        parameters[t].name = model->tensors[t].name;
        parameters[t].dtype = model->tensors[t].dtype;
        parameters[t].dims = 1;
        parameters[t].shape = &model->tensors[t].elements;
        parameters[t].data = model->tensors[t].value;
        parameters[t].gradient = model->tensors[t].gradient;
    }
    config->parameters = parameters;
    config->parameter_count = (uint32_t)model->count;
    check(lockstep_module_register(session, config, &model->module));
}

// True if the list of hints ("0,1") has this one.
static bool hints_have(const char *hints, const char *hint)
{
    const size_t length = strlen(hint);
    for (const char *at = hints; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (strcspn(at, ",") == length && strncmp(at, hint, length) == 0)
            return true;
    }
    return false;
}

static lockstep_session *session_open(const char *device_hints)
{
    const char *hint = getenv("LOCKSTEP_RANK_HINT");
    lockstep_session *session = NULL;
    on_device = hints_have(device_hints, hint ? hint : "0");
    if (on_device)
        gpu_open_or_skip(&gpu);
    if (setenv("LOCKSTEP_DEVICE", on_device ? "cuda:0" : "none", 1) != 0)
        fail("out of memory");
    check(lockstep_open(NULL, &session));
    return session;
}

// ---- check --------------------------------------------------------------------------------------

struct flavour {
    const char *name;
    lockstep_dtype dtype;
    lockstep_gradient_kind kind;
    lockstep_wire wire;
    int32_t exponent;
};

static const struct flavour flavours[] = {
    {"float32", LOCKSTEP_FLOAT32, LOCKSTEP_GRADIENT_MEAN, LOCKSTEP_WIRE_SAME, 0},
    {"float32_sum", LOCKSTEP_FLOAT32, LOCKSTEP_GRADIENT_SUM, LOCKSTEP_WIRE_SAME, 0},
    {"float32_as_bfloat16", LOCKSTEP_FLOAT32, LOCKSTEP_GRADIENT_MEAN, LOCKSTEP_WIRE_BFLOAT16, 0},
    {"float64", LOCKSTEP_FLOAT64, LOCKSTEP_GRADIENT_MEAN, LOCKSTEP_WIRE_SAME, 0},
    {"float16", LOCKSTEP_FLOAT16, LOCKSTEP_GRADIENT_MEAN, LOCKSTEP_WIRE_SAME, -3},
    {"float16_as_float32", LOCKSTEP_FLOAT16, LOCKSTEP_GRADIENT_MEAN, LOCKSTEP_WIRE_FLOAT32, 0},
    {"bfloat16", LOCKSTEP_BFLOAT16, LOCKSTEP_GRADIENT_MEAN, LOCKSTEP_WIRE_SAME, 0},
};
#define FLAVOURS (sizeof(flavours) / sizeof(flavours[0]))
#define CHECK_TENSORS 12
#define CHECK_STEPS 6

static const int64_t sizes[CHECK_TENSORS] = {1,    70001, 3,     1000, 17, 0,
                                             4096, 333,   50000, 2,    5,  9999};

static uint64_t mixed(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t word = a * 0x9e3779b97f4a7c15u ^ b * 0xbf58476d1ce4e5b9u ^ c * 0x94d049bb133111ebu;
    word ^= word >> 31;
    word *= 0xd6e8feb86659fd93u;
    return word ^ word >> 29;
}

// Ordinary numbers of every dtype: exponents round that of 1, any fraction and sign.
static void numbers_put(const struct tensor *tensor, uint64_t seed)
{
    for (int64_t i = 0; i < tensor->elements; i++) {
        uint64_t bits = mixed(seed, (uint64_t)i, 7);
        const uint64_t power = bits >> 58 & 7;
        if (tensor->dtype == LOCKSTEP_FLOAT64)
            bits = (bits & 0x800fffffffffffff) | (1019 + power) << 52;
        else if (tensor->dtype == LOCKSTEP_FLOAT32)
            bits = (bits & 0x807fffff) | (123 + power) << 23;
        else if (tensor->dtype == LOCKSTEP_FLOAT16)
            bits = (bits & 0x83ff) | (11 + power) << 10;
        else
            bits = (bits & 0x807f) | (123 + power) << 7;
        memcpy((char *)tensor->staged + (size_t)i * dtype_bytes(tensor->dtype), &bits,
               dtype_bytes(tensor->dtype));
    }
}

// Some gradients are not used by some ranks, some by none.
static bool is_used(uint32_t rank, size_t flavour, int tensor, int step)
{
    const uint64_t draw = mixed(flavour + 1, (uint64_t)tensor, (uint64_t)step);
    return draw % 7 != 0 && (draw / 7 + rank) % 5 != 0;
}

static void model_report(struct model *model, size_t flavour, uint32_t rank, int step)
{
    lockstep_call *call = NULL;
    check(lockstep_call_begin(model->module, &call));
    for (int t = model->count - 1; t >= 0; t--) {
        if (is_used(rank, flavour, t, step))
            check(lockstep_grad_ready(model->module, call, (uint32_t)t, NULL, stream()));
    }
    check(lockstep_call_end(call));
}

// Unused elements are the same on all ranks, so that all memory can be compared after the step.
static void model_fill(struct model *model, size_t flavour, uint32_t rank, int step)
{
    for (int t = 0; t < model->count; t++) {
        const bool used = is_used(rank, flavour, t, step);
        numbers_put(&model->tensors[t],
                    mixed(used ? rank + 1 : 0, flavour * 100 + (uint64_t)t, (uint64_t)step));
        gradient_put(&model->tensors[t]);
    }
}

static void check_step(lockstep_session *session, struct model *models, uint32_t rank, int step,
                       struct hash64 *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.weight = rank != 0 && (rank + (uint32_t)step) % 4 == 3 ? 0 : rank + 1 + (uint32_t)step;
    check(lockstep_step_begin(session, &options, NULL));
    for (size_t f = 0; f < FLAVOURS; f++) {
        model_fill(&models[f], f, rank, step);
        model_report(&models[f], f, rank, step);
    }
    check(lockstep_step_end(session, stream()));
    for (size_t f = 0; f < FLAVOURS; f++) {
        for (int t = 0; t < models[f].count; t++) {
            gradient_get(&models[f].tensors[t]);
            hash64_update(hash, models[f].tensors[t].staged, models[f].tensors[t].bytes);
        }
    }
}

// All ranks have the same number.
static void compare_hashes(lockstep_session *session, uint64_t hash, uint32_t world_size)
{
    int64_t ends[2];
    memcpy(&ends[0], &hash, sizeof(hash));
    ends[1] = ends[0];
    check(lockstep_allreduce(session, "least", &ends[0], 1, LOCKSTEP_INT64, LOCKSTEP_MIN,
                             LOCKSTEP_WAIT_FOREVER));
    check(lockstep_allreduce(session, "greatest", &ends[1], 1, LOCKSTEP_INT64, LOCKSTEP_MAX,
                             LOCKSTEP_WAIT_FOREVER));
    if (ends[0] != ends[1])
        fail("ranks have different results");
    printf("hash %016" PRIx64 ", equal on %" PRIu32 " ranks\n", hash, world_size);
}

static void run_check(const char *device_hints)
{
    static struct model models[FLAVOURS];
    lockstep_session *session = session_open(device_hints);
    uint32_t rank = 0;
    uint32_t world_size = 0;
    struct hash64 hash;
    check(lockstep_world(session, &rank, &world_size));
    for (size_t f = 0; f < FLAVOURS; f++) {
        struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
        config.name = flavours[f].name;
        config.gradient_kind = flavours[f].kind;
        config.unused = LOCKSTEP_UNUSED_ACCEPT;
        config.wire = flavours[f].wire;
        config.float16_exponent = flavours[f].exponent;
        models[f].count = CHECK_TENSORS;
        for (int t = 0; t < CHECK_TENSORS; t++)
            tensor_make(&models[f].tensors[t], t, flavours[f].dtype, sizes[t]);
        model_register(session, &models[f], &config);
    }
    check(lockstep_start(session));
    hash64_init(&hash, 0);
    for (int step = 0; step < CHECK_STEPS; step++)
        check_step(session, models, rank, step, &hash);
    compare_hashes(session, hash64_final(&hash), world_size);
    check(lockstep_close(session));
}

// ---- bench --------------------------------------------------------------------------------------

struct bench {
    int tensors;
    int64_t elements; // Elements of each tensor.
    int steps;
    int stalled; // The step whose gradients the stream does not finish; 0: none.
};

struct times {
    double reports_us; // All of a step's.
    double end_us; // Time until step_end returned.
    double done_us; // Time until the device was done.
};

#define STALL_S 8
static volatile uint32_t *stalled_word; // Pinned; the stream waits until it is 1.

static void stall_end(int signal)
{
    (void)signal;
    *stalled_word = 1;
}

// Lets the stream stand still for STALL_S.
static void stall_begin(void)
{
    void *word = NULL;
    uint64_t address = 0;
    if (!gpu.cuda->stream_wait_value32)
        fail("the driver has no cuStreamWaitValue32");
    gpu_check(&gpu, gpu.cuda->mem_host_alloc(&word, sizeof(uint32_t), CUDA_HOST_ALLOC_MAPPED),
              "cuMemHostAlloc");
    gpu_check(&gpu, gpu.cuda->mem_host_get_device_pointer(&address, word, 0),
              "cuMemHostGetDevicePointer");
    stalled_word = word;
    *stalled_word = 0;
    gpu_check(&gpu, gpu.cuda->stream_wait_value32(gpu.stream, address, 1, CUDA_WAIT_VALUE_AT_LEAST),
              "cuStreamWaitValue32");
    signal(SIGALRM, stall_end);
    alarm(STALL_S);
}

static struct times bench_step(lockstep_session *session, struct model *model)
{
    lockstep_call *call = NULL;
    struct times times;
    check(lockstep_step_begin(session, NULL, NULL));
    check(lockstep_call_begin(model->module, &call));
    const double begin_us = gpu_now_us();
    for (int t = 0; t < model->count; t++)
        check(lockstep_grad_ready(model->module, call, (uint32_t)t, NULL, stream()));
    times.reports_us = gpu_now_us() - begin_us;
    check(lockstep_call_end(call));
    check(lockstep_step_end(session, stream()));
    times.end_us = gpu_now_us() - begin_us;
    if (on_device)
        gpu_wait(&gpu);
    times.done_us = gpu_now_us() - begin_us;
    return times;
}

static void run_bench(const char *device_hints, const struct bench *bench, const char *what)
{
    enum {
        STEPS_MAX = 1000,
        WARM = 5
    };
    static struct model model;
    static double reports[STEPS_MAX], ends[STEPS_MAX], dones[STEPS_MAX];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_session *session = session_open(device_hints);
    uint32_t rank = 0;
    uint32_t world_size = 0;
    check(lockstep_world(session, &rank, &world_size));
    config.name = "bench";
    model.count = bench->tensors;
    for (int t = 0; t < bench->tensors; t++)
        tensor_make(&model.tensors[t], t, LOCKSTEP_FLOAT32, bench->elements);
    model_register(session, &model, &config);
    check(lockstep_start(session));
    for (int step = -WARM; step < bench->steps; step++) {
        if (on_device && bench->stalled > 0 && step == bench->stalled)
            stall_begin();
        const struct times times = bench_step(session, &model);
        if (step >= 0 && step < STEPS_MAX) {
            reports[step] = times.reports_us;
            ends[step] = times.end_us;
            dones[step] = times.done_us;
        }
    }
    if (rank == 0 || on_device)
        printf("{\"%s\": {\"rank\": %" PRIu32 ", \"ranks\": %" PRIu32 ", \"on_device\": %s, "
               "\"tensors\": %d, \"bytes\": %zu, \"reports_us\": %.1f, \"step_end_us\": %.1f, "
               "\"step_us\": %.1f}}\n",
               what, rank, world_size, on_device ? "true" : "false", bench->tensors,
               (size_t)bench->tensors * (size_t)bench->elements * sizeof(float),
               gpu_median(reports, bench->steps), gpu_median(ends, bench->steps),
               gpu_median(dones, bench->steps));
    check(lockstep_close(session));
}

int main(int argc, char **argv)
{
    static const struct bench large = {.tensors = 16, .elements = 25 << 16, .steps = 50};
    static const struct bench little = {.tensors = 16, .elements = 25 << 10, .steps = 5};
    static const struct bench many = {.tensors = 16, .elements = 25 << 10, .steps = INT_MAX};
    static const struct bench stall = {
        .tensors = 16, .elements = 25 << 10, .steps = 5, .stalled = 2};
    static const struct bench small = {.tensors = 64, .elements = 1024, .steps = 500};
    const char *device_hints = argc == 4 && strcmp(argv[2], "--device") == 0 ? argv[3] : NULL;
    if (!device_hints)
        fail("usage: job --check|--bench|--try|--long|--stall|--host --device HINTS|none");
    if (strcmp(argv[1], "--check") == 0)
        run_check(device_hints);
    else if (strcmp(argv[1], "--bench") == 0)
        run_bench(device_hints, &large, "job");
    else if (strcmp(argv[1], "--try") == 0)
        run_bench(device_hints, &little, "job");
    else if (strcmp(argv[1], "--long") == 0)
        run_bench(device_hints, &many, "job");
    else if (strcmp(argv[1], "--stall") == 0)
        run_bench(device_hints, &stall, "job");
    else
        run_bench(device_hints, &small, "host");
    return 0;
}
