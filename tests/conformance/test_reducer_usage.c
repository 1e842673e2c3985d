// SPDX-License-Identifier: Apache-2.0
//
// Conformance: on how many ranks each parameter was used in the last step, and on any rank at all.
// Case numbers are those of the list of cases for reducers.

#include "tests/support/trainer.h"

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 6
#define STEPS 7

static const uint64_t sizes[COUNT] = {30, 1, 0, 200, 5, 7};

// All ranks use p0 in every step, and p1 and p2 in turn. Only rank 0 uses p3, in every third step.
// The number of ranks that use p4 depends on the step. No rank uses p5.
static bool uses(uint32_t r, uint64_t step, uint32_t parameter)
{
    switch (parameter) {
    case 0:
        return true;
    case 1:
    case 2:
        return step % 2 == parameter - 1;
    case 3:
        return r == 0 && step % 3 == 0;
    case 4:
        return r < step;
    default:
        return false;
    }
}

// Checks which parameters any rank used: those with wanted[p] > 0.
static void expect_used(struct rank *rank, const struct trained_module *module,
                        const uint32_t *wanted)
{
    uint8_t used[COUNT];
    memset(used, 0x55, sizeof(used));
    RANK_OK(rank, lockstep_module_used(module->module, used, COUNT));
    for (uint32_t p = 0; p < COUNT; p++)
        RANK_EQUAL(rank, used[p], wanted[p] > 0);
}

static void expect_usage(struct rank *rank, const struct trained_module *module,
                         const uint32_t *wanted)
{
    uint32_t ranks[COUNT];
    memset(ranks, 0x55, sizeof(ranks));
    RANK_OK(rank, lockstep_module_usage(module->module, ranks, COUNT));
    for (uint32_t p = 0; p < COUNT; p++)
        RANK_EQUAL(rank, ranks[p], wanted[p]);
    expect_used(rank, module, wanted);
}

static void expect_no_usage(struct rank *rank, const struct trained_module *module)
{
    static const uint32_t none[COUNT];
    expect_usage(rank, module, none);
}

static void expect_known_usage(struct rank *rank, const struct trained_module *module)
{
    uint32_t wanted[COUNT] = {0};
    for (uint32_t p = 0; p < COUNT; p++) {
        for (uint32_t r = 0; r < rank->world_size; r++)
            wanted[p] += uses(r, atomic_load(&rank->step), p);
    }
    expect_usage(rank, module, wanted);
}

