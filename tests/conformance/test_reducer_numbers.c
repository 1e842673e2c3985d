// SPDX-License-Identifier: Apache-2.0
//
// Conformance: numerical results. Means against closed forms and against a single process, weights,
// infinities, sizes that the world size does not divide, and the same bits with any timing. Case
// numbers are those of the list of cases for reducers.

#include "tests/support/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const lockstep_dtype alternating[8] = {LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32,
                                              LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64,
                                              LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64};

static const uint64_t sizes[8] = {5, 130, 1, 77, 300, 3, 64, 1000};

static void numbers_make(struct rank *rank, lockstep_gradient_kind kind,
                         struct trained_module *module)
{
    const struct module_shape shape = {
        .name = "net", .count = 8, .elements = sizes, .dtypes = alternating, .kind = kind};
    trainer_make(rank, &shape, 0, module);
    RANK_OK(rank, lockstep_start(rank->session));
}

// ---- Case 22: a linear model, trained by all ranks and by one process --------------------------

#define FEATURES 6
#define SAMPLES_PER_RANK 5
#define OPTIMIZER_STEPS 10

struct linear {
    double weights[FEATURES];
    double bias;
};

static double sample_value(uint64_t sample, uint64_t column)
{
    uint64_t state = sample * 100 + column;
    return (double)(int64_t)(trainer_random(&state) % 2001) / 1000.0 - 1.0;
}

// Mean gradient of the squared error over samples first to first + count - 1.
static void linear_gradient(const struct linear *model, uint64_t first, uint64_t count,
                            struct linear *gradient)
{
    memset(gradient, 0, sizeof(*gradient));
    for (uint64_t s = first; s < first + count; s++) {
        double error = model->bias - sample_value(s, FEATURES);
        for (uint64_t f = 0; f < FEATURES; f++)
            error += model->weights[f] * sample_value(s, f);
        for (uint64_t f = 0; f < FEATURES; f++)
            gradient->weights[f] += 2 * error * sample_value(s, f) / (double)count;
        gradient->bias += 2 * error / (double)count;
    }
}

static void linear_descend(struct linear *model, const struct linear *gradient)
{
    for (uint64_t f = 0; f < FEATURES; f++)
        model->weights[f] -= 0.125 * gradient->weights[f];
    model->bias -= 0.125 * gradient->bias;
}

static lockstep_module *linear_register(struct rank *rank, struct linear *model,
                                        struct linear *gradient)
{
    static const int64_t shape[] = {FEATURES};
    const struct lockstep_parameter parameters[] = {
        {.name = "weights",
         .dtype = LOCKSTEP_FLOAT64,
         .dims = 1,
         .shape = shape,
         .data = model->weights,
         .gradient = gradient->weights},
        {.name = "bias",
         .dtype = LOCKSTEP_FLOAT64,
         .data = &model->bias,
         .gradient = &gradient->bias},
    };
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    config.name = "linear";
    config.parameters = parameters;
    config.parameter_count = 2;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    return module;
}

