// SPDX-License-Identifier: Apache-2.0
//
// Conformance: with config.virtual_ranks the bits of a training run do not depend on the number of
// ranks. Case numbers are those of the list of cases for reducers.
//
// The model has noise for gradients, which depends on the leaf and on the step. Each leaf leaves
// out another parameter, one leaf has weight 0, and the second module is called by some leaves
// only.

#include "tests/support/trainer.h"
#include "worker/kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEAVES_STEPS 3

static const uint64_t sizes[] = {1, 40000, 3, 17, 400, 1000, 3000};
static const lockstep_dtype dtypes[] = {LOCKSTEP_FLOAT32, LOCKSTEP_FLOAT32,  LOCKSTEP_FLOAT64,
                                        LOCKSTEP_FLOAT32, LOCKSTEP_BFLOAT16, LOCKSTEP_FLOAT16,
                                        LOCKSTEP_FLOAT32};
#define LEAVES_TENSORS (sizeof(sizes) / sizeof(sizes[0]))
#define LEAVES_NEVER 3 // No leaf uses this parameter.
#define LEAVES_ASIDE 3 // Parameters of the second module.

// How one world trains.
struct training {
    uint32_t leaves;
    size_t bucket_bytes;
    lockstep_wire wire;
    lockstep_gradient_kind kind;
    int32_t exponent;
    bool ranks; // True if a rank is no leaf: the control, without config.virtual_ranks.
};

static void leaves_configure(struct rank *rank, struct lockstep_config *config)
{
    const struct training *training = rank->context;
    config->virtual_ranks = training->ranks ? 0 : training->leaves;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes =
        training->bucket_bytes;
}

static bool leaf_uses(uint32_t leaf, uint32_t parameter)
{
    return parameter != LEAVES_NEVER && parameter != leaf % LEAVES_TENSORS;
}

// Adds a leaf's gradients to the memory of a module, as a backward pass does. Parameters with odd
// numbers are overwritten instead, as by a backward pass that begins with zeros.
static void leaf_backward(struct trained_module *module, uint32_t leaf, uint64_t step)
{
    uint64_t state = ((uint64_t)leaf << 32) + (step << 8) + module->index;
    for (uint32_t p = 0; p < module->shape.count; p++) {
        for (uint64_t i = 0; leaf_uses(leaf, p) && i < sizes[p]; i++) {
            const uint64_t bits = trainer_random(&state);
            const double wide = (double)(int64_t)bits / 9e18 * (double)(1u << (bits & 7));
            uint16_t *small = (uint16_t *)module->gradients[p] + i;
            float value = (float)wide;
            float before = 0;
            if (dtypes[p] == LOCKSTEP_FLOAT64) {
                double *one = (double *)module->gradients[p] + i;
                *one = p % 2 == 0 ? *one + wide : wide;
            } else if (dtypes[p] == LOCKSTEP_FLOAT32) {
                float *one = (float *)module->gradients[p] + i;
                *one = p % 2 == 0 ? *one + value : value;
            } else {
                kernel_widen((enum dtype)dtypes[p], &before, small, 1);
                value += p % 2 == 0 ? before : 0;
                kernel_narrow((enum dtype)dtypes[p], small, &value, 1);
            }
        }
    }
}

static void clear(struct trained_module *module)
{
    for (uint32_t p = 0; p < module->shape.count; p++)
        memset(module->gradients[p], 0,
               sizes[p] * (dtypes[p] == LOCKSTEP_FLOAT64   ? 8
                           : dtypes[p] == LOCKSTEP_FLOAT32 ? 4
                                                           : 2));
}

static void update(struct trained_module *module)
{
    for (uint32_t p = 0; p < module->shape.count; p++)
        for (uint64_t i = 0; i < sizes[p]; i++)
            if (dtypes[p] == LOCKSTEP_FLOAT64)
                ((double *)module->data[p])[i] -= 0.1 * ((double *)module->gradients[p])[i];
            else if (dtypes[p] == LOCKSTEP_FLOAT32)
                ((float *)module->data[p])[i] -= 0.1f * ((float *)module->gradients[p])[i];
}

static bool leaf_calls_aside(uint32_t leaf)
{
    return leaf % 3 == 1;
}

