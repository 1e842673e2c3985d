// SPDX-License-Identifier: Apache-2.0
//
// Survivors of a death go on (config.on_failure continue) in jobs in which all ranks, or some of
// them, have a device. Devices are stand-ins (tests/fake_gpu), whose memory the host cannot touch.
// recovery_job.h says what every job has to promise. Its module is never called: a second one has
// the same tensors, with gradients in the memory of the device where the rank has one, and so have
// its buffers, which all steps exchange. In some jobs a rank with a device has two replicas, on one
// device or on two. Parameters are other ones on each rank until lockstep_start, in which ranks die
// in some jobs.
//
// Where NCCL sums, a rank that aborts ends the collectives of all others, with garbage, and NCCL
// does not tell them (FAKE_NCCL_LATE_ERRORS). A survivor that takes such a result has an element
// that is no mean.

#include "tests/fault/recovery_job.h"

#include "base/clock.h"
#include "tests/support/fake_gpu.h"
#include "worker/device/cuda.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEGACY ((void *)1) // CUDA's legacy default stream.

enum {
    SPARSE = 2, // The tensor that one rank uses in a step.
    REPLICAS = 2,
    BUFFERS = 3,
    BUFFER = 20000, // Elements of each.
    BY_BUFFER = 1000,
    LONGEST = 90000, // Elements of a tensor at most.
    START_US = 30000, // The latest death in lockstep_start, from just before it on.
};

static const lockstep_buffer_policy policies[BUFFERS] = {LOCKSTEP_BUFFER_BROADCAST,
                                                         LOCKSTEP_BUFFER_MEAN, LOCKSTEP_BUFFER_SUM};

static const uint64_t equal_weights[JOB_RANKS] = {1, 1, 1, 1};

struct scene {
    uint32_t size;
    uint32_t devices; // Set of ranks that have a device.
    uint32_t deaths;
    uint32_t victim; // The rank that dies first; in each later round of the scene, the next one.
    bool at_once; // True if all deaths are in one step.
    bool early; // True if deaths are in the first milliseconds of a step, which may be the first.
    bool starts; // True if deaths are in lockstep_start.
    bool apart; // True if each rank seems to be on a host of its own.
    bool replicas; // True if ranks with a device have two, in later rounds on a device each.
};

static const struct scene *scene;
static bool abroad; // True if each replica has a device of its own.
static bool by_stream; // True if ranks with a device end their steps by a stream.

// What a rank with a device has used.
struct used {
    uint64_t nccl; // Sums of NCCL in the last step.
    // If the rank kills itself: when so many thousandths of the time of the step before are over,
    // or, from BY_BUFFER on, when it has the last buffer. In lockstep_start: after so many us.
    uint64_t part;
};

// Of this process.
static const struct cuda *cuda; // NULL: this rank has no device.
static void *contexts[REPLICAS]; // By replica.
static lockstep_module *module;
static float *gradients[REPLICAS][JOB_TENSORS]; // On the device, if there is one, as the buffers.
static float *parameters[REPLICAS][JOB_TENSORS];
static float *buffers[BUFFERS];
static float held[BUFFERS][BUFFER]; // Buffers on the host.

static void *stream_of_steps(void)
{
    return by_stream && cuda ? LEGACY : NULL;
}

static void require_device(struct job_rank *rank, int result, const char *what)
{
    if (result != 0)
        job_fails(rank, "%s: %d", what, result);
}

static void open_device(struct job_rank *rank)
{
    char error[256] = "";
    cuda = cuda_load(error, sizeof(error));
    if (!cuda)
        job_fails(rank, "no device: %s", error);
    for (uint32_t r = 0; r < REPLICAS; r++) {
        const int ordinal = (int)(rank->rank + (abroad ? r * JOB_RANKS : 0));
        require_device(rank, cuda->device_primary_ctx_retain(&contexts[r], ordinal), "context");
    }
    require_device(rank, cuda->ctx_set_current(contexts[0]), "context");
}