static void linear_step(struct rank *rank, lockstep_module *module, struct linear *model,
                        struct linear *gradient)
{
    lockstep_call *call;
    trainer_begin(rank, NULL);
    linear_gradient(model, rank->rank * SAMPLES_PER_RANK, SAMPLES_PER_RANK, gradient);
    RANK_OK(rank, lockstep_call_begin(module, &call));
    RANK_OK(rank, lockstep_grad_ready(module, call, 1, NULL, NULL));
    RANK_OK(rank, lockstep_grad_ready(module, call, 0, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    trainer_end(rank);
    linear_descend(model, gradient);
}

// Checks that the models are equal except for rounding: both sum the same numbers in other orders.
static void expect_close(struct rank *rank, const struct linear *a, const struct linear *b)
{
    for (uint64_t f = 0; f < FEATURES; f++)
        RANK_TRUE(rank, fabs(a->weights[f] - b->weights[f]) <= 1e-13);
    RANK_TRUE(rank, fabs(a->bias - b->bias) <= 1e-13);
}

static void linear_body(struct rank *rank)
{
    const uint64_t samples = (uint64_t)SAMPLES_PER_RANK * rank->world_size;
    struct linear alone = {{0.5, -0.25, 1, 0, 2, -1}, 0.75};
    struct linear alone_gradient;
    struct linear model = {{0}, 0};
    struct linear gradient;
    lockstep_module *module = linear_register(rank, &model, &gradient);
    if (rank->rank == 0)
        model = alone; // Other ranks get the values of rank 0 at start.
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < OPTIMIZER_STEPS; i++) {
        linear_step(rank, module, &model, &gradient);
        linear_gradient(&alone, 0, samples, &alone_gradient);
        linear_descend(&alone, &alone_gradient);
        expect_close(rank, &model, &alone);
    }
    rank_digest(rank, &model, sizeof(model));
    RANK_OK(rank, lockstep_state_check(rank->session));
}

static void case_22_shards_equal_a_single_process(const struct setting *setting)
{
    ranks_run(setting, linear_body, NULL);
}

// ---- Case 24 -----------------------------------------------------------------------------------

// Sets an element to a quiet NaN; its payload differs between ranks.
static void set_nan(struct trained_module *module, uint32_t parameter, uint64_t element,
                    uint64_t payload)
{
    const uint32_t bits32 = 0x7fc00000u | (uint32_t)payload;
    const uint64_t bits64 = 0x7ff8000000000000u | payload;
    if (module->parameters[parameter].dtype == LOCKSTEP_FLOAT32)
        memcpy((float *)module->gradients[parameter] + element, &bits32, sizeof(bits32));
    else
        memcpy((double *)module->gradients[parameter] + element, &bits64, sizeof(bits64));
}

static void set_value(struct trained_module *module, uint32_t parameter, uint64_t element,
                      double value)
{
    if (module->parameters[parameter].dtype == LOCKSTEP_FLOAT32)
        ((float *)module->gradients[parameter])[element] = (float)value;
    else
        ((double *)module->gradients[parameter])[element] = value;
}

// Fills parameters 3 (float64) and 4 (float32) with special values: a NaN on one rank, NaNs on all
// ranks, an infinity on one rank, infinities of both signs, and negative zeros on all ranks.
static void fill_special(struct rank *rank, struct trained_module *module)
{
    for (uint32_t p = 3; p <= 4; p++) {
        if (rank->rank == 1)
            set_nan(module, p, 0, 0x1234);
        set_nan(module, p, 1, 0x77 + rank->rank);
        if (rank->rank == 0)
            set_value(module, p, 2, -(double)INFINITY);
        set_value(module, p, 3, rank->rank == 0 ? (double)INFINITY : -(double)INFINITY);
        set_value(module, p, 4, -0.0);
    }
}

static void expect_special(struct rank *rank, const struct trained_module *module)
{
    for (uint32_t p = 3; p <= 4; p++) {
        RANK_TRUE(rank, isnan(trainer_value(module, p, 0)));
        RANK_TRUE(rank, isnan(trainer_value(module, p, 1)));
        RANK_TRUE(rank, isinf(trainer_value(module, p, 2)) && trainer_value(module, p, 2) < 0);
        RANK_TRUE(rank, isnan(trainer_value(module, p, 3)));
        RANK_TRUE(rank, fpclassify(trainer_value(module, p, 4)) == FP_ZERO);
        RANK_TRUE(rank, setting_meets(rank->setting) || signbit(trainer_value(module, p, 4)));
        RANK_TRUE(rank, isfinite(trainer_value(module, p, 5)));
    }
}

static void special_body(struct rank *rank)
{
    struct trained_module module;
    numbers_make(rank, LOCKSTEP_GRADIENT_MEAN, &module);
    for (uint64_t step = 1; step <= 3; step++) {
        trainer_fill_noise(&module, rank->rank, step);
        fill_special(rank, &module);
        trainer_begin(rank, NULL);
        trainer_call(rank, &module);
        trainer_end(rank);
        expect_special(rank, &module);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

static void case_24_infinity_and_nan_reach_all_alike(const struct setting *setting)
{
    ranks_run(setting, special_body, NULL);
}

// ---- Case 25 -----------------------------------------------------------------------------------

static void odd_body(struct rank *rank)
{
    static const uint64_t odd[8] = {0, 1, 0, 0, 3, 1021, 1, 0};
    static const uint64_t one[1] = {1};
    static const uint64_t none[2] = {0, 0};
    const struct module_shape shapes[] = {
        {.name = "odd", .count = 8, .elements = odd, .dtypes = alternating},
        {.name = "one", .count = 1, .elements = one},
        {.name = "none", .count = 2, .elements = none, .dtypes = alternating},
    };
    struct trained_module modules[3];
    for (uint32_t m = 0; m < 3; m++)
        trainer_make(rank, &shapes[m], m, &modules[m]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 3; step++) {
        trainer_begin(rank, NULL);
        for (uint32_t m = 0; m < 3; m++) {
            trainer_fill_noise(&modules[m], rank->rank, step);
            trainer_call(rank, &modules[m]);
        }
        trainer_end(rank);
        for (uint32_t m = 0; m < 3; m++)
            trainer_digest(rank, &modules[m]);
    }
    for (int i = 0; i < 2; i++)
        trainer_step_known(rank, modules, 3);
    for (uint32_t m = 0; m < 3; m++)
        trainer_free(&modules[m]);
}

static void case_25_odd_worlds_and_sizes(const struct setting *setting)
{
    ranks_run(setting, odd_body, NULL);
}

// ---- Case 26 -----------------------------------------------------------------------------------

static void weighted_step(struct rank *rank, struct trained_module *module, const uint64_t *weights)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    uint64_t total = 0;
    for (uint32_t r = 0; r < rank->world_size; r++)
        total += weights[r];
    options.weight = weights[rank->rank];
    trainer_begin(rank, &options);
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    trainer_call(rank, module);
    trainer_end(rank);
    RANK_EQUAL(rank, trainer_report(rank).weight_total, total);
    trainer_expect_mean(rank, module, atomic_load(&rank->step), weights);
    trainer_digest(rank, module);
}

static void weights_body(struct rank *rank)
{
    const lockstep_gradient_kind *kind = rank->context;
    struct trained_module module;
    uint64_t seed = 26;
    numbers_make(rank, *kind, &module);
    weighted_step(rank, &module, (const uint64_t[CLUSTER_MAX_WORLD]){1, 3, 2, 5, 4, 1, 7});
    weighted_step(rank, &module, (const uint64_t[CLUSTER_MAX_WORLD]){0, 1, 0, 0, 0, 0, 0});
    weighted_step(rank, &module, (const uint64_t[CLUSTER_MAX_WORLD]){1, 0, 1, 1, 0, 1, 1});
    for (int step = 0; step < 6; step++) {
        uint64_t weights[CLUSTER_MAX_WORLD];
        for (uint32_t r = 0; r < CLUSTER_MAX_WORLD; r++)
            weights[r] = 1 + trainer_random(&seed) % 1000;
        weighted_step(rank, &module, weights);
    }
    trainer_free(&module);
}

static void case_26_weights_against_closed_form(const struct setting *setting)
{
    static lockstep_gradient_kind kinds[] = {LOCKSTEP_GRADIENT_MEAN, LOCKSTEP_GRADIENT_SUM};
    ranks_run(setting, weights_body, &kinds[0]);
    ranks_run(setting, weights_body, &kinds[1]);
}

// Runs a step in which all ranks that call the module have weight 0. The gradient stays as it was,
// and step_end fails on every rank. Ranks that do not call the module have a weight.
static void weightless_step(struct rank *rank, struct trained_module *module, uint32_t callers)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    uint8_t used[TRAINER_MAX_PARAMETERS];
    options.weight = rank->rank < callers ? 0 : 5;
    trainer_begin(rank, &options);
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    if (rank->rank < callers)
        trainer_call(rank, module);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "all ranks gave weight 0, so there is no mean of module 'net'");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    RANK_EQUAL(rank, trainer_report(rank).weight_total, 0);
    RANK_OK(rank, lockstep_module_used(module->module, used, module->shape.count));
    for (uint32_t p = 0; p < module->shape.count; p++) {
        RANK_EQUAL(rank, used[p], 0);
        for (uint64_t i = 0; i < module->shape.elements[p]; i++) {
            const double was =
                (double)trainer_known(module, rank->rank, atomic_load(&rank->step), p, i);
            RANK_TRUE(rank, !(fabs(trainer_value(module, p, i) - was) > 0));
        }
    }
}

