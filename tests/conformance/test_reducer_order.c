// SPDX-License-Identifier: Apache-2.0
//
// Conformance: several modules, phases, ranks that call other modules than the plan has, and the
// fields of a step's report. Case numbers are those of the list of cases for reducers.

#include "tests/support/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t sizes[4] = {40, 300, 1, 77};

static void make_two(struct rank *rank, struct trained_module *modules)
{
    const struct module_shape a = {.name = "a", .count = 4, .elements = sizes};
    const struct module_shape b = {.name = "b", .count = 3, .elements = sizes};
    trainer_make(rank, &a, 0, &modules[0]);
    trainer_make(rank, &b, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
}

static void free_two(struct trained_module *modules)
{
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static struct lockstep_step_options phase(const char *name)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.phase = name;
    return options;
}

// ---- Case 35 -----------------------------------------------------------------------------------

// Rank 1 evaluates between steps, for a long time without a call of the library.
static void evaluation_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 4; i++) {
        trainer_step_known(rank, modules, 2);
        if (rank->rank != 1)
            continue;
        RANK_OK(rank, lockstep_mark(rank->session, "evaluating"));
        usleep(30000);
        RANK_OK(rank, lockstep_pause(rank->session, "writing a checkpoint", 5));
        usleep(10000);
        RANK_OK(rank, lockstep_resume(rank->session));
    }
    free_two(modules);
}

static void case_35_evaluation_on_one_rank(const struct setting *setting)
{
    ranks_run(setting, evaluation_body, NULL);
}

// ---- Case 37 -----------------------------------------------------------------------------------

// Runs a step in which even ranks call modules A, B and odd ranks call B, A.
static void opposite_step(struct rank *rank, struct trained_module *modules)
{
    trainer_begin(rank, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        struct trained_module *module = &modules[(i + rank->rank) % 2];
        trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
        trainer_call(rank, module);
    }
    trainer_end(rank);
    trainer_expect_mean(rank, &modules[0], atomic_load(&rank->step), NULL);
    trainer_expect_mean(rank, &modules[1], atomic_load(&rank->step), NULL);
}

static void opposite_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 6; i++) {
        opposite_step(rank, modules);
        RANK_EQUAL(rank, trainer_report(rank).learning, i == 0);
        if (i > 0)
            RANK_EQUAL(rank, trainer_report(rank).control_messages, 0);
        else
            RANK_TRUE(rank, trainer_report(rank).control_messages > 0);
    }
    free_two(modules);
}

static void case_37_opposite_orders_of_modules(const struct setting *setting)
{
    ranks_run(setting, opposite_body, NULL);
}

// ---- Case 39 -----------------------------------------------------------------------------------

static void phase_step(struct rank *rank, struct trained_module *module, const char *name,
                       bool learning)
{
    const struct lockstep_step_options options = phase(name);
    trainer_begin(rank, &options);
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    trainer_call(rank, module);
    trainer_end(rank);
    trainer_expect_mean(rank, module, atomic_load(&rank->step), NULL);
    RANK_EQUAL(rank, trainer_report(rank).learning, learning);
    if (!learning)
        RANK_EQUAL(rank, trainer_report(rank).control_messages, 0);
}

static void phases_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 5; i++) {
        phase_step(rank, &modules[0], "policy", i == 0);
        phase_step(rank, &modules[1], "auxiliary", i == 0);
    }
    free_two(modules);
}

static void case_39_phases_learn_once_each(const struct setting *setting)
{
    ranks_run(setting, phases_body, NULL);
}

// Two phases that run the same module: the second one learns an order over the agreed layout.
static void shared_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 4; i++) {
        const struct lockstep_step_options options = phase("both");
        phase_step(rank, &modules[0], "a alone", i == 0);
        trainer_begin(rank, &options);
        for (uint32_t m = 0; m < 2; m++) {
            trainer_fill_known(&modules[m], rank->rank, atomic_load(&rank->step));
            trainer_call(rank, &modules[m]);
        }
        trainer_end(rank);
        for (uint32_t m = 0; m < 2; m++)
            trainer_expect_mean(rank, &modules[m], atomic_load(&rank->step), NULL);
    }
    free_two(modules);
}

static void case_39_a_module_of_two_phases(const struct setting *setting)
{
    ranks_run(setting, shared_body, NULL);
}

