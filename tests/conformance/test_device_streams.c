// SPDX-License-Identifier: Apache-2.0
//
// Streams: Lockstep waits for the gradients that streams of a trainer make, and the streams that
// read the results find them (tests/support/device_trainer.h). All ranks hold the same bits after
// every step.

#include "tests/fake_gpu/fake_gpu.h"
#include "tests/support/device_trainer.h"

#include "base/text.h"
#include "base/thread.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define STEPS 6

// ---- Stories -----------------------------------------------------------------------------------

// Reports the gradients of the parameters from `first` on.
static void report_from(struct rank *rank, struct device_trainer *trainer, lockstep_call *call,
                        uint64_t step, uint32_t first)
{
    for (uint32_t p = DEVICE_PARAMETERS; p-- > first;) {
        void *stream = device_trainer_stream(trainer, p);
        device_trainer_make(rank, trainer, p, step, trainer->gradients[p], stream);
        RANK_OK(rank, lockstep_grad_ready(trainer->module, call, p, NULL, stream));
    }
}

static void report(struct rank *rank, struct device_trainer *trainer, lockstep_call *call,
                   uint64_t step)
{
    report_from(rank, trainer, call, step, 0);
}

// Reports all gradients of a call.
typedef void reporter(struct rank *rank, struct device_trainer *trainer, lockstep_call *call,
                      uint64_t step);

// A stream passed to step_end, such as the optimizer's, finds the results without a wait of the
// host.
static void train(struct rank *rank, reporter *reports)
{
    struct device_trainer trainer;
    lockstep_call *call;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    for (uint64_t step = 1; step <= STEPS; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
        reports(rank, &trainer, call, step);
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++)
            device_trainer_expect(rank, &trainer, p, step, trainer.gradients[p]);
    }
    device_trainer_close(rank, &trainer);
}

static void steps(struct rank *rank)
{
    train(rank, report);
}

static void case_45_results_follow_gradients(const struct setting *setting)
{
    ranks_run(setting, steps, NULL);
}

// Two threads report gradients of one bucket, each with the stream that is its own by default. Both
// streams have the same handle.
struct half {
    struct rank *rank;
    struct device_trainer *trainer;
    lockstep_call *call;
    uint64_t step;
    uint32_t first; // Every second parameter from here on.
};

static void *half_report(void *context)
{
    const struct half *half = context;
    void *stream = half->trainer->cuda ? CUDA_STREAM_PER_THREAD : NULL;
    if (stream)
        DEVICE_CUDA(half->rank, half->trainer, ctx_set_current(half->trainer->context));
    for (uint32_t p = half->first; p < DEVICE_PARAMETERS; p += 2) {
        device_trainer_make(half->rank, half->trainer, p, half->step, half->trainer->gradients[p],
                            stream);
        RANK_OK(half->rank,
                lockstep_grad_ready(half->trainer->module, half->call, p, NULL, stream));
    }
    return NULL;
}

static void report_in_two_threads(struct rank *rank, struct device_trainer *trainer,
                                  lockstep_call *call, uint64_t step)
{
    struct half halves[2] = {{rank, trainer, call, step, 0}, {rank, trainer, call, step, 1}};
    pthread_t thread;
    RANK_TRUE(rank, pthread_create(&thread, NULL, half_report, &halves[1]) == 0);
    RANK_TRUE(rank, pthread_join(thread, NULL) == 0);
    half_report(&halves[0]);
}

static void steps_of_two_threads(struct rank *rank)
{
    train(rank, report_in_two_threads);
}

static void case_45_streams_of_threads_are_waited_for(const struct setting *setting)
{
    ranks_run(setting, steps_of_two_threads, NULL);
}

// Without a stream, the results are in memory when step_end or lockstep_call_wait returns.
static void steps_of_hosts(struct rank *rank)
{
    struct device_trainer trainer;
    lockstep_call *call;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    for (uint64_t step = 1; step <= STEPS; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
        report(rank, &trainer, call, step);
        RANK_OK(rank, lockstep_call_end(call));
        if (step % 2 == 0)
            RANK_OK(rank, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
        else
            RANK_OK(rank, lockstep_step_end(rank->session, NULL));
        for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++)
            device_trainer_expect(rank, &trainer, p, step, trainer.gradients[p]);
        if (step % 2 == 0)
            RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    }
    device_trainer_close(rank, &trainer);
}

