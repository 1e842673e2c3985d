// SPDX-License-Identifier: Apache-2.0
//
// Conformance: how gradients are divided into buckets, which rank's order decides, and where the
// memory of gradients lies. Case numbers are those of the list of cases for reducers.

#include "tests/support/trainer.h"
#include "worker/session/session.h" // For the current layout.

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TENSOR_BYTES 256

static const uint64_t equal_sizes[16] = {64, 64, 64, 64, 64, 64, 64, 64,
                                         64, 64, 64, 64, 64, 64, 64, 64};
static const uint64_t alternating_sizes[16] = {64, 32, 64, 32, 64, 32, 64, 32,
                                               64, 32, 64, 32, 64, 32, 64, 32};
static const uint64_t mebibytes[10] = {1 << 18, 1 << 18, 1 << 18, 1 << 18, 1 << 18,
                                       1 << 18, 1 << 18, 1 << 18, 1 << 18, 1 << 18};
static const lockstep_dtype alternating[16] = {
    LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64,
    LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64,
    LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64,
    LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64};

// ---- Cases 1 to 4: counted through the reports -------------------------------------------------

struct cut {
    uint32_t tensors;
    bool two_dtypes;
    size_t first_bytes;
    size_t bytes;
    size_t last_bytes;
    uint32_t buckets; // The expected number of buckets.
};

static void cut_configure(struct rank *rank, struct lockstep_config *config)
{
    const struct cut *cut = rank->context;
    config->bucket_first_bytes = cut->first_bytes;
    config->bucket_bytes = cut->bytes;
    config->bucket_last_bytes = cut->last_bytes;
}

static void cut_body(struct rank *rank)
{
    const struct cut *cut = rank->context;
    const struct module_shape shape = {
        .name = "net",
        .count = cut->tensors,
        .elements = cut->two_dtypes ? alternating_sizes : equal_sizes,
        .dtypes = cut->two_dtypes ? alternating : NULL,
    };
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        trainer_step_known(rank, &module, 1);
        RANK_EQUAL(rank, trainer_report(rank).buckets, cut->buckets);
        RANK_EQUAL(rank, trainer_report(rank).learning, i == 0);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static uint64_t cut_run(const struct setting *setting, struct cut cut)
{
    const struct cluster_test test = {
        .setting = setting, .configure = cut_configure, .body = cut_body, .context = &cut};
    return ranks_run_test(&test);
}

static void case_01_boundary_by_exact_equality(const struct setting *setting)
{
    const size_t two = 2 * TENSOR_BYTES;
    cut_run(setting, (struct cut){4, false, two, two, two, .buckets = 2});
    // The last bucket has room for one tensor only: 2 + 1 + 1 tensors.
    cut_run(setting, (struct cut){4, false, two, two, 1, .buckets = 3});
    // With one byte less the second tensor still closes a bucket, but the last bucket has no room
    // for two tensors.
    cut_run(setting, (struct cut){4, false, two - 1, two - 1, two - 1, .buckets = 3});
    // With one byte more the first bucket takes a third tensor, and the last tensor is left.
    cut_run(setting, (struct cut){4, false, two + 1, two + 1, 1, .buckets = 2});
}

static void case_02_buckets_per_dtype(const struct setting *setting)
{
    const size_t two = 2 * TENSOR_BYTES;
    cut_run(setting, (struct cut){8, true, two, two, two, .buckets = 4});
}

static void case_03_second_cap_repeats(const struct setting *setting)
{
    const size_t two = 2 * TENSOR_BYTES;
    cut_run(setting, (struct cut){7, false, TENSOR_BYTES, two, two, .buckets = 4});
}

static void case_04_each_dtype_walks_the_caps(const struct setting *setting)
{
    const size_t two = 2 * TENSOR_BYTES;
    // Each dtype has five buckets, of 1 + 2 + 2 + 1 + 2 tensors. It would have four if it began
    // with the second cap.
    cut_run(setting, (struct cut){16, true, TENSOR_BYTES, two, two, .buckets = 10});
}

// ---- Case 5 ------------------------------------------------------------------------------------

static void case_05_tiny_and_huge_caps_same_bits(const struct setting *setting)
{
    const size_t huge = (size_t)1 << 30;
    const uint64_t tiny_digest = cut_run(setting, (struct cut){12, true, 1, 1, 1, .buckets = 12});
    const uint64_t huge_digest =
        cut_run(setting, (struct cut){12, true, huge, huge, huge, .buckets = 2});
    assert_true(tiny_digest == huge_digest);
}

// ---- Case 52 -----------------------------------------------------------------------------------

static void huge_caps(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = SIZE_MAX;
}

static void second_cap(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->bucket_bytes = 2 * TENSOR_BYTES;
}

// The session's caps are of one tensor. The first module has them, the second has caps of its own,
// and the third has one cap of its own.
static void own_caps_body(struct rank *rank)
{
    static void (*const configures[])(struct trained_module *, struct lockstep_module_config *) = {
        NULL, huge_caps, second_cap};
    static const uint32_t wanted[] = {7, 1, 1 + 3};
    static const char *const names[] = {"session", "huge", "second"};
    struct trained_module modules[3];
    for (uint32_t m = 0; m < 3; m++) {
        const struct module_shape shape = {.name = names[m],
                                           .count = m == 2 ? 6 : 7,
                                           .elements = equal_sizes,
                                           .configure = configures[m]};
        trainer_make(rank, &shape, m, &modules[m]);
    }
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        trainer_step_known(rank, modules, 3);
        for (uint32_t m = 0; m < 3; m++)
            RANK_EQUAL(rank, modules[m].module->layout.bucket_count, wanted[m]);
        RANK_EQUAL(rank, trainer_report(rank).learning, i == 0);
    }
    for (uint32_t m = 0; m < 3; m++)
        trainer_free(&modules[m]);
}

