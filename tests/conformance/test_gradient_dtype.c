// SPDX-License-Identifier: Apache-2.0
//
// Conformance: gradients of another dtype than their values (case 56). Case numbers are those of
// the list of cases for reducers. Values and gradients lie in memory of exactly their size, with
// guards behind them.

#include "tests/support/cluster.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PARAMETERS 6
#define STEPS 3
#define GUARD 64
#define MOST 130

struct kind {
    lockstep_dtype value;
    uint32_t gradient; // 0: as the value.
    int64_t elements;
};

static const struct kind kinds[PARAMETERS] = {
    {LOCKSTEP_FLOAT32, LOCKSTEP_BFLOAT16, 33},
    {LOCKSTEP_BFLOAT16, LOCKSTEP_FLOAT32, 130},
    {LOCKSTEP_FLOAT32, 0, 7},
    {LOCKSTEP_FLOAT64, LOCKSTEP_FLOAT16, 20},
    {LOCKSTEP_INT8, LOCKSTEP_FLOAT32, 50},
    {LOCKSTEP_FLOAT16, LOCKSTEP_FLOAT64, 1},
};
static const char *const names[PARAMETERS] = {"a", "b", "c", "d", "e", "f"};

static size_t size_of(uint32_t dtype)
{
    switch (dtype) {
    case LOCKSTEP_FLOAT64:
        return 8;
    case LOCKSTEP_FLOAT32:
        return 4;
    case LOCKSTEP_INT8:
        return 1;
    default:
        return 2;
    }
}

static uint32_t gradient_dtype(uint32_t p)
{
    return kinds[p].gradient == 0 ? (uint32_t)kinds[p].value : kinds[p].gradient;
}

// ---- Elements ----------------------------------------------------------------------------------

// Small integers and halves: exact in every dtype of the test.
static void put(void *memory, uint32_t dtype, int64_t e, double value)
{
    const float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof(bits));
    if (dtype == LOCKSTEP_FLOAT64)
        ((double *)memory)[e] = value;
    else if (dtype == LOCKSTEP_FLOAT32)
        ((float *)memory)[e] = single;
    else if (dtype == LOCKSTEP_BFLOAT16)
        ((uint16_t *)memory)[e] = (uint16_t)(bits >> 16);
    else if (value == 0)
        ((uint16_t *)memory)[e] = 0;
    else // float16 of a normal number: the exponent has another bias.
        ((uint16_t *)memory)[e] =
            (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 13 & 0x3ffff) - (112u << 10)));
}

static double get(const void *memory, uint32_t dtype, int64_t e)
{
    const uint16_t half = ((const uint16_t *)memory)[dtype == LOCKSTEP_FLOAT16 ? e : 0];
    const uint32_t wide = (uint32_t)((const uint16_t *)memory)[dtype == LOCKSTEP_BFLOAT16 ? e : 0]
                          << 16;
    float single;
    memcpy(&single, &wide, sizeof(single));
    if (dtype == LOCKSTEP_FLOAT64)
        return ((const double *)memory)[e];
    if (dtype == LOCKSTEP_FLOAT32)
        return (double)((const float *)memory)[e];
    if (dtype == LOCKSTEP_BFLOAT16)
        return (double)single;
    if ((half & 0x7fff) == 0)
        return 0;
    return ldexp((half & 0x8000) != 0 ? -1024 - (half & 0x3ff) : 1024 + (half & 0x3ff),
                 (half >> 10 & 0x1f) - 25);
}

static double known(uint32_t rank, uint64_t step, uint32_t p, int64_t e)
{
    return (double)((int64_t)(rank * 3 + step * 5 + p * 7 + (uint64_t)e) % 17 - 8);
}

// ---- The module --------------------------------------------------------------------------------

struct net {
    lockstep_module *module;
    struct lockstep_parameter parameters[2 * PARAMETERS]; // The parameters of two replicas.
    char *values[2 * PARAMETERS];
    char *gradients[2 * PARAMETERS];
};

