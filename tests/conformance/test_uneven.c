// SPDX-License-Identifier: Apache-2.0
//
// Conformance: ranks with different amounts of data. An exhausted rank continues to begin and end
// steps, contributes nothing, and receives the means of the other ranks. Training ends when all
// ranks are exhausted (case 28) or when the first rank is (case 29). Case numbers are those of the
// list of cases for reducers.

#include "tests/support/trainer.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODULES 3

static const uint64_t sizes[5] = {40, 1, 0, 130, 9};

// The program of one world. An exhausted rank runs the phase of the other ranks.
struct plan {
    uint32_t (*data_of)(const struct rank *rank, uint32_t r); // Steps for which rank r has data.
    lockstep_uneven uneven;
    bool phases; // True if steps have different phases, with different modules.
    bool weights; // True if ranks have different weights.
    bool windows; // True if windows have different lengths.
    bool misnamed; // True if exhausted ranks name a phase that no rank runs.
};

static const struct plan *plan_of(const struct rank *rank)
{
    return rank->context;
}

static void configure(struct rank *rank, struct lockstep_config *config)
{
    config->uneven = plan_of(rank)->uneven;
}

static bool has_data(const struct rank *rank, uint32_t r, uint64_t step)
{
    return step <= plan_of(rank)->data_of(rank, r);
}

static uint32_t exhausted_in(const struct rank *rank, uint64_t step)
{
    uint32_t exhausted = 0;
    for (uint32_t r = 0; r < rank->world_size; r++)
        exhausted += !has_data(rank, r, step);
    return exhausted;
}

// Number of steps that the world runs.
static uint64_t steps_of(const struct rank *rank)
{
    const uint32_t enough = plan_of(rank)->uneven == LOCKSTEP_UNEVEN_FIRST ? 1 : rank->world_size;
    uint64_t step = 0;
    while (exhausted_in(rank, step + 1) < enough)
        step++;
    return step;
}

static uint64_t weight_in(const struct rank *rank, uint32_t r, uint64_t step)
{
    if (!has_data(rank, r, step))
        return 0;
    return plan_of(rank)->weights ? 1 + (r + step) % 3 : 1;
}

// The phase of a step: module 0 or module 1 in turn, and from step 4 on all modules in every third
// step.
static const char *phase_in(const struct rank *rank, uint64_t step)
{
    if (!plan_of(rank)->phases)
        return NULL;
    return step > 3 && step % 3 == 0 ? "all" : step % 2 == 0 ? "policy" : "auxiliary";
}

static bool runs(const struct rank *rank, uint64_t step, uint32_t module)
{
    const char *phase = phase_in(rank, step);
    if (!phase)
        return module < 2;
    return strcmp(phase, "all") == 0 || module == (strcmp(phase, "policy") == 0 ? 0 : 1);
}

static void make(struct rank *rank, struct trained_module *modules)
{
    static const char *const names[MODULES] = {"a", "b", "c"};
    for (uint32_t m = 0; m < MODULES; m++) {
        const struct module_shape shape = {.name = names[m],
                                           .count = m == 1 ? 3 : 5,
                                           .elements = sizes,
                                           .scattered = m == 1,
                                           .kind = m == 2 ? LOCKSTEP_GRADIENT_SUM
                                                          : LOCKSTEP_GRADIENT_MEAN};
        trainer_make(rank, &shape, m, &modules[m]);
    }
    RANK_OK(rank, lockstep_start(rank->session));
}

static void unmake(struct trained_module *modules)
{
    for (uint32_t m = 0; m < MODULES; m++)
        trainer_free(&modules[m]);
}