static void train_leaf(struct rank *rank, struct trained_module modules[2], uint32_t leaf,
                       uint64_t step)
{
    uint64_t used = 0;
    leaf_backward(&modules[0], leaf, step);
    for (uint32_t p = 0; p < LEAVES_TENSORS; p++)
        used |= (uint64_t)leaf_uses(leaf, p) << p;
    trainer_call_used(rank, &modules[0], used);
    if (!leaf_calls_aside(leaf))
        return;
    leaf_backward(&modules[1], leaf, step);
    trainer_call_used(rank, &modules[1], used);
}

// One step of training: the leaves of this rank. Without leaves the rank accumulates as usual.
static void train_step(struct rank *rank, struct trained_module modules[2], uint64_t step)
{
    const struct training *training = rank->context;
    uint32_t first, count, total;
    RANK_OK(rank, lockstep_leaves(rank->session, &first, &count, &total));
    if (training->ranks) {
        RANK_EQUAL(rank, first, rank->rank);
        RANK_EQUAL(rank, count, 1);
        RANK_EQUAL(rank, total, rank->world_size);
        first = rank->rank * training->leaves / rank->world_size;
        count = (rank->rank + 1) * training->leaves / rank->world_size - first;
    } else {
        RANK_EQUAL(rank, total, training->leaves);
    }
    clear(&modules[0]);
    clear(&modules[1]);
    for (uint32_t leaf = first; leaf < first + count; leaf++) {
        struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
        options.accumulate = leaf + 1 < first + count;
        if (!training->ranks)
            options.weight = leaf == 6 ? 0 : leaf % 3 + 1;
        trainer_begin(rank, &options);
        train_leaf(rank, modules, leaf, step);
        trainer_end(rank);
    }
}

static void configure_module(struct trained_module *module, struct lockstep_module_config *config)
{
    config->float16_exponent = module->index == 0 ? -3 : 0;
}