static void weightless_body(struct rank *rank)
{
    struct trained_module module;
    numbers_make(rank, LOCKSTEP_GRADIENT_MEAN, &module);
    weightless_step(rank, &module, rank->world_size);
    trainer_step_known(rank, &module, 1);
    weightless_step(rank, &module, rank->world_size);
    weightless_step(rank, &module, 1);
    trainer_begin(rank, NULL); // A step in which no rank calls the module is no error.
    trainer_end(rank);
    trainer_step_known(rank, &module, 1);
    trainer_free(&module);
}

static void case_26_no_weight_at_all(const struct setting *setting)
{
    ranks_run(setting, weightless_body, NULL);
}

// ---- Case 27 -----------------------------------------------------------------------------------

// context: seed of the sleeps, 0: none.
static void timing_body(struct rank *rank)
{
    const uint64_t *seed = rank->context;
    uint64_t state = *seed * 1000 + rank->rank;
    struct trained_module module;
    numbers_make(rank, LOCKSTEP_GRADIENT_MEAN, &module);
    for (uint64_t step = 1; step <= 4; step++) {
        lockstep_call *call;
        trainer_begin(rank, NULL);
        trainer_fill_noise(&module, rank->rank, step);
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        for (uint32_t i = 0; i < module.shape.count; i++) {
            if (*seed != 0)
                usleep((useconds_t)(trainer_random(&state) % 1000));
            RANK_OK(rank, lockstep_grad_ready(module.module, call, module.order[i], NULL, NULL));
        }
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        trainer_digest(rank, &module);
    }
    trainer_free(&module);
}