// Runs the accumulating steps before a synchronized step; their number is the number of the rank.
static void window(struct rank *rank, struct trained_module *modules, uint64_t step)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.accumulate = 1;
    options.phase = phase_in(rank, step);
    for (uint32_t i = 0; i < rank->rank; i++) {
        trainer_begin(rank, &options);
        RANK_EQUAL(rank, atomic_load(&rank->step), step);
        for (uint32_t m = 0; m < MODULES; m++) {
            if (runs(rank, step, m))
                trainer_call(rank, &modules[m]);
        }
        trainer_end(rank);
    }
}

static void backward(struct rank *rank, struct trained_module *modules, uint64_t step)
{
    lockstep_call *call;
    for (uint32_t m = 0; m < MODULES; m++) {
        trainer_fill_known(&modules[m], rank->rank, step);
        if (has_data(rank, rank->rank, step) && runs(rank, step, m))
            trainer_call(rank, &modules[m]);
    }
    if (has_data(rank, rank->rank, step))
        return;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_begin(modules[0].module, &call));
    RANK_SAYS(rank, "module 'a': no call in step");
    RANK_SAYS(rank, "exhausted");
}

static void check_step(struct rank *rank, struct trained_module *modules, uint64_t step)
{
    uint64_t weights[CLUSTER_MAX_WORLD];
    for (uint32_t r = 0; r < rank->world_size; r++)
        weights[r] = weight_in(rank, r, step);
    for (uint32_t m = 0; m < MODULES; m++) {
        if (runs(rank, step, m))
            trainer_expect_mean(rank, &modules[m], step, weights);
        if (runs(rank, step, m))
            trainer_digest(rank, &modules[m]);
    }
}

static int begin(struct rank *rank, uint64_t step, struct lockstep_step_view *view)
{
    const bool data = has_data(rank, rank->rank, step);
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.exhausted = !data;
    options.weight = data ? weight_in(rank, rank->rank, step) : 77;
    options.phase = data ? phase_in(rank, step) : plan_of(rank)->misnamed ? "nobody's" : NULL;
    atomic_store(&rank->step, step);
    return RANK_CALL(rank, lockstep_step_begin(rank->session, &options, view));
}

static void run_step(struct rank *rank, struct trained_module *modules, uint64_t step)
{
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    if (plan_of(rank)->windows && has_data(rank, rank->rank, step))
        window(rank, modules, step);
    RANK_EQUAL(rank, begin(rank, step, &view), LOCKSTEP_OK);
    RANK_EQUAL(rank, view.step, step);
    RANK_EQUAL(rank, view.exhausted, exhausted_in(rank, step));
    rank_digest(rank, &view.learning, sizeof(view.learning));
    backward(rank, modules, step);
    trainer_end(rank);
    check_step(rank, modules, step);
    RANK_EQUAL(rank, trainer_report(rank).unused, 0);
}

// Checks a finished rank: lockstep_step_begin reports the end again, at once, and functions outside
// steps still work.
static void expect_finished(struct rank *rank, struct trained_module *modules, uint64_t steps)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    lockstep_call *call;
    int64_t one = 1;
    options.accumulate = 1;
    RANK_STATUS(rank, LOCKSTEP_FINISHED, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_STATUS(rank, LOCKSTEP_FINISHED, lockstep_step_begin(rank->session, &options, NULL));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_begin(modules[0].module, &call));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "no step is open");
    if (steps > 0)
        RANK_OK(rank, lockstep_step_report(rank->session, steps, 0, &report));
    RANK_OK(rank, lockstep_state_check(rank->session));
    RANK_OK(rank, lockstep_allreduce(rank->session, "ranks", &one, 1, LOCKSTEP_INT64, LOCKSTEP_SUM,
                                     LOCKSTEP_WAIT_FOREVER));
    RANK_EQUAL(rank, one, rank->world_size);
}

static void uneven_body(struct rank *rank)
{
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    struct trained_module modules[MODULES];
    const uint64_t steps = steps_of(rank);
    make(rank, modules);
    for (uint64_t step = 1; step <= steps; step++)
        run_step(rank, modules, step);
    if (plan_of(rank)->windows && has_data(rank, rank->rank, steps + 1))
        window(rank, modules, steps + 1);
    RANK_EQUAL(rank, begin(rank, steps + 1, &view), LOCKSTEP_FINISHED);
    expect_finished(rank, modules, steps);
    unmake(modules);
}