static void leaves_body(struct rank *rank)
{
    const struct training *training = rank->context;
    struct module_shape shape = {.name = "net",
                                 .count = LEAVES_TENSORS,
                                 .elements = sizes,
                                 .dtypes = dtypes,
                                 .wire = training->wire,
                                 .kind = training->kind,
                                 .unused = LOCKSTEP_UNUSED_ACCEPT,
                                 .configure = training->exponent != 0 ? configure_module : NULL};
    struct trained_module modules[2];
    uint64_t hash;
    trainer_make(rank, &shape, 0, &modules[0]);
    shape.name = "aside";
    shape.count = LEAVES_ASIDE;
    trainer_make(rank, &shape, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= LEAVES_STEPS; step++) {
        train_step(rank, modules, step);
        update(&modules[0]);
        update(&modules[1]);
        trainer_digest(rank, &modules[0]);
        trainer_digest(rank, &modules[1]);
        RANK_OK(rank, lockstep_state_hash(rank->session, &hash));
        rank_digest(rank, &hash, sizeof(hash));
    }
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

// A way for a job to run.
struct way {
    const char *name;
    uint32_t hosts;
    size_t bucket_bytes;
};

static uint64_t train(struct way way, uint32_t world, struct training training)
{
    struct setting setting = setting_named(way.name);
    const struct cluster_test test = {.setting = &setting,
                                      .configure = leaves_configure,
                                      .body = leaves_body,
                                      .context = &training};
    setting.world_size = world;
    training.bucket_bytes = way.bucket_bytes;
    if (way.hosts > 0)
        setting.hosts = way.hosts;
    return ranks_run_test(&test);
}

static const struct way ways[] = {{"tcp", 0, 1 << 20},
                                  {"shared", 0, 1 << 20},
                                  {"shared", 2, 1},
                                  {"torn_7", 0, 1000},
                                  {"loopback", 0, 100000}};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

// All worlds, each in every way. By day each world runs in so many of the ways, in turn.
static void same_everywhere(struct training training, const uint32_t *worlds, uint32_t by_day)
{
    uint64_t first = 0;
    for (uint32_t w = 0; worlds[w] > 0; w++) {
        for (size_t i = 0; i < WAYS; i++) {
            if (!test_everything() && (i + WAYS - w % WAYS) % WAYS >= by_day)
                continue;
            const uint64_t digest = train(ways[i], worlds[w], training);
            if (w == 0 && i == 0)
                first = digest;
            if (digest != first)
                fail_msg("%u leaves: other bits with %u ranks by %s, %u hosts, buckets of %zu "
                         "bytes",
                         training.leaves, worlds[w], ways[i].name, ways[i].hosts,
                         ways[i].bucket_bytes);
        }
    }
}

static void case_54_same_bits_on_any_number_of_ranks(void **state)
{
    (void)state;
    same_everywhere((struct training){.leaves = 8}, (const uint32_t[]){1, 2, 3, 4, 8, 0}, 2);
}

static void case_54_any_number_of_leaves(void **state)
{
    (void)state;
    same_everywhere((struct training){.leaves = 7}, (const uint32_t[]){2, 5, 7, 0}, 1);
    same_everywhere((struct training){.leaves = 64}, (const uint32_t[]){1, 3, 0}, 1);
}

static void case_54_sums_and_narrow_and_wide_wires(void **state)
{
    static const uint32_t worlds[] = {1, 3, 4, 0};
    (void)state;
    same_everywhere((struct training){.leaves = 8, .wire = LOCKSTEP_WIRE_BFLOAT16, .exponent = -3},
                    worlds, 1);
    same_everywhere((struct training){.leaves = 8,
                                      .wire = LOCKSTEP_WIRE_FLOAT32,
                                      .kind = LOCKSTEP_GRADIENT_SUM},
                    worlds, 1);
}

// ---- Known numbers ------------------------------------------------------------------------------

#define KNOWN_LEAVES 6

static void known_body(struct rank *rank)
{
    const struct module_shape shape = {
        .name = "net", .count = 4, .elements = sizes, .dtypes = dtypes};
    uint64_t weights[KNOWN_LEAVES];
    struct trained_module module;
    // trainer_expect_mean expects the mean over the ranks of a world, and leaves are like ranks.
    struct rank job = *rank;
    uint32_t first, count;
    job.world_size = KNOWN_LEAVES;
    for (uint32_t leaf = 0; leaf < KNOWN_LEAVES; leaf++)
        weights[leaf] = leaf * leaf;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_leaves(rank->session, &first, &count, NULL));
    for (uint64_t step = 1; step <= LEAVES_STEPS; step++) {
        for (uint32_t leaf = first; leaf < first + count; leaf++) {
            struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
            options.accumulate = leaf + 1 < first + count;
            options.weight = weights[leaf];
            trainer_begin(rank, &options);
            trainer_fill_known(&module, leaf, step);
            trainer_call(rank, &module);
            trainer_end(rank);
        }
        trainer_expect_mean(&job, &module, step, weights);
        RANK_EQUAL(rank, trainer_report(rank).weight_total, 1 + 4 + 9 + 16 + 25);
    }
    trainer_free(&module);
}

static void case_54_weights_against_closed_form(void **state)
{
    struct training training = {.leaves = KNOWN_LEAVES, .bucket_bytes = 1000};
    struct setting setting = setting_named("shared");
    const struct cluster_test test = {.setting = &setting,
                                      .configure = leaves_configure,
                                      .body = known_body,
                                      .context = &training};
    (void)state;
    for (setting.world_size = 1; setting.world_size <= KNOWN_LEAVES; setting.world_size += 2)
        (void)ranks_run_test(&test);
}

// ---- A world of one without a coordinator -------------------------------------------------------

struct alone {
    struct training training;
    uint64_t hash; // Of the parameters, after the last step.
};