static char *memory_of(size_t bytes)
{
    char *memory = malloc(bytes + GUARD);
    memset(memory, 0, bytes);
    memset(memory + bytes, 0x5a, GUARD);
    return memory;
}

static bool intact(const char *memory, size_t bytes)
{
    for (size_t i = bytes; i < bytes + GUARD; i++) {
        if (memory[i] != 0x5a)
            return false;
    }
    return true;
}

static size_t value_bytes(uint32_t p)
{
    return (size_t)kinds[p].elements * size_of((uint32_t)kinds[p].value);
}

static size_t gradient_bytes(uint32_t p)
{
    return (size_t)kinds[p].elements * size_of(gradient_dtype(p));
}

static void describe(struct net *net, uint32_t replicas, bool registered,
                     struct lockstep_module_config *config)
{
    const struct lockstep_module_config defaults = LOCKSTEP_MODULE_INIT;
    *config = defaults;
    memset(net, 0, sizeof(*net));
    for (uint32_t i = 0; i < replicas * PARAMETERS; i++) {
        const uint32_t p = i % PARAMETERS;
        const struct lockstep_parameter made = LOCKSTEP_PARAMETER_INIT;
        net->parameters[i] = made;
        net->values[i] = memory_of(value_bytes(p));
        net->gradients[i] = memory_of(gradient_bytes(p));
        net->parameters[i].name = names[p];
        net->parameters[i].dtype = kinds[p].value;
        net->parameters[i].gradient_dtype = kinds[p].gradient;
        net->parameters[i].dims = 1;
        net->parameters[i].shape = &kinds[p].elements;
        net->parameters[i].data = net->values[i];
        net->parameters[i].gradient = registered ? net->gradients[i] : NULL;
    }
    config->name = "net";
    config->parameters = net->parameters;
    config->parameter_count = PARAMETERS;
    config->replicas = replicas;
}

static void unmake(struct net *net, uint32_t replicas)
{
    for (uint32_t i = 0; i < replicas * PARAMETERS; i++) {
        free(net->values[i]);
        free(net->gradients[i]);
    }
}

// Values of rank r are all bytes r + 1 but for their last element.
static void fill_values(struct net *net, uint32_t replicas, uint32_t rank)
{
    for (uint32_t i = 0; i < replicas * PARAMETERS; i++)
        memset(net->values[i], (int)(rank + 1 + i), value_bytes(i % PARAMETERS));
}

static void expect_values_of_root(struct rank *rank, const struct net *net, uint32_t replicas)
{
    for (uint32_t i = 0; i < replicas * PARAMETERS; i++) {
        const uint32_t p = i % PARAMETERS;
        uint64_t wrong = 0;
        for (size_t b = 0; b < value_bytes(p); b++)
            wrong += (unsigned char)net->values[i][b] != 1 + p;
        RANK_EQUAL(rank, wrong, 0);
        RANK_EQUAL(rank, intact(net->values[i], value_bytes(p)), true);
        RANK_EQUAL(rank, intact(net->gradients[i], gradient_bytes(p)), true);
    }
}

// The sum is exact. 16-bit floats are rounded on their way, by at most 1/16 each time up to 32.
static bool is_mean(double found, uint32_t dtype, double sum, uint32_t world)
{
    if (dtype == LOCKSTEP_FLOAT64)
        return found == sum / world;
    if (dtype == LOCKSTEP_FLOAT32)
        return found == (double)((float)sum / (float)world);
    return fabs(found - sum / world) <= (world == 1 ? 0 : 1.0 / 16);
}

