// SPDX-License-Identifier: Apache-2.0
//
// Results that a device may not write yet, because their trainer has not asked for them. They are
// set aside: they do not delay other buckets of the step, however many they are, and the device
// allocates no memory for them. The module "wide" has more buckets than may be in flight, and rank
// 0 reports none of its gradients. The module "head" has one bucket, which all ranks report.

#include "protos/limits.h"
#include "tests/fake_gpu/fake_gpu.h"
#include "tests/support/device_trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STEPS 5
#define WIDE (2 * LOCKSTEP_WINDOW + 3)
#define HEAD WIDE // Index of the parameter of "head". All parameters have the same size.
#define MARK (-77.0f) // Rank 0 writes this to gradients that it does not report.
#define WAIT_MS (30 * 1000)

// Too large for the memory blocks of tables and notes, so a row without a block has to wait.
static const int64_t wide_elements = 20000;

struct wide {
    struct device_trainer trainer; // Streams, and numbers.
    lockstep_module *module;
    lockstep_module *head;
    char names[WIDE + 1][8];
    float *data[WIDE + 1];
    float *gradients[WIDE + 1];
    float *made[WIDE + 1]; // In host memory: the values that streams copy to gradients later.
    float *result;
};

// ---- Modules -----------------------------------------------------------------------------------

static lockstep_module *wide_register(struct rank *rank, const char *name,
                                      const struct lockstep_parameter *parameters, uint32_t count)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    config.name = name;
    config.parameters = parameters;
    config.parameter_count = count;
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    return module;
}

static void wide_open(struct rank *rank, struct wide *wide)
{
    struct lockstep_parameter parameters[WIDE + 1];
    device_trainer_open(rank, &wide->trainer);
    for (uint32_t p = 0; p <= WIDE; p++) {
        snprintf(wide->names[p], sizeof(wide->names[p]), "w%u", (unsigned)p % 100);
        wide->data[p] = device_trainer_allocate(rank, &wide->trainer, wide_elements);
        wide->gradients[p] = device_trainer_allocate(rank, &wide->trainer, wide_elements);
        wide->made[p] = calloc((size_t)wide_elements, sizeof(float));
        parameters[p] = (struct lockstep_parameter){.name = wide->names[p],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = &wide_elements,
                                                    .data = wide->data[p],
                                                    .gradient = wide->gradients[p]};
    }
    wide->result = calloc((size_t)wide_elements, sizeof(float));
    wide->module = wide_register(rank, "wide", parameters, WIDE);
    wide->head = wide_register(rank, "head", &parameters[HEAD], 1);
    RANK_OK(rank, lockstep_start(rank->session));
}

static void wide_close(struct rank *rank, struct wide *wide)
{
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    for (uint32_t p = 0; p <= WIDE; p++) {
        device_trainer_release(rank, &wide->trainer, wide->data[p]);
        device_trainer_release(rank, &wide->trainer, wide->gradients[p]);
        free(wide->made[p]);
    }
    free(wide->result);
    device_trainer_close(rank, &wide->trainer);
}

// ---- Written and expected values ---------------------------------------------------------------

static void wide_put(struct rank *rank, const struct wide *wide, uint32_t parameter, void *stream)
{
    const size_t bytes = (size_t)wide_elements * sizeof(float);
    float *to = wide->gradients[parameter];
    if (!wide->trainer.cuda)
        memcpy(to, wide->made[parameter], bytes);
    else
        DEVICE_CUDA(
            rank, &wide->trainer,
            memcpy_htod_async((uint64_t)(uintptr_t)to, wide->made[parameter], bytes, stream));
}

static void wide_make(struct rank *rank, const struct wide *wide, uint32_t parameter, uint64_t step)
{
    for (int64_t i = 0; i < wide_elements; i++)
        wide->made[parameter][i] = device_known(rank->rank, step, parameter, i);
    wide_put(rank, wide, parameter, device_trainer_stream(&wide->trainer, parameter));
}

// Rank 0 writes MARK to the gradients that it does not report, in the stream behind which it wants
// the results.
static void wide_mark(struct rank *rank, const struct wide *wide, void *stream)
{
    for (uint32_t p = 0; p < WIDE; p++) {
        for (int64_t i = 0; i < wide_elements; i++)
            wide->made[p][i] = MARK;
        wide_put(rank, wide, p, stream);
    }
}

static const float *wide_look(struct rank *rank, const struct wide *wide, uint32_t parameter)
{
    const float *from = wide->gradients[parameter];
    const size_t bytes = (size_t)wide_elements * sizeof(float);
    if (!wide->trainer.cuda)
        return from;
    DEVICE_CUDA(
        rank, &wide->trainer,
        memcpy_dtoh_async(wide->result, (uint64_t)(uintptr_t)from, bytes, wide->trainer.reads));
    DEVICE_CUDA(rank, &wide->trainer, stream_synchronize(wide->trainer.reads));
    return wide->result;
}