static void run_plan(const struct setting *setting, struct plan plan)
{
    const struct cluster_test test = {
        .setting = setting, .configure = configure, .body = uneven_body, .context = &plan};
    ranks_run_test(&test);
}

static uint32_t lower_ranks_first(const struct rank *rank, uint32_t r)
{
    (void)rank;
    return 2 + 3 * r;
}

static uint32_t higher_ranks_first(const struct rank *rank, uint32_t r)
{
    return 1 + 4 * (rank->world_size - 1 - r);
}

// Rank 0 has no data at all, so the other ranks learn every phase without it.
static uint32_t none_on_rank_0(const struct rank *rank, uint32_t r)
{
    (void)rank;
    return r == 0 ? 0 : 10;
}

static uint32_t rank_0_alone(const struct rank *rank, uint32_t r)
{
    (void)rank;
    return r == 0 ? 6 : 0;
}

static uint32_t as_long_as_the_others(const struct rank *rank, uint32_t r)
{
    (void)rank;
    (void)r;
    return 4;
}

static uint32_t none_at_all(const struct rank *rank, uint32_t r)
{
    (void)rank;
    (void)r;
    return 0;
}

// ---- Case 28 -----------------------------------------------------------------------------------

static void case_28_mean_over_those_with_data(const struct setting *setting)
{
    run_plan(setting, (struct plan){lower_ranks_first, LOCKSTEP_UNEVEN_ALL, .weights = true});
    run_plan(setting, (struct plan){higher_ranks_first, LOCKSTEP_UNEVEN_ALL, .weights = true});
}

static void case_28_learned_without_rank_0(const struct setting *setting)
{
    run_plan(setting, (struct plan){none_on_rank_0, LOCKSTEP_UNEVEN_ALL, .phases = true});
}

static void case_28_learned_from_rank_0_alone(const struct setting *setting)
{
    run_plan(setting, (struct plan){rank_0_alone, LOCKSTEP_UNEVEN_ALL, .weights = true});
}

static void case_28_the_phase_of_the_others(const struct setting *setting)
{
    run_plan(setting, (struct plan){lower_ranks_first, LOCKSTEP_UNEVEN_ALL, .phases = true,
                                    .weights = true, .misnamed = true});
}

static void case_28_windows_of_the_others(const struct setting *setting)
{
    run_plan(setting, (struct plan){lower_ranks_first, LOCKSTEP_UNEVEN_ALL, .phases = true,
                                    .windows = true});
    run_plan(setting, (struct plan){higher_ranks_first, LOCKSTEP_UNEVEN_ALL, .windows = true});
}

static void case_28_equally_long_after_all(const struct setting *setting)
{
    run_plan(setting, (struct plan){as_long_as_the_others, LOCKSTEP_UNEVEN_ALL, .weights = true});
    run_plan(setting, (struct plan){none_at_all, LOCKSTEP_UNEVEN_ALL, .weights = true});
}

// ---- Case 29 -----------------------------------------------------------------------------------

static void case_29_all_stop_with_the_first(const struct setting *setting)
{
    run_plan(setting, (struct plan){lower_ranks_first, LOCKSTEP_UNEVEN_FIRST, .weights = true});
    run_plan(setting, (struct plan){higher_ranks_first, LOCKSTEP_UNEVEN_FIRST, .phases = true});
}

static void case_29_in_the_first_step(const struct setting *setting)
{
    run_plan(setting, (struct plan){none_on_rank_0, LOCKSTEP_UNEVEN_FIRST, .phases = true});
    run_plan(setting, (struct plan){rank_0_alone, LOCKSTEP_UNEVEN_FIRST, .weights = true});
}