static void partial_call(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < COUNT; i++) {
        if (uses(rank->rank, atomic_load(&rank->step), module->order[i]))
            RANK_OK(rank, lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

static void make(struct rank *rank, const char *name, uint32_t index, uint64_t calls,
                 struct trained_module *module)
{
    const struct module_shape shape = {.name = name,
                                       .count = COUNT,
                                       .elements = sizes,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT,
                                       .calls_per_step = calls};
    trainer_make(rank, &shape, index, module);
}

// Checks the usage of parameters that all ranks use in some steps, and that only some ranks use. No
// rank calls the second module.
static void usage_body(struct rank *rank)
{
    struct trained_module modules[2];
    make(rank, "net", 0, 1, &modules[0]);
    make(rank, "idle", 1, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    expect_no_usage(rank, &modules[0]);
    for (int i = 0; i < STEPS; i++) {
        trainer_begin(rank, NULL);
        partial_call(rank, &modules[0]);
        trainer_end(rank);
        // Ranks may query modules in any order, and repeatedly.
        expect_no_usage(rank, &modules[1]);
        expect_known_usage(rank, &modules[0]);
        expect_known_usage(rank, &modules[0]);
    }
    trainer_begin(rank, NULL);
    trainer_end(rank);
    expect_no_usage(rank, &modules[0]);
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_11_usage_counts_are_exact(const struct setting *setting)
{
    ranks_run(setting, usage_body, NULL);
}

// Only rank 0 calls the module.
static void one_rank_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, "net", 0, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        uint32_t wanted[COUNT] = {0};
        trainer_begin(rank, NULL);
        for (uint32_t p = 0; p < COUNT; p++)
            wanted[p] = uses(0, atomic_load(&rank->step), p);
        if (rank->rank == 0)
            partial_call(rank, &module);
        trainer_end(rank);
        expect_usage(rank, &module, wanted);
    }
    trainer_free(&module);
}

static void case_11_called_on_one_rank(const struct setting *setting)
{
    ranks_run(setting, one_rank_body, NULL);
}

// Only rank 0 calls the module. Each rank asks in steps of its own, so no rank may wait for another
// one. A gradient that rank 0 did not use is as each rank left it.
static void alone_asks_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, "net", 0, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < STEPS; i++) {
        uint32_t wanted[COUNT] = {0};
        trainer_begin(rank, NULL);
        for (uint32_t p = 0; p < COUNT; p++)
            wanted[p] = uses(0, atomic_load(&rank->step), p);
        for (uint32_t p = 0; p < COUNT; p++)
            memset(module.gradients[p], 0, sizes[p] * sizeof(float));
        if (rank->rank == 0) {
            trainer_fill_known(&module, 0, atomic_load(&rank->step));
            partial_call(rank, &module);
        }
        trainer_end(rank);
        if (atomic_load(&rank->step) % rank->world_size != rank->rank)
            continue;
        expect_used(rank, &module, wanted);
        for (uint32_t p = 0; p < COUNT && rank->rank > 0; p++) {
            const uint64_t last = sizes[p] - 1;
            if (sizes[p] == 0)
                continue;
            RANK_EQUAL(rank, (int64_t)trainer_value(&module, p, last),
                       wanted[p] > 0 ? trainer_known(&module, 0, atomic_load(&rank->step), p, last)
                                     : 0);
        }
    }
    trainer_free(&module);
}

static void case_49_one_rank_asks(const struct setting *setting)
{
    ranks_run(setting, alone_asks_body, NULL);
}

// Each of the separate calls uses a parameter of its own. The module that no rank calls has none.
static void separate_configure(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->separate_calls = 1;
}

static void separate_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net",
                                       .count = COUNT,
                                       .elements = sizes,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT,
                                       .calls_per_step = 2,
                                       .configure = separate_configure};
    struct trained_module module;
    float *others[2] = {calloc(sizes[0], sizeof(float)), calloc(sizes[1], sizeof(float))};
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t wanted[COUNT] = {0};
        trainer_begin(rank, NULL);
        for (uint32_t k = 0; k < 2; k++) {
            lockstep_call *call;
            RANK_OK(rank, lockstep_call_begin(module.module, &call));
            if (k == 0)
                RANK_OK(rank, lockstep_grad_ready(module.module, call, 3, NULL, NULL));
            else
                RANK_OK(rank, lockstep_grad_ready(module.module, call, i % 2, others[i % 2], NULL));
            RANK_OK(rank, lockstep_call_end(call));
        }
        trainer_end(rank);
        wanted[3] = wanted[i % 2] = rank->world_size;
        expect_used(rank, &module, wanted);
    }
    trainer_free(&module);
    free(others[0]);
    free(others[1]);
}

static void case_49_in_any_call(const struct setting *setting)
{
    ranks_run(setting, separate_body, NULL);
}

