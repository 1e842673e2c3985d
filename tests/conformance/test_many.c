// SPDX-License-Identifier: Apache-2.0
//
// Conformance: sessions with very many parameters. make test has a part of the largest number,
// LOCKSTEP_TEST_LARGE=1 (make nightly) all of it, which takes half a GiB of memory:
//
//     LOCKSTEP_TEST_LARGE=1 make test ONLY=test_many

#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define STEPS 3 // A learning step, and two by plan.

struct many {
    uint32_t count;
    struct lockstep_parameter *parameters;
    char (*names)[16];
    float *values; // By parameter: its value and its gradient.
};

static bool whole_bound(void)
{
    return getenv("LOCKSTEP_TEST_LARGE") != NULL;
}

static void many_make(struct rank *rank, uint32_t count, struct many *many)
{
    static const int64_t one[] = {1};
    many->count = count;
    many->parameters = calloc(count, sizeof(*many->parameters));
    many->names = calloc(count, sizeof(*many->names));
    many->values = calloc(2 * (size_t)count, sizeof(*many->values));
    RANK_TRUE(rank, many->parameters && many->names && many->values);
    for (uint32_t p = 0; p < count; p++) {
        float *at = &many->values[2 * (size_t)p];
        snprintf(many->names[p], sizeof(many->names[p]), "p%" PRIu32, p);
        many->parameters[p] = (struct lockstep_parameter){.name = many->names[p],
                                                          .dtype = LOCKSTEP_FLOAT32,
                                                          .dims = 1,
                                                          .shape = one,
                                                          .data = at,
                                                          .gradient = at + 1};
    }
}

static void many_free(struct many *many)
{
    free(many->parameters);
    free(many->names);
    free(many->values);
}

// ---- As many modules and parameters as there can be --------------------------------------------

static void most_body(struct rank *rank)
{
    const uint32_t total = whole_bound() ? LOCKSTEP_MAX_PARAMETERS : LOCKSTEP_MAX_PARAMETERS / 16;
    const uint32_t each = total / LOCKSTEP_MAX_MODULES;
    lockstep_module *module;
    struct many many;
    many_make(rank, total, &many);
    for (uint32_t m = 0; m < LOCKSTEP_MAX_MODULES; m++) {
        struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
        char name[8];
        snprintf(name, sizeof(name), "m%" PRIu32, m % 100);
        config.name = name;
        config.parameters = &many.parameters[m * each];
        config.parameter_count = each;
        if (m == LOCKSTEP_MAX_MODULES - 1 && whole_bound()) {
            config.parameter_count = each + 1;
            RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                       lockstep_module_register(rank->session, &config, &module));
            RANK_SAYS(rank, "'m63' the session would have 262145 parameters and buffers");
            config.parameter_count = each;
        }
        RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    }
    RANK_OK(rank, lockstep_start(rank->session));
    many_free(&many);
}

static void the_most_modules_and_parameters(const struct setting *setting)
{
    ranks_run(setting, most_body, NULL);
}

// ---- More parameters than one bucket has -------------------------------------------------------

// Every rank leaves out a fifth of the parameters, and all ranks the same hundredth.
static bool many_reports(uint32_t rank, uint32_t parameter)
{
    return parameter % 97 != 5 && (parameter + rank) % 5 != 0;
}

static float many_gradient(uint32_t rank, uint64_t step, uint32_t parameter)
{
    return (float)(1 + rank + step * 3 + parameter % 11);
}

