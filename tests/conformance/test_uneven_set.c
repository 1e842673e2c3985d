// SPDX-License-Identifier: Apache-2.0
//
// Conformance: the rule for ranks that run out of data changes between steps. Epochs with unequally
// many batches follow each other and steps that all ranks make, each rank with the divisor of all
// ranks or of those with data (case 53). Case numbers are those of the list of cases for reducers.

#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODULES 2

static const uint64_t sizes[3] = {40, 1, 130};

// An epoch: its rule, and how many batches each rank has. An exhausted rank keeps its weight or
// not.
struct epoch {
    lockstep_uneven uneven;
    uint32_t batches; // Rank r has this many, and `more` for every rank before it.
    uint32_t more;
    bool keeps;
};

// With LOCKSTEP_UNEVEN_NONE all ranks make `batches` steps.
static const struct epoch epochs[] = {
    {LOCKSTEP_UNEVEN_ALL, 2, 3, false},  {LOCKSTEP_UNEVEN_ALL, 1, 2, true},
    {LOCKSTEP_UNEVEN_NONE, 3, 0, false}, {LOCKSTEP_UNEVEN_FIRST, 2, 1, false},
    {LOCKSTEP_UNEVEN_ALL, 0, 2, true},   {LOCKSTEP_UNEVEN_NONE, 1, 0, false},
};

static void make(struct rank *rank, struct trained_module *modules)
{
    static const char *const names[MODULES] = {"mean", "sum"};
    for (uint32_t m = 0; m < MODULES; m++) {
        const struct module_shape shape = {.name = names[m],
                                           .count = 3,
                                           .elements = sizes,
                                           .scattered = m == 1,
                                           .kind = m == 1 ? LOCKSTEP_GRADIENT_SUM
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

static uint32_t batches_of(const struct epoch *epoch, uint32_t rank)
{
    return epoch->batches + epoch->more * rank;
}

static uint32_t steps_of(const struct epoch *epoch, uint32_t world)
{
    return batches_of(epoch, epoch->uneven == LOCKSTEP_UNEVEN_FIRST ? 0 : world - 1);
}

static uint64_t weight_of(uint32_t rank, uint64_t step)
{
    return 1 + (rank + step) % 3;
}

// The result is sum(w g) / sum(w) over the ranks with data, or the same with the weights of the
// others in the divisor, too.
static double expected(const struct rank *rank, const struct trained_module *module,
                       const struct epoch *epoch, uint32_t batch, uint32_t p, uint64_t e)
{
    const uint64_t step = atomic_load(&rank->step);
    double sum = 0;
    double divisor = 0;
    for (uint32_t r = 0; r < rank->world_size; r++) {
        const double weight = (double)weight_of(r, step);
        const double value = (double)trainer_known(module, r, step, p, e);
        const bool data = batch < batches_of(epoch, r);
        if (data)
            sum += module->shape.kind == LOCKSTEP_GRADIENT_SUM ? value : weight * value;
        if (data || epoch->keeps)
            divisor += weight;
    }
    return (double)((float)sum / (float)divisor);
}

static void expect_results(struct rank *rank, struct trained_module *modules,
                           const struct epoch *epoch, uint32_t batch)
{
    for (uint32_t m = 0; m < MODULES; m++) {
        uint64_t wrong = 0;
        for (uint32_t p = 0; p < modules[m].shape.count; p++) {
            for (uint64_t e = 0; e < sizes[p]; e++)
                wrong += trainer_value(&modules[m], p, e) !=
                         expected(rank, &modules[m], epoch, batch, p, e);
        }
        RANK_EQUAL(rank, wrong, 0);
        trainer_digest(rank, &modules[m]);
    }
}

static int begin(struct rank *rank, const struct epoch *epoch, uint64_t step, uint32_t batch,
                 struct lockstep_step_view *view)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.exhausted = batch >= batches_of(epoch, rank->rank);
    options.weight = weight_of(rank->rank, step);
    options.keep_weight = epoch->keeps;
    atomic_store(&rank->step, step);
    return RANK_CALL(rank, lockstep_step_begin(rank->session, &options, view));
}

static void run_step(struct rank *rank, struct trained_module *modules, const struct epoch *epoch,
                     uint64_t step, uint32_t batch)
{
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    RANK_EQUAL(rank, begin(rank, epoch, step, batch, &view), LOCKSTEP_OK);
    RANK_EQUAL(rank, view.step, step);
    for (uint32_t m = 0; m < MODULES; m++) {
        trainer_fill_known(&modules[m], rank->rank, step);
        if (batch < batches_of(epoch, rank->rank))
            trainer_call(rank, &modules[m]);
    }
    trainer_end(rank);
    expect_results(rank, modules, epoch, batch);
    RANK_EQUAL(rank, trainer_report(rank).unused, 0);
}

// Runs an epoch whose first step has the number `step`. Returns the number of the next step.
static uint64_t run_epoch(struct rank *rank, struct trained_module *modules,
                          const struct epoch *epoch, uint64_t step)
{
    const uint32_t steps = steps_of(epoch, rank->world_size);
    RANK_OK(rank, lockstep_uneven_set(rank->session, epoch->uneven));
    for (uint32_t batch = 0; batch < steps; batch++)
        run_step(rank, modules, epoch, step++, batch);
    if (epoch->uneven == LOCKSTEP_UNEVEN_NONE)
        return step;
    for (int i = 0; i < 2; i++)
        RANK_EQUAL(rank, begin(rank, epoch, step, steps, NULL), LOCKSTEP_FINISHED);
    RANK_OK(rank, lockstep_state_check(rank->session));
    return step + 1;
}

static void epochs_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    uint64_t step = 1;
    make(rank, modules);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof(epochs) / sizeof(epochs[0]); i++)
            step = run_epoch(rank, modules, &epochs[i], step);
    }
    unmake(modules);
}