// When the first rank is exhausted, the open windows of other ranks end without synchronization.
static void case_29_in_the_windows_of_others(const struct setting *setting)
{
    run_plan(setting, (struct plan){lower_ranks_first, LOCKSTEP_UNEVEN_FIRST, .windows = true});
}

// ---- What goes wrong ---------------------------------------------------------------------------

static void in_pairs(struct rank *rank, struct trained_module *modules, uint64_t steps)
{
    make(rank, modules);
    for (uint64_t step = 1; step <= steps; step++)
        run_step(rank, modules, step);
}

// The last rank, which has the most data, closes its session instead of beginning a step.
static void closing_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    in_pairs(rank, modules, 3);
    if (rank->rank == rank->world_size - 1) {
        RANK_OK(rank, lockstep_close(rank->session));
        rank->session = NULL;
    } else {
        RANK_EQUAL(rank, begin(rank, 4, &view), LOCKSTEP_E_PEER_LOST);
        RANK_SAYS(rank, "closed its session while");
        RANK_SAYS(rank, "in step 4");
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_step_begin(rank->session, NULL, NULL));
    }
    unmake(modules);
}

static void run_failure(const struct setting *setting, void (*body)(struct rank *rank))
{
    struct plan plan = {lower_ranks_first, LOCKSTEP_UNEVEN_ALL, .weights = true};
    const struct cluster_test test = {
        .setting = setting, .configure = configure, .body = body, .context = &plan};
    ranks_run_test(&test);
}

static void a_rank_closes_instead(const struct setting *setting)
{
    run_failure(setting, closing_body);
}

// A rank aborts while the other ranks wait in lockstep_step_begin.
static void aborting_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    in_pairs(rank, modules, 3);
    rank_meet(rank); // Otherwise the abort could fail a step that is not settled on all ranks.
    if (rank->rank == rank->world_size - 1) {
        usleep(20000);
        RANK_OK(rank, lockstep_abort(rank->session, "the loss is NaN"));
    } else {
        RANK_EQUAL(rank, begin(rank, 4, &view), LOCKSTEP_E_PEER_LOST);
        RANK_SAYS(rank, "the loss is NaN");
    }
    unmake(modules);
}

static void a_rank_aborts_while_others_begin(const struct setting *setting)
{
    run_failure(setting, aborting_body);
}

static void weightless_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module modules[MODULES];
    make(rank, modules);
    options.exhausted = rank->rank == 0;
    options.weight = 0;
    trainer_begin(rank, &options);
    if (rank->rank != 0)
        trainer_call(rank, &modules[0]);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "all ranks gave weight 0");
    unmake(modules);
}

static void nobody_with_data_has_a_weight(const struct setting *setting)
{
    run_failure(setting, weightless_body);
}

// Each misuse fails on its rank only, without effect on other ranks. The step can begin afterwards.
static void misuse_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module modules[MODULES];
    make(rank, modules);
    options.accumulate = 1;
    trainer_begin(rank, &options);
    trainer_call(rank, &modules[0]);
    trainer_end(rank);
    options.exhausted = 1;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, &options, NULL));
    RANK_SAYS(rank, "exhausted with accumulate");
    options.accumulate = 0;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, &options, NULL));
    RANK_SAYS(rank, "end the window of step 1");
    trainer_begin(rank, NULL);
    trainer_end(rank);
    options.exhausted = rank->rank == 0;
    trainer_begin(rank, &options);
    trainer_end(rank);
    options.exhausted = 0;
    options.accumulate = 1;
    for (int i = 0; i < 2 && rank->rank == 0; i++, options.accumulate = 0) {
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, &options, NULL));
        RANK_SAYS(rank, "exhausted in step 2");
    }
    options.exhausted = 1;
    options.accumulate = 0;
    RANK_STATUS(rank, LOCKSTEP_FINISHED, lockstep_step_begin(rank->session, &options, NULL));
    unmake(modules);
}

