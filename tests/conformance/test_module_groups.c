// SPDX-License-Identifier: Apache-2.0
//
// Conformance: modules with a group, whose gradients are averaged among the group's members only.
// A group of two in a world of four computes the same bits as a world of two.

#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define STEPS 4
#define LARGEST 70000
#define ROOM (2 * LARGEST)

static const uint64_t sizes[] = {40, 1, LARGEST, 17, 5};
static const uint64_t small_sizes[] = {40, 1, 300};

static lockstep_group *make_group(struct rank *rank, const char *name, const uint32_t *ranks,
                                  uint32_t count)
{
    lockstep_group *group = NULL;
    for (uint32_t i = 0; i < count && !group; i++) {
        if (ranks[i] == rank->rank)
            RANK_OK(rank, lockstep_group_create(rank->session, ranks, count, name, &group));
    }
    return group;
}

// Makes a module of the group, if this rank is a member. Returns true if it is.
static bool make_module(struct rank *rank, const char *name, lockstep_group *group, uint32_t count,
                        const uint64_t *elements, uint32_t index, struct trained_module *module)
{
    const struct module_shape shape = {
        .name = name, .count = count, .elements = elements, .group = group};
    memset(module, 0, sizeof(*module));
    if (!group)
        return false;
    trainer_make(rank, &shape, index, module);
    return true;
}

static void make_common(struct rank *rank, const char *name, struct trained_module *module)
{
    const struct module_shape shape = {.name = name, .count = 3, .elements = small_sizes};
    trainer_make(rank, &shape, 50, module);
}

static void finish(struct rank *rank, struct trained_module *modules, uint32_t count)
{
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    for (uint32_t i = 0; i < count; i++)
        trainer_free(&modules[i]);
}

// ---- Bits --------------------------------------------------------------------------------------

// The ranks of the pairs, by place. Their experts have different sizes.
static const uint32_t pairs[2][2] = {{0, 2}, {3, 1}};
static const uint32_t pair_counts[2] = {3, 5};
static const char *const pair_names[2] = {"ep0", "ep1"};

struct expected {
    uint32_t pair;
    float *results[2][STEPS]; // All gradients of each pair, one after the other.
};

static void copy_results(const struct trained_module *module, float *to)
{
    for (uint32_t p = 0; p < module->shape.count; p++) {
        memcpy(to, module->gradients[p], module->shape.elements[p] * sizeof(float));
        to += module->shape.elements[p];
    }
}

static bool same_results(const struct trained_module *module, const float *expected)
{
    bool same = true;
    for (uint32_t p = 0; p < module->shape.count; p++) {
        const size_t bytes = module->shape.elements[p] * sizeof(float);
        same = same && memcmp(expected, module->gradients[p], bytes) == 0;
        expected += module->shape.elements[p];
    }
    return same;
}

// A world of two, which computes what the pair should have.
static void alone_body(struct rank *rank)
{
    struct expected *expected = rank->context;
    struct trained_module expert;
    const struct module_shape shape = {
        .name = "expert", .count = pair_counts[expected->pair], .elements = sizes};
    trainer_make(rank, &shape, 1 + expected->pair, &expert);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t s = 0; s < STEPS; s++) {
        struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
        options.weight = 1 + rank->rank;
        trainer_fill_noise(&expert, 2 * expected->pair + rank->rank, s);
        trainer_begin(rank, &options);
        trainer_call(rank, &expert);
        trainer_end(rank);
        if (rank->rank == 0)
            copy_results(&expert, expected->results[expected->pair][s]);
    }
    finish(rank, &expert, 1);
}