static void alone_body(struct rank *rank)
{
    struct alone *alone = rank->context;
    struct rank inner = *rank;
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct trained_module modules[2];
    struct module_shape shape = {.name = "net",
                                 .count = LEAVES_TENSORS,
                                 .elements = sizes,
                                 .dtypes = dtypes,
                                 .unused = LOCKSTEP_UNUSED_ACCEPT};
    inner.context = &alone->training;
    if (rank->world_size > 1)
        config = rank_config(rank);
    leaves_configure(&inner, &config);
    RANK_OK(rank, lockstep_open(&config, &inner.session));
    trainer_make(&inner, &shape, 0, &modules[0]);
    shape.name = "aside";
    shape.count = LEAVES_ASIDE;
    trainer_make(&inner, &shape, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(inner.session));
    for (uint64_t step = 1; step <= LEAVES_STEPS; step++) {
        train_step(&inner, modules, step);
        update(&modules[0]);
        update(&modules[1]);
    }
    if (rank->rank == 0)
        RANK_OK(rank, lockstep_state_hash(inner.session, &alone->hash));
    RANK_OK(rank, lockstep_close(inner.session));
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static uint64_t train_alone(uint32_t world)
{
    struct alone alone = {.training = {.leaves = 8, .bucket_bytes = 1 << 20}};
    struct setting setting = setting_named("tcp");
    const struct cluster_test test = {
        .setting = &setting, .body = alone_body, .context = &alone, .without_session = true};
    setting.world_size = world;
    (void)ranks_run_test(&test);
    return alone.hash;
}

static void case_54_a_session_without_a_coordinator(void **state)
{
    (void)state;
    assert_true(train_alone(1) == train_alone(3));
}

// ---- What shows that the tests above can fail ---------------------------------------------------

// Without virtual ranks the same noise gives other bits in another world. (All weights are 1 then,
// so the worlds are compared with each other only.)
static void case_54_noise_shows_the_world(void **state)
{
    const struct training training = {.leaves = 8, .ranks = true};
    (void)state;
    assert_true(train(ways[0], 2, training) != train(ways[0], 4, training));
}

// ---- Refusals -----------------------------------------------------------------------------------

static void steps_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    const struct module_shape shape = {.name = "net", .count = 1, .elements = sizes};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct trained_module module;
    lockstep_module *refused;
    config.name = "refused";
    config.separate_calls = 1;
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED,
               lockstep_module_register(rank->session, &config, &refused));
    RANK_SAYS(rank, "separate_calls");
    config.separate_calls = 0;
    config.replicas = 2;
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED,
               lockstep_module_register(rank->session, &config, &refused));
    RANK_SAYS(rank, "replicas");
    config.replicas = 1;
    config.on_abort = LOCKSTEP_ABORT_ACCEPT;
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED,
               lockstep_module_register(rank->session, &config, &refused));
    RANK_SAYS(rank, "LOCKSTEP_ABORT_ACCEPT");
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED,
               lockstep_uneven_set(rank->session, LOCKSTEP_UNEVEN_FIRST));
    RANK_SAYS(rank, "weight 0");
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    // Two leaves on each rank: 0 and 1, 2 and 3.
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, &options, NULL));
    RANK_SAYS(rank, "is not the last, so accumulate is 1");
    options.accumulate = 1;
    options.weight = UINT64_C(1) << 48;
    trainer_begin(rank, &options);
    trainer_call(rank, &module);
    trainer_end(rank);
    options.weight = 1;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, &options, NULL));
    RANK_SAYS(rank, rank->rank == 0 ? "leaf 1 is the last" : "leaf 3 is the last");
    options.accumulate = 0;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, &options, NULL));
    RANK_SAYS(rank, "2^48");
    options.weight = 0;
    trainer_begin(rank, &options);
    trainer_call(rank, &module);
    trainer_end(rank);
    trainer_free(&module);
}

static void case_54_another_number_of_steps_is_refused(void **state)
{
    struct training training = {.leaves = 4};
    struct setting setting = setting_named("tcp");
    const struct cluster_test test = {.setting = &setting,
                                      .configure = leaves_configure,
                                      .body = steps_body,
                                      .context = &training};
    (void)state;
    setting.world_size = 2;
    (void)ranks_run_test(&test);
}

// All leaves have weight 0: no mean exists, as without leaves.
static void weightless_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    const struct module_shape shape = {.name = "net", .count = 1, .elements = sizes};
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    options.weight = 0;
    options.accumulate = 1;
    trainer_begin(rank, &options);
    trainer_call(rank, &module);
    trainer_end(rank);
    options.accumulate = 0;
    trainer_begin(rank, &options);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    trainer_free(&module);
}

