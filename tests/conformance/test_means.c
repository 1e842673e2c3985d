// SPDX-License-Identifier: Apache-2.0
//
// Conformance: means that have no place on a rank, in memory of the library (case 57). Case numbers
// are those of the list of cases for reducers. Ranks register no gradient memory: they give it with
// their reports, each rank for other parameters.

#include "tests/support/trainer.h"

#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define PARAMETERS 4
#define STEPS 6

static const uint64_t sizes[PARAMETERS] = {40, 1, 1030, 9};

static void on_demand(struct trained_module *module, struct lockstep_module_config *config)
{
    for (uint32_t p = 0; p < PARAMETERS; p++)
        module->parameters[p].gradient = NULL;
    config->means_on_demand = 1;
}

static void make(struct rank *rank, const char *name, uint32_t index, uint64_t calls,
                 struct trained_module *module)
{
    const struct module_shape shape = {.name = name,
                                       .count = PARAMETERS,
                                       .elements = sizes,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT,
                                       .calls_per_step = calls,
                                       .configure = on_demand};
    trainer_make(rank, &shape, index, module);
}

// True if the rank reports the parameter in the step: parameter 0 by all ranks, 1 by rank 0 alone,
// 2 by one rank after the other, and 3 by no rank.
static bool reports(const struct rank *rank, uint32_t r, uint64_t step, uint32_t p)
{
    return p == 0 || (p == 1 && r == 0) || (p == 2 && step % rank->world_size == r);
}