// A world of four: each rank has the expert of its pair, and all have "net".
static void pairs_body(struct rank *rank)
{
    static const uint64_t weights[] = {1, 2, 2, 1};
    const struct expected *expected = rank->context;
    const uint32_t pair = rank->rank == 0 || rank->rank == 2 ? 0 : 1;
    const uint32_t place = pairs[pair][0] == rank->rank ? 0 : 1;
    struct trained_module modules[2];
    lockstep_group *group = make_group(rank, pair_names[pair], pairs[pair], 2);
    make_module(rank, "expert", group, pair_counts[pair], sizes, 1 + pair, &modules[0]);
    make_common(rank, "net", &modules[1]); // After the expert: the order makes no difference.
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t s = 0; s < STEPS; s++) {
        struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
        options.weight = 1 + place;
        trainer_fill_noise(&modules[0], 2 * pair + place, s);
        trainer_fill_known(&modules[1], rank->rank, s);
        trainer_begin(rank, &options);
        trainer_call(rank, &modules[(s + rank->rank) % 2]);
        trainer_call(rank, &modules[(s + rank->rank + 1) % 2]);
        trainer_end(rank);
        RANK_TRUE(rank, same_results(&modules[0], expected->results[pair][s]));
        trainer_expect_mean(rank, &modules[1], s, weights);
        RANK_EQUAL(rank, trainer_report(rank).weight_total, 6);
    }
    RANK_OK(rank, lockstep_state_check(rank->session));
    finish(rank, modules, 2);
}

static void pairs_like_worlds_of_two(const struct setting *setting)
{
    struct expected expected = {0};
    struct setting two = *setting;
    two.world_size = 2;
    for (uint32_t i = 0; i < 2 * STEPS; i++)
        expected.results[i / STEPS][i % STEPS] = calloc(ROOM, sizeof(float));
    for (expected.pair = 0; expected.pair < 2; expected.pair++)
        ranks_run(&two, alone_body, &expected);
    ranks_run(setting, pairs_body, &expected);
    for (uint32_t i = 0; i < 2 * STEPS; i++)
        free(expected.results[i / STEPS][i % STEPS]);
}

// ---- Groups that overlap -----------------------------------------------------------------------

static const struct {
    const char *group;
    const char *module;
    uint32_t count;
    uint32_t ranks[4];
} overlapping[] = {
    {"left", "wide", 3, {0, 1, 2}},      {"right", "wide", 3, {3, 1, 2}},
    {"inner", "narrow", 2, {2, 1}},      {"all", "everywhere", 4, {3, 2, 1, 0}},
    {"first", "own", 1, {0, 0, 0, 0}},   {"last", "own", 1, {3, 0, 0, 0}},
    {"outer", "shell", 2, {0, 3, 0, 0}},
};
#define OVERLAPPING (sizeof(overlapping) / sizeof(overlapping[0]))

static bool is_member(uint32_t index, uint32_t rank)
{
    for (uint32_t i = 0; i < overlapping[index].count; i++) {
        if (overlapping[index].ranks[i] == rank)
            return true;
    }
    return false;
}

// Ranks 1 and 2 are in "left" and "right", which both have a module "wide": there the second one
// has another name.
static const char *overlapping_name(uint32_t index, uint32_t rank)
{
    (void)rank;
    return index == 1 ? "wide too" : overlapping[index].module;
}

static void expect_group(struct rank *rank, const struct trained_module *module, uint32_t index,
                         uint64_t step)
{
    uint64_t weights[4];
    for (uint32_t r = 0; r < 4; r++)
        weights[r] = is_member(index, r) ? 1 + r : 0;
    trainer_expect_mean(rank, module, step, weights);
}

static void overlapping_body(struct rank *rank)
{
    struct trained_module modules[OVERLAPPING + 1];
    bool has[OVERLAPPING];
    for (uint32_t i = 0; i < OVERLAPPING; i++) {
        lockstep_group *group =
            make_group(rank, overlapping[i].group, overlapping[i].ranks, overlapping[i].count);
        has[i] = make_module(rank, overlapping_name(i, rank->rank), group, 3, small_sizes, i,
                             &modules[i]);
    }
    make_common(rank, "net", &modules[OVERLAPPING]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t s = 0; s < STEPS; s++) {
        struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
        options.weight = 1 + rank->rank;
        trainer_begin(rank, &options);
        for (uint32_t k = 0; k < OVERLAPPING; k++) {
            const uint32_t i = (k + s) % OVERLAPPING;
            lockstep_call *call;
            if (!has[i])
                continue;
            trainer_fill_known(&modules[i], rank->rank, s);
            RANK_OK(rank, lockstep_call_begin(modules[i].module, &call));
            for (uint32_t p = 0; p < 3; p++)
                RANK_OK(rank, lockstep_grad_ready(modules[i].module, NULL, p, NULL, NULL));
            RANK_OK(rank, lockstep_call_end(call));
            // The members need no other rank for it, in a step that learns, too.
            RANK_OK(rank, lockstep_call_wait(call, FOREVER));
            expect_group(rank, &modules[i], i, s);
        }
        trainer_fill_known(&modules[OVERLAPPING], rank->rank, s);
        trainer_call(rank, &modules[OVERLAPPING]);
        trainer_end(rank);
        trainer_expect_mean(rank, &modules[OVERLAPPING], s, (const uint64_t[]){1, 2, 3, 4});
        RANK_EQUAL(rank, trainer_report(rank).weight_total, 10);
    }
    RANK_OK(rank, lockstep_state_check(rank->session));
    finish(rank, modules, OVERLAPPING + 1);
}