static void one_tensor_caps(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = TENSOR_BYTES;
}

static void case_52_caps_of_a_module(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = one_tensor_caps, .body = own_caps_body};
    ranks_run_test(&test);
}

// All options of the module have their longest values.
static void longest_options(struct trained_module *module, struct lockstep_module_config *config)
{
    huge_caps(module, config);
    config->calls_per_step = 256;
    config->on_abort = LOCKSTEP_ABORT_ACCEPT;
    config->wire = LOCKSTEP_WIRE_BFLOAT16;
    config->unused = LOCKSTEP_UNUSED_ACCEPT;
    config->float16_exponent = -14;
}

static void longest_body(struct rank *rank)
{
    const struct module_shape shape = {
        .name = "net", .count = 2, .elements = equal_sizes, .configure = longest_options};
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_free(&module);
}

static void case_52_options_of_full_length(const struct setting *setting)
{
    ranks_run(setting, longest_body, NULL);
}

// ---- Case 6 ------------------------------------------------------------------------------------

#define ORDERS_TENSORS 9

static void orders_of(uint32_t rank, uint32_t *order)
{
    for (uint32_t i = 0; i < ORDERS_TENSORS; i++)
        order[i] = i;
    trainer_shuffle(order, ORDERS_TENSORS, 100 + rank);
}

// Each tensor has a bucket of its own, so the layout shows the order: that of rank 0.
static void orders_expect_rank_0(struct rank *rank, const struct trained_module *module)
{
    const struct bucket_layout *layout = &module->module->layout;
    uint32_t order[ORDERS_TENSORS];
    orders_of(0, order);
    RANK_EQUAL(rank, layout->bucket_count, ORDERS_TENSORS);
    for (uint32_t i = 0; i < ORDERS_TENSORS; i++)
        RANK_EQUAL(rank, layout->order[i], order[i]);
}

static void orders_body(struct rank *rank)
{
    const struct module_shape shape = {
        .name = "net", .count = ORDERS_TENSORS, .elements = equal_sizes};
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        orders_of(rank->rank, module.order);
        trainer_step_known(rank, &module, 1);
        orders_expect_rank_0(rank, &module);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static void one_byte_caps(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 1;
}

static void case_06_ready_orders_differ(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = one_byte_caps, .body = orders_body};
    ranks_run_test(&test);
}

// ---- Case 8 ------------------------------------------------------------------------------------