// Runs a step of one module up to the first call that fails. Any call may fail, because the other
// ranks may have failed before.
static int step_until_failure(struct rank *rank, struct trained_module *module,
                              const struct lockstep_step_options *options)
{
    lockstep_call *call;
    int status = RANK_CALL(rank, lockstep_step_begin(rank->session, options, NULL));
    if (status == 0)
        status = RANK_CALL(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < module->shape.count && status == 0; i++)
        status = RANK_CALL(rank,
                           lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    if (status == 0)
        status = RANK_CALL(rank, lockstep_call_end(call));
    return status < 0 ? status : RANK_CALL(rank, lockstep_step_end(rank->session, NULL));
}

// Steps without any call are valid. A step whose phase differs between ranks fails.
static void phases_differ_body(struct rank *rank)
{
    const struct lockstep_step_options options = phase(rank->rank == 0 ? "policy" : "auxiliary");
    struct trained_module modules[2];
    make_two(rank, modules);
    trainer_begin(rank, NULL);
    trainer_end(rank);
    trainer_begin(rank, NULL);
    trainer_end(rank);
    trainer_step_known(rank, modules, 0);
    phase_step(rank, &modules[0], "policy", true);
    RANK_EQUAL(rank, step_until_failure(rank, &modules[0], &options), LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "phase 'policy'");
    RANK_SAYS(rank, "phase 'auxiliary'");
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_step_begin(rank->session, NULL, NULL));
    free_two(modules);
}

static void case_39_phases_differ_between_ranks(const struct setting *setting)
{
    ranks_run(setting, phases_differ_body, NULL);
}

// Phases differ in the first step, which learns. The ranks meet before the step; otherwise the step
// of the others could fail while a rank is still in lockstep_start.
static void learning_differs_body(struct rank *rank)
{
    const struct lockstep_step_options options = phase(rank->rank == 0 ? "policy" : "auxiliary");
    struct trained_module modules[2];
    make_two(rank, modules);
    rank_meet(rank);
    RANK_EQUAL(rank, step_until_failure(rank, &modules[0], &options), LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "phase 'policy'");
    RANK_SAYS(rank, "phase 'auxiliary'");
    RANK_SAYS(rank, "step 1");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    free_two(modules);
}

static void case_39_phases_differ_while_learning(const struct setting *setting)
{
    ranks_run(setting, learning_differs_body, NULL);
}

// ---- Case 40 -----------------------------------------------------------------------------------

// Runs a step in which only rank 1 calls module b, which the plan has. The mean is rank 1's
// gradient.
static void planned_step(struct rank *rank, struct trained_module *modules)
{
    uint64_t only_1[CLUSTER_MAX_WORLD] = {0, 1};
    trainer_begin(rank, NULL);
    for (uint32_t m = 0; m < 2; m++) {
        trainer_fill_known(&modules[m], rank->rank, atomic_load(&rank->step));
        if (m == 0 || rank->rank == 1)
            trainer_call(rank, &modules[m]);
    }
    trainer_end(rank);
    trainer_expect_mean(rank, &modules[0], atomic_load(&rank->step), NULL);
    trainer_expect_mean(rank, &modules[1], atomic_load(&rank->step), only_1);
    RANK_EQUAL(rank, trainer_report(rank).zero_filled, rank->rank == 1 ? 0 : 1);
    trainer_digest(rank, &modules[1]);
}

static void planned_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    trainer_step_known(rank, modules, 2);
    for (int i = 0; i < 3; i++)
        planned_step(rank, modules);
    trainer_step_known(rank, modules, 2);
    free_two(modules);
}

static void case_40_planned_and_called_on_one_rank(const struct setting *setting)
{
    ranks_run(setting, planned_body, NULL);
}

// The same from the learning step on.
static void learned_on_one_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 3; i++)
        planned_step(rank, modules);
    trainer_step_known(rank, modules, 2);
    free_two(modules);
}

static void case_40_learned_from_one_rank(const struct setting *setting)
{
    ranks_run(setting, learned_on_one_body, NULL);
}

static void unplanned_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    trainer_step_known(rank, modules, 1);
    trainer_begin(rank, NULL);
    trainer_call(rank, &modules[0]);
    if (rank->rank == 1)
        trainer_call(rank, &modules[1]);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "module 'b'");
    RANK_SAYS(rank, "step 2");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_step_begin(rank->session, NULL, NULL));
    free_two(modules);
}

static void refuse_unplanned(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->unplanned = LOCKSTEP_UNPLANNED_FAIL;
}

static void case_40_not_planned(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = refuse_unplanned, .body = unplanned_body};
    ranks_run_test(&test);
}