// A gradient is used if any call of the step, or any step of a window, has used it.
static void calls_body(struct rank *rank)
{
    static const uint32_t last = COUNT - 1;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module module;
    uint32_t ranks[COUNT];
    lockstep_call *call;
    make(rank, "net", 0, 2, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t wanted[COUNT] = {0};
        options.accumulate = 1;
        trainer_begin(rank, &options);
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        if (rank->rank == 0)
            RANK_OK(rank, lockstep_grad_ready(module.module, call, last, NULL, NULL));
        RANK_OK(rank, lockstep_call_end(call));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_usage(module.module, ranks, COUNT));
        trainer_end(rank);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_usage(module.module, ranks, COUNT));
        RANK_SAYS(rank, "the window that it belongs to");
        options.accumulate = 0;
        trainer_begin(rank, &options);
        for (uint32_t k = 0; k < 2; k++) {
            RANK_OK(rank, lockstep_call_begin(module.module, &call));
            RANK_OK(rank, lockstep_grad_ready(module.module, call, k, NULL, NULL));
            RANK_OK(rank, lockstep_call_end(call));
        }
        trainer_end(rank);
        wanted[0] = wanted[1] = rank->world_size;
        wanted[last] = 1;
        expect_usage(rank, &module, wanted);
    }
    trainer_free(&module);
}

static void case_11_of_several_calls(const struct setting *setting)
{
    ranks_run(setting, calls_body, NULL);
}

// Of an aborted call only complete gradients count as used; here none is complete.
static void aborted_body(struct rank *rank)
{
    uint32_t wanted[COUNT] = {0};
    struct trained_module module;
    lockstep_call *call;
    make(rank, "net", 0, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(module.module, &call));
    RANK_OK(rank, lockstep_grad_ready(module.module, call, 0, NULL, NULL));
    if (rank->rank == 0)
        RANK_OK(rank, lockstep_call_abort(call));
    else
        RANK_OK(rank, lockstep_call_end(call));
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    wanted[0] = rank->world_size - 1;
    expect_usage(rank, &module, wanted);
    trainer_free(&module);
}

static void a_call_is_given_up(const struct setting *setting)
{
    ranks_run(setting, aborted_body, NULL);
}

// ---- Buckets to which only a rank with weight 0 contributes ------------------------------------

// One bucket for each parameter.
static void small_buckets(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 1;
}

static void accept_abort(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->on_abort = LOCKSTEP_ABORT_ACCEPT;
}

// Begins a step in which the last rank has weight 0, if `light`, and all others weight 2.
static bool begin_light(struct rank *rank, bool light)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    const bool last = rank->rank + 1 == rank->world_size;
    options.weight = light && last ? 0 : 2;
    trainer_begin(rank, &options);
    return last;
}

// zeros: true if the gradient has to be zeros, false if it must not be. A gradient on a device is
// as its rank left it.
static void expect_zeros(struct rank *rank, const float *values, uint64_t count, bool zeros)
{
    bool found = true;
    for (uint64_t i = 0; i < count; i++)
        found = found && !(values[i] < 0 || values[i] > 0);
    if (rank->setting->devices == 0 && count > 0)
        RANK_EQUAL(rank, found, zeros);
}

// The ranks with a weight give up their call after one parameter. So the module has a weight, and
// the buckets of the other parameters have none.
static void light_rest_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net",
                                       .count = COUNT,
                                       .elements = sizes,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT,
                                       .configure = accept_abort};
    struct trained_module module;
    uint8_t used[COUNT];
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t s = 0; s < 4; s++) {
        lockstep_call *call;
        const bool whole = begin_light(rank, s > 0) || s == 0;
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        for (uint32_t i = 0; i < (whole ? COUNT : 1u); i++)
            RANK_OK(rank, lockstep_grad_ready(module.module, call, module.order[i], NULL, NULL));
        RANK_OK(rank, whole ? lockstep_call_end(call) : lockstep_call_abort(call));
        trainer_end(rank);
        RANK_OK(rank, lockstep_module_used(module.module, used, COUNT));
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t p = module.order[i];
            RANK_EQUAL(rank, used[p], s == 0 || i == 0);
            if (s > 0)
                expect_zeros(rank, module.gradients[p], sizes[p], i > 0);
            if (used[p] == 1)
                rank_digest(rank, module.gradients[p], sizes[p] * sizeof(float));
        }
    }
    trainer_free(&module);
}