static void case_45_results_are_there(const struct setting *setting)
{
    ranks_run(setting, steps_of_hosts, NULL);
}

// Each gradient is reported in one of two calls only, and made by a stream that the other call may
// not name. Lockstep waits for the streams of both calls.
static void early_calls(struct rank *rank)
{
    struct device_trainer trainer;
    lockstep_call *call;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 2});
    for (uint64_t step = 1; step <= STEPS; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        for (uint32_t c = 0; c < 2; c++) {
            RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
            for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++) {
                if (p % 2 != c)
                    continue;
                device_trainer_make(rank, &trainer, p, step, trainer.gradients[p],
                                    device_trainer_stream(&trainer, p));
                RANK_OK(rank, lockstep_grad_ready(trainer.module, call, p, NULL,
                                                  device_trainer_stream(&trainer, p)));
            }
            RANK_OK(rank, lockstep_call_end(call));
        }
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++)
            device_trainer_expect(rank, &trainer, p, step, trainer.gradients[p]);
    }
    device_trainer_close(rank, &trainer);
}

static void case_45_early_calls_are_waited_for(const struct setting *setting)
{
    ranks_run(setting, early_calls, NULL);
}

// The same with the two steps of a window instead of two calls; and a buffer that the stream of
// step_end makes.
static void windows(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct device_trainer trainer;
    lockstep_call *call;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer,
                            &(struct device_module){.calls_per_step = 1, .buffer = true});
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (uint32_t part = 0; part < 2; part++) {
            options.accumulate = part == 0;
            RANK_OK(rank, lockstep_step_begin(rank->session, &options, NULL));
            RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
            for (uint32_t p = part; p < DEVICE_PARAMETERS; p += 2) {
                device_trainer_make(rank, &trainer, p, step, trainer.gradients[p],
                                    device_trainer_stream(&trainer, p));
                RANK_OK(rank, lockstep_grad_ready(trainer.module, call, p, NULL,
                                                  device_trainer_stream(&trainer, p)));
            }
            RANK_OK(rank, lockstep_call_end(call));
            if (part == 1)
                device_trainer_make(rank, &trainer, 0, step + 1, trainer.buffer, trainer.reads);
            RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        }
        device_trainer_expect(rank, &trainer, 0, step + 1, trainer.buffer);
        for (uint32_t p = 1; p < DEVICE_PARAMETERS; p++)
            device_trainer_expect(rank, &trainer, p, step, trainer.gradients[p]);
    }
    device_trainer_close(rank, &trainer);
}

static void case_45_windows_and_buffers(const struct setting *setting)
{
    ranks_run(setting, windows, NULL);
}

// Functions that read device memory at once: lockstep_start, the check and the hash of the state,
// and plain collectives.
static void states(struct rank *rank)
{
    struct device_trainer trainer;
    uint64_t hash;
    device_trainer_open(rank, &trainer);
    for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++)
        device_trainer_make(rank, &trainer, p, 1, trainer.data[p], trainer.reads);
    if (trainer.cuda)
        DEVICE_CUDA(rank, &trainer, stream_synchronize(trainer.reads));
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    RANK_OK(rank, lockstep_state_check(rank->session));
    RANK_OK(rank, lockstep_state_hash(rank->session, &hash));
    rank_digest(rank, &hash, sizeof(hash));
    device_trainer_make(rank, &trainer, 4, 3, trainer.gradients[4], trainer.reads);
    if (trainer.cuda)
        DEVICE_CUDA(rank, &trainer, stream_synchronize(trainer.reads));
    RANK_OK(rank, lockstep_allreduce(rank->session, "mean", trainer.gradients[4],
                                     (uint64_t)device_sizes[4], LOCKSTEP_FLOAT32, LOCKSTEP_MEAN,
                                     LOCKSTEP_WAIT_FOREVER));
    device_trainer_expect(rank, &trainer, 4, 3, trainer.gradients[4]);
    device_trainer_close(rank, &trainer);
}