// Runs a step in which only rank 1 calls modules that the plan does not have. By default all ranks
// run them at the end of the step. Rank 1's gradient is the mean on all ranks, and the plan does
// not change.
static void extended_step(struct rank *rank, struct trained_module *modules, uint32_t extra)
{
    uint64_t only_1[CLUSTER_MAX_WORLD] = {0, 1};
    trainer_begin(rank, NULL);
    for (uint32_t m = 0; m < 1 + extra; m++) {
        trainer_fill_known(&modules[m], rank->rank, atomic_load(&rank->step));
        if (m == 0 || rank->rank == 1)
            trainer_call(rank, &modules[m]);
    }
    trainer_end(rank);
    trainer_expect_mean(rank, &modules[0], atomic_load(&rank->step), NULL);
    for (uint32_t m = 1; m < 1 + extra; m++) {
        trainer_expect_mean(rank, &modules[m], atomic_load(&rank->step), only_1);
        trainer_digest(rank, &modules[m]);
    }
    RANK_EQUAL(rank, trainer_report(rank).extended, extra);
    RANK_EQUAL(rank, trainer_report(rank).learning, 0);
    RANK_EQUAL(rank, trainer_report(rank).control_messages, 0);
}

static void extended_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    trainer_step_known(rank, modules, 1);
    for (uint32_t i = 0; i < 6; i++)
        extended_step(rank, modules, i % 3 == 2 ? 0 : 1);
    trainer_step_known(rank, modules, 2);
    free_two(modules);
}

static void case_40_run_at_the_end(const struct setting *setting)
{
    ranks_run(setting, extended_body, NULL);
}

#define MANY 10

// Each rank calls other modules that the plan does not have, in different orders. All ranks run all
// of these modules at the end of the step, in one order.
static void extended_by_all_body(struct rank *rank)
{
    static const char *const names[MANY] = {"m0", "m1", "m2", "m3", "m4",
                                            "m5", "m6", "m7", "m8", "m9"};
    struct trained_module modules[MANY];
    for (uint32_t m = 0; m < MANY; m++) {
        const struct module_shape shape = {.name = names[m], .count = 3, .elements = sizes};
        trainer_make(rank, &shape, m, &modules[m]);
    }
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 1);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == 2) // A third such step in a row would lead to a new plan.
            trainer_step_known(rank, modules, 1);
        trainer_begin(rank, NULL);
        for (uint32_t m = 0; m < MANY; m++)
            trainer_fill_known(&modules[m], rank->rank, atomic_load(&rank->step));
        trainer_call(rank, &modules[0]);
        for (uint32_t m = 1; m < MANY - 1; m++) {
            const uint32_t place = rank->rank % 2 == 0 ? m : MANY - 1 - m;
            if (i % 2 == 0 || place % rank->world_size == rank->rank)
                trainer_call(rank, &modules[place]);
        }
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).extended, MANY - 2);
        for (uint32_t m = 1; m < MANY - 1; m++) {
            uint64_t one[CLUSTER_MAX_WORLD] = {0};
            one[m % rank->world_size] = 1;
            trainer_expect_mean(rank, &modules[m], atomic_load(&rank->step),
                                i % 2 == 0 ? NULL : one);
            trainer_digest(rank, &modules[m]);
        }
    }
    // One more module than a wave can name.
    trainer_begin(rank, NULL);
    for (uint32_t m = rank->rank == 0 ? 0 : 1; m < MANY; m++)
        trainer_call(rank, &modules[m]);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "module 'm1' (call 1)");
    RANK_SAYS(rank, "and more");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    for (uint32_t m = 0; m < MANY; m++)
        trainer_free(&modules[m]);
}

static void case_40_run_at_the_end_from_all_ranks(const struct setting *setting)
{
    ranks_run(setting, extended_by_all_body, NULL);
}

// Rank 1 has another policy for unplanned calls than the other ranks.
static void differing_policies(struct rank *rank, struct lockstep_config *config)
{
    if (rank->rank == 1)
        config->unplanned = LOCKSTEP_UNPLANNED_FAIL;
}

static void differing_body(struct rank *rank)
{
    struct trained_module module;
    const struct module_shape shape = {.name = "a", .count = 4, .elements = sizes};
    trainer_make(rank, &shape, 0, &module);
    rank_meet(rank); // Otherwise the session could fail before this rank calls lockstep_start.
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "policies: LOCKSTEP_UNPLANNED=");
    RANK_SAYS(rank, "LOCKSTEP_UNPLANNED=extend");
    RANK_SAYS(rank, "LOCKSTEP_UNPLANNED=fail");
    RANK_SAYS(rank, "rank 1");
    trainer_free(&module);
}

static void case_31_policies_differ(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = differing_policies, .body = differing_body};
    ranks_run_test(&test);
}

// ---- Case 44 -----------------------------------------------------------------------------------