static void groups_that_overlap(const struct setting *setting)
{
    ranks_run(setting, overlapping_body, NULL);
}

// ---- A rank outside that is late ---------------------------------------------------------------

#define MANY (LOCKSTEP_WINDOW + 4) // Buckets of a module, each of one parameter.
#define LATE_US 100000

static const uint64_t many_sizes[MANY] = {40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40};

static void many_buckets(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 160;
}

// Every rank calls "net" first, and ranks 0 and 1 call "expert" after it. In the step that is
// learned rank 2 is late, so the expert's gradients are ready on its members first. In the plan
// they come second all the same: ranks that wait for "net" have not called the expert yet.
static void late_body(struct rank *rank)
{
    static const uint32_t members[] = {0, 1};
    struct trained_module modules[2];
    const struct module_shape net = {.name = "net", .count = MANY, .elements = many_sizes};
    const bool member = make_module(rank, "expert", make_group(rank, "half", members, 2), MANY,
                                    many_sizes, 1, &modules[1]);
    trainer_make(rank, &net, 50, &modules[0]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t s = 0; s < STEPS; s++) {
        lockstep_call *call;
        trainer_begin(rank, NULL);
        trainer_fill_known(&modules[0], rank->rank, s);
        if (s == 0 && rank->rank == 2)
            usleep(LATE_US);
        RANK_OK(rank, lockstep_call_begin(modules[0].module, &call));
        for (uint32_t p = 0; p < MANY; p++)
            RANK_OK(rank, lockstep_grad_ready(modules[0].module, NULL, p, NULL, NULL));
        RANK_OK(rank, lockstep_call_end(call));
        if (s > 0)
            RANK_OK(rank, lockstep_call_wait(call, FOREVER));
        if (member)
            trainer_call(rank, &modules[1]);
        trainer_end(rank);
        trainer_expect_mean(rank, &modules[0], s, NULL);
    }
    finish(rank, modules, member ? 2 : 1);
}

static void a_rank_outside_is_late(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = many_buckets, .body = late_body};
    ranks_run_test(&test);
}

// ---- Values at start, and other modules later --------------------------------------------------

static const uint32_t evens[] = {2, 0};
static const uint32_t odds[] = {1, 3};

static lockstep_group *make_parity(struct rank *rank)
{
    return rank->rank % 2 == 0 ? make_group(rank, "even", evens, 2)
                               : make_group(rank, "odd", odds, 2);
}

static void root_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->root = 3;
}

static void set_values(struct trained_module *module, float value)
{
    for (uint32_t p = 0; p < module->shape.count; p++) {
        for (uint64_t i = 0; i < module->shape.elements[p]; i++)
            ((float *)module->data[p])[i] = value;
    }
}

// The root of the session is a member of "odd"; the first member of "even" is rank 2.
static void start_body(struct rank *rank)
{
    struct trained_module modules[2];
    const float root = rank->rank % 2 == 0 ? 2 : 3;
    uint64_t before;
    uint64_t after;
    make_module(rank, "expert", make_parity(rank), 3, small_sizes, 1, &modules[0]);
    make_common(rank, "net", &modules[1]);
    set_values(&modules[0], (float)rank->rank);
    set_values(&modules[1], (float)(10 + rank->rank));
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t p = 0; p < 3; p++) {
        RANK_EQUAL(rank, ((float *)modules[0].data[p])[0], root);
        RANK_EQUAL(rank, ((float *)modules[1].data[p])[0], 13);
    }
    RANK_OK(rank, lockstep_state_hash(rank->session, &before));
    RANK_OK(rank, lockstep_state_check(rank->session));
    if (rank->rank == 0)
        ((float *)modules[0].data[1])[0] = 17;
    RANK_OK(rank, lockstep_state_hash(rank->session, &after));
    RANK_EQUAL(rank, before != after, rank->rank == 0);
    RANK_EQUAL(rank, RANK_CALL(rank, lockstep_state_check(rank->session)),
               rank->rank % 2 == 0 ? LOCKSTEP_E_MISMATCH : 0);
    if (rank->rank % 2 == 0) {
        RANK_SAYS(rank, "module 'expert' of group 'even': tensors differ from those of rank 2");
        RANK_SAYS(rank, "'p1' on 1 of 2 members");
    }
    finish(rank, modules, 2);
}