static void case_45_state_is_there(const struct setting *setting)
{
    ranks_run(setting, states, NULL);
}

// ---- Objects of the driver ---------------------------------------------------------------------

// Driver functions that make objects. The first ALLOCATORS of them allocate memory, which may wait
// for all work of the device.
static const char *const makers[] = {"cuMemAlloc_v2", "cuMemHostAlloc", "cuEventCreate",
                                     "cuStreamCreateWithPriority", "cuModuleLoadData"};
#define MAKERS (sizeof(makers) / sizeof(makers[0]))
#define ALLOCATORS 2

static uint64_t made_so_far(size_t count)
{
    fake_gpu_calls_function *calls;
    uint64_t made = 0;
    *(void **)&calls = device_fake("fake_gpu_calls");
    for (size_t i = 0; i < count; i++)
        made += calls(makers[i]);
    return made;
}

// From step 2 on, which has a plan, steps allocate no memory. Once all streams are known, steps
// make no objects on the device. There are more buckets than may be in flight, and the learned
// buckets differ from those of the start.
static void steady(struct rank *rank)
{
    struct device_trainer trainer;
    lockstep_call *call;
    uint64_t allocated = 0;
    uint64_t before = 0;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer,
                            &(struct device_module){.calls_per_step = 1, .buffer = true});
    for (uint64_t step = 1; step <= 2 * STEPS; step++) {
        rank_meet(rank);
        if (step == 2)
            allocated = made_so_far(ALLOCATORS);
        if (step == STEPS)
            before = made_so_far(MAKERS);
        rank_meet(rank);
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
        for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++) {
            void *stream = device_trainer_stream(&trainer, p);
            device_trainer_make(rank, &trainer, p, step, trainer.gradients[p], stream);
            RANK_OK(rank, lockstep_grad_ready(trainer.module, call, p, NULL, stream));
        }
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, step % 2 == 0 ? trainer.reads : NULL));
    }
    rank_meet(rank);
    RANK_EQUAL(rank, made_so_far(ALLOCATORS), allocated);
    RANK_EQUAL(rank, made_so_far(MAKERS), before);
    rank_meet(rank);
    device_trainer_close(rank, &trainer);
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

// ---- Worlds of one -----------------------------------------------------------------------------

// A world of one rank without a coordinator: no gradient travels, but a sum is divided by the
// weight, and the stream of step_end finds the result.
static void alone(struct rank *rank)
{
    struct lockstep_config config = rank_config(rank);
    struct lockstep_module_config module = LOCKSTEP_MODULE_INIT;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct device_trainer trainer;
    lockstep_call *call;
    config.coordinator = NULL;
    config.world_size = 0;
    RANK_OK(rank, lockstep_open(&config, &rank->session));
    device_trainer_open(rank, &trainer);
    parameter.name = "p4";
    parameter.dims = 1;
    parameter.shape = &device_sizes[4];
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
        device_trainer_make(rank, &trainer, 4, step, trainer.gradients[4], trainer.makes[0]);
        RANK_OK(rank, lockstep_grad_ready(trainer.module, call, 0, NULL, trainer.makes[0]));
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
        DEVICE_CUDA(rank, &trainer,
                    memcpy_dtoh_async(trainer.result, (uint64_t)(uintptr_t)trainer.gradients[4],
                                      (size_t)device_sizes[4] * sizeof(float), trainer.reads));
        DEVICE_CUDA(rank, &trainer, stream_synchronize(trainer.reads));
        for (int64_t i = 0; i < device_sizes[4]; i++)
            RANK_EQUAL(rank, 2 * trainer.result[i], device_known(0, step, 4, i));
    }
    device_trainer_close(rank, &trainer);
}

static void alone_a_sum_becomes_a_mean(void **state)
{
    struct setting setting = setting_named("staged");
    const struct cluster_test test = {.setting = &setting, .body = alone, .without_session = true};
    (void)state;
    setting.world_size = 1;
    setting.device_memory_only = true;
    ranks_run_test(&test);
    device_expect_nothing_is_left();
}

// ---- The end of a session ----------------------------------------------------------------------