static void expect_means(struct rank *rank, const struct net *net, uint32_t replicas, uint64_t step)
{
    for (uint32_t i = 0; i < replicas * PARAMETERS; i++) {
        const uint32_t p = i % PARAMETERS;
        uint64_t wrong = 0;
        for (int64_t e = 0; e < kinds[p].elements; e++) {
            double sum = 0;
            for (uint32_t r = 0; r < rank->world_size; r++)
                sum += known(r, step, p, e);
            const double found = get(net->gradients[i], gradient_dtype(p), e);
            wrong += !is_mean(found, gradient_dtype(p), sum, rank->world_size);
        }
        RANK_EQUAL(rank, wrong, 0);
        rank_digest(rank, net->gradients[i], gradient_bytes(p));
    }
}

static void run_step(struct rank *rank, struct net *net, uint32_t replicas, uint64_t step)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_OK(rank, lockstep_call_begin(net->module, &call));
    for (uint32_t i = replicas * PARAMETERS; i-- > 0;) {
        const uint32_t p = i % PARAMETERS;
        for (int64_t e = 0; e < kinds[p].elements; e++)
            put(net->gradients[i], gradient_dtype(p), e, known(rank->rank, step, p, e));
        RANK_OK(rank, lockstep_replica_ready(net->module, call, i / PARAMETERS, p,
                                             net->parameters[i].gradient ? NULL : net->gradients[i],
                                             NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    expect_means(rank, net, replicas, step);
}

static void train(struct rank *rank, uint32_t replicas, bool registered)
{
    struct lockstep_module_config config;
    struct net net;
    describe(&net, replicas, registered, &config);
    fill_values(&net, replicas, rank->rank);
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &net.module));
    RANK_OK(rank, lockstep_start(rank->session));
    expect_values_of_root(rank, &net, replicas);
    for (uint64_t step = 1; step <= STEPS; step++)
        run_step(rank, &net, replicas, step);
    RANK_OK(rank, lockstep_state_check(rank->session));
    expect_values_of_root(rank, &net, replicas);
    unmake(&net, replicas);
}

static void run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {.setting = setting, .body = body};
    ranks_run_test(&test);
}

static void registered_body(struct rank *rank)
{
    train(rank, 1, true);
}

static void given_body(struct rank *rank)
{
    train(rank, 1, false);
}

static void replicas_body(struct rank *rank)
{
    train(rank, 2, true);
}

static void case_56_registered_memory(const struct setting *setting)
{
    run(setting, registered_body);
}

static void case_56_memory_of_each_step(const struct setting *setting)
{
    run(setting, given_body);
}

static void case_56_replicas(const struct setting *setting)
{
    run(setting, replicas_body);
}

// Layouts name the dtypes of gradients, and memory of the library has their sizes.
static void saving_body(struct rank *rank)
{
    struct lockstep_module_config config;
    struct net net;
    void *given[PARAMETERS];
    describe(&net, 1, false, &config);
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &net.module));
    RANK_OK(rank, lockstep_module_gradients(net.module, given, PARAMETERS));
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        for (uint32_t q = 0; q < PARAMETERS; q++) // No two overlap.
            RANK_EQUAL(rank,
                       p == q || (char *)given[p] + gradient_bytes(p) <= (char *)given[q] ||
                           (char *)given[q] + gradient_bytes(q) <= (char *)given[p],
                       1);
    }
    RANK_OK(rank, lockstep_start(rank->session));
    run_step(rank, &net, 1, 1);
    RANK_OK(rank, lockstep_layout_save(rank->session, rank->context));
    unmake(&net, 1);
}

static void loading_body(struct rank *rank)
{
    struct lockstep_module_config config;
    struct net net;
    describe(&net, 1, true, &config);
    net.parameters[0].gradient_dtype = LOCKSTEP_FLOAT16;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &net.module));
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_layout_load(rank->session, rank->context));
    RANK_SAYS(rank, "has 33 elements of float16");
    RANK_OK(rank, lockstep_module_close(net.module));
    net.parameters[0].gradient_dtype = LOCKSTEP_BFLOAT16;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &net.module));
    RANK_OK(rank, lockstep_layout_load(rank->session, rank->context));
    RANK_OK(rank, lockstep_start(rank->session));
    run_step(rank, &net, 1, 1);
    unmake(&net, 1);
}

