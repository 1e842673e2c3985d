// SPDX-License-Identifier: Apache-2.0
//
// Conformance: the norm of the gradients in the report of a step (case 55). Case numbers are those
// of the list of cases for reducers. The norm is in the digest of every rank, and all digests have
// to be equal.

#include "tests/support/trainer.h"

#include <math.h>
#include <string.h>

#include <cmocka.h>

#define MODULES 3
#define STEPS 4

static const uint64_t sizes[] = {40, 1, 0, 1030, 300};
static const lockstep_dtype floats[] = {LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32,
                                        LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT32};
static const lockstep_dtype bfloats[] = {LOCKSTEP_BFLOAT16, LOCKSTEP_BFLOAT16, LOCKSTEP_BFLOAT16,
                                         LOCKSTEP_BFLOAT16, LOCKSTEP_BFLOAT16};
static const lockstep_dtype *const dtypes[MODULES] = {NULL, floats, bfloats};

static void configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->gradient_norm = 1;
    config->bucket_first_bytes = 1024;
    config->bucket_bytes = 16384;
}

// Module 1 has gaps between its gradients on some ranks only, and module 2 is not always called.
static int make(struct rank *rank, struct trained_module *modules)
{
    static const char *const names[MODULES] = {"mean", "sum", "rare"};
    for (uint32_t m = 0; m < MODULES; m++) {
        const struct module_shape shape = {.name = names[m],
                                           .count = 5,
                                           .elements = sizes,
                                           .dtypes = dtypes[m],
                                           .scattered = m == 1 && rank->rank % 2 == 1,
                                           .unused = LOCKSTEP_UNUSED_ACCEPT,
                                           .kind = m == 1 ? LOCKSTEP_GRADIENT_SUM
                                                          : LOCKSTEP_GRADIENT_MEAN};
        trainer_make(rank, &shape, m, &modules[m]);
    }
    return RANK_CALL(rank, lockstep_start(rank->session));
}

static void unmake(struct trained_module *modules)
{
    for (uint32_t m = 0; m < MODULES; m++)
        trainer_free(&modules[m]);
}

static double value_of(const struct trained_module *module, uint32_t p, uint64_t e)
{
    if (module->shape.dtypes != bfloats)
        return trainer_value(module, p, e);
    const uint32_t bits = (uint32_t)((const uint16_t *)module->gradients[p])[e] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

// The sum of the squares of one gradient as kernels.h describes it.
static double squares_of(const struct trained_module *module, uint32_t p)
{
    double lanes[16] = {0};
    for (uint64_t e = 0; e < module->shape.elements[p]; e++) {
        const double value = value_of(module, p, e);
        lanes[e % 16] += value * value;
    }
    for (int apart = 8; apart > 0; apart /= 2)
        for (int lane = 0; lane < apart; lane++)
            lanes[lane] += lanes[lane + apart];
    return lanes[0];
}

// `used` has a bit for each parameter of each module that some rank used: 8 bits for a module.
static double expected_norm(const struct trained_module *modules, uint64_t used)
{
    double sum = 0;
    for (uint32_t m = 0; m < MODULES; m++) {
        double of_module = 0;
        for (uint32_t p = 0; p < modules[m].shape.count; p++)
            of_module += (used >> (8 * m + p) & 1) != 0 ? squares_of(&modules[m], p) : 0;
        sum += of_module;
    }
    return sqrt(sum);
}

static void expect_norm(struct rank *rank, double expected)
{
    const double norm = trainer_report(rank).gradient_norm;
    RANK_EQUAL(rank,
               memcmp(&norm, &expected, sizeof(norm)) == 0 || (isnan(norm) && isnan(expected)), 1);
    rank_digest(rank, &norm, sizeof(norm));
}

static void call(struct rank *rank, struct trained_module *module, uint64_t used)
{
    const uint64_t step = atomic_load(&rank->step);
    uint64_t state = step * 100 + rank->rank;
    if (module->shape.dtypes != bfloats)
        trainer_fill_noise(module, rank->rank, step);
    for (uint32_t p = 0; module->shape.dtypes == bfloats && p < module->shape.count; p++) {
        for (uint64_t e = 0; e < sizes[p]; e++) // Values of both signs, from 2^-6 to 4.
            ((uint16_t *)module->gradients[p])[e] =
                (uint16_t)(0x3c80 + trainer_random(&state) % 0x400 +
                           (trainer_random(&state) & 0x8000));
    }
    trainer_call_used(rank, module, used);
}

// Parameter 0 of module 0 is used by rank 0 alone, and parameter 3 by no rank. Module 2 is called
// in odd steps, by all ranks but the last one. Parameter 1 of module 1 lies among used ones.
static void norms_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    RANK_EQUAL(rank, make(rank, modules), LOCKSTEP_OK);
    options.weight = 1 + rank->rank;
    for (uint64_t step = 1; step <= STEPS; step++) {
        const bool rare = step % 2 == 1;
        trainer_begin(rank, &options);
        call(rank, &modules[0], rank->rank == 0 ? 0x17 : 0x16);
        call(rank, &modules[1], 0x1d);
        if (rare && (rank->rank == 0 || rank->rank + 1 < rank->world_size))
            call(rank, &modules[2], 0x1f);
        trainer_end(rank);
        expect_norm(rank, expected_norm(modules, 0x1d17 | (rare ? 0x1f0000u : 0)));
    }
    unmake(modules);
}

