// SPDX-License-Identifier: Apache-2.0
//
// Gradients on devices that a rank has not reported, and that a stream of its trainer still writes
// (tests/support/device_trainer.h). Lockstep writes the mean of the other ranks behind the stream,
// without a wait on the host. A gradient that no rank has reported keeps what the trainer wrote.

#include "base/clock.h"
#include "tests/fake_gpu/fake_gpu.h"
#include "tests/support/device_trainer.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define STEPS 6
// Within this time the gradients of a call reach all ranks, unless something delays them.
#define TRAVEL_US 5000
#define NOBODYS (DEVICE_PARAMETERS - 1) // The parameter that no rank reports.
#define MARK (-77.0f) // The trainer writes this to gradients that it does not report.

static bool is_left_out(uint32_t rank, uint64_t step, uint32_t parameter)
{
    return parameter == NOBODYS || (parameter + step + rank) % 3 == 0;
}

static void *legacy(void)
{
    return CUDA_STREAM_LEGACY;
}

// ---- Written and expected values ---------------------------------------------------------------

// Writes MARK to a gradient; on a device the stream does so later.
static void mark(struct rank *rank, const struct device_trainer *trainer, uint32_t parameter,
                 void *stream)
{
    float *made = trainer->made[parameter];
    for (int64_t i = 0; i < device_sizes[parameter]; i++)
        made[i] = MARK;
    device_trainer_put(rank, trainer, parameter, trainer->gradients[parameter], stream);
}

static void mark_left_out(struct rank *rank, const struct device_trainer *trainer, uint64_t step,
                          void *stream)
{
    for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++) {
        if (is_left_out(rank->rank, step, p))
            mark(rank, trainer, p, stream);
    }
}

static float mean_of_some(const struct rank *rank, uint64_t step, uint32_t parameter,
                          int64_t element)
{
    float sum = 0;
    bool any = false;
    for (uint32_t r = 0; r < rank->world_size; r++) {
        if (is_left_out(r, step, parameter))
            continue;
        sum += device_known(r, step, parameter, element);
        any = true;
    }
    return any ? sum / (float)rank->world_size : MARK;
}

static void expect_mean_of_some(struct rank *rank, const struct device_trainer *trainer,
                                uint64_t step)
{
    for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++) {
        const float *result = device_trainer_look(rank, trainer, p, trainer->gradients[p]);
        for (int64_t i = 0; i < device_sizes[p]; i++) {
            const float expected = mean_of_some(rank, step, p, i);
            if (result[i] < expected || result[i] > expected || result[i] != result[i])
                rank_fail(rank, __FILE__, __LINE__, "step %u: p%u element %d is %g, not %g",
                          (unsigned)step, (unsigned)p, (int)i, (double)result[i], (double)expected);
        }
        rank_digest(rank, result, (size_t)device_sizes[p] * sizeof(float));
    }
}

// ---- Steps -------------------------------------------------------------------------------------

static lockstep_call *begin(struct rank *rank, const struct device_trainer *trainer)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_OK(rank, lockstep_call_begin(trainer->module, &call));
    return call;
}

