// SPDX-License-Identifier: Apache-2.0
//
// Conformance: gradients that some ranks do not use. A gradient that no rank has used stays the
// same to the byte on every rank. A gradient that some rank has used becomes the mean on every
// rank, and ranks without it count as zeros. With the default policy both are an error at the end
// of the step, on all ranks, and the session goes on. Case numbers are those of the list of cases
// for reducers.

#include "tests/support/trainer.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 8
#define STEPS 6

// All ranks use p0. p1, p2 and p3 are the heads of three tasks; each rank uses one of them in a
// step. All ranks use p4 in even steps, and none in odd steps. Rank 0 uses p5, which has no
// elements. The last rank uses p6 in every third step; p6 is large enough for many chunks. No rank
// uses p7.
static const uint64_t sizes[COUNT] = {300, 5, 700, 1, 64, 0, 40000, 129};
static const uint64_t slow_sizes[COUNT] = {300, 5, 700, 1, 64, 0, 10000, 129}; // Under a sanitizer.
// On torn loopbacks, which make a call for every few bytes.
static const uint64_t torn_sizes[COUNT] = {300, 5, 700, 1, 64, 0, 1500, 129};

static const lockstep_dtype mixed[COUNT] = {LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64,
                                            LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32,
                                            LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64};

static bool uses(const struct rank *rank, uint32_t r, uint64_t step, uint32_t parameter)
{
    switch (parameter) {
    case 0:
        return true;
    case 1:
    case 2:
    case 3:
        return (r + step) % 3 == parameter - 1;
    case 4:
        return step % 2 == 0;
    case 5:
        return r == 0;
    case 6:
        return step % 3 == 0 && r == rank->world_size - 1;
    default:
        return false;
    }
}

static bool used_anywhere(const struct rank *rank, uint64_t step, uint32_t parameter)
{
    for (uint32_t r = 0; r < rank->world_size; r++) {
        if (uses(rank, r, step, parameter))
            return true;
    }
    return false;
}

// The value of an untouched byte. It differs between ranks and steps, so that the test detects a
// copy of another rank's byte.
static int marker(uint32_t r, uint64_t step, uint32_t parameter)
{
    return (int)(1 + (r * 37 + step * 11 + parameter * 3) % 250);
}

static size_t gradient_bytes(const struct trained_module *module, uint32_t parameter)
{
    const struct module_shape *shape = &module->shape;
    const bool wide = shape->dtypes && shape->dtypes[parameter] == LOCKSTEP_FLOAT64;
    return shape->elements[parameter] * (wide ? 8 : 4);
}

static void fill(struct rank *rank, struct trained_module *module, uint64_t step)
{
    trainer_fill_known(module, rank->rank, step);
    for (uint32_t p = 0; p < module->shape.count; p++) {
        if (!uses(rank, rank->rank, step, p))
            memset(module->gradients[p], marker(rank->rank, step, p), gradient_bytes(module, p));
    }
}

