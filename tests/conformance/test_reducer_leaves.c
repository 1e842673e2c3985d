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
#define LEAVES_TIED 2
#define LEAVES_ONLY_ASIDE 4 // With a tied parameter, this leaf does not call the first module.
#define LEAVES_FROZEN 5

// How one world trains.
struct training {
    uint32_t leaves;
    size_t bucket_bytes;
    lockstep_wire wire;
    lockstep_gradient_kind kind;
    int32_t exponent;
    bool shares; // True if the second module shares parameter LEAVES_TIED of the first.
    bool freezes; // True if parameter LEAVES_FROZEN is frozen in the second step.
    bool waits; // True if a rank waits for the calls of the first module before it ends a step.
    bool ranks; // True if a rank is no leaf: the control, without config.virtual_ranks.
};

static void leaves_configure(struct rank *rank, struct lockstep_config *config)
{
    const struct training *training = rank->context;
    config->virtual_ranks = training->ranks ? 0 : training->leaves;
    config->gradient_norm = 1;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes =
        training->bucket_bytes;
}

static bool leaf_uses(const struct training *training, uint32_t leaf, uint64_t step,
                      uint32_t parameter)
{
    return parameter != LEAVES_NEVER && parameter != leaf % LEAVES_TENSORS &&
           !(training->freezes && step == 2 && parameter == LEAVES_FROZEN);
}