static void wide_expect(struct rank *rank, const struct wide *wide, uint64_t step)
{
    for (uint32_t p = 0; p <= WIDE; p++) {
        const float *result = wide_look(rank, wide, p);
        for (int64_t i = 0; i < wide_elements; i++) {
            float sum = p == HEAD ? device_known(0, step, p, i) : 0;
            for (uint32_t r = 1; r < rank->world_size; r++)
                sum += device_known(r, step, p, i);
            const float expected =
                rank->world_size > 1 || p == HEAD ? sum / (float)rank->world_size : MARK;
            if (result[i] < expected || result[i] > expected || result[i] != result[i])
                rank_fail(rank, __FILE__, __LINE__, "step %u: w%u element %d is %g, not %g",
                          (unsigned)step, (unsigned)p, (int)i, (double)result[i], (double)expected);
        }
    }
}

// Number of allocations of device memory and pinned memory in this process.
static uint64_t blocks(void)
{
    struct fake_gpu_live live = {0};
    fake_gpu_live_function *look;
    *(void **)&look = device_fake("fake_gpu_live");
    look(&live);
    return live.device_allocations + live.host_allocations;
}

// ---- Steps -------------------------------------------------------------------------------------

static lockstep_call *report(struct rank *rank, const struct wide *wide, uint64_t step)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(wide->module, &call));
    for (uint32_t p = 0; p < WIDE && rank->rank > 0; p++) {
        wide_make(rank, wide, p, step);
        RANK_OK(rank, lockstep_grad_ready(wide->module, call, p, NULL,
                                          device_trainer_stream(&wide->trainer, p)));
    }
    RANK_OK(rank, lockstep_call_end(call));
    return call;
}

static lockstep_call *report_head(struct rank *rank, const struct wide *wide, uint64_t step)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(wide->head, &call));
    wide_make(rank, wide, HEAD, step);
    RANK_OK(rank, lockstep_grad_ready(wide->head, call, 0, NULL,
                                      device_trainer_stream(&wide->trainer, HEAD)));
    RANK_OK(rank, lockstep_call_end(call));
    return call;
}

// Begins a step. Rank 0 does not ask for results before the other ranks have the results of "head",
// which they tell it outside the library. Returns the call of "wide".
static lockstep_call *step_until_others_have(struct rank *rank, const struct wide *wide,
                                             uint64_t step)
{
    RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
    lockstep_call *call = report(rank, wide, step);
    lockstep_call *head = report_head(rank, wide, step);
    if (rank->rank > 0)
        RANK_OK(rank, lockstep_call_wait(head, WAIT_MS * test_slow()));
    rank_meet(rank);
    return call;
}

// Asks for the results by the end of the step, behind a stream.
static void end_by_stream(struct rank *rank, const struct wide *wide)
{
    if (rank->rank == 0)
        wide_mark(rank, wide, wide->trainer.reads);
    RANK_OK(rank, lockstep_step_end(rank->session, wide->trainer.reads));
}

// Asks for the results by a wait for the call, behind the default stream.
static void end_by_wait(struct rank *rank, const struct wide *wide, lockstep_call *call)
{
    if (rank->rank == 0)
        wide_mark(rank, wide, CUDA_STREAM_LEGACY);
    RANK_OK(rank, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
}

// Lockstep allocates no device memory in a step, from the first step on, except in a world of one
// rank. Between steps 1 and 2 it reserves what the learned layout needs.
static void steps(struct rank *rank)
{
    struct wide *wide = calloc(1, sizeof(*wide));
    uint64_t reserved = 0;
    wide_open(rank, wide);
    for (uint64_t step = 1; step <= STEPS; step++) {
        rank_meet(rank);
        if (step <= 2)
            reserved = blocks();
        lockstep_call *call = step_until_others_have(rank, wide, step);
        RANK_TRUE(rank, rank->world_size == 1 || blocks() == reserved);
        if (step % 2 == 0)
            end_by_wait(rank, wide, call);
        else
            end_by_stream(rank, wide);
        wide_expect(rank, wide, step);
    }
    wide_close(rank, wide);
    free(wide);
}

static void configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 1;
}

static void case_45_what_waits_for_its_trainer_is_put_aside(const struct setting *setting)
{
    const struct cluster_test test = {.setting = setting, .configure = configure, .body = steps};
    ranks_run_test(&test);
}

// Results that are set aside when the world ends are dropped.
static void steps_to_an_abort(struct rank *rank)
{
    struct wide *wide = calloc(1, sizeof(*wide));
    wide_open(rank, wide);
    (void)step_until_others_have(rank, wide, 1);
    end_by_stream(rank, wide);
    (void)step_until_others_have(rank, wide, 2);
    if (rank->rank == rank->world_size - 1)
        RANK_OK(rank, lockstep_abort(rank->session, "the test wants it"));
    RANK_TRUE(rank, lockstep_step_end(rank->session, wide->trainer.reads) != LOCKSTEP_OK);
    wide_close(rank, wide);
    free(wide);
}

static void case_45_what_is_put_aside_is_forgotten(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = configure, .body = steps_to_an_abort};
    ranks_run_test(&test);
}

static const struct device_story stories[] = {
    {"case_45_what_is_put_aside_is_forgotten", case_45_what_is_put_aside_is_forgotten},
    {"case_45_what_waits_for_its_trainer_is_put_aside",
     case_45_what_waits_for_its_trainer_is_put_aside},
};

int main(void)
{
    return device_stories_run("devices: put aside", stories, sizeof(stories) / sizeof(stories[0]),
                              NULL, 0);
}