static void expect_sane(struct rank *rank, const struct lockstep_report *report)
{
    RANK_TRUE(rank, report->first_ready_us <= report->last_ready_us);
    RANK_TRUE(rank, report->last_ready_us <= report->end_us);
    RANK_TRUE(rank, report->end_us <= report->done_us);
    RANK_TRUE(rank, report->first_wire_us <= report->last_wire_us);
    RANK_TRUE(rank, report->first_wire_us > 0);
    RANK_TRUE(rank, report->first_wire_us >= report->first_ready_us);
    RANK_TRUE(rank, report->last_wire_us <= report->done_us);
    RANK_TRUE(rank, report->bytes_sent > 0 && report->bytes_received > 0);
    RANK_TRUE(rank, report->buckets >= 1);
    RANK_EQUAL(rank, report->zero_filled, 0);
    RANK_EQUAL(rank, report->weight_total, rank->world_size);
}

static void statistics_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 4; i++) {
        struct lockstep_report report;
        trainer_step_known(rank, modules, 2);
        report = trainer_report(rank);
        RANK_EQUAL(rank, report.step, i + 1);
        expect_sane(rank, &report);
    }
    free_two(modules);
}

static void case_44_statistics_are_ordered(const struct setting *setting)
{
    ranks_run(setting, statistics_body, NULL);
}

// Runs a planned step with a pause before the last gradient. Returns true if bytes travelled before
// the last gradient was ready.
static bool overlap_step(struct rank *rank, struct trained_module *module, useconds_t pause_us)
{
    struct lockstep_report report;
    trainer_step_pausing(rank, module, pause_us);
    trainer_expect_mean(rank, module, atomic_load(&rank->step), NULL);
    report = trainer_report(rank);
    expect_sane(rank, &report);
    return report.first_wire_us < report.last_ready_us;
}

// Elements of a bucket; fewer where single bytes travel.
static uint64_t overlap_elements(const struct rank *rank)
{
    return rank->setting->torn_bytes == 1 ? 400 : 4000;
}

// On a busy machine the engine may not run within a short pause, so the pause grows until bytes
// travel before the last gradient on all ranks.
static void overlap_body(struct rank *rank)
{
    const uint64_t each = overlap_elements(rank);
    const uint64_t large[6] = {each / 8, each, each, each, each, each};
    const struct module_shape shape = {.name = "net", .count = 6, .elements = large};
    struct trained_module module;
    int64_t overlapped = 0;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    for (useconds_t pause_us = 5000; overlapped == 0 && pause_us < 2000000; pause_us *= 2) {
        overlapped = overlap_step(rank, &module, pause_us);
        RANK_OK(rank, lockstep_allreduce(rank->session, "overlapped", &overlapped, 1,
                                         LOCKSTEP_INT64, LOCKSTEP_MIN, LOCKSTEP_WAIT_FOREVER));
    }
    RANK_TRUE(rank, overlapped);
    trainer_free(&module);
}

static void overlap_configure(struct rank *rank, struct lockstep_config *config)
{
    config->bucket_first_bytes = config->bucket_bytes = overlap_elements(rank) * sizeof(float);
    config->bucket_last_bytes = config->bucket_bytes / 4;
}

static void case_44_transfer_overlaps_backward(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = overlap_configure, .body = overlap_body};
    ranks_run_test(&test);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_35_evaluation_on_one_rank", case_35_evaluation_on_one_rank, NULL},
        {"case_37_opposite_orders_of_modules", case_37_opposite_orders_of_modules, NULL},
        {"case_39_phases_learn_once_each", case_39_phases_learn_once_each, NULL},
        {"case_39_a_module_of_two_phases", case_39_a_module_of_two_phases, NULL},
        {"case_39_phases_differ_between_ranks", case_39_phases_differ_between_ranks, NULL},
        {"case_39_phases_differ_while_learning", case_39_phases_differ_while_learning, NULL},
        {"case_40_planned_and_called_on_one_rank", case_40_planned_and_called_on_one_rank, NULL},
        {"case_40_learned_from_one_rank", case_40_learned_from_one_rank, NULL},
        {"case_40_not_planned", case_40_not_planned, NULL},
        {"case_40_run_at_the_end", case_40_run_at_the_end, NULL},
        {"case_40_run_at_the_end_from_all_ranks", case_40_run_at_the_end_from_all_ranks, NULL},
        {"case_31_policies_differ", case_31_policies_differ, NULL},
        {"case_44_statistics_are_ordered", case_44_statistics_are_ordered, NULL},
        {"case_44_transfer_overlaps_backward", case_44_transfer_overlaps_backward, NULL},
    };
    return stamp_run("reducer: order", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
