// SPDX-License-Identifier: Apache-2.0
//
// Conformance: gradients whose memory is passed with their reports. Within a step two such
// gradients must not overlap, and none may overlap a registered tensor in use, because memory would
// be reduced twice or a result would be lost. The error names both tensors. The tests run in a
// world of one, except the last ones.

#include "tests/support/trainer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 4
#define LENGTH 8

#define FAILS(call, ...) \
    do { \
        const char *const parts_[] = {__VA_ARGS__}; \
        assert_int_equal(LOCKSTEP_E_INVALID, (call)); \
        for (size_t i_ = 0; i_ < sizeof(parts_) / sizeof(parts_[0]); i_++) { \
            if (!strstr(lockstep_error_text(), parts_[i_])) \
                fail_msg("'%s' lacks '%s'", lockstep_error_text(), parts_[i_]); \
        } \
    } while (0)

// A module of four parameters. 0 and 1 have registered gradients, 2 and 3 have none. With `tied`, 3
// is tied to 2.
struct job {
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    float data[COUNT][LENGTH];
    float gradients[COUNT][2 * LENGTH];
};

static void job_register(struct job *job, bool tied, bool separate)
{
    static const char *const names[COUNT] = {"a", "b", "c", "d"};
    static const int64_t shape[] = {LENGTH};
    struct lockstep_parameter parameters[COUNT];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    for (int p = 0; p < COUNT; p++)
        parameters[p] = (struct lockstep_parameter){.name = names[p],
                                                    .dtype = LOCKSTEP_FLOAT32,
                                                    .dims = 1,
                                                    .shape = shape,
                                                    .data = job->data[p],
                                                    .gradient = p < 2 ? job->gradients[p] : NULL,
                                                    .ready_count = 1};
    if (tied) {
        parameters[3].data = job->data[2];
        parameters[3].flags = LOCKSTEP_PARAMETER_SHARED;
    }
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = COUNT;
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    config.calls_per_step = 2;
    config.separate_calls = separate;
    assert_int_equal(lockstep_module_register(job->session, &config, &job->module), 0);
}

static void job_begin(struct job *job)
{
    assert_int_equal(lockstep_step_begin(job->session, NULL, NULL), 0);
    assert_int_equal(lockstep_call_begin(job->module, &job->call), 0);
}

static void job_open(struct job *job, bool tied, bool separate)
{
    memset(job, 0, sizeof(*job));
    assert_int_equal(lockstep_open(NULL, &job->session), 0);
    job_register(job, tied, separate);
    assert_int_equal(lockstep_start(job->session), 0);
    job_begin(job);
}

static int report(struct job *job, uint32_t parameter, void *gradient)
{
    return lockstep_grad_ready(job->module, job->call, parameter, gradient, NULL);
}

static void job_end(struct job *job)
{
    assert_int_equal(lockstep_call_end(job->call), 0);
    assert_int_equal(lockstep_step_end(job->session, NULL), 0);
}

static void job_close(struct job *job)
{
    job_end(job);
    assert_int_equal(lockstep_close(job->session), 0);
}

static void one_place_for_two(const struct setting *setting)
{
    struct job job;
    (void)setting;
    job_open(&job, false, false);
    assert_int_equal(report(&job, 2, job.gradients[2]), 0);
    FAILS(report(&job, 3, job.gradients[2]),
          "step 1: the gradient of parameter 'd' of module 'net'",
          "and the gradient of parameter 'c' of module 'net' overlap in memory: they have 32 bytes "
          "at 0x",
          "Give each memory of its own until the end of the step");
    FAILS(report(&job, 3, job.gradients[2] + LENGTH - 1), "'d'", "'c'", "they have 4 bytes");
    assert_int_equal(report(&job, 3, job.gradients[2] + LENGTH), 0);
    job_end(&job);
    job_begin(&job); // The places of the previous step are free again.
    assert_int_equal(report(&job, 3, job.gradients[2]), 0);
    FAILS(report(&job, 2, (char *)job.gradients[2] + 1), "'c'", "'d'", "they have 31 bytes");
    assert_int_equal(report(&job, 2, NULL), LOCKSTEP_E_INVALID); // The refused place is not kept.
    job_close(&job);
}

static void place_of_a_registered_one(const struct setting *setting)
{
    struct job job;
    (void)setting;
    job_open(&job, false, false);
    assert_int_equal(report(&job, 0, NULL), 0);
    FAILS(report(&job, 2, job.gradients[0] + 3), "gradient of parameter 'c'",
          "gradient of parameter 'a'", "they have 20 bytes");
    assert_int_equal(report(&job, 2, job.gradients[1]), 0);
    FAILS(report(&job, 1, NULL), "gradient of parameter 'b'", "gradient of parameter 'c'");
    assert_int_equal(report(&job, 1, job.gradients[3]), 0);
    FAILS(report(&job, 3, job.data[2]), "gradient of parameter 'd'", "value of parameter 'c'");
    assert_int_equal(report(&job, 3, job.data[3]), 0); // A gradient may lie in its own value.
    job_end(&job);
    job_begin(&job); // Registered gradients may swap their places.
    assert_int_equal(report(&job, 0, job.gradients[1]), 0);
    assert_int_equal(report(&job, 1, job.gradients[0]), 0);
    job_close(&job);
}