// From now on the calls of this thread are about the device of a replica.
static void go_to(struct job_rank *rank, uint32_t replica)
{
    if (cuda)
        require_device(rank, cuda->ctx_set_current(contexts[replica]), "context");
}

static uint32_t replicas_here(void)
{
    return cuda && scene->replicas ? REPLICAS : 1;
}

static void *take_memory(struct job_rank *rank, size_t bytes)
{
    uint64_t address = 0;
    if (!cuda)
        return calloc(1, bytes);
    require_device(rank, cuda->mem_alloc(&address, bytes), "memory");
    return (void *)(uintptr_t)address;
}

static void copy(struct job_rank *rank, void *to, const void *from, size_t bytes)
{
    if (!cuda)
        memcpy(to, from, bytes);
    else
        require_device(
            rank,
            cuda->memcpy_async((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes, LEGACY),
            "copy");
}

static void await_copies(struct job_rank *rank)
{
    if (cuda)
        require_device(rank, cuda->stream_synchronize(LEGACY), "stream");
}

static void *dies(void *us)
{
    usleep((useconds_t) * (uint64_t *)us);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void register_on_device(struct job_rank *rank)
{
    static float own[LONGEST];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter tensors[REPLICAS * JOB_TENSORS];
    int64_t shapes[JOB_TENSORS];
    char names[JOB_TENSORS][16];
    struct lockstep_buffer described[BUFFERS];
    static const int64_t length = BUFFER;
    if ((scene->devices >> rank->rank & 1) != 0)
        open_device(rank);
    memset(tensors, 0, sizeof(tensors));
    for (uint32_t i = 0; i < replicas_here() * JOB_TENSORS; i++) {
        const uint32_t t = i % JOB_TENSORS;
        const size_t bytes = job_elements[t] * sizeof(float);
        snprintf(names[t], sizeof(names[t]), "t%u", t);
        shapes[t] = (int64_t)job_elements[t];
        go_to(rank, i / JOB_TENSORS);
        gradients[i / JOB_TENSORS][t] = take_memory(rank, bytes);
        tensors[i].name = names[t];
        tensors[i].dtype = LOCKSTEP_FLOAT32;
        tensors[i].dims = 1;
        tensors[i].shape = &shapes[t];
        tensors[i].data = parameters[i / JOB_TENSORS][t] = take_memory(rank, bytes);
        for (uint64_t e = 0; e < job_elements[t]; e++)
            own[e] = (float)(rank->rank + e % 5 * JOB_RANKS);
        copy(rank, tensors[i].data, own, bytes);
        await_copies(rank);
        tensors[i].gradient = gradients[i / JOB_TENSORS][t];
    }
    go_to(rank, 0);
    for (uint32_t b = 0; b < BUFFERS; b++) {
        static const char *const buffer_names[BUFFERS] = {"copy", "mean", "sum"};
        buffers[b] = take_memory(rank, sizeof(held[b]));
        described[b] = (struct lockstep_buffer)LOCKSTEP_BUFFER_INIT;
        described[b].name = buffer_names[b];
        described[b].dims = 1;
        described[b].shape = &length;
        described[b].data = buffers[b];
        described[b].policy = policies[b];
    }
    config.buffers = described;
    config.buffer_count = BUFFERS;
    config.name = "d";
    config.parameters = tensors;
    config.parameter_count = JOB_TENSORS;
    config.replicas = replicas_here();
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    job_require(rank, lockstep_module_register(rank->session, &config, &module), "register");
    if (scene->starts && rank->told->dies_at != 0)
        job_thread(rank, dies, &((struct used *)job_own(rank->rank))->part);
}

// After lockstep_start the parameters are those of one rank, in all replicas.
static void check_parameters(struct job_rank *rank, uint64_t *hash)
{
    static float now[LONGEST];
    float source = 0;
    for (uint32_t i = 0; i < replicas_here() * JOB_TENSORS; i++) {
        const uint32_t t = i % JOB_TENSORS;
        go_to(rank, i / JOB_TENSORS);
        copy(rank, now, parameters[i / JOB_TENSORS][t], job_elements[t] * sizeof(float));
        await_copies(rank);
        source = i == 0 ? now[0] : source;
        for (uint64_t e = 0; e < job_elements[t]; e++)
            if (now[e] != source + (float)(e % 5 * JOB_RANKS))
                job_fails(rank, "element %llu of parameter %u is %g, not of rank %g",
                          (unsigned long long)e, i, (double)now[e], (double)source);
    }
    go_to(rank, 0);
    job_hash(hash, &source, sizeof(source));
}

static void configure(struct lockstep_config *config, struct lockstep_module_config *first)
{
    static char device[32];
    static char host[16];
    (void)first;
    snprintf(device, sizeof(device), abroad ? "cuda:%d,%d" : "cuda:%d", (int)config->rank_hint,
             (int)config->rank_hint + JOB_RANKS);
    snprintf(host, sizeof(host), "host-%d", (int)config->rank_hint);
    config->device = (scene->devices >> config->rank_hint & 1) != 0 ? device : "none";
    if (scene->apart)
        config->host_id = host;
    fake_gpu_part_hosts((unsigned)config->rank_hint);
}

// Writes the gradient from rank->gradients[tensor], to which get_means copies the mean. Two
// replicas have it as their mean, unless it is not used.
static void put_gradient(struct job_rank *rank, uint32_t tensor, bool used)
{
    float *gradient = rank->gradients[tensor];
    for (uint32_t r = 0; r < replicas_here(); r++) {
        const float more = !used || replicas_here() == 1 ? 0 : r == 0 ? 1 : -2;
        for (uint64_t e = 0; e < job_elements[tensor]; e++)
            gradient[e] += more;
        go_to(rank, r);
        copy(rank, gradients[r][tensor], gradient, job_elements[tensor] * sizeof(float));
        // The memory of the host is written again.
        if (!by_stream || replicas_here() > 1)
            await_copies(rank);
    }
    go_to(rank, 0);
}

static void get_means(struct job_rank *rank)
{
    static float other[LONGEST];
    for (uint32_t t = 0; t < JOB_TENSORS; t++) {
        const size_t bytes = job_elements[t] * sizeof(float);
        copy(rank, rank->gradients[t], gradients[0][t], bytes);
        await_copies(rank);
        if (replicas_here() == 1)
            continue;
        go_to(rank, 1);
        copy(rank, other, gradients[1][t], bytes);
        await_copies(rank);
        go_to(rank, 0);
        job_expect(rank, memcmp(other, rank->gradients[t], bytes) == 0, "replicas differ");
    }
}

static void put_buffers(struct job_rank *rank, uint64_t step)
{
    for (uint32_t b = 0; b < BUFFERS; b++) {
        for (uint64_t e = 0; e < BUFFER; e++)
            held[b][e] = job_gradient(rank->rank, step, e);
        copy(rank, buffers[b], held[b], sizeof(held[b]));
    }
    if (!by_stream)
        await_copies(rank);
}

// Kills this rank when its last buffer has been exchanged.
static void *die_by_buffer(void *argument)
{
    struct job_rank *rank = argument;
    const float own = job_gradient(rank->rank, rank->told->dies_at, BUFFER - 1);
    float value = own;
    go_to(rank, 0);
    while (value == own) {
        copy(rank, &value, &buffers[BUFFERS - 1][BUFFER - 1], sizeof(value));
        await_copies(rank);
    }
    kill(getpid(), SIGKILL);
    return NULL;
}

// The ranks that are in an element of a buffer; of a copy, the one that it is of.
static uint32_t set_of(const struct job_rank *rank, uint32_t b, uint64_t step, uint64_t e)
{
    const float value = held[b][e];
    if (policies[b] == LOCKSTEP_BUFFER_MEAN)
        return job_set_of_mean(rank, value, step, e, NULL);
    const uint32_t set = job_set_of_sum(rank, value, step, e);
    const bool right = policies[b] == LOCKSTEP_BUFFER_SUM || (set & (set - 1)) == 0;
    return right ? set : UINT32_MAX;
}

// All buffers are of one set of ranks, which contains this one, or copies of one rank.
static void check_buffers(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    for (uint32_t b = 0; b < BUFFERS; b++)
        copy(rank, held[b], buffers[b], sizeof(held[b]));
    await_copies(rank);
    for (uint32_t b = 0; b < BUFFERS; b++) {
        const uint32_t set = set_of(rank, b, step, 0);
        const bool mine = b == 0 || (set >> rank->rank & 1) != 0;
        for (uint64_t e = 0; e < BUFFER; e++)
            if (set == UINT32_MAX || !mine ||
                (e < 5 ? set_of(rank, b, step, e) != set : held[b][e] != held[b][e - 5]))
                job_fails(rank, "step %llu: element %llu of buffer %u is %g",
                          (unsigned long long)step, (unsigned long long)e, b, (double)held[b][e]);
        job_hash(hash, held[b], sizeof(held[b]));
    }
}

static bool uses(const struct job_rank *rank, uint64_t step, uint32_t tensor)
{
    return tensor != SPARSE || step % rank->size == rank->rank;
}

static bool is_real(void)
{
    return getenv("LOCKSTEP_TEST_DEVICES") != NULL;
}

// 0 on a real GPU: it does not count.
static uint64_t sums_of_nccl(void)
{
    if (is_real())
        return 0;
    const struct fake_controls *controls = fake_gpu_install();
    return controls->nccl_calls("ncclAllReduce") + controls->nccl_calls("ncclReduceScatter");
}

static void step_on_devices(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    static uint64_t began_us;
    static uint64_t delay_us;
    float *sparse = rank->gradients[SPARSE];
    struct used *used = job_own(rank->rank);
    const uint64_t before = cuda ? sums_of_nccl() : 0;
    lockstep_call *call;
    if (step == 1)
        check_parameters(rank, hash);
    if (rank->told->dies_at == step && scene->starts)
        kill(getpid(), SIGKILL);
    if (rank->told->dies_at == step && used->part < BY_BUFFER) {
        delay_us = (clock_now_us() - began_us) * used->part / 1000;
        job_thread(rank, dies, &delay_us);
    }
    began_us = clock_now_us();
    job_begin(rank, NULL, NULL);
    int status = lockstep_call_begin(module, &call);
    for (uint32_t t = JOB_TENSORS; t-- > 0 && status == 0;) {
        for (uint64_t e = 0; e < job_elements[t]; e++)
            rank->gradients[t][e] =
                uses(rank, step, t) ? job_gradient(rank->rank, step, e) : JOB_UNTOUCHED;
        put_gradient(rank, t, uses(rank, step, t));
        for (uint32_t r = 0; r < replicas_here() && uses(rank, step, t) && status == 0; r++)
            status = lockstep_replica_ready(module, call, r, t, NULL, stream_of_steps());
    }
    if (status == 0)
        status = lockstep_call_end(call);
    job_require(rank, status, "call");
    put_buffers(rank, step);
    if (rank->told->dies_at == step && used->part >= BY_BUFFER)
        job_thread(rank, die_by_buffer, rank);
    job_require(rank, lockstep_step_end(rank->session, stream_of_steps()), "step_end");
    check_buffers(rank, step, hash);
    used->nccl = cuda ? sums_of_nccl() - before : 0;
    get_means(rank);
    job_check_of_one(rank, SPARSE, (uint32_t)(step % rank->size), step);
    job_hash(hash, sparse, job_elements[SPARSE] * sizeof(float));
    // The other tensors have gradients of all ranks. This one has been looked at.
    for (uint64_t e = 0; e < job_elements[SPARSE]; e++) {
        sparse[e] = 0;
        for (uint32_t r = 0; r < rank->size; r++)
            sparse[e] += job_gradient(r, step, e);
        sparse[e] /= (float)rank->size;
    }
    job_look(rank, step, equal_weights, hash);
}

static void prepares(const struct job *job, uint32_t round)
{
    uint64_t step = scene->starts ? 1 : 2 + job_random(8);
    for (uint32_t d = 0; d < job->deaths && !scene->early; d++) {
        const uint32_t victim = (round + d) % (job->size - 1);
        job_dies_at(victim, step);
        // Early deaths find most buckets of replicas half done.
        ((struct used *)job_own(victim))->part =
            job_random(scene->starts     ? START_US
                       : scene->replicas ? BY_BUFFER * 2 / 5
                                         : BY_BUFFER + BY_BUFFER / 4);
        step += scene->at_once || scene->starts ? 0 : 1 + job_random(8);
    }
}

// NCCL sums where it would in a job that does not go on: in a later world only if it did in the
// first one.
static bool nccl_sums(uint32_t ranks, bool first)
{
    const uint32_t devices = ranks & scene->devices;
    const bool several = (devices & (devices - 1)) != 0;
    return several && (devices == ranks || !scene->apart) &&
           (first || nccl_sums((1u << scene->size) - 1, true));
}

static void check_nccl(uint32_t dead)
{
    const uint32_t alive = ((1u << scene->size) - 1) & ~dead;
    for (uint32_t r = 0; r < scene->size; r++) {
        const struct used *used = job_own(r);
        if ((alive & scene->devices & 1u << r) != 0 && !is_real())
            assert_int_equal(used->nccl > 0, nccl_sums(alive, false));
    }
}

static void devices_go_on(void **state)
{
    static const struct scene scenes[] = {
        // All survivors have a device. In the first world rank 0 had none, so NCCL is not used.
        {.size = 3, .devices = 6, .deaths = 1, .apart = true},
        {.size = 4, .devices = 8, .deaths = 2, .apart = true, .replicas = true, .victim = 1},
        {.size = 4, .devices = 12, .deaths = 2, .apart = true, .replicas = true, .victim = 2},
        {.size = 4, .devices = 8, .deaths = 2, .apart = true, .replicas = true},
        {.size = 3, .devices = 7, .deaths = 1, .replicas = true},
        {.size = 4, .devices = 15, .deaths = 1, .starts = true, .victim = 2},
        {.size = 4, .devices = 6, .deaths = 2, .starts = true, .apart = true},
        {.size = 3, .devices = 7, .deaths = 1, .starts = true, .replicas = true, .victim = 1},
        {.size = 4, .devices = 15, .deaths = 2, .at_once = true, .victim = 2},
        {.size = 3, .devices = 5, .deaths = 1, .victim = 1},
        {.size = 4, .devices = 14, .deaths = 2, .victim = 1},
        {.size = 3, .devices = 7, .deaths = 1},
        {.size = 2, .devices = 3, .deaths = 1, .early = true},
        {.size = 4, .devices = 15, .deaths = 2, .apart = true, .victim = 1},
        {.size = 3, .devices = 1, .deaths = 1},
    };
    const uint32_t count = sizeof(scenes) / sizeof(scenes[0]);
    (void)state;
    for (uint32_t round = 0; round < job_rounds(count); round++) {
        scene = &scenes[round % count];
        struct job job = {.name = "devices",
                          .size = scene->size,
                          .deaths = scene->deaths,
                          .tcp = scene->replicas || round % 2 == 0,
                          .prepares = prepares,
                          .configure = configure,
                          .loads = register_on_device,
                          .step = step_on_devices};
        abroad = scene->replicas && (round + round / count) % 2 == 0;
        by_stream = (round + round / count) / 2 % 2 == 0;
        check_nccl(job_run(&job, scene->victim + round / count, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(devices_go_on, job_teardown),
    };
    fake_gpu_name_libraries();
    setenv("FAKE_CUDA_DELAY_US", "0-300", 0);
    setenv("FAKE_NCCL_LATE_ERRORS", "1000000000", 0);
    job_memory(sizeof(struct used));
    job_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