static void partial_call(struct rank *rank, struct trained_module *module, uint64_t step)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < module->shape.count; i++) {
        if (uses(rank, rank->rank, step, module->order[i]))
            RANK_OK(rank, lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

static uint64_t weight_of(const struct trained_module *module, uint32_t r)
{
    return module->shape.scattered ? 1 + r % 3 : 1; // Scattered modules are weighted, too.
}

// The expected mean: the sum over the ranks that use the parameter, divided by the total weight of
// all ranks.
static double expected(const struct rank *rank, const struct trained_module *module, uint64_t step,
                       uint32_t parameter, uint64_t element)
{
    const bool is_sum = module->shape.kind == LOCKSTEP_GRADIENT_SUM;
    int64_t sum = 0;
    int64_t total = 0;
    for (uint32_t r = 0; r < rank->world_size; r++) {
        const int64_t weight = (int64_t)weight_of(module, r);
        if (uses(rank, r, step, parameter))
            sum += (is_sum ? 1 : weight) * trainer_known(module, r, step, parameter, element);
        total += weight;
    }
    if (module->shape.dtypes && module->shape.dtypes[parameter] == LOCKSTEP_FLOAT64)
        return (double)sum / (double)total;
    return (double)((float)sum / (float)total);
}

static void expect_mean(struct rank *rank, const struct trained_module *module, uint64_t step,
                        uint32_t parameter)
{
    for (uint64_t i = 0; i < module->shape.elements[parameter]; i++) {
        const double wanted = expected(rank, module, step, parameter, i);
        const double found = trainer_value(module, parameter, i);
        if (!(found >= wanted && found <= wanted))
            rank_fail(rank, __FILE__, __LINE__,
                      "step %" PRIu64 ": parameter %" PRIu32 " element %" PRIu64
                      " is %.17g, not %.17g",
                      step, parameter, i, found, wanted);
    }
    rank_digest(rank, module->gradients[parameter], gradient_bytes(module, parameter));
}

static void expect_untouched(struct rank *rank, const struct trained_module *module, uint64_t step,
                             uint32_t parameter)
{
    const uint8_t *bytes = module->gradients[parameter];
    for (size_t i = 0; i < gradient_bytes(module, parameter); i++) {
        if (bytes[i] != marker(rank->rank, step, parameter))
            rank_fail(rank, __FILE__, __LINE__,
                      "step %" PRIu64 ": parameter %" PRIu32 " byte %zu was written", step,
                      parameter, i);
    }
}

static void expect_all(struct rank *rank, const struct trained_module *module, uint64_t step)
{
    for (uint32_t p = 0; p < module->shape.count; p++) {
        RANK_EQUAL(rank, module->module->contributions[0].used_anywhere[p],
                   used_anywhere(rank, step, p));
        if (used_anywhere(rank, step, p))
            expect_mean(rank, module, step, p);
        else
            expect_untouched(rank, module, step, p);
    }
}

static void one_step(struct rank *rank, struct trained_module *module)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.weight = weight_of(module, rank->rank);
    trainer_begin(rank, &options);
    const uint64_t step = atomic_load(&rank->step);
    fill(rank, module, step);
    partial_call(rank, module, step);
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "gradients were not produced by the backward pass");
    expect_all(rank, module, step);
}

// The context is the module's shape.
static void body(struct rank *rank)
{
    struct trained_module module;
    trainer_make(rank, rank->context, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < STEPS; i++)
        one_step(rank, &module);
    trainer_free(&module);
}

static const uint64_t *sizes_of(const struct setting *setting)
{
    if (setting->torn_bytes > 0 && setting->torn_bytes < 100)
        return torn_sizes;
    return test_slow() > 1 ? slow_sizes : sizes;
}

static void run_shape(const struct setting *setting, struct module_shape shape)
{
    shape.name = "net";
    shape.count = COUNT;
    shape.elements = sizes_of(setting);
    ranks_run(setting, body, &shape);
}

static void case_10_rank_dependent_branch(const struct setting *setting)
{
    run_shape(setting, (struct module_shape){.scattered = false});
}

static void case_10_scattered_weighted(const struct setting *setting)
{
    run_shape(setting, (struct module_shape){.scattered = true});
}

static void case_10_two_dtypes_sums(const struct setting *setting)
{
    run_shape(setting, (struct module_shape){.dtypes = mixed, .kind = LOCKSTEP_GRADIENT_SUM});
}

// Caps with one gradient for each bucket, so that no rank uses any gradient of some buckets.
static void tiny_buckets(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_bytes = 1;
    config->bucket_first_bytes = 1;
    config->bucket_last_bytes = 1;
}

static void case_10_bucket_of_nobody(const struct setting *setting)
{
    struct module_shape shape = {.name = "net", .count = COUNT, .elements = sizes_of(setting)};
    const struct cluster_test test = {
        .setting = setting, .configure = tiny_buckets, .body = body, .context = &shape};
    ranks_run_test(&test);
}