static void exhausted_where_it_cannot_be(const struct setting *setting)
{
    run_failure(setting, misuse_body);
}

static void configure_differently(struct rank *rank, struct lockstep_config *config)
{
    config->uneven = rank->rank == 0 ? LOCKSTEP_UNEVEN_FIRST : LOCKSTEP_UNEVEN_ALL;
}

static void differing_body(struct rank *rank)
{
    rank_meet(rank);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "uneven=first");
    RANK_SAYS(rank, "uneven=all");
}

static void ranks_differ_in_what_they_do_about_it(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = configure_differently, .body = differing_body};
    ranks_run_test(&test);
}

// ---- Alone -------------------------------------------------------------------------------------

static void alone_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module modules[MODULES];
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    config.uneven = plan_of(rank)->uneven;
    RANK_OK(rank, lockstep_open(&config, &rank->session));
    make(rank, modules);
    trainer_step_known(rank, modules, MODULES);
    trainer_step_known(rank, modules, MODULES);
    options.exhausted = 1;
    RANK_STATUS(rank, LOCKSTEP_FINISHED, lockstep_step_begin(rank->session, &options, NULL));
    expect_finished(rank, modules, 2);
    unmake(modules);
}

static void alone_with_data_and_without(const struct setting *setting)
{
    for (int uneven = LOCKSTEP_UNEVEN_ALL; uneven <= LOCKSTEP_UNEVEN_FIRST; uneven++) {
        struct plan plan = {none_at_all, (lockstep_uneven)uneven, .weights = false};
        const struct cluster_test test = {
            .setting = setting, .body = alone_body, .context = &plan, .without_session = true};
        ranks_run_test(&test);
    }
}

static void undeclared_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module modules[MODULES];
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    config.uneven = (lockstep_uneven)3;
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_open(&config, &rank->session));
    RANK_SAYS(rank, "config.uneven 3 is unknown");
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    make(rank, modules);
    options.exhausted = 1;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, &options, NULL));
    RANK_SAYS(rank, "set config.uneven on every rank");
    trainer_step_known(rank, modules, MODULES);
    unmake(modules);
}

static void exhausted_without_saying_how(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = undeclared_body, .without_session = true};
    ranks_run_test(&test);
}

static const uint32_t worlds[] = {1, 2, 3, 5, 0};
static const uint32_t one[] = {1, 0};

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_28_mean_over_those_with_data", case_28_mean_over_those_with_data, worlds},
        {"case_28_learned_without_rank_0", case_28_learned_without_rank_0, worlds},
        {"case_28_learned_from_rank_0_alone", case_28_learned_from_rank_0_alone, NULL},
        {"case_28_the_phase_of_the_others", case_28_the_phase_of_the_others, NULL},
        {"case_28_windows_of_the_others", case_28_windows_of_the_others, NULL},
        {"case_28_equally_long_after_all", case_28_equally_long_after_all, NULL},
        {"case_29_all_stop_with_the_first", case_29_all_stop_with_the_first, worlds},
        {"case_29_in_the_first_step", case_29_in_the_first_step, NULL},
        {"case_29_in_the_windows_of_others", case_29_in_the_windows_of_others, NULL},
        {"a_rank_closes_instead", a_rank_closes_instead, NULL},
        {"a_rank_aborts_while_others_begin", a_rank_aborts_while_others_begin, NULL},
        {"nobody_with_data_has_a_weight", nobody_with_data_has_a_weight, NULL},
        {"exhausted_where_it_cannot_be", exhausted_where_it_cannot_be, NULL},
        {"ranks_differ_in_what_they_do_about_it", ranks_differ_in_what_they_do_about_it, NULL},
        {"alone_with_data_and_without", alone_with_data_and_without, one},
        {"exhausted_without_saying_how", exhausted_without_saying_how, one},
    };
    return stamp_run("uneven", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