static void values_are_made_equal(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = root_configure, .body = start_body};
    ranks_run_test(&test);
}

static void expect_parity(struct rank *rank, const struct trained_module *module, uint64_t step)
{
    const uint64_t weights[] = {(rank->rank + 1) % 2, rank->rank % 2, (rank->rank + 1) % 2,
                                rank->rank % 2};
    trainer_expect_mean(rank, module, step, weights);
}

static void parity_step(struct rank *rank, struct trained_module *module, uint64_t number)
{
    trainer_begin(rank, NULL);
    if (module) {
        trainer_fill_known(module, rank->rank, number);
        trainer_call(rank, module);
    }
    trainer_end(rank);
    if (module)
        expect_parity(rank, module, number);
}

// The even ranks close their module and register another one. The odd ranks only start again.
static void later_body(struct rank *rank)
{
    const bool even = rank->rank % 2 == 0;
    struct trained_module modules[2];
    lockstep_group *group = make_parity(rank);
    make_module(rank, "expert", group, 3, small_sizes, 1, &modules[0]);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_close(group));
    RANK_SAYS(rank, "1 modules of it are registered");
    RANK_OK(rank, lockstep_start(rank->session));
    parity_step(rank, &modules[0], 0);
    parity_step(rank, &modules[0], 1);
    make_module(rank, "other", even ? group : NULL, 3, small_sizes, 2, &modules[1]);
    if (even)
        RANK_OK(rank, lockstep_module_close(modules[0].module));
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 2; step < 5; step++)
        parity_step(rank, &modules[even ? 1 : 0], step);
    if (even)
        RANK_OK(rank, lockstep_module_close(modules[1].module));
    if (even)
        RANK_OK(rank, lockstep_group_close(group));
    RANK_OK(rank, lockstep_start(rank->session));
    parity_step(rank, even ? NULL : &modules[0], 5);
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
    trainer_free(&modules[0]);
    if (even)
        trainer_free(&modules[1]);
}

static void modules_come_and_go(const struct setting *setting)
{
    ranks_run(setting, later_body, NULL);
}

// The even ranks close the last module of a group, and register another one later. The odd ranks
// have nothing new at either start.
static void again_body(struct rank *rank)
{
    const bool even = rank->rank % 2 == 0;
    struct trained_module modules[3];
    lockstep_group *group = make_parity(rank);
    make_common(rank, "net", &modules[0]);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_start(rank->session));
    RANK_SAYS(rank, "the job has never had a module of a group");
    trainer_step_known(rank, modules, 1);
    make_module(rank, "first", group, 3, small_sizes, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    parity_step(rank, &modules[1], 1);
    RANK_OK(rank, lockstep_module_close(modules[1].module));
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 1);
    make_module(rank, "second", even ? group : NULL, 3, small_sizes, 2, &modules[2]);
    RANK_OK(rank, lockstep_start(rank->session));
    parity_step(rank, even ? &modules[2] : NULL, 3);
    trainer_step_known(rank, modules, 1);
    finish(rank, modules, even ? 3 : 2);
}

static void the_last_one_is_closed(const struct setting *setting)
{
    ranks_run(setting, again_body, NULL);
}

