// SPDX-License-Identifier: Apache-2.0
//
// Conformance: maximum weights. Their sum is exact on all ranks, a larger weight is refused, and
// the total weight of deferred contributions is limited as well. Case numbers are those of the list
// of cases for reducers.

#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <cmocka.h>

#define COUNT 3
#define HALF (LOCKSTEP_MAX_WEIGHT / 2)

static const uint64_t sizes[COUNT] = {40, 300, 1};

static int begin_weighted(struct rank *rank, uint64_t weight)
{
    const struct lockstep_step_options options = {.struct_bytes = sizeof(options),
                                                  .weight = weight};
    return lockstep_step_begin(rank->session, &options, NULL);
}

static void largest_body(struct rank *rank)
{
    static const uint64_t refused[] = {LOCKSTEP_MAX_WEIGHT + 1, UINT64_C(1) << 63, UINT64_MAX};
    const struct module_shape shape = {.name = "net", .count = COUNT, .elements = sizes};
    struct trained_module module;
    uint64_t weights[CLUSTER_MAX_WORLD];
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < 3; i++) {
        const struct lockstep_step_options options = {.struct_bytes = sizeof(options),
                                                      .weight = LOCKSTEP_MAX_WEIGHT};
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, begin_weighted(rank, refused[i]));
        RANK_SAYS(rank, "a rank has at most 281474976710656, which is 2^48");
        for (uint32_t r = 0; r < rank->world_size; r++)
            weights[r] = LOCKSTEP_MAX_WEIGHT;
        trainer_begin(rank, &options);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        trainer_call(rank, &module);
        trainer_end(rank);
        RANK_TRUE(rank,
                  trainer_report(rank).weight_total == rank->world_size * LOCKSTEP_MAX_WEIGHT);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), weights);
    }
    trainer_free(&module);
}

static void case_26_largest_weight(const struct setting *setting)
{
    ranks_run(setting, largest_body, NULL);
}

// ---- Deferred ----------------------------------------------------------------------------------

static void defer_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->unplanned = LOCKSTEP_UNPLANNED_DEFER;
}

// Runs a step in which rank 0 calls the second module, which the plan does not have. So the call is
// deferred, and the weights of such steps add up.
static void deferred_step(struct rank *rank, struct trained_module *modules, uint64_t weight)
{
    RANK_OK(rank, begin_weighted(rank, weight));
    for (uint32_t m = 0; m < (rank->rank == 0 ? 2u : 1u); m++)
        trainer_call(rank, &modules[m]);
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
}

static void deferred_body(struct rank *rank)
{
    static const char *const names[] = {"planned", "extra"};
    struct trained_module modules[2];
    for (uint32_t m = 0; m < 2; m++) {
        const struct module_shape shape = {
            .name = names[m], .count = COUNT, .elements = sizes, .unused = LOCKSTEP_UNUSED_ACCEPT};
        trainer_make(rank, &shape, m, &modules[m]);
    }
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, begin_weighted(rank, 1));
    trainer_call(rank, &modules[0]);
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    deferred_step(rank, modules, HALF);
    deferred_step(rank, modules, HALF);
    if (rank->rank == 0) {
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, begin_weighted(rank, 1));
        RANK_SAYS(rank, "module 'extra': gradients of weight 281474976710656 are deferred, and "
                        "this step may add 1 (1 times its weight)");
    }
    RANK_OK(rank, begin_weighted(rank, rank->rank == 0 ? 0 : 1));
    trainer_call(rank, &modules[0]);
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    for (uint32_t m = 0; m < 2; m++)
        trainer_free(&modules[m]);
}

static void case_40_deferred_weights_keep_the_bound(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = defer_configure, .body = deferred_body};
    ranks_run_test(&test);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_26_largest_weight", case_26_largest_weight, NULL},
        {"case_40_deferred_weights_keep_the_bound", case_40_deferred_weights_keep_the_bound, NULL},
    };
    return stamp_run("reducer: large weights", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