static void case_54_no_weight_at_all(void **state)
{
    struct training training = {.leaves = 4};
    struct setting setting = setting_named("tcp");
    const struct cluster_test test = {.setting = &setting,
                                      .configure = leaves_configure,
                                      .body = weightless_body,
                                      .context = &training};
    (void)state;
    setting.world_size = 2;
    (void)ranks_run_test(&test);
}

static void crowd_body(struct rank *rank)
{
    struct lockstep_config config = rank_config(rank);
    lockstep_session *session;
    config.virtual_ranks = 2;
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_open(&config, &session));
    RANK_SAYS(rank,
              "the world has 3 ranks, and config.virtual_ranks (LOCKSTEP_VIRTUAL_RANKS) is 2");
}

static void differ_body(struct rank *rank)
{
    struct lockstep_config config = rank_config(rank);
    const struct module_shape shape = {.name = "net", .count = 1, .elements = sizes};
    struct trained_module module;
    struct rank inner = *rank;
    config.virtual_ranks = 4 + rank->rank;
    RANK_OK(rank, lockstep_open(&config, &inner.session));
    trainer_make(&inner, &shape, 0, &module);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(inner.session));
    RANK_SAYS(rank, "virtual_ranks");
    RANK_OK(rank, lockstep_close(inner.session));
    trainer_free(&module);
}

static void case_54_worlds_that_do_not_fit(void **state)
{
    struct setting setting = setting_named("tcp");
    const struct cluster_test crowd = {
        .setting = &setting, .body = crowd_body, .without_session = true};
    const struct cluster_test differ = {
        .setting = &setting, .body = differ_body, .without_session = true};
    (void)state;
    setting.world_size = 3;
    (void)ranks_run_test(&crowd);
    setting.world_size = 2;
    (void)ranks_run_test(&differ);
}

static void refuse(const struct lockstep_config *config, const char *text)
{
    lockstep_session *session = NULL;
    assert_int_equal(lockstep_open(config, &session), LOCKSTEP_E_CONFIG);
    if (!strstr(lockstep_error_text(), text))
        fail_msg("'%s' is not in: %s", text, lockstep_error_text());
}

static void case_54_what_does_not_go_together(void **state)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    (void)state;
    config.virtual_ranks = 65;
    refuse(&config, "config.virtual_ranks is 65, at most 64");
    config.virtual_ranks = 8;
    config.uneven = LOCKSTEP_UNEVEN_ALL;
    refuse(&config, "config.uneven");
    config.uneven = LOCKSTEP_UNEVEN_NONE;
    config.order = LOCKSTEP_ORDER_ZERO_DEFER;
    refuse(&config, "config.order");
    config.order = LOCKSTEP_ORDER_ERROR;
    config.unplanned = LOCKSTEP_UNPLANNED_DEFER;
    refuse(&config, "config.unplanned");
    config.unplanned = LOCKSTEP_UNPLANNED_EXTEND;
    setenv("LOCKSTEP_ALGORITHM", "ring", 1);
    refuse(&config, "LOCKSTEP_ALGORITHM=ring");
    unsetenv("LOCKSTEP_ALGORITHM");
    setenv("LOCKSTEP_VIRTUAL_RANKS", "many", 1);
    refuse(&config, "LOCKSTEP_VIRTUAL_RANKS='many'");
    unsetenv("LOCKSTEP_VIRTUAL_RANKS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_54_same_bits_on_any_number_of_ranks),
        cmocka_unit_test(case_54_any_number_of_leaves),
        cmocka_unit_test(case_54_sums_and_narrow_and_wide_wires),
        cmocka_unit_test(case_54_weights_against_closed_form),
        cmocka_unit_test(case_54_a_session_without_a_coordinator),
        cmocka_unit_test(case_54_noise_shows_the_world),
        cmocka_unit_test(case_54_another_number_of_steps_is_refused),
        cmocka_unit_test(case_54_no_weight_at_all),
        cmocka_unit_test(case_54_worlds_that_do_not_fit),
        cmocka_unit_test(case_54_what_does_not_go_together),
    };
    if (getenv("LOCKSTEP_TEST_FILTER"))
        cmocka_set_test_filter(getenv("LOCKSTEP_TEST_FILTER"));
    return cmocka_run_group_tests_name("leaves", tests, NULL, NULL);
}