static void declared_place(const struct setting *setting)
{
    static const uint32_t first[] = {0};
    struct job job;
    (void)setting;
    job_open(&job, false, false);
    assert_int_equal(lockstep_call_end(job.call), 0);
    assert_int_equal(lockstep_call_begin(job.module, &job.call), 0);
    assert_int_equal(lockstep_call_unused(job.call, first, 1), 0);
    // The mean of other ranks may be written to the gradient of a parameter declared unused.
    FAILS(report(&job, 2, job.gradients[0]), "'c'", "'a'");
    job_close(&job);
}

static void tied_in_two_places(const struct setting *setting)
{
    struct job job;
    (void)setting;
    job_open(&job, true, false);
    assert_int_equal(report(&job, 2, job.gradients[2]), 0);
    FAILS(report(&job, 3, job.gradients[3]), "gradient of parameter 'd'",
          "gradient of parameter 'c' of module 'net' are one (LOCKSTEP_PARAMETER_SHARED), and they "
          "are in two places, 0x",
          "add up both in one place, and report that one");
    assert_int_equal(report(&job, 3, job.gradients[2]), 0);
    job_close(&job);
}

static void tied_beside_the_registered_one(const struct setting *setting)
{
    struct job job;
    (void)setting;
    job_open(&job, true, false);
    job_end(&job);
    assert_int_equal(lockstep_parameter_move(job.module, 2, NULL, job.gradients[2]), 0);
    job_begin(&job);
    assert_int_equal(report(&job, 2, NULL), 0);
    FAILS(report(&job, 3, job.gradients[3]), "'d'", "'c'", "in two places");
    assert_int_equal(report(&job, 3, job.gradients[2]), 0);
    job_end(&job);
    job_begin(&job);
    assert_int_equal(report(&job, 3, job.gradients[3]), 0);
    FAILS(report(&job, 2, NULL), "'c'", "'d'", "in two places");
    assert_int_equal(report(&job, 2, job.gradients[3]), 0);
    job_close(&job);
}

static void separate_calls_in_one_place(const struct setting *setting)
{
    struct job job;
    (void)setting;
    job_open(&job, false, true);
    assert_int_equal(report(&job, 2, job.gradients[2]), 0);
    assert_int_equal(lockstep_call_end(job.call), 0);
    assert_int_equal(lockstep_call_begin(job.module, &job.call), 0);
    FAILS(report(&job, 2, job.gradients[2]), "'c' of module 'net' (call 2)",
          "'c' of module 'net' (call 1)");
    job_close(&job);
}

// The places of a call are taken until the end of the step, also after a wait for the call: the
// same in a world of one as in any other.
static void waited_place(const struct setting *setting)
{
    struct job job;
    lockstep_call *first;
    (void)setting;
    job_open(&job, false, true);
    first = job.call;
    assert_int_equal(report(&job, 2, job.gradients[2]), 0);
    assert_int_equal(lockstep_call_end(job.call), 0);
    assert_int_equal(lockstep_call_wait(first, LOCKSTEP_WAIT_FOREVER), 0);
    assert_int_equal(lockstep_call_begin(job.module, &job.call), 0);
    FAILS(report(&job, 2, job.gradients[2]), "'c' of module 'net' (call 2)",
          "'c' of module 'net' (call 1)");
    assert_int_equal(report(&job, 2, job.gradients[3]), 0);
    job_close(&job);
}

static void moved_within_the_step(const struct setting *setting)
{
    struct job job;
    (void)setting;
    job_open(&job, false, false);
    assert_int_equal(report(&job, 2, job.gradients[2]), 0);
    assert_int_equal(lockstep_call_end(job.call), 0);
    assert_int_equal(lockstep_call_begin(job.module, &job.call), 0);
    assert_int_equal(report(&job, 2, job.gradients[3]), 0);
    FAILS(report(&job, 3, job.gradients[3]), "'d'", "'c'");
    assert_int_equal(report(&job, 3, job.gradients[2]), 0); // This place is free again.
    job_close(&job);
}

// lockstep_module_gradients places registered gradients anew: what counts is where they are now.
static void placed_anew(const struct setting *setting)
{
    struct job job;
    void *gradients[COUNT];
    (void)setting;
    job_open(&job, false, false);
    job_end(&job);
    assert_int_equal(lockstep_module_gradients(job.module, gradients, COUNT), 0);
    job_begin(&job);
    assert_int_equal(report(&job, 0, NULL), 0);
    FAILS(report(&job, 2, gradients[0]), "gradient of parameter 'c'", "gradient of parameter 'a'");
    assert_int_equal(report(&job, 2, job.gradients[0]), 0);
    job_close(&job);
}

// ---- Many places -------------------------------------------------------------------------------

#define MANY 60