// One member after the other leaves out parameter 0. Only members ask, and another rank may be in
// the next step meanwhile.
static void usage_body(struct rank *rank)
{
    static const uint32_t ranks[] = {3, 1, 2};
    struct trained_module modules[2];
    uint32_t usage[3];
    lockstep_group *group = make_group(rank, "others", ranks, 3);
    make_common(rank, "net", &modules[0]);
    const struct module_shape shape = {.name = "expert",
                                       .count = 3,
                                       .elements = small_sizes,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT,
                                       .group = group};
    const bool has = group != NULL;
    if (has)
        trainer_make(rank, &shape, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t step = 0; step < 4; step++) {
        trainer_begin(rank, NULL);
        trainer_call(rank, &modules[0]);
        if (has)
            trainer_call_used(rank, &modules[1], step == rank->rank ? 6 : 7);
        trainer_end(rank);
        if (has)
            RANK_OK(rank, lockstep_module_usage(modules[1].module, usage, 3));
        for (uint32_t p = 0; p < 3 && has; p++)
            RANK_EQUAL(rank, usage[p], step > 0 && p == 0 ? 2 : 3);
    }
    RANK_OK(rank, lockstep_module_usage(modules[0].module, usage, 3));
    RANK_EQUAL(rank, usage[0], 4);
    finish(rank, modules, has ? 2 : 1);
}

static void usage_of_members(const struct setting *setting)
{
    ranks_run(setting, usage_body, NULL);
}

// All modules of the job are in a group, and rank 0 has none.
static void none_body(struct rank *rank)
{
    static const uint32_t ranks[] = {3, 1, 2};
    struct trained_module module;
    lockstep_group *group = make_group(rank, "others", ranks, 3);
    const bool has = make_module(rank, "expert", group, 3, small_sizes, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t step = 0; step < 3; step++) {
        trainer_begin(rank, NULL);
        if (has) {
            trainer_fill_known(&module, rank->rank, step);
            trainer_call(rank, &module);
        }
        trainer_end(rank);
        if (has)
            trainer_expect_mean(rank, &module, step, (const uint64_t[]){0, 1, 1, 1});
    }
    finish(rank, &module, has ? 1 : 0);
}

static void a_rank_without_modules(const struct setting *setting)
{
    ranks_run(setting, none_body, NULL);
}

// ---- What deviates -----------------------------------------------------------------------------

static void declare_separate(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->separate_calls = 1;
}

// A call of a module of all ranks, with memory of its own. It is appended after the calls of
// groups.
static void second_call(struct rank *rank, const struct trained_module *module,
                        float memory[3][300])
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t p = 0; p < 3; p++) {
        for (uint64_t i = 0; i < small_sizes[p]; i++)
            memory[p][i] = (float)rank->rank;
        RANK_OK(rank, lockstep_grad_ready(module->module, NULL, p, memory[p], NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
}

// Only the odd ranks call their module in the first step, so the plan does not have that of the
// even ranks. Later it is appended to steps, and its gradients count.
static void outside_body(struct rank *rank)
{
    const bool even = rank->rank % 2 == 0;
    struct trained_module modules[2];
    const struct module_shape twice = {.name = "net",
                                       .count = 3,
                                       .elements = small_sizes,
                                       .calls_per_step = 2,
                                       .configure = declare_separate};
    make_module(rank, "expert", make_parity(rank), 3, small_sizes, 1, &modules[0]);
    trainer_make(rank, &twice, 50, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t s = 0; s < 10; s++) {
        const bool calls = even ? s >= 2 : s % 3 != 2;
        float memory[3][300];
        trainer_fill_known(&modules[0], rank->rank, s);
        trainer_fill_known(&modules[1], rank->rank, s);
        trainer_begin(rank, NULL);
        if (calls)
            trainer_call(rank, &modules[0]);
        trainer_call(rank, &modules[1]);
        if (s >= 2)
            second_call(rank, &modules[1], memory);
        trainer_end(rank);
        if (s >= 2)
            RANK_EQUAL(rank, 2 * memory[2][299], 3);
        if (calls)
            expect_parity(rank, &modules[0], s);
        trainer_expect_mean(rank, &modules[1], s, NULL);
    }
    finish(rank, modules, 2);
}

static void calls_outside_the_plan(const struct setting *setting)
{
    ranks_run(setting, outside_body, NULL);
}

static void unused_body(struct rank *rank)
{
    const bool even = rank->rank % 2 == 0;
    struct trained_module module;
    struct module_shape shape = {.name = even ? "expert" : "lenient",
                                 .count = 3,
                                 .elements = small_sizes,
                                 .unused = even ? LOCKSTEP_UNUSED_ERROR : LOCKSTEP_UNUSED_ACCEPT,
                                 .group = make_parity(rank)};
    trainer_make(rank, &shape, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    parity_step(rank, &module, 0);
    // In "odd" nobody uses p1: it is left as it was. In "even" all is used.
    trainer_fill_known(&module, rank->rank, 1);
    trainer_begin(rank, NULL);
    trainer_call_used(rank, &module, even ? 7 : 5);
    trainer_end(rank);
    RANK_EQUAL(rank, trainer_report(rank).unused, 2);
    for (uint32_t p = 0; p < 3; p++) {
        if (!even && p == 1)
            RANK_EQUAL(rank, trainer_value(&module, 1, 0),
                       trainer_known(&module, rank->rank, 1, 1, 0));
    }
    if (even)
        expect_parity(rank, &module, 1);
    // Rank 0 does not use p2.
    trainer_begin(rank, NULL);
    trainer_call_used(rank, &module, rank->rank == 0 ? 3 : 7);
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, even ? "module 'expert' of group 'even' parameter 'p2' on rank 0"
                         : "module 'expert' of group 'even' parameter number 2 on rank 0");
    // A step in which the even ranks have weight 0.
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.weight = even ? 0 : 1;
    trainer_begin(rank, &options);
    trainer_call(rank, &module);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "so there is no mean of module 'expert' of group 'even'; ");
    finish(rank, &module, 1);
}

static void policies_of_groups(const struct setting *setting)
{
    ranks_run(setting, unused_body, NULL);
}

static void uneven_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->uneven = LOCKSTEP_UNEVEN_ALL;
}