static void backward(struct rank *rank, struct trained_module *module, uint64_t step)
{
    lockstep_call *call;
    trainer_fill_known(module, rank->rank, step);
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t p = PARAMETERS; p-- > 0;) {
        if (reports(rank, rank->rank, step, p))
            RANK_OK(rank, lockstep_grad_ready(module->module, call, p, module->gradients[p], NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

// Ranks that do not report a parameter count as zeros, unless they made no call.
static void expect_mean(struct rank *rank, struct trained_module *module, uint64_t step, uint32_t p,
                        const float *mean, uint32_t divisor)
{
    uint64_t wrong = 0;
    for (uint64_t e = 0; mean && e < sizes[p]; e++) {
        double sum = 0;
        for (uint32_t r = 0; r < divisor; r++)
            sum += reports(rank, r, step, p) ? (double)trainer_known(module, r, step, p, e) : 0;
        wrong += mean[e] != (float)sum / (float)divisor;
    }
    RANK_EQUAL(rank, wrong, 0);
    if (mean)
        rank_digest(rank, mean, sizes[p] * sizeof(*mean));
}

// `divisor` ranks, the lowest ones, made the call.
static void expect_means(struct rank *rank, struct trained_module *module, uint64_t step,
                         uint32_t divisor)
{
    void *means[PARAMETERS];
    uint8_t used[PARAMETERS];
    RANK_OK(rank, lockstep_module_means(module->module, 0, means, PARAMETERS));
    RANK_OK(rank, lockstep_module_used(module->module, used, PARAMETERS));
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        bool anywhere = false;
        for (uint32_t r = 0; r < divisor; r++)
            anywhere |= reports(rank, r, step, p);
        RANK_EQUAL(rank, used[p], anywhere);
        RANK_EQUAL(rank, means[p] != NULL, anywhere);
        if (rank->rank < divisor && reports(rank, rank->rank, step, p))
            RANK_EQUAL(rank, means[p] == module->gradients[p], true);
        expect_mean(rank, module, step, p, means[p], divisor);
    }
}

static void means_body(struct rank *rank)
{
    struct trained_module module;
    void *none[PARAMETERS];
    make(rank, "net", 0, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_module_means(module.module, 0, none, PARAMETERS));
    for (uint32_t p = 0; p < PARAMETERS; p++)
        RANK_EQUAL(rank, none[p] == NULL, true);
    for (uint64_t step = 1; step <= STEPS; step++) {
        trainer_begin(rank, NULL);
        backward(rank, &module, step);
        trainer_end(rank);
        expect_means(rank, &module, step, rank->world_size);
    }
    trainer_free(&module);
}

// To the fake devices of these settings all memory is theirs, and spare memory is the host's.
static void run(const struct setting *setting, void (*body)(struct rank *rank),
                void (*configure)(struct rank *rank, struct lockstep_config *config))
{
    const struct cluster_test test = {.setting = setting, .configure = configure, .body = body};
    if (setting->devices > 0)
        print_message("skipped: gradients on devices have no spare memory\n");
    else
        ranks_run_test(&test);
}

static void case_57_each_rank_reports_others(const struct setting *setting)
{
    run(setting, means_body, NULL);
}

// The last rank makes no call: it gets all means.
static void idle_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, "net", 0, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    const uint32_t callers = rank->world_size - 1;
    for (uint64_t step = 1; step <= STEPS; step++) {
        trainer_begin(rank, NULL);
        if (rank->rank < callers)
            backward(rank, &module, step);
        trainer_end(rank);
        expect_means(rank, &module, step, callers);
    }
    trainer_free(&module);
}

static void case_57_without_a_call(const struct setting *setting)
{
    run(setting, idle_body, NULL);
}

static void uneven(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->uneven = LOCKSTEP_UNEVEN_ALL;
}

// Rank 0 alone has data.
static void exhausted_body(struct rank *rank)
{
    struct trained_module module;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    make(rank, "net", 0, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    options.exhausted = rank->rank > 0;
    for (uint64_t step = 1; step <= STEPS; step++) {
        trainer_begin(rank, &options);
        if (rank->rank == 0)
            backward(rank, &module, step);
        trainer_end(rank);
        expect_means(rank, &module, step, 1);
    }
    trainer_free(&module);
}

static void case_57_without_data(const struct setting *setting)
{
    run(setting, exhausted_body, uneven);
}

// With separate calls each call has means of its own. Rank 0 makes both, the others the first one.
static void separate(struct trained_module *module, struct lockstep_module_config *config)
{
    on_demand(module, config);
    config->separate_calls = 1;
}

static void separate_body(struct rank *rank)
{
    struct trained_module module;
    const struct module_shape shape = {.name = "net",
                                       .count = PARAMETERS,
                                       .elements = sizes,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT,
                                       .calls_per_step = 2,
                                       .configure = separate};
    static float second[CLUSTER_MAX_WORLD][1030];
    float *memory = second[rank->rank];
    void *means[PARAMETERS];
    lockstep_call *call;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= STEPS; step++) {
        trainer_begin(rank, NULL);
        backward(rank, &module, step);
        if (rank->rank == 0) {
            for (uint64_t e = 0; e < sizes[2]; e++)
                memory[e] = (float)(step * 3 + e);
            RANK_OK(rank, lockstep_call_begin(module.module, &call));
            RANK_OK(rank, lockstep_grad_ready(module.module, call, 2, memory, NULL));
            RANK_OK(rank, lockstep_call_end(call));
        }
        trainer_end(rank);
        expect_means(rank, &module, step, rank->world_size);
        RANK_OK(rank, lockstep_module_means(module.module, 1, means, PARAMETERS));
        for (uint32_t p = 0; p < PARAMETERS; p++)
            RANK_EQUAL(rank, means[p] != NULL, p == 2);
        RANK_EQUAL(rank, rank->rank > 0 || means[2] == memory, true);
        for (uint64_t e = 0; means[2] && e < sizes[2]; e++)
            RANK_EQUAL(rank, ((float *)means[2])[e] == (float)(step * 3 + e), true);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_module_means(module.module, 2, means, PARAMETERS));
        RANK_SAYS(rank, "has the means of 2 calls");
    }
    trainer_free(&module);
}

static void case_57_separate_calls(const struct setting *setting)
{
    if (setting->world_size > 1)
        run(setting, separate_body, NULL);
}