// Only rank 0 calls the module in a planned step, and does not report p1. The other ranks
// contribute zeros, which do not count as a use of p1.
static void zero_filled_body(struct rank *rank)
{
    const struct module_shape shape = {.name = "net", .count = 2, .elements = sizes};
    struct trained_module module;
    lockstep_call *made;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        const uint64_t step = atomic_load(&rank->step);
        trainer_fill_known(&module, rank->rank, step);
        memset(module.gradients[1], marker(rank->rank, step, 1), gradient_bytes(&module, 1));
        if (rank->rank == 0) {
            RANK_OK(rank, lockstep_call_begin(module.module, &made));
            RANK_OK(rank, lockstep_grad_ready(module.module, made, 0, NULL, NULL));
            RANK_OK(rank, lockstep_call_end(made));
        }
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "1 gradient was not produced");
        for (uint64_t e = 0; e < sizes[0]; e++)
            RANK_EQUAL(rank, trainer_value(&module, 0, e), trainer_known(&module, 0, step, 0, e));
        expect_untouched(rank, &module, step, 1);
    }
    trainer_free(&module);
}

static void case_10_called_on_rank_0_only(const struct setting *setting)
{
    ranks_run(setting, zero_filled_body, NULL);
}

// A gradient that no rank uses costs a few headers, not its bytes. A gradient that one rank uses
// has the mean everywhere.
static void light_body(struct rank *rank)
{
    static const uint64_t light_sizes[] = {10, 40000};
    const struct module_shape shape = {
        .name = "net", .count = 2, .elements = light_sizes, .unused = LOCKSTEP_UNUSED_ACCEPT};
    const bool torn = rank->setting->torn_bytes > 0 && rank->setting->torn_bytes < 100;
    struct trained_module module;
    lockstep_call *call;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 6; i++) {
        const bool used = i % 3 == 2 && !torn;
        trainer_begin(rank, NULL);
        const uint64_t step = atomic_load(&rank->step);
        trainer_fill_known(&module, rank->rank, step);
        if (!used || rank->rank > 0)
            memset(module.gradients[1], marker(rank->rank, step, 1), gradient_bytes(&module, 1));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        RANK_OK(rank, lockstep_grad_ready(module.module, call, 0, NULL, NULL));
        if (used && rank->rank == 0)
            RANK_OK(rank, lockstep_grad_ready(module.module, call, 1, NULL, NULL));
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        trainer_expect_parameter(rank, &module, step, 0, NULL);
        for (uint64_t e = 0; used && e < light_sizes[1]; e++)
            RANK_TRUE(rank,
                      (float)trainer_value(&module, 1, e) ==
                          (float)trainer_known(&module, 0, step, 1, e) / (float)rank->world_size);
        if (used)
            continue;
        expect_untouched(rank, &module, step, 1);
        RANK_TRUE(rank, trainer_report(rank).bytes_sent < gradient_bytes(&module, 1) / 4);
    }
    trainer_free(&module);
}

static void case_10_what_nobody_uses_does_not_travel(const struct setting *setting)
{
    ranks_run_test(
        &(struct cluster_test){.setting = setting, .configure = tiny_buckets, .body = light_body});
}

static const uint32_t worlds[] = {2, 3, 5, 0};

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_10_rank_dependent_branch", case_10_rank_dependent_branch, worlds},
        {"case_10_scattered_weighted", case_10_scattered_weighted, worlds},
        {"case_10_two_dtypes_sums", case_10_two_dtypes_sums, worlds},
        {"case_10_bucket_of_nobody", case_10_bucket_of_nobody, worlds},
        {"case_10_called_on_rank_0_only", case_10_called_on_rank_0_only, worlds},
        {"case_10_what_nobody_uses_does_not_travel", case_10_what_nobody_uses_does_not_travel,
         worlds},
    };
    return stamp_run("reducer: unused", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