static void many_body(struct rank *rank)
{
    uint64_t sizes[MANY];
    struct module_shape shape = {.name = "net", .count = MANY, .elements = sizes};
    struct trained_module module;
    float *places = calloc(MANY + 1, sizeof(*places));
    uint32_t order[MANY];
    lockstep_call *call;
    for (uint32_t p = 0; p < MANY; p++) {
        sizes[p] = 1;
        order[p] = p;
    }
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t step = 0; step < 20; step++) {
        trainer_begin(rank, NULL);
        trainer_shuffle(order, MANY, step + 10 * rank->rank);
        for (uint32_t p = 0; p < MANY; p++)
            module.gradients[p] = &places[(p + step) % MANY];
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        for (uint32_t p = 0; p < MANY; p++) {
            RANK_OK(rank, lockstep_grad_ready(module.module, call, order[p],
                                              module.gradients[order[p]], NULL));
            if (p + 1 < MANY)
                RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                           lockstep_grad_ready(module.module, call, order[p + 1],
                                               module.gradients[order[p]], NULL));
        }
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
    }
    trainer_free(&module);
    free(places);
}

static void many_places(const struct setting *setting)
{
    ranks_run(setting, many_body, NULL);
}

// ---- The memory of gradients that this rank has not used ---------------------------------------

// Rank 0 does not use parameter 0, and passes its registered memory as the gradient of parameter 1.
// The mean of parameter 0 must not be written there.
static void lost_body(struct rank *rank)
{
    static const uint64_t sizes[] = {LENGTH, LENGTH};
    const struct module_shape shape = {
        .name = "net", .count = 2, .elements = sizes, .unused = LOCKSTEP_UNUSED_ACCEPT};
    struct trained_module module;
    lockstep_call *call;
    void *second;
    trainer_make(rank, &shape, 0, &module);
    second = module.gradients[1];
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    if (rank->rank == 0)
        module.gradients[1] = module.gradients[0];
    trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(module.module, &call));
    if (rank->rank != 0)
        RANK_OK(rank, lockstep_grad_ready(module.module, call, 0, NULL, NULL));
    RANK_OK(rank, lockstep_grad_ready(module.module, call, 1, module.gradients[1], NULL));
    RANK_OK(rank, lockstep_call_end(call));
    if (rank->rank != 0) {
        trainer_end(rank);
    } else {
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "parameter 'p0' has a mean from other ranks and no memory for it here");
    }
    trainer_expect_parameter(rank, &module, atomic_load(&rank->step), 1, NULL);
    module.gradients[1] = second;
    trainer_step_known(rank, &module, 1);
    trainer_free(&module);
}

// The same with a parameter of a module that rank 0 has not called.
static void lost_module_body(struct rank *rank)
{
    static const char *const names[] = {"called", "left"};
    static const uint64_t sizes[] = {LENGTH};
    struct trained_module modules[2];
    for (uint32_t m = 0; m < 2; m++) {
        const struct module_shape shape = {
            .name = names[m], .count = 1, .elements = sizes, .unused = LOCKSTEP_UNUSED_ACCEPT};
        trainer_make(rank, &shape, m, &modules[m]);
    }
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 2);
    trainer_begin(rank, NULL);
    if (rank->rank == 0)
        modules[0].gradients[0] = modules[1].gradients[0];
    else
        trainer_fill_known(&modules[1], rank->rank, atomic_load(&rank->step));
    trainer_fill_known(&modules[0], rank->rank, atomic_load(&rank->step));
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(modules[0].module, &call));
    RANK_OK(rank, lockstep_grad_ready(modules[0].module, call, 0, modules[0].gradients[0], NULL));
    RANK_OK(rank, lockstep_call_end(call));
    if (rank->rank != 0) {
        trainer_call(rank, &modules[1]);
        trainer_end(rank);
    } else {
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "parameter 'p0' has a mean from other ranks and no memory for it here");
    }
    trainer_expect_parameter(rank, &modules[0], atomic_load(&rank->step), 0, NULL);
    for (uint32_t m = 0; m < 2; m++)
        trainer_free(&modules[m]);
}

static void lost_place_of_a_module(const struct setting *setting)
{
    ranks_run(setting, lost_module_body, NULL);
}

static void lost_place(const struct setting *setting)
{
    ranks_run(setting, lost_body, NULL);
}

int main(void)
{
    static const uint32_t one[] = {1, 0}, two[] = {2, 0};
    static const struct stamp stamps[] = {
        {"one_place_for_two", one_place_for_two, one},
        {"place_of_a_registered_one", place_of_a_registered_one, one},
        {"declared_place", declared_place, one},
        {"tied_in_two_places", tied_in_two_places, one},
        {"tied_beside_the_registered_one", tied_beside_the_registered_one, one},
        {"separate_calls_in_one_place", separate_calls_in_one_place, one},
        {"waited_place", waited_place, one},
        {"moved_within_the_step", moved_within_the_step, one},
        {"placed_anew", placed_anew, one},
        {"many_places", many_places, two},
        {"lost_place", lost_place, two},
        {"lost_place_of_a_module", lost_place_of_a_module, two},
    };
    return stamp_run("reducer: places given with reports", stamps,
                     sizeof(stamps) / sizeof(stamps[0]));
}