// ---- Memory ------------------------------------------------------------------------------------

#define LARGE (32 << 20) // Elements.

// Resident bytes of the process, in MiB.
static long resident(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages / 256;
}

static void large_body(struct rank *rank)
{
    static float small_value[2];
    float gradient = 1;
    int64_t elements = LARGE;
    struct lockstep_parameter parameters[2] = {LOCKSTEP_PARAMETER_INIT, LOCKSTEP_PARAMETER_INIT};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    lockstep_call *call;
    void *value;
    const uint32_t unused = 1;
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    RANK_OK(rank, lockstep_alloc(rank->session, sizeof(float) * LARGE, &value));
    parameters[0].name = "small";
    parameters[0].data = small_value;
    parameters[1].name = "large";
    parameters[1].dims = 1;
    parameters[1].shape = &elements;
    parameters[1].data = value;
    config.name = "net";
    config.parameters = parameters;
    config.parameter_count = 2;
    config.means_on_demand = 1;
    const long before = resident();
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= 3; step++) {
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(module, &call));
        RANK_OK(rank, lockstep_call_unused(call, &unused, 1));
        RANK_OK(rank, lockstep_grad_ready(module, call, 0, &gradient, NULL));
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    }
    RANK_EQUAL(rank, resident() - before < 64, true); // The gradient would have 128 MiB.
}

static void case_57_unneeded_memory_is_not_used(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = large_body, .without_session = true};
    ranks_run_test(&test);
}

// ---- What cannot be ----------------------------------------------------------------------------

static void not_asked_for_body(struct rank *rank)
{
    struct trained_module module;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    void *means[PARAMETERS];
    const struct module_shape shape = {.name = "net", .count = PARAMETERS, .elements = sizes};
    trainer_make(rank, &shape, 0, &module);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_module_means(module.module, 0, means, PARAMETERS));
    RANK_SAYS(rank, "lockstep_start");
    RANK_OK(rank, lockstep_start(rank->session));
    options.accumulate = 1;
    trainer_begin(rank, &options);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_module_means(module.module, 0, means, PARAMETERS));
    trainer_end(rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_module_means(module.module, 0, means, PARAMETERS));
    trainer_begin(rank, NULL);
    trainer_fill_known(&module, rank->rank, 1);
    trainer_call(rank, &module);
    trainer_end(rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_means(module.module, 0, means, 3));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_means(module.module, 0, NULL, PARAMETERS));
    RANK_OK(rank, lockstep_module_means(module.module, 0, means, PARAMETERS));
    for (uint32_t p = 0; p < PARAMETERS; p++)
        RANK_EQUAL(rank, means[p] == module.gradients[p], true);
    trainer_free(&module);
}

static void registered_memory(const struct setting *setting)
{
    const struct cluster_test test = {.setting = setting, .body = not_asked_for_body};
    ranks_run_test(&test);
}

static void refused_body(struct rank *rank)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    config.name = "net";
    config.means_on_demand = 2;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_register(rank->session, &config, &module));
    RANK_SAYS(rank, "means_on_demand");
    config.means_on_demand = 1;
    config.replicas = 2;
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED,
               lockstep_module_register(rank->session, &config, &module));
    RANK_SAYS(rank, "replicas");
}

static void refused(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = refused_body, .without_session = true};
    ranks_run_test(&test);
}

static const uint32_t one[] = {1, 0};

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_57_each_rank_reports_others", case_57_each_rank_reports_others, NULL},
        {"case_57_without_a_call", case_57_without_a_call, NULL},
        {"case_57_without_data", case_57_without_data, NULL},
        {"case_57_separate_calls", case_57_separate_calls, NULL},
        {"case_57_unneeded_memory_is_not_used", case_57_unneeded_memory_is_not_used, one},
        {"registered_memory", registered_memory, NULL},
        {"refused", refused, one},
    };
    return stamp_run("means", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