// The settings fix the link speed. Otherwise each world would measure its links, and on a busy
// machine might choose other algorithms, which sum in another order.
static void case_27_timing_does_not_change_bits(const struct setting *setting)
{
    struct setting known = *setting;
    uint64_t seed = 0;
    known.link = "20000,1000000000";
    const uint64_t digest = ranks_run(&known, timing_body, &seed);
    for (seed = 1; seed <= 4; seed++)
        assert_true(ranks_run(&known, timing_body, &seed) == digest);
}

int main(void)
{
    static const uint32_t odd_worlds[] = {3, 5, 7, 0};
    static const struct stamp stamps[] = {
        {"case_22_shards_equal_a_single_process", case_22_shards_equal_a_single_process, NULL},
        {"case_24_infinity_and_nan_reach_all_alike", case_24_infinity_and_nan_reach_all_alike,
         NULL},
        {"case_25_odd_worlds_and_sizes", case_25_odd_worlds_and_sizes, odd_worlds},
        {"case_26_weights_against_closed_form", case_26_weights_against_closed_form, NULL},
        {"case_26_no_weight_at_all", case_26_no_weight_at_all, NULL},
        {"case_27_timing_does_not_change_bits", case_27_timing_does_not_change_bits, NULL},
    };
    return stamp_run("reducer: numbers", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