// Adds a leaf's gradients to the memory of a module, as a backward pass does. Parameters with odd
// numbers are overwritten instead, as by a backward pass that begins with zeros.
static void leaf_backward(const struct training *training, struct trained_module *module,
                          uint32_t leaf, uint64_t step)
{
    uint64_t state = ((uint64_t)leaf << 32) + (step << 8) + module->index;
    for (uint32_t p = 0; p < module->shape.count; p++) {
        for (uint64_t i = 0; leaf_uses(training, leaf, step, p) && i < sizes[p]; i++) {
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

// last: gradients travel with this leaf.
static void train_leaf(struct rank *rank, struct trained_module modules[2], uint32_t leaf,
                       uint64_t step, bool last)
{
    const struct training *training = rank->context;
    const bool only_aside = training->shares && leaf == LEAVES_ONLY_ASIDE;
    uint64_t used = 0;
    if (!only_aside)
        leaf_backward(training, &modules[0], leaf, step);
    for (uint32_t p = 0; p < LEAVES_TENSORS; p++)
        used |= (uint64_t)leaf_uses(training, leaf, step, p) << p;
    if (leaf_calls_aside(leaf)) {
        leaf_backward(training, &modules[1], leaf, step);
        trainer_call_used(rank, &modules[1], used);
    }
    if (only_aside)
        return;
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(modules[0].module, &call));
    for (uint32_t p = LEAVES_TENSORS; p-- > 0;)
        if ((used >> p & 1) != 0)
            RANK_OK(rank, lockstep_grad_ready(modules[0].module, call, p, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    if (training->waits && last)
        RANK_OK(rank, lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER));
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
        train_leaf(rank, modules, leaf, step, options.accumulate == 0);
        trainer_end(rank);
    }
}

static void configure_module(struct trained_module *module, struct lockstep_module_config *config)
{
    config->float16_exponent = module->index == 0 ? -3 : 0;
}

// The memory of the first module's tied parameter, for the second module of the same rank.
static _Thread_local const struct trained_module *owner;

static void configure_tied(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)config;
    if (module->index == 0)
        return;
    module->parameters[LEAVES_TIED].flags = LOCKSTEP_PARAMETER_SHARED;
    module->parameters[LEAVES_TIED].data = owner->data[LEAVES_TIED];
    module->parameters[LEAVES_TIED].gradient = NULL;
    module->gradients[LEAVES_TIED] = owner->gradients[LEAVES_TIED];
}

static void make_modules(struct rank *rank, struct trained_module modules[2])
{
    const struct training *training = rank->context;
    struct module_shape shape = {.name = "net",
                                 .count = LEAVES_TENSORS,
                                 .elements = sizes,
                                 .dtypes = dtypes,
                                 .wire = training->wire,
                                 .kind = training->kind,
                                 .unused = LOCKSTEP_UNUSED_ACCEPT,
                                 .configure = training->exponent != 0 ? configure_module
                                              : training->shares      ? configure_tied
                                                                      : NULL};
    owner = &modules[0];
    trainer_make(rank, &shape, 0, &modules[0]);
    shape.name = "aside";
    shape.count = LEAVES_ASIDE;
    trainer_make(rank, &shape, 1, &modules[1]);
}

static void leaves_body(struct rank *rank)
{
    const struct training *training = rank->context;
    const uint32_t frozen = LEAVES_FROZEN;
    struct trained_module modules[2];
    uint64_t hash;
    make_modules(rank, modules);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 1; step <= LEAVES_STEPS; step++) {
        if (training->freezes)
            RANK_OK(rank, lockstep_module_freeze(modules[0].module, &frozen, 1, step == 2));
        train_step(rank, modules, step);
        update(&modules[0]);
        update(&modules[1]);
        trainer_digest(rank, &modules[0]);
        trainer_digest(rank, &modules[1]);
        RANK_OK(rank, lockstep_state_hash(rank->session, &hash));
        rank_digest(rank, &hash, sizeof(hash));
        const struct lockstep_report report = trainer_report(rank);
        rank_digest(rank, &report.gradient_norm, sizeof(report.gradient_norm));
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

// All worlds, each in every way. By day each world runs in so many of the ways, in turn. Under a
// sanitizer each of the first three worlds runs in one.
static void same_everywhere(struct training training, const uint32_t *worlds, uint32_t by_day)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    const bool few = sanitizer && sanitizer[0] != '\0' && !test_everything();
    uint64_t first = 0;
    by_day = few ? 1 : by_day;
    for (uint32_t w = 0; worlds[w] > 0 && !(few && w == 3); w++) {
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

static void case_54_shared_and_frozen_parameters(void **state)
{
    (void)state;
    same_everywhere((struct training){.leaves = 8, .shares = true, .freezes = true},
                    (const uint32_t[]){1, 2, 3, 8, 0}, 1);
}

static void case_54_waits(void **state)
{
    (void)state;
    same_everywhere((struct training){.leaves = 8, .waits = true},
                    (const uint32_t[]){1, 2, 3, 8, 0}, 1);
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

// ---- Jobs that go on with another world ---------------------------------------------------------

// A job in parts. The parameters and the file of the session go from one part to the next.
struct resized {
    struct training training;
    bool alone; // True if this part has no coordinator.
    uint64_t first_step;
    uint64_t last_step;
    uint8_t *parameters[2][LEAVES_TENSORS];
    const char *file;
    uint64_t hash; // Of the parameters, after the last step.
};

static size_t resized_bytes(uint32_t parameter)
{
    return sizes[parameter] * 8; // Enough for every dtype.
}

static void resized_keep(struct resized *resized, struct trained_module modules[2], bool back)
{
    for (uint32_t m = 0; m < 2; m++) {
        for (uint32_t p = 0; p < modules[m].shape.count; p++) {
            const size_t bytes = sizes[p] * (dtypes[p] == LOCKSTEP_FLOAT64   ? 8
                                             : dtypes[p] == LOCKSTEP_FLOAT32 ? 4
                                                                             : 2);
            memcpy(back ? modules[m].data[p] : resized->parameters[m][p],
                   back ? resized->parameters[m][p] : modules[m].data[p], bytes);
        }
    }
}

static void resized_body(struct rank *rank)
{
    struct resized *resized = rank->context;
    struct rank inner = *rank;
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct trained_module modules[2];
    inner.context = &resized->training;
    if (!resized->alone)
        config = rank_config(rank);
    leaves_configure(&inner, &config);
    RANK_OK(rank, lockstep_open(&config, &inner.session));
    make_modules(&inner, modules);
    if (resized->first_step > 1) {
        RANK_OK(rank, lockstep_session_load(inner.session, resized->file));
        if (rank->rank == 0) // The others get the values of the root.
            resized_keep(resized, modules, true);
    }
    RANK_OK(rank, lockstep_start(inner.session));
    for (uint64_t step = resized->first_step; step <= resized->last_step; step++) {
        train_step(&inner, modules, step);
        RANK_EQUAL(rank, atomic_load(&inner.step), step);
        update(&modules[0]);
        update(&modules[1]);
    }
    rank_meet(rank);
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_state_hash(inner.session, &resized->hash));
        RANK_OK(rank, lockstep_session_save(inner.session, resized->file));
        resized_keep(resized, modules, false);
    }
    RANK_OK(rank, lockstep_close(inner.session));
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

// Six steps: two in each of three worlds. World 0: without a coordinator. Returns the hash of the
// parameters.
static uint64_t train_resized(const uint32_t worlds[3])
{
    struct resized resized = {.training = {.leaves = 8, .bucket_bytes = 10000}};
    struct setting setting = setting_named("tcp");
    const struct cluster_test test = {
        .setting = &setting, .body = resized_body, .context = &resized, .without_session = true};
    char file[] = "/tmp/lockstep-leaves-XXXXXX";
    const int descriptor = mkstemp(file);
    assert_true(descriptor >= 0);
    (void)close(descriptor);
    resized.file = file;
    for (uint32_t i = 0; i < 2 * LEAVES_TENSORS; i++) {
        const uint32_t p = i % LEAVES_TENSORS;
        resized.parameters[i / LEAVES_TENSORS][p] = calloc(1, resized_bytes(p));
        assert_non_null(resized.parameters[i / LEAVES_TENSORS][p]);
    }
    for (uint64_t part = 0; part < 3; part++) {
        resized.alone = worlds[part] == 0;
        setting.world_size = resized.alone ? 1 : worlds[part];
        resized.first_step = 2 * part + 1;
        resized.last_step = 2 * part + 2;
        (void)ranks_run_test(&test);
    }
    for (uint32_t i = 0; i < 2 * LEAVES_TENSORS; i++)
        free(resized.parameters[i / LEAVES_TENSORS][i % LEAVES_TENSORS]);
    (void)unlink(file);
    return resized.hash;
}

static void case_54_another_world_goes_on(void **state)
{
    const uint64_t same = train_resized((const uint32_t[]){2, 2, 2});
    (void)state;
    assert_true(train_resized((const uint32_t[]){4, 3, 8}) == same);
    assert_true(train_resized((const uint32_t[]){0, 5, 1}) == same);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_54_same_bits_on_any_number_of_ranks),
        cmocka_unit_test(case_54_any_number_of_leaves),
        cmocka_unit_test(case_54_sums_and_narrow_and_wide_wires),
        cmocka_unit_test(case_54_weights_against_closed_form),
        cmocka_unit_test(case_54_shared_and_frozen_parameters),
        cmocka_unit_test(case_54_waits),
        cmocka_unit_test(case_54_another_world_goes_on),
        cmocka_unit_test(case_54_noise_shows_the_world),
    };
    return cmocka_run_group_tests_name("leaves", tests, NULL, NULL);
}