#define BEHIND_MS 3000 // Longer than a close waits for anything but the device.
#define SEEN_MS 500 // The driver looks at its device every 20 ms.

struct held_stream {
    uint32_t *word;
    struct thread thread;
};

// Makes a stream stand still until `held->word` is 1.
static void hold_stream(struct rank *rank, const struct device_trainer *trainer, void *stream,
                        struct held_stream *held)
{
    DEVICE_CUDA(rank, trainer, mem_host_alloc((void **)&held->word, sizeof(*held->word), 0));
    *held->word = 0;
    DEVICE_CUDA(rank, trainer,
                stream_wait_value32(stream, (uintptr_t)held->word, 1, CUDA_WAIT_VALUE_EQUAL));
}

static void held_let_go(void *context)
{
    struct held_stream *held = context;
    usleep(BEHIND_MS * 1000);
    __atomic_store_n(held->word, 1, __ATOMIC_SEQ_CST);
}

static void hold_for_a_while(struct rank *rank, const struct device_trainer *trainer, void *stream,
                             struct held_stream *held)
{
    hold_stream(rank, trainer, stream, held);
    RANK_TRUE(rank, thread_start(&held->thread, "held", held_let_go, held) == 0);
}

static void end_of_hold(struct rank *rank, const struct device_trainer *trainer,
                        struct held_stream *held)
{
    thread_join(&held->thread);
    DEVICE_CUDA(rank, trainer, mem_free_host(held->word));
}

#define LAST_STEP 3

// Makes the steps before a close, which the stream `reads` ends. In the last one rank 0 holds a
// stream of its device, and leaves out the first gradients.
static void steps_to_last(struct rank *rank, struct device_trainer *trainer, void *stream,
                          uint32_t left_out, struct held_stream *held)
{
    lockstep_call *call;
    for (uint64_t step = 1; step <= LAST_STEP; step++) {
        const bool holds = step == LAST_STEP && rank->rank == 0;
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(trainer->module, &call));
        if (holds)
            hold_for_a_while(rank, trainer, stream, held);
        report_from(rank, trainer, call, step, holds ? left_out : 0);
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, trainer->reads));
    }
}

// The last step is ended by a stream, and rank 0's device is seconds behind when the ranks close.
static void last_step(struct rank *rank)
{
    struct held_stream held;
    struct device_trainer trainer;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    steps_to_last(rank, &trainer, device_trainer_stream(&trainer, 0), 0, &held);
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    for (uint32_t p = 0; p < DEVICE_PARAMETERS; p++)
        device_trainer_expect(rank, &trainer, p, LAST_STEP, trainer.gradients[p]);
    if (rank->rank == 0)
        end_of_hold(rank, &trainer, &held);
    device_trainer_close(rank, &trainer);
}

static void close_keeps_the_last_step(void **state)
{
    struct setting setting = setting_named("nccl");
    (void)state;
    setting.world_size = 2;
    setting.device_memory_only = true;
    ranks_run(&setting, last_step, NULL);
    device_expect_nothing_is_left();
}

// Rank 0 leaves out gradient 0 of the last step, and its stream `reads` comes to the results long
// after rank 1 has left. context: not NULL: rank 1 leaves when rank 0 has seen the sum.
static void last_step_behind(struct rank *rank)
{
    struct held_stream held;
    struct device_trainer trainer;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    steps_to_last(rank, &trainer, trainer.reads, 1, &held);
    if (rank->context)
        rank_meet(rank);
    if (rank->context && rank->rank == 1)
        usleep((useconds_t)test_bound_ms(SEEN_MS) * 1000);
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    const float *result = device_trainer_look(rank, &trainer, 0, trainer.gradients[0]);
    for (int64_t i = 0; i < device_sizes[0]; i++)
        RANK_EQUAL(rank, 2 * result[i], device_known(1, LAST_STEP, 0, i));
    for (uint32_t p = 1; p < DEVICE_PARAMETERS; p++)
        device_trainer_expect(rank, &trainer, p, LAST_STEP, trainer.gradients[p]);
    if (rank->rank == 0)
        end_of_hold(rank, &trainer, &held);
    device_trainer_close(rank, &trainer);
}