static void many_step(struct rank *rank, lockstep_module *module, struct many *many, uint64_t step)
{
    lockstep_call *call;
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(module, &call));
    for (uint32_t p = many->count; p-- > 0;) {
        many->values[2 * (size_t)p + 1] =
            many_reports(rank->rank, p) ? many_gradient(rank->rank, step, p) : -1;
        if (many_reports(rank->rank, p))
            RANK_OK(rank, lockstep_grad_ready(module, call, p, NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
    trainer_end(rank);
}

static void many_check(struct rank *rank, const struct many *many, uint64_t step)
{
    for (uint32_t p = 0; p < many->count; p++) {
        const float got = many->values[2 * (size_t)p + 1];
        float expected = -1;
        float sum = 0;
        for (uint32_t r = 0; r < rank->world_size; r++)
            sum += many_reports(r, p) ? many_gradient(r, step, p) : 0;
        if (p % 97 != 5 && sum > 0)
            expected = sum / (float)rank->world_size;
        if (got < expected || got > expected)
            rank_fail(rank, __FILE__, __LINE__, "step %" PRIu64 " p%" PRIu32 " is %g, not %g", step,
                      p, (double)got, (double)expected);
    }
}

static void bucket_body(struct rank *rank)
{
    const uint32_t count = whole_bound() ? LOCKSTEP_MAX_PARAMETERS : LOCKSTEP_BUCKET_PARAMETERS + 9;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    struct many many;
    many_make(rank, count, &many);
    // All values differ, and travel one by one: far more than a rank may be ahead of another one.
    for (uint32_t p = 0; p < count; p++)
        many.values[2 * (size_t)p] = (float)(p % 1000) + (float)rank->rank;
    config.name = "experts";
    config.parameters = many.parameters;
    config.parameter_count = count;
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t p = 0; p < count; p++)
        RANK_TRUE(rank, (uint32_t)many.values[2 * (size_t)p] == p % 1000);
    for (uint64_t step = 1; step <= STEPS; step++) {
        many_step(rank, module, &many, step);
        many_check(rank, &many, step);
        RANK_TRUE(rank,
                  trainer_report(rank).buckets * (uint64_t)LOCKSTEP_BUCKET_PARAMETERS >= count);
    }
    many_free(&many);
}

static void more_parameters_than_a_bucket_has(const struct setting *setting)
{
    ranks_run(setting, bucket_body, NULL);
}

// ---- More buckets than one step has ------------------------------------------------------------

#define OVER_MODULES 5
#define OVER_CALLS 205 // With OVER_MODULES, one call more than a step has buckets.

static int over_call(lockstep_module *module, float *gradient)
{
    lockstep_call *call;
    int status = lockstep_call_begin(module, &call);
    if (status == 0)
        status = lockstep_grad_ready(module, call, 0, gradient, NULL);
    return status == 0 ? lockstep_call_end(call) : status;
}

// Ranks call the modules in different orders.
static void over_body(struct rank *rank)
{
    lockstep_module *modules[OVER_MODULES];
    float gradients[OVER_MODULES][OVER_CALLS] = {{0}};
    int status = 0;
    struct many many;
    many_make(rank, OVER_MODULES, &many);
    for (uint32_t m = 0; m < OVER_MODULES; m++) {
        struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
        config.name = many.names[m];
        config.parameters = &many.parameters[m];
        config.parameter_count = 1;
        config.calls_per_step = OVER_CALLS;
        config.separate_calls = 1;
        RANK_OK(rank, lockstep_module_register(rank->session, &config, &modules[m]));
    }
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    for (uint32_t i = 0; status == 0 && i < OVER_MODULES * OVER_CALLS; i++) {
        const uint32_t m = (i + rank->rank) % OVER_MODULES;
        status = over_call(modules[m], &gradients[m][i / OVER_MODULES]);
    }
    if (status == 0)
        status = lockstep_step_end(rank->session, NULL);
    rank_meet(rank); // A rank that closed before could be what the others hear of.
    RANK_EQUAL(rank, status, LOCKSTEP_E_CONFIG);
    RANK_SAYS(rank, "more than 1024 buckets");
    RANK_SAYS(rank, "make fewer separate calls");
    many_free(&many);
}

static void more_buckets_than_a_step_has(const struct setting *setting)
{
    ranks_run(setting, over_body, NULL);
}

#define BEYOND_BUCKETS (LOCKSTEP_MAX_SLOTS / 2 + 1)

static int beyond_call(lockstep_module *module)
{
    lockstep_call *call;
    int status = lockstep_call_begin(module, &call);
    for (uint32_t p = 0; status == 0 && p < BEYOND_BUCKETS; p++)
        status = lockstep_grad_ready(module, call, p, NULL, NULL);
    return status == 0 ? lockstep_call_end(call) : status;
}

// Each module fits, and both together do not. The second module is called outside the plan.
static void beyond_body(struct rank *rank)
{
    lockstep_module *modules[2];
    struct many many;
    many_make(rank, 2 * BEYOND_BUCKETS, &many);
    for (uint32_t m = 0; m < 2; m++) {
        struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
        config.name = many.names[m];
        config.parameters = &many.parameters[m * BEYOND_BUCKETS];
        config.parameter_count = BEYOND_BUCKETS;
        config.bucket_first_bytes = config.bucket_bytes = config.bucket_last_bytes = sizeof(float);
        RANK_OK(rank, lockstep_module_register(rank->session, &config, &modules[m]));
    }
    RANK_OK(rank, lockstep_start(rank->session));
    for (int step = 1; step <= 2; step++) {
        trainer_begin(rank, NULL);
        RANK_OK(rank, beyond_call(modules[0]));
        trainer_end(rank);
    }
    trainer_begin(rank, NULL);
    RANK_OK(rank, beyond_call(modules[0]));
    RANK_OK(rank, beyond_call(modules[1]));
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "module 'p1' (call 1); with them the step has more than 1024 buckets");
    many_free(&many);
}

static void more_buckets_than_a_planned_step_has(const struct setting *setting)
{
    ranks_run(setting, beyond_body, NULL);
}

int main(void)
{
    static const uint32_t only_three[] = {3, 0};
    static const struct stamp stamps[] = {
        {"the_most_modules_and_parameters", the_most_modules_and_parameters, only_three},
        {"more_parameters_than_a_bucket_has", more_parameters_than_a_bucket_has, only_three},
        {"more_buckets_than_a_step_has", more_buckets_than_a_step_has, only_three},
        {"more_buckets_than_a_planned_step_has", more_buckets_than_a_planned_step_has, only_three},
    };
    return stamp_run("many", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