static void report(struct rank *rank, const struct device_trainer *trainer, lockstep_call *call,
                   uint64_t step)
{
    for (uint32_t p = DEVICE_PARAMETERS; p-- > 0;) {
        void *stream = device_trainer_stream(trainer, p);
        if (is_left_out(rank->rank, step, p))
            continue;
        device_trainer_make(rank, trainer, p, step, trainer->gradients[p], stream);
        RANK_OK(rank, lockstep_grad_ready(trainer->module, call, p, NULL, stream));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

// Waits until all gradients have travelled that need not wait. Then a device's stream writes MARK.
static void mark_late(struct rank *rank, const struct device_trainer *trainer, uint64_t step,
                      void *stream)
{
    rank_meet(rank);
    usleep(TRAVEL_US);
    if (trainer->cuda)
        mark_left_out(rank, trainer, step, stream);
}

// The stream of step_end first writes the gradients that are not reported, then reads the results.
static void steps(struct rank *rank)
{
    struct device_trainer trainer;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (!trainer.cuda)
            mark_left_out(rank, &trainer, step, NULL);
        report(rank, &trainer, begin(rank, &trainer), step);
        mark_late(rank, &trainer, step, trainer.reads);
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        expect_mean_of_some(rank, &trainer, step);
    }
    device_trainer_close(rank, &trainer);
}

static void case_45_left_out_comes_behind_the_end(const struct setting *setting)
{
    ranks_run(setting, steps, NULL);
}

// Without a stream, Lockstep writes the results behind the work of the default stream.
static void steps_of_hosts(struct rank *rank)
{
    struct device_trainer trainer;
    lockstep_call *call;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (!trainer.cuda)
            mark_left_out(rank, &trainer, step, NULL);
        call = begin(rank, &trainer);
        report(rank, &trainer, call, step);
        mark_late(rank, &trainer, step, legacy());
        if (step % 2 == 0)
            RANK_OK(rank, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
        else
            RANK_OK(rank, lockstep_step_end(rank->session, NULL));
        if (trainer.cuda)
            DEVICE_CUDA(rank, &trainer, stream_synchronize(legacy()));
        expect_mean_of_some(rank, &trainer, step);
        if (step % 2 == 0)
            RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    }
    device_trainer_close(rank, &trainer);
}

static void case_45_left_out_comes_behind_the_default_stream(const struct setting *setting)
{
    ranks_run(setting, steps_of_hosts, NULL);
}

// A rank that does not call the module has reported none of its gradients.
static void calls_of_some(struct rank *rank)
{
    struct device_trainer trainer;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    for (uint64_t step = 1; step <= STEPS; step++) {
        const bool idle = step > 1 && step % rank->world_size == rank->rank;
        lockstep_call *call;
        for (uint32_t p = 0; p < DEVICE_PARAMETERS && !trainer.cuda; p++)
            mark(rank, &trainer, p, NULL);
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        if (!idle) {
            RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
            report(rank, &trainer, call, step);
        }
        mark_late(rank, &trainer, step, trainer.reads);
        for (uint32_t p = 0; p < DEVICE_PARAMETERS && idle && trainer.cuda; p++)
            mark(rank, &trainer, p, trainer.reads);
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        if (idle && trainer.cuda)
            DEVICE_CUDA(rank, &trainer, stream_synchronize(trainer.reads));
        for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++)
            rank_digest(rank, device_trainer_look(rank, &trainer, p, trainer.gradients[p]),
                        (size_t)device_sizes[p] * sizeof(float));
    }
    device_trainer_close(rank, &trainer);
}

static void case_45_who_calls_nothing_comes_behind_the_end(const struct setting *setting)
{
    if (setting->world_size > 1)
        ranks_run(setting, calls_of_some, NULL);
}

// ---- The window --------------------------------------------------------------------------------

// Each gradient is a bucket of its own, so more buckets are held than may be in flight.
static void configure_many(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 1;
}

static lockstep_module *second(struct rank *rank, void *data, void *gradient)
{
    const struct lockstep_parameter parameter = {.name = "weight",
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 1,
                                                 .shape = &device_sizes[0],
                                                 .data = data,
                                                 .gradient = gradient};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    config.name = "head";
    config.parameters = &parameter;
    config.parameter_count = 1;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    return module;
}

// Rank 0 reports no gradient of the first module, so its results are held. All ranks wait for the
// results of the second module before the step ends.
static void waits(struct rank *rank)
{
    struct device_trainer trainer;
    device_trainer_open(rank, &trainer);
    void *data = device_trainer_allocate(rank, &trainer, device_sizes[0]);
    lockstep_module *head = second(rank, data, trainer.buffer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    for (uint64_t step = 1; step <= STEPS; step++) {
        void *stream = device_trainer_stream(&trainer, 0);
        lockstep_call *call = begin(rank, &trainer);
        for (uint32_t p = 0; p < DEVICE_PARAMETERS && rank->rank > 0; p++) {
            device_trainer_make(rank, &trainer, p, step, trainer.gradients[p],
                                device_trainer_stream(&trainer, p));
            RANK_OK(rank, lockstep_grad_ready(trainer.module, call, p, NULL,
                                              device_trainer_stream(&trainer, p)));
        }
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_call_begin(head, &call));
        device_trainer_make(rank, &trainer, 0, step, trainer.buffer, stream);
        RANK_OK(rank, lockstep_grad_ready(head, call, 0, NULL, stream));
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
        device_trainer_expect(rank, &trainer, 0, step, trainer.buffer);
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
    }
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    device_trainer_release(rank, &trainer, data);
    device_trainer_close(rank, &trainer);
}