static void run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {.setting = setting, .body = body};
    ranks_run_test(&test);
}

static void case_53_epochs_of_unequal_length(const struct setting *setting)
{
    run(setting, epochs_body);
}

// Modules are registered anew between two epochs, and the job is saved with its step number.
static void again_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    uint64_t step = 1;
    make(rank, modules);
    step = run_epoch(rank, modules, &epochs[0], step);
    for (uint32_t m = 0; m < MODULES; m++)
        RANK_OK(rank, lockstep_module_close(modules[m].module));
    unmake(modules);
    make(rank, modules);
    step = run_epoch(rank, modules, &epochs[1], step);
    run_epoch(rank, modules, &epochs[2], step);
    unmake(modules);
}

static void case_53_modules_anew_between_epochs(const struct setting *setting)
{
    run(setting, again_body);
}

static void saving_body(struct rank *rank)
{
    struct trained_module modules[MODULES];
    char path[] = "/tmp/lockstep-uneven-XXXXXX";
    char line[64] = "";
    char expected_line[64];
    const int descriptor = mkstemp(path);
    RANK_EQUAL(rank, descriptor >= 0, 1);
    make(rank, modules);
    const uint64_t next = run_epoch(rank, modules, &epochs[0], 1);
    for (int set = 0; set < 2; set++) {
        RANK_OK(rank, lockstep_session_save(rank->session, path));
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof(line), file) && strncmp(line, "step ", 5) != 0) {}
        if (file)
            fclose(file);
        snprintf(expected_line, sizeof(expected_line), "step %" PRIu64 "\n", next - 1);
        RANK_EQUAL(rank, strcmp(line, expected_line), 0);
        RANK_OK(rank, lockstep_uneven_set(rank->session, LOCKSTEP_UNEVEN_NONE));
    }
    run_epoch(rank, modules, &epochs[2], next);
    close(descriptor);
    unlink(path);
    unmake(modules);
}

static void case_53_saved_between_epochs(const struct setting *setting)
{
    run(setting, saving_body);
}

// Rank 0 is in a window when the others have run out of data. What it has added to metrics and
// counters is dropped with the window. What is added afterwards counts in the next step.
static void dropped_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module modules[MODULES];
    double mean;
    uint64_t count;
    int64_t total;
    make(rank, modules);
    RANK_OK(rank, lockstep_uneven_set(rank->session, LOCKSTEP_UNEVEN_FIRST));
    if (rank->rank == 0) {
        options.accumulate = 1;
        trainer_begin(rank, &options);
        RANK_OK(rank, lockstep_metric_add(rank->session, "loss", LOCKSTEP_METRIC_MEAN, 1000));
        RANK_OK(rank, lockstep_counter_add(rank->session, "samples", 1000));
        trainer_end(rank);
    }
    options.accumulate = 0;
    options.exhausted = rank->rank != 0;
    RANK_STATUS(rank, LOCKSTEP_FINISHED, lockstep_step_begin(rank->session, &options, NULL));
    RANK_OK(rank, lockstep_metric_add(rank->session, "loss", LOCKSTEP_METRIC_MEAN, 2));
    RANK_OK(rank, lockstep_counter_add(rank->session, "samples", 1));
    RANK_OK(rank, lockstep_uneven_set(rank->session, LOCKSTEP_UNEVEN_NONE));
    trainer_begin(rank, NULL);
    trainer_end(rank);
    RANK_OK(rank, lockstep_metric_read(rank->session, "loss", &mean, &count));
    RANK_EQUAL(rank, count, rank->world_size);
    RANK_TRUE(rank, mean <= 2 && mean >= 2);
    RANK_OK(rank, lockstep_counter_read(rank->session, "samples", &total));
    RANK_EQUAL(rank, total, rank->world_size);
    unmake(modules);
}