static void case_56_saved_layouts(const struct setting *setting)
{
    char path[] = "/tmp/lockstep-dtypes-XXXXXX";
    const int descriptor = mkstemp(path);
    const struct cluster_test saving = {.setting = setting, .body = saving_body, .context = path};
    const struct cluster_test loading = {.setting = setting, .body = loading_body, .context = path};
    assert_true(descriptor >= 0);
    ranks_run_test(&saving);
    ranks_run_test(&loading);
    close(descriptor);
    unlink(path);
}

// ---- What goes wrong ---------------------------------------------------------------------------

static void differing_body(struct rank *rank)
{
    struct lockstep_module_config config;
    struct net net;
    describe(&net, 1, true, &config);
    if (rank->rank == 0)
        net.parameters[2].gradient_dtype = LOCKSTEP_BFLOAT16;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &net.module));
    rank_meet(rank);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "c: gradient_dtype=bfloat16 on rank 0");
    unmake(&net, 1);
}

static void case_56_ranks_differ(const struct setting *setting)
{
    run(setting, differing_body);
}

static void refuse(struct rank *rank, struct net *net, struct lockstep_module_config *config,
                   const char *part)
{
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_module_register(rank->session, config, &net->module));
    RANK_SAYS(rank, part);
}

static void misuse_body(struct rank *rank)
{
    struct lockstep_module_config config;
    struct net net;
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    describe(&net, 2, true, &config);
    net.parameters[1].gradient_dtype = LOCKSTEP_INT32;
    refuse(rank, &net, &config, "'b' has gradient_dtype 3 (int32)");
    net.parameters[1].gradient_dtype = 99;
    refuse(rank, &net, &config, "'b' has gradient_dtype 99");
    net.parameters[1].gradient_dtype = LOCKSTEP_FLOAT64;
    refuse(rank, &net, &config, "differs from that of replica 0 in its gradient_dtype");
    net.parameters[1].gradient_dtype = LOCKSTEP_FLOAT32;
    net.parameters[4].gradient_dtype = 0;
    refuse(rank, &net, &config, "a mean of integers does not exist");
    config.replicas = 1;
    net.parameters[4].gradient_dtype = LOCKSTEP_FLOAT32;
    // The gradient of 'b' is longer than its value, and reaches into that of 'c'.
    char *block = memory_of(gradient_bytes(1) + gradient_bytes(2));
    net.parameters[1].gradient = block;
    net.parameters[2].gradient = block + gradient_bytes(1) - 4;
    refuse(rank, &net, &config, "overlap in memory: they have 4 bytes");
    net.parameters[1].gradient = net.gradients[1];
    free(block);
    net.parameters[2] = net.parameters[0];
    net.parameters[2].name = "tied";
    net.parameters[2].flags = LOCKSTEP_PARAMETER_SHARED;
    net.parameters[2].gradient_dtype = 0;
    refuse(rank, &net, &config, "gradient_dtype");
    unmake(&net, 2);
}

static void declared_wrongly(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = misuse_body, .without_session = true};
    ranks_run_test(&test);
}

static void alone_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    train(rank, 2, true);
}

static void alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = alone_body, .without_session = true};
    ranks_run_test(&test);
}

static const uint32_t one[] = {1, 0};

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_56_registered_memory", case_56_registered_memory, NULL},
        {"case_56_memory_of_each_step", case_56_memory_of_each_step, NULL},
        {"case_56_replicas", case_56_replicas, NULL},
        {"case_56_saved_layouts", case_56_saved_layouts, one},
        {"case_56_ranks_differ", case_56_ranks_differ, NULL},
        {"declared_wrongly", declared_wrongly, one},
        {"alone", alone, one},
    };
    return stamp_run("gradient_dtype", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