// Rank r has data for 2 + r steps. An exhausted member counts with weight 0 in its group.
static void uneven_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_module(rank, "expert", make_parity(rank), 3, small_sizes, 1, &modules[0]);
    make_common(rank, "net", &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t s = 0; s < 5; s++) {
        struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
        uint64_t common[4];
        uint64_t weights[4];
        uint64_t total = 0;
        for (uint32_t r = 0; r < 4; r++) {
            common[r] = s < 2 + r;
            weights[r] = r % 2 == rank->rank % 2 && s < 2 + r;
            total += weights[r];
        }
        options.exhausted = common[rank->rank] == 0;
        trainer_fill_known(&modules[0], rank->rank, s);
        trainer_fill_known(&modules[1], rank->rank, s);
        trainer_begin(rank, &options);
        for (uint32_t i = 0; i < 2 && options.exhausted == 0; i++)
            trainer_call(rank, &modules[i]);
        trainer_end(rank);
        if (total > 0)
            trainer_expect_mean(rank, &modules[0], s, weights);
        else
            RANK_EQUAL(rank, trainer_value(&modules[0], 0, 0),
                       trainer_known(&modules[0], rank->rank, s, 0, 0));
        trainer_expect_mean(rank, &modules[1], s, common);
    }
    finish(rank, modules, 2);
}

static void uneven_data(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = uneven_configure, .body = uneven_body};
    ranks_run_test(&test);
}

// ---- Waits -------------------------------------------------------------------------------------