static void run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {.setting = setting, .configure = configure, .body = body};
    ranks_run_test(&test);
}

static void refused_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    RANK_EQUAL(rank, make(rank, modules), LOCKSTEP_E_UNSUPPORTED);
    RANK_SAYS(rank, "gradient_norm");
    unmake(modules);
}

static void case_55_norms_of_steps(const struct setting *setting)
{
    run(setting, setting->devices > 0 ? refused_body : norms_body);
}

// The usual clipping: all ranks scale by the same factor, so their gradients stay equal.
static void clipping_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    RANK_EQUAL(rank, make(rank, modules), LOCKSTEP_OK);
    for (uint64_t step = 1; step <= STEPS; step++) {
        trainer_begin(rank, NULL);
        call(rank, &modules[0], 0x1f);
        trainer_end(rank);
        const double norm = trainer_report(rank).gradient_norm;
        const float factor = norm > 0.5 ? (float)(0.5 / norm) : 1;
        RANK_EQUAL(rank, norm > 0.5, 1);
        for (uint32_t p = 0; p < modules[0].shape.count; p++) {
            float *gradient = modules[0].gradients[p];
            for (uint64_t e = 0; e < sizes[p]; e++)
                gradient[e] *= factor;
        }
        trainer_digest(rank, &modules[0]);
        RANK_EQUAL(rank, fabs(expected_norm(modules, 0x1f) - 0.5) < 1e-6, 1);
    }
    unmake(modules);
}

static void case_55_clipping(const struct setting *setting)
{
    run(setting, setting->devices > 0 ? refused_body : clipping_body);
}

// A NaN or an infinity on one rank reaches the norm of all.
static void impossible_body(struct rank *rank)
{
    static const float values[] = {NAN, -INFINITY};
    struct trained_module modules[MODULES];
    RANK_EQUAL(rank, make(rank, modules), LOCKSTEP_OK);
    for (uint64_t step = 1; step <= 2; step++) {
        trainer_begin(rank, NULL);
        trainer_fill_noise(&modules[0], rank->rank, step);
        if (rank->rank == 0)
            ((float *)modules[0].gradients[3])[77] = values[step - 1];
        trainer_call(rank, &modules[0]);
        trainer_end(rank);
        expect_norm(rank, step == 1 ? (double)NAN : (double)INFINITY);
    }
    unmake(modules);
}

static void case_55_nan_and_infinity(const struct setting *setting)
{
    run(setting, setting->devices > 0 ? refused_body : impossible_body);
}

// In a window only the last step has results. In a step without a call there is nothing to square.
static void window_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    RANK_EQUAL(rank, make(rank, modules), LOCKSTEP_OK);
    options.accumulate = 1;
    trainer_begin(rank, &options);
    call(rank, &modules[0], 0x02);
    trainer_end(rank);
    trainer_begin(rank, NULL);
    call(rank, &modules[0], 0x18);
    trainer_end(rank);
    expect_norm(rank, expected_norm(modules, 0x1a));
    trainer_begin(rank, NULL);
    trainer_end(rank);
    expect_norm(rank, 0);
    unmake(modules);
}

static void case_55_windows(const struct setting *setting)
{
    run(setting, setting->devices > 0 ? refused_body : window_body);
}

// ---- Otherwise ---------------------------------------------------------------------------------

static void off_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    RANK_EQUAL(rank, make(rank, modules), LOCKSTEP_OK);
    trainer_begin(rank, NULL);
    call(rank, &modules[0], 0x1f);
    trainer_end(rank);
    RANK_EQUAL(rank, trainer_report(rank).gradient_norm == 0, 1);
    unmake(modules);
}

static void not_asked_for(const struct setting *setting)
{
    const struct cluster_test test = {.setting = setting, .body = off_body};
    ranks_run_test(&test);
}

static void configure_differently(struct rank *rank, struct lockstep_config *config)
{
    config->gradient_norm = rank->rank == 0;
}

static void differing_body(struct rank *rank)
{
    rank_meet(rank);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "gradient_norm");
}

static void asked_for_on_one_rank(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = configure_differently, .body = differing_body};
    ranks_run_test(&test);
}

static void alone_body(struct rank *rank)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    config.gradient_norm = 2;
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_open(&config, &rank->session));
    RANK_SAYS(rank, "config.gradient_norm is 2");
    config.gradient_norm = 1;
    RANK_OK(rank, lockstep_open(&config, &rank->session));
    norms_body(rank);
}

static void alone(const struct setting *setting)
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
        {"case_55_norms_of_steps", case_55_norms_of_steps, worlds},
        {"case_55_clipping", case_55_clipping, NULL},
        {"case_55_nan_and_infinity", case_55_nan_and_infinity, NULL},
        {"case_55_windows", case_55_windows, NULL},
        {"not_asked_for", not_asked_for, NULL},
        {"asked_for_on_one_rank", asked_for_on_one_rank, NULL},
        {"alone", alone, one},
    };
    return stamp_run("gradient_norm", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