static void case_45_what_is_held_is_in_nobodys_way(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = configure_many, .body = waits};
    ranks_run_test(&test);
}

// ---- Early results -----------------------------------------------------------------------------

// True if a result is in memory now. A stream of the device may be writing it.
__attribute__((no_sanitize("thread"))) static bool
is_there(struct rank *rank, const struct device_trainer *trainer, uint32_t parameter, uint64_t step)
{
    fake_gpu_peek_function *peek;
    *(void **)&peek = device_fake("fake_gpu_peek");
    const size_t bytes = (size_t)device_sizes[parameter] * sizeof(float);
    const volatile float *now =
        !trainer->cuda ? trainer->gradients[parameter]
                       : peek((uint64_t)(uintptr_t)trainer->gradients[parameter], bytes);
    for (int64_t i = 0; i < device_sizes[parameter]; i++) {
        const float expected = device_known_mean(rank, step, parameter, i);
        if (now[i] < expected || now[i] > expected)
            return false;
    }
    return true;
}

static void expect_early(struct rank *rank, const struct device_trainer *trainer, uint64_t step)
{
    for (uint32_t p = 1; p < NOBODYS; p++) {
        const uint64_t deadline_ms = clock_now_ms() + test_bound_ms(5000);
        while (!is_there(rank, trainer, p, step) && clock_now_ms() < deadline_ms)
            usleep(500);
        RANK_TRUE(rank, is_there(rank, trainer, p, step));
    }
}

// If each gradient has a bucket of its own, rank 0 does not report the first one, and only that
// bucket waits for the end of the step. If all share one bucket, no rank reports the last gradient,
// and nothing waits.
static void early(struct rank *rank)
{
    const bool *many = rank->context;
    struct device_trainer trainer;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    for (uint64_t step = 1; step <= STEPS; step++) {
        lockstep_call *call = begin(rank, &trainer);
        for (uint32_t p = DEVICE_PARAMETERS; p-- > 0;) {
            void *stream = device_trainer_stream(&trainer, p);
            if (*many ? p == 0 && rank->rank == 0 : p == NOBODYS)
                continue;
            device_trainer_make(rank, &trainer, p, step, trainer.gradients[p], stream);
            RANK_OK(rank, lockstep_grad_ready(trainer.module, call, p, NULL, stream));
        }
        RANK_OK(rank, lockstep_call_end(call));
        expect_early(rank, &trainer, step);
        rank_meet(rank);
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
    }
    device_trainer_close(rank, &trainer);
}

static void case_45_only_what_is_left_out_is_late(const struct setting *setting)
{
    bool many = false;
    const struct cluster_test one = {.setting = setting, .body = early, .context = &many};
    const struct cluster_test each = {
        .setting = setting, .configure = configure_many, .body = early, .context = &many};
    ranks_run_test(&one);
    many = true;
    ranks_run_test(&each);
}

// ---- All of them -------------------------------------------------------------------------------

static const struct device_story stories[] = {
    {"case_45_left_out_comes_behind_the_end", case_45_left_out_comes_behind_the_end},
    {"case_45_left_out_comes_behind_the_default_stream",
     case_45_left_out_comes_behind_the_default_stream},
    {"case_45_who_calls_nothing_comes_behind_the_end",
     case_45_who_calls_nothing_comes_behind_the_end},
    {"case_45_only_what_is_left_out_is_late", case_45_only_what_is_left_out_is_late},
    {"case_45_what_is_held_is_in_nobodys_way", case_45_what_is_held_is_in_nobodys_way},
};

int main(void)
{
    return device_stories_run("devices: left out", stories, sizeof(stories) / sizeof(stories[0]),
                              NULL, 0);
}
