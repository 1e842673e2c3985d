// SPDX-License-Identifier: Apache-2.0
//
// Conformance: what config.virtual_ranks refuses, and how. Case numbers are those of the list of
// cases for reducers.

#include "tests/support/trainer.h"

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t sizes[] = {1};

static void four_leaves(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->virtual_ranks = 4;
}

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
    struct setting setting = setting_named("tcp");
    const struct cluster_test test = {
        .setting = &setting, .configure = four_leaves, .body = steps_body};
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
    struct setting setting = setting_named("tcp");
    const struct cluster_test test = {
        .setting = &setting, .configure = four_leaves, .body = weightless_body};
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

// The last rank has fewer leaves than the world has ranks, and notices that itself.
static void differ_body(struct rank *rank)
{
    const bool last = rank->rank + 1 == rank->world_size;
    struct lockstep_config config = rank_config(rank);
    config.virtual_ranks = last ? 1 : 4 * (rank->rank % 2 + 1);
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_open(&config, &rank->session));
    RANK_SAYS(rank, "LOCKSTEP_VIRTUAL_RANKS");
    if (last)
        return;
    RANK_SAYS(rank, "rank 0 (");
    RANK_SAYS(rank, " has LOCKSTEP_VIRTUAL_RANKS=4, rank 1 (");
    RANK_SAYS(rank, rank->world_size == 2 ? " has LOCKSTEP_VIRTUAL_RANKS=1: set it"
                                          : " has LOCKSTEP_VIRTUAL_RANKS=8: set it");
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
    (void)ranks_run_test(&differ);
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
        cmocka_unit_test(case_54_another_number_of_steps_is_refused),
        cmocka_unit_test(case_54_no_weight_at_all),
        cmocka_unit_test(case_54_worlds_that_do_not_fit),
        cmocka_unit_test(case_54_what_does_not_go_together),
    };
    return cmocka_run_group_tests_name("leaves_refused", tests, NULL, NULL);
}