static lockstep_call *one_call(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t p = 0; p < module->shape.count; p++)
        RANK_OK(rank, lockstep_grad_ready(module->module, NULL, p, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    return call;
}

// A step without calls. Returns the first failure: the verdict may come at any time.
static int empty_step(struct rank *rank)
{
    const struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    const int status = RANK_CALL(rank, lockstep_step_begin(rank->session, &options, NULL));
    return status < 0 ? status : RANK_CALL(rank, lockstep_step_end(rank->session, NULL));
}

// Ranks 0 and 2 wait for their two modules crosswise, in a step that learns or in a later one. The
// others are not concerned until they hear of it.
static void crosswise_body(struct rank *rank)
{
    const uint32_t before = *(const uint32_t *)rank->context;
    const bool even = rank->rank % 2 == 0;
    struct trained_module modules[2];
    int status = 0;
    lockstep_group *group = make_parity(rank);
    make_module(rank, "expert", group, 3, small_sizes, 1, &modules[0]);
    make_module(rank, "gate", group, 3, small_sizes, 2, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    rank_meet(rank); // No rank hears of the verdict in lockstep_start.
    for (uint32_t s = 0; s < before; s++) {
        trainer_begin(rank, NULL);
        trainer_call(rank, &modules[0]);
        trainer_call(rank, &modules[1]);
        trainer_end(rank);
    }
    status = even ? 0 : empty_step(rank);
    if (even)
        trainer_begin(rank, NULL);
    for (uint32_t i = 0; i < 2 && status == 0; i++) {
        lockstep_call *call = one_call(rank, &modules[rank->rank == 2 ? 1 - i : i]);
        status = RANK_CALL(rank, lockstep_call_wait(call, FOREVER));
    }
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "waits for 'expert' of group 'even' (call 1) and has not made 'gate' of group "
                    "'even' (call 1)");
    finish(rank, modules, 2);
}

static void waits_that_cross(const struct setting *setting)
{
    for (uint32_t before = 0; before < 3; before += 2)
        ranks_run(setting, crosswise_body, (void *)(uintptr_t)&before);
}

// Rank 2 waits in a barrier of all ranks while rank 0 waits for its call. The others wait in
// step_end.
static void elsewhere_body(struct rank *rank)
{
    struct trained_module module;
    int status;
    make_module(rank, "expert", make_parity(rank), 3, small_sizes, 1, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    parity_step(rank, &module, 0);
    if (rank->rank % 2 == 0)
        trainer_begin(rank, NULL);
    if (rank->rank == 2)
        status = RANK_CALL(rank, lockstep_barrier(rank->session, "here", FOREVER));
    else if (rank->rank == 0)
        status = RANK_CALL(rank, lockstep_call_wait(one_call(rank, &module), FOREVER));
    else
        status = empty_step(rank);
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "rank 2 waits in lockstep_barrier 'here'");
    finish(rank, &module, 1);
}

static void a_member_that_waits_elsewhere(const struct setting *setting)
{
    ranks_run(setting, elsewhere_body, NULL);
}

static void deferring_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->order = LOCKSTEP_ORDER_ZERO_DEFER;
}

// With zero_defer the same waits end. What rank 2 gives up in a step counts in the next one.
static void deferring_body(struct rank *rank)
{
    struct trained_module modules[2];
    lockstep_group *group = make_parity(rank);
    uint32_t deferred = 0;
    make_module(rank, "expert", group, 3, small_sizes, 1, &modules[0]);
    make_module(rank, "gate", group, 3, small_sizes, 2, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t s = 0; s < 3; s++) {
        trainer_begin(rank, NULL);
        for (uint32_t i = 0; i < 2; i++) {
            struct trained_module *module = &modules[rank->rank == 2 ? 1 - i : i];
            trainer_fill_known(module, rank->rank, s);
            const int status = RANK_CALL(rank, lockstep_call_wait(one_call(rank, module), FOREVER));
            RANK_TRUE(rank, status == 0 || status == LOCKSTEP_DEFERRED);
            deferred += status == LOCKSTEP_DEFERRED;
        }
        trainer_end(rank);
    }
    if (rank->rank % 2 == 1)
        RANK_EQUAL(rank, deferred, 0);
    finish(rank, modules, 2);
}

static void waits_that_are_given_up(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = deferring_configure, .body = deferring_body};
    ranks_run_test(&test);
}

// ---- Misuse ------------------------------------------------------------------------------------

static int register_one(struct rank *rank, const char *name, lockstep_group *group, int64_t size,
                        lockstep_module **module)
{
    static float values[CLUSTER_MAX_WORLD][64];
    static float gradients[CLUSTER_MAX_WORLD][64];
    const struct lockstep_parameter parameter = {.name = "w",
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 1,
                                                 .shape = &size,
                                                 .data = values[rank->rank],
                                                 .gradient = gradients[rank->rank]};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    config.name = name;
    config.parameters = &parameter;
    config.parameter_count = 1;
    config.group = group;
    return RANK_CALL(rank, lockstep_module_register(rank->session, &config, module));
}