static const uint64_t mixed_sizes[8] = {5, 130, 1, 77, 300, 3, 64, 1000};

static void places_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net",
                                       .count = 8,
                                       .elements = mixed_sizes,
                                       .dtypes = alternating,
                                       .scattered = rank->context != NULL};
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 3; step++) {
        trainer_fill_noise(&module, rank->rank, step);
        trainer_begin(rank, NULL);
        trainer_call(rank, &module);
        trainer_end(rank);
        trainer_digest(rank, &module);
        RANK_EQUAL(rank, trainer_report(rank).bytes_copied, 0);
    }
    trainer_free(&module);
}

static void case_08_contiguous_and_scattered_same_bits(const struct setting *setting)
{
    static char scattered[] = "scattered";
    const struct setting ring = setting_on_ring(setting);
    const uint64_t contiguous_digest = ranks_run(&ring, places_body, NULL);
    assert_true(contiguous_digest == ranks_run(&ring, places_body, scattered));
}

// ---- Case 9 ------------------------------------------------------------------------------------

// Runs a step in which the gradient of parameter 1 lies at `place`.
static void moving_step(struct rank *rank, struct trained_module *module, void *place)
{
    lockstep_call *call;
    module->gradients[1] = place;
    trainer_begin(rank, NULL);
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    RANK_OK(rank, lockstep_grad_ready(module->module, call, 2, NULL, NULL));
    RANK_OK(rank, lockstep_grad_ready(module->module, call, 1, place, NULL));
    RANK_OK(rank, lockstep_grad_ready(module->module, call, 0, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    trainer_end(rank);
    trainer_expect_mean(rank, module, atomic_load(&rank->step), NULL);
}

// The memory of the step before is freed, so that a sanitizer detects a late read or write.
static void moving_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net", .count = 3, .elements = mixed_sizes};
    const size_t bytes = mixed_sizes[1] * sizeof(float);
    struct trained_module module;
    void *before = NULL;
    trainer_make(rank, &shape, 0, &module);
    void *registered = module.gradients[1];
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 5; i++) {
        void *place = malloc(bytes);
        moving_step(rank, &module, place);
        free(before);
        before = place;
    }
    // An address holds for its step only. NULL means the registered address.
    module.gradients[1] = registered;
    trainer_step_known(rank, &module, 1);
    free(before);
    trainer_free(&module);
}

static void case_09_gradient_memory_moves(const struct setting *setting)
{
    ranks_run(setting, moving_body, NULL);
}

// ---- Default caps ------------------------------------------------------------------------------

static void defaults_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net", .count = 10, .elements = mebibytes};
    static const uint32_t want[] = {1, 4, 4, 1}; // MiB
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    const struct bucket_layout *layout = &module.module->layout;
    RANK_EQUAL(rank, layout->bucket_count, 4);
    for (uint32_t i = 0; i < 4; i++)
        RANK_EQUAL(rank, layout->buckets[i].count, want[i]);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_free(&module);
}

static void default_caps(const struct setting *setting)
{
    ranks_run(setting, defaults_body, NULL);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_01_boundary_by_exact_equality", case_01_boundary_by_exact_equality, NULL},
        {"case_02_buckets_per_dtype", case_02_buckets_per_dtype, NULL},
        {"case_03_second_cap_repeats", case_03_second_cap_repeats, NULL},
        {"case_04_each_dtype_walks_the_caps", case_04_each_dtype_walks_the_caps, NULL},
        {"case_05_tiny_and_huge_caps_same_bits", case_05_tiny_and_huge_caps_same_bits, NULL},
        {"case_52_caps_of_a_module", case_52_caps_of_a_module, NULL},
        {"case_52_options_of_full_length", case_52_options_of_full_length, NULL},
        {"case_06_ready_orders_differ", case_06_ready_orders_differ, NULL},
        {"case_08_contiguous_and_scattered_same_bits", case_08_contiguous_and_scattered_same_bits,
         NULL},
        {"case_09_gradient_memory_moves", case_09_gradient_memory_moves, NULL},
        {"default_caps", default_caps, NULL},
    };
    return stamp_run("reducer: buckets", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