static void close_needs_no_rank_whose_sum_is_here(void **state)
{
    struct setting setting = setting_named("nccl");
    fake_nccl_reload_function *reload;
    (void)state;
    setting.world_size = 2;
    setting.device_memory_only = true;
    ranks_run(&setting, last_step_behind, NULL);
    *(void **)&reload = device_fake("fake_nccl_reload");
    // Rank 1 cannot end its communicator in order, and aborts it.
    setenv("FAKE_NCCL_FAIL", "ncclCommFinalize:1:6", 1);
    reload();
    ranks_run(&setting, last_step_behind, &setting);
    unsetenv("FAKE_NCCL_FAIL");
    reload();
    device_expect_nothing_is_left();
}

// ---- A step whose results are dropped ----------------------------------------------------------

struct dropped {
    struct held_stream held;
    char line[512]; // The warning of rank 0; "": none yet.
};

static void dropped_hears(void *context, lockstep_log_level level, const char *line)
{
    struct dropped *dropped = context;
    if (level != LOCKSTEP_LOG_WARN || !strstr(line, "step_dropped"))
        return;
    (void)text_copy(dropped->line, sizeof(dropped->line), line);
    __atomic_store_n(dropped->held.word, 1, __ATOMIC_SEQ_CST);
}

static void dropped_configure(struct rank *rank, struct lockstep_config *config)
{
    if (rank->rank != 0)
        return;
    config->log = dropped_hears;
    config->log_context = rank->context;
}

// Rank 1 ends the job while rank 0's stream still makes the gradients of a step that has ended.
static void dropped_step(struct rank *rank)
{
    struct dropped *dropped = rank->context;
    struct device_trainer trainer;
    lockstep_call *call;
    device_trainer_open(rank, &trainer);
    device_trainer_register(rank, &trainer, &(struct device_module){.calls_per_step = 1});
    for (uint64_t step = 1; step <= 2; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(trainer.module, &call));
        if (step == 2 && rank->rank == 0)
            hold_stream(rank, &trainer, device_trainer_stream(&trainer, 0), &dropped->held);
        report(rank, &trainer, call, step);
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, trainer.reads));
    }
    rank_meet(rank);
    if (rank->rank == 1)
        RANK_OK(rank, lockstep_abort(rank->session, "the loss is NaN"));
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    if (rank->rank == 0) {
        RANK_TRUE(rank, strstr(dropped->line, "the loss is NaN"));
        DEVICE_CUDA(rank, &trainer, mem_free_host(dropped->held.word));
    }
    device_trainer_close(rank, &trainer);
}

static void close_warns_of_a_dropped_step(void **state)
{
    struct setting setting = setting_named("nccl");
    struct dropped dropped = {.line = ""};
    const struct cluster_test test = {.setting = &setting,
                                      .configure = dropped_configure,
                                      .body = dropped_step,
                                      .context = &dropped};
    (void)state;
    setting.world_size = 2;
    setting.device_memory_only = true;
    ranks_run_test(&test);
    device_expect_nothing_is_left();
}

// ---- All of them -------------------------------------------------------------------------------

static const struct device_story stories[] = {
    {"case_45_results_follow_gradients", case_45_results_follow_gradients},
    {"case_45_streams_of_threads_are_waited_for", case_45_streams_of_threads_are_waited_for},
    {"case_45_results_are_there", case_45_results_are_there},
    {"case_45_early_calls_are_waited_for", case_45_early_calls_are_waited_for},
    {"case_45_windows_and_buffers", case_45_windows_and_buffers},
    {"case_45_state_is_there", case_45_state_is_there},
    {"case_45_steady_steps_make_nothing", case_45_steady_steps_make_nothing},
};

int main(void)
{
    const struct CMUnitTest more[] = {cmocka_unit_test(alone_a_sum_becomes_a_mean),
                                      cmocka_unit_test(close_keeps_the_last_step),
                                      cmocka_unit_test(close_needs_no_rank_whose_sum_is_here),
                                      cmocka_unit_test(close_warns_of_a_dropped_step)};
    return device_stories_run("devices: streams", stories, sizeof(stories) / sizeof(stories[0]),
                              more, sizeof(more) / sizeof(more[0]));
}