// Rank 2 has another name, then another shape, then no module at all. All ranks get the same text,
// and may register otherwise.
static void differing_body(struct rank *rank)
{
    lockstep_module *module;
    lockstep_group *group = make_parity(rank);
    RANK_EQUAL(rank, register_one(rank, rank->rank == 2 ? "b" : "a", group, 4, &module), 0);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "module 'a' of group 'even': rank 0 has registered it, and rank 2, a member of "
                    "the group, has not, but has 'b'");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    RANK_OK(rank, lockstep_module_close(module));
    RANK_EQUAL(rank, register_one(rank, "a", group, rank->rank == 2 ? 5 : 4, &module), 0);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "module 'a' of group 'even' differs among its members: rank 0 has parameter "
                    "'w' of float32 [4]");
    RANK_SAYS(rank, "rank 2 has parameter 'w' of float32 [5]");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    RANK_OK(rank, lockstep_module_close(module));
    if (rank->rank != 2)
        RANK_EQUAL(rank, register_one(rank, "a", group, 4, &module), 0);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "rank 2, a member of the group, has not; register it on every member");
    if (rank->rank == 2)
        RANK_EQUAL(rank, register_one(rank, "a", group, 4, &module), 0);
    RANK_OK(rank, lockstep_start(rank->session));
}

static void members_that_differ(const struct setting *setting)
{
    ranks_run(setting, differing_body, NULL);
}

static void refused_body(struct rank *rank)
{
    const uint32_t parameter = 0;
    lockstep_module *module = NULL;
    lockstep_module *second = NULL;
    lockstep_group *group = make_parity(rank);
    lockstep_group *closed = make_parity(rank);
    float buffer_data[2] = {0};
    const int64_t buffer_size = 2;
    const struct lockstep_buffer buffer = {.name = "mean",
                                           .dtype = LOCKSTEP_FLOAT32,
                                           .dims = 1,
                                           .shape = &buffer_size,
                                           .data = buffer_data,
                                           .policy = LOCKSTEP_BUFFER_MEAN};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    RANK_OK(rank, lockstep_group_close(closed));
    RANK_EQUAL(rank, register_one(rank, "a", closed, 4, &module), LOCKSTEP_E_INVALID);
    RANK_SAYS(rank, "is not a group, or it was closed");
    RANK_EQUAL(rank, register_one(rank, "a", (lockstep_group *)rank->session, 4, &module),
               LOCKSTEP_E_INVALID);
    RANK_EQUAL(rank, register_one(rank, "a", group, 4, &module), 0);
    RANK_EQUAL(rank, register_one(rank, "a", NULL, 4, &second), LOCKSTEP_E_INVALID);
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED, lockstep_module_freeze(module, &parameter, 1, 1));
    RANK_SAYS(rank, "module 'a' of group ");
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED, lockstep_phase_unused(module, "p", &parameter, 1));
    config.name = "statistics";
    config.buffers = &buffer;
    config.buffer_count = 1;
    config.group = group;
    RANK_FAILS(rank, LOCKSTEP_E_UNSUPPORTED,
               lockstep_module_register(rank->session, &config, &second));
    RANK_SAYS(rank, "module 'statistics' of group ");
    RANK_SAYS(rank, "buffer 'mean' cannot be exchanged in steps");
    RANK_OK(rank, lockstep_start(rank->session));
}

static void what_is_refused(const struct setting *setting)
{
    ranks_run(setting, refused_body, NULL);
}

int main(void)
{
    static const uint32_t four[] = {4, 0};
    static const struct stamp stamps[] = {
        {"case_58_pairs_like_worlds_of_two", pairs_like_worlds_of_two, four},
        {"case_58_groups_that_overlap", groups_that_overlap, four},
        {"a_rank_outside_is_late", a_rank_outside_is_late, four},
        {"values_are_made_equal", values_are_made_equal, four},
        {"modules_come_and_go", modules_come_and_go, four},
        {"the_last_one_is_closed", the_last_one_is_closed, four},
        {"usage_of_members", usage_of_members, four},
        {"a_rank_without_modules", a_rank_without_modules, four},
        {"calls_outside_the_plan", calls_outside_the_plan, four},
        {"policies_of_groups", policies_of_groups, four},
        {"uneven_data", uneven_data, four},
        {"waits_that_cross", waits_that_cross, four},
        {"a_member_that_waits_elsewhere", a_member_that_waits_elsewhere, four},
        {"waits_that_are_given_up", waits_that_are_given_up, four},
        {"members_that_differ", members_that_differ, four},
        {"what_is_refused", what_is_refused, four},
    };
    return stamp_run("module_groups", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