static void values_of_a_dropped_window(const struct setting *setting)
{
    run(setting, dropped_body);
}

// ---- What goes wrong ---------------------------------------------------------------------------

// The rule of the last rank, and that of the others.
static const lockstep_uneven pairs[][2] = {
    {LOCKSTEP_UNEVEN_ALL, LOCKSTEP_UNEVEN_NONE},
    {LOCKSTEP_UNEVEN_NONE, LOCKSTEP_UNEVEN_FIRST},
    {LOCKSTEP_UNEVEN_FIRST, LOCKSTEP_UNEVEN_ALL},
};

static void differing_body(struct rank *rank)
{
    static const char *const words[] = {"uneven=none", "uneven=all", "uneven=first"};
    const lockstep_uneven *pair = rank->context;
    struct trained_module modules[MODULES];
    const bool last = rank->rank == rank->world_size - 1;
    make(rank, modules);
    run_epoch(rank, modules, &epochs[2], 1);
    RANK_OK(rank, lockstep_uneven_set(rank->session, pair[last ? 0 : 1]));
    int status = RANK_CALL(rank, lockstep_step_begin(rank->session, NULL, NULL));
    if (status == LOCKSTEP_OK)
        status = RANK_CALL(rank, lockstep_step_end(rank->session, NULL));
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "step 4");
    RANK_SAYS(rank, words[pair[0]]);
    RANK_SAYS(rank, words[pair[1]]);
    unmake(modules);
}

static void case_53_ranks_differ(const struct setting *setting)
{
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        lockstep_uneven pair[2] = {pairs[i][0], pairs[i][1]};
        const struct cluster_test test = {
            .setting = setting, .body = differing_body, .context = pair};
        ranks_run_test(&test);
    }
}

static void misuse_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module modules[MODULES];
    make(rank, modules);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_uneven_set(rank->session, (lockstep_uneven)3));
    RANK_SAYS(rank, "uneven 3 is unknown");
    options.exhausted = 1;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, &options, NULL));
    RANK_SAYS(rank, "lockstep_uneven_set");
    options.exhausted = 0;
    options.keep_weight = 2;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, &options, NULL));
    RANK_SAYS(rank, "keep_weight");
    options.keep_weight = 0;
    options.accumulate = 1;
    trainer_begin(rank, &options);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_uneven_set(rank->session, LOCKSTEP_UNEVEN_ALL));
    RANK_SAYS(rank, "inside a step (step 1)");
    trainer_end(rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_uneven_set(rank->session, LOCKSTEP_UNEVEN_ALL));
    RANK_SAYS(rank, "inside a window (step 1)");
    trainer_begin(rank, NULL);
    trainer_end(rank);
    run_epoch(rank, modules, &epochs[0], 2);
    unmake(modules);
}

static void set_where_it_cannot_be(const struct setting *setting)
{
    run(setting, misuse_body);
}

static void alone_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    epochs_body(rank);
}

static void alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = alone_body, .without_session = true};
    ranks_run_test(&test);
}

static const uint32_t worlds[] = {1, 2, 3, 5, 0};
static const uint32_t one[] = {1, 0};

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_53_epochs_of_unequal_length", case_53_epochs_of_unequal_length, worlds},
        {"case_53_modules_anew_between_epochs", case_53_modules_anew_between_epochs, NULL},
        {"case_53_saved_between_epochs", case_53_saved_between_epochs, NULL},
        {"case_53_ranks_differ", case_53_ranks_differ, NULL},
        {"values_of_a_dropped_window", values_of_a_dropped_window, NULL},
        {"set_where_it_cannot_be", set_where_it_cannot_be, NULL},
        {"alone", alone, one},
    };
    return stamp_run("uneven_set", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