static void case_26_no_weight_in_some_buckets(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = small_buckets, .body = light_rest_body};
    ranks_run_test(&test);
}

// Only a rank with weight 0 makes the second call. The ranks that do not make it have no memory
// for its mean, which is no error: there is none.
static void light_call_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net",
                                       .count = 1,
                                       .elements = sizes,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT,
                                       .calls_per_step = 2,
                                       .configure = separate_configure};
    struct trained_module module;
    float *second = calloc(sizes[0], sizeof(float));
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t s = 0; s < 4; s++) {
        lockstep_call *call;
        void *mean = NULL;
        const bool both = begin_light(rank, s > 0) || s == 0;
        for (uint64_t i = 0; i < sizes[0]; i++)
            second[i] = 1;
        for (uint32_t k = 0; k < (both ? 2u : 1u); k++) {
            RANK_OK(rank, lockstep_call_begin(module.module, &call));
            RANK_OK(rank,
                    lockstep_grad_ready(module.module, call, 0, k == 0 ? NULL : second, NULL));
            RANK_OK(rank, lockstep_call_end(call));
        }
        trainer_end(rank);
        RANK_OK(rank, lockstep_module_means(module.module, 1, &mean, 1));
        RANK_TRUE(rank, mean == (s == 0 ? second : NULL));
        expect_zeros(rank, second, sizes[0], s > 0 && both);
    }
    trainer_free(&module);
    free(second);
}

static void case_26_no_weight_in_a_call(const struct setting *setting)
{
    ranks_run(setting, light_call_body, NULL);
}

static void misuse_body(struct rank *rank)
{
    uint32_t ranks[COUNT + 1];
    uint8_t used[COUNT + 1];
    struct trained_module module;
    make(rank, "net", 0, 1, &module);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_usage(module.module, ranks, COUNT));
    RANK_SAYS(rank, "lockstep_start");
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_usage(module.module, ranks, COUNT + 1));
    RANK_SAYS(rank, "has 6 parameters: ranks has room for 7");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_usage(module.module, NULL, COUNT));
    RANK_SAYS(rank, "NULL");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_used(module.module, used, COUNT + 1));
    RANK_SAYS(rank, "has 6 parameters: used has room for 7");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_used(module.module, NULL, COUNT));
    RANK_SAYS(rank, "NULL");
    trainer_begin(rank, NULL);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_usage(module.module, ranks, COUNT));
    RANK_SAYS(rank, "inside step 1");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_used(module.module, used, COUNT));
    RANK_SAYS(rank, "inside step 1");
    trainer_end(rank);
    expect_no_usage(rank, &module);
    trainer_free(&module);
}

static void usage_that_cannot_be(const struct setting *setting)
{
    ranks_run(setting, misuse_body, NULL);
}

static void alone_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    usage_body(rank);
}

static void case_11_alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = alone_body, .without_session = true};
    ranks_run_test(&test);
}

static const uint32_t worlds[] = {1, 2, 3, 5, 0};
static const uint32_t one[] = {1, 0};

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_11_usage_counts_are_exact", case_11_usage_counts_are_exact, worlds},
        {"case_11_called_on_one_rank", case_11_called_on_one_rank, NULL},
        {"case_11_of_several_calls", case_11_of_several_calls, NULL},
        {"case_11_alone", case_11_alone, one},
        {"case_49_one_rank_asks", case_49_one_rank_asks, worlds},
        {"case_49_in_any_call", case_49_in_any_call, worlds},
        {"a_call_is_given_up", a_call_is_given_up, NULL},
        {"case_26_no_weight_in_some_buckets", case_26_no_weight_in_some_buckets, NULL},
        {"case_26_no_weight_in_a_call", case_26_no_weight_in_a_call, NULL},
        {"usage_that_cannot_be", usage_that_cannot_be, NULL},
    };
    return stamp_run("reducer: usage", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
