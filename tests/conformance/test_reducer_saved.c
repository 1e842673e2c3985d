// SPDX-License-Identifier: Apache-2.0
//
// Conformance: training that stops and continues from a saved file ends with the same bits as
// training without a stop. Case numbers are those of the list of cases for reducers.
// tests/unit/worker/test_saved.c tests hostile files.

#include "base/text.h"
#include "tests/support/trainer.h"
#include "worker/session/session.h" // For the current layout.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TENSORS 10
#define STEPS 8
#define SAVED_AFTER 4

static const uint64_t sizes[TENSORS] = {300, 41, 128, 5, 700, 64, 64, 1, 33, 250};

// State that the runs of one test share.
struct run {
    char directory[64];
    char path[128];
    uint64_t first; // Steps to train.
    uint64_t last;
    bool saves;
    bool loads;
    float *data[TENSORS]; // The trainer's own checkpoint.
};

// Caps of about two tensors for each bucket.
static void small_caps(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 600;
}

static uint64_t run_body(const struct setting *setting, void (*body)(struct rank *rank),
                         void *context)
{
    const struct cluster_test test = {
        .setting = setting, .configure = small_caps, .body = body, .context = context};
    return ranks_run_test(&test);
}

static void run_open(struct run *run)
{
    memset(run, 0, sizeof(*run));
    snprintf(run->directory, sizeof(run->directory), "/tmp/lockstep-saved-XXXXXX");
    assert_non_null(mkdtemp(run->directory));
    snprintf(run->path, sizeof(run->path), "%s/state", run->directory);
    for (uint32_t p = 0; p < TENSORS; p++)
        run->data[p] = calloc(sizes[p], sizeof(float));
}

// Deletes the file and its directory, which must contain no other file.
static void run_close(struct run *run)
{
    (void)unlink(run->path);
    assert_int_equal(rmdir(run->directory), 0);
    for (uint32_t p = 0; p < TENSORS; p++)
        free(run->data[p]);
}

static void make(struct rank *rank, struct trained_module *net)
{
    const struct module_shape shape = {.name = "a net", .count = TENSORS, .elements = sizes};
    trainer_make(rank, &shape, 0, net);
}

// ---- Case 36 -----------------------------------------------------------------------------------

static void copy_data(const struct trained_module *net, struct run *run, bool out)
{
    for (uint32_t p = 0; p < TENSORS; p++)
        memcpy(out ? run->data[p] : net->data[p], out ? net->data[p] : run->data[p],
               sizes[p] * sizeof(float));
}

static void draw_order(struct trained_module *net, uint64_t seed)
{
    for (uint32_t i = 0; i < TENSORS; i++)
        net->order[i] = i;
    trainer_shuffle(net->order, TENSORS, seed);
}

// Runs a step. Parameter 2 is frozen in steps 3 to 5, so that two sets of parameters have layouts.
// The order of readiness differs in each step, so a layout that is learned again differs, too.
static void train_step(struct rank *rank, struct trained_module *net, uint64_t step)
{
    const uint32_t parameter = 2;
    const bool frozen = step >= 3 && step <= 5;
    lockstep_call *call;
    RANK_OK(rank, lockstep_module_freeze(net->module, &parameter, 1, frozen));
    trainer_begin(rank, NULL);
    RANK_EQUAL(rank, atomic_load(&rank->step), step);
    trainer_fill_noise(net, rank->rank, step);
    draw_order(net, step);
    RANK_OK(rank, lockstep_call_begin(net->module, &call));
    for (uint32_t i = 0; i < TENSORS; i++) {
        if (!frozen || net->order[i] != parameter)
            RANK_OK(rank, lockstep_grad_ready(net->module, call, net->order[i], NULL, NULL));
    }
    RANK_OK(rank, lockstep_call_end(call));
    RANK_OK(rank, lockstep_counter_add(rank->session, "samples", 3));
    trainer_end(rank);
    for (uint32_t p = 0; p < TENSORS; p++) {
        for (uint64_t i = 0; i < sizes[p] && !(frozen && p == parameter); i++)
            ((float *)net->data[p])[i] -= 0.1f * ((float *)net->gradients[p])[i];
    }
}

static void expect_counter(struct rank *rank, uint64_t steps)
{
    int64_t total;
    RANK_OK(rank, lockstep_counter_read(rank->session, "samples", &total));
    RANK_EQUAL(rank, total, 3 * steps * rank->world_size);
}

static void train_body(struct rank *rank)
{
    struct run *run = rank->context;
    struct trained_module net;
    make(rank, &net);
    copy_data(&net, run, false);
    if (run->loads)
        RANK_OK(rank, lockstep_session_load(rank->session, run->path));
    RANK_OK(rank, lockstep_start(rank->session));
    if (run->loads)
        expect_counter(rank, run->first - 1);
    for (uint64_t step = run->first; step <= run->last; step++)
        train_step(rank, &net, step);
    expect_counter(rank, run->last);
    if (run->saves)
        RANK_OK(rank, lockstep_session_save(rank->session, run->path));
    for (uint32_t p = 0; p < TENSORS; p++)
        rank_digest(rank, net.data[p], sizes[p] * sizeof(float));
    rank_meet(rank);
    if (rank->rank == 0)
        copy_data(&net, run, true);
    trainer_free(&net);
}

static uint64_t train(const struct setting *setting, struct run *run, uint64_t first, uint64_t last)
{
    run->first = first;
    run->last = last;
    return run_body(setting, train_body, run);
}

// The continuing world has other link speeds, for which it would choose other algorithms if it did
// not load the file.
static void case_36_saved_in_the_middle(const struct setting *setting)
{
    struct setting before = *setting;
    struct setting after = *setting;
    struct run run;
    before.link = "1000000,1000000000";
    after.link = "1,1000000000";
    run_open(&run);
    const uint64_t uninterrupted = train(&before, &run, 1, STEPS);
    run_close(&run);
    run_open(&run);
    run.saves = true;
    train(&before, &run, 1, SAVED_AFTER);
    run.saves = false;
    run.loads = true;
    assert_true(train(&after, &run, SAVED_AFTER + 1, STEPS) == uninterrupted);
    run_close(&run);
}

// The job is saved and loaded before each step. The link speed is fixed, because the world that
// runs without a stop loads no file and would measure its links.
static void case_36_saved_after_every_step(const struct setting *given)
{
    struct setting known = *given;
    const struct setting *setting = &known;
    struct run run;
    known.link = "20000,1000000000";
    run_open(&run);
    const uint64_t uninterrupted = train(setting, &run, 1, STEPS);
    run_close(&run);
    run_open(&run);
    run.saves = true;
    train(setting, &run, 1, 1);
    run.loads = true;
    for (uint64_t step = 2; step < STEPS; step++)
        train(setting, &run, step, step);
    assert_true(train(setting, &run, STEPS, STEPS) == uninterrupted);
    run_close(&run);
}

// ---- Layouts and bits --------------------------------------------------------------------------

// Runs a step with noise that does not depend on the step. Its bits depend on the layout only.
static void noise_step(struct rank *rank, struct trained_module *net, uint64_t order)
{
    draw_order(net, order);
    trainer_begin(rank, NULL);
    trainer_fill_noise(net, rank->rank, 1);
    trainer_call(rank, net);
    trainer_end(rank);
}

static void learn_body(struct rank *rank)
{
    struct run *run = rank->context;
    struct trained_module net;
    make(rank, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    noise_step(rank, &net, 1);
    noise_step(rank, &net, 1);
    trainer_digest(rank, &net);
    if (rank->rank == rank->world_size - 1)
        RANK_OK(rank, lockstep_layout_save(rank->session, run->path));
    trainer_free(&net);
}

// The loaded layout holds from the first step on, which learns the order of the phase.
static void again_body(struct rank *rank)
{
    struct run *run = rank->context;
    struct trained_module net;
    make(rank, &net);
    if (run->loads)
        RANK_OK(rank, lockstep_layout_load(rank->session, run->path));
    RANK_OK(rank, lockstep_start(rank->session));
    noise_step(rank, &net, 2);
    RANK_EQUAL(rank, trainer_report(rank).learning, 1);
    trainer_digest(rank, &net);
    trainer_free(&net);
}

static void case_36_layout_decides_the_bits(const struct setting *setting)
{
    const struct setting ring = setting_on_ring(setting);
    struct run run;
    run_open(&run);
    const uint64_t learned = run_body(&ring, learn_body, &run);
    const uint64_t fresh = run_body(&ring, again_body, &run);
    run.loads = true;
    assert_true(run_body(&ring, again_body, &run) == learned);
    // A sum of two numbers has the same bits in either order.
    assert_true((fresh == learned) == (setting->world_size == 2));
    run_close(&run);
}

// Every rank saves the same bytes.
static void same_body(struct rank *rank)
{
    const struct run *run = rank->context;
    char path[160];
    char bytes[8192];
    struct trained_module net;
    FILE *file;
    make(rank, &net);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_counter_add(rank->session, rank->rank == 0 ? "x" : "y", 7));
    noise_step(rank, &net, 1);
    if (rank->rank == 1)
        RANK_OK(rank, lockstep_counter_add(rank->session, "z", 0));
    snprintf(path, sizeof(path), "%s.%u", run->path, (unsigned)rank->rank);
    RANK_OK(rank, lockstep_session_save(rank->session, path));
    file = fopen(path, "r");
    RANK_TRUE(rank, file != NULL);
    const size_t size = fread(bytes, 1, sizeof(bytes), file);
    RANK_TRUE(rank, size > 100 && size < sizeof(bytes));
    fclose(file);
    rank_digest(rank, bytes, size);
    RANK_EQUAL(rank, unlink(path), 0);
    trainer_free(&net);
}

static void case_36_every_rank_writes_the_same(const struct setting *setting)
{
    struct run run;
    run_open(&run);
    run_body(setting, same_body, &run);
    run_close(&run);
}

// ---- Other worlds, other files -----------------------------------------------------------------

static void warned(void *context, lockstep_log_level level, const char *line)
{
    atomic_bool *seen = context;
    if (level == LOCKSTEP_LOG_WARN && strstr(line, "saved_in_another_world") &&
        strstr(line, " hint=\"sums may differ in their last bits\""))
        atomic_store(seen, true);
}

static atomic_bool warnings[CLUSTER_MAX_WORLD];

static void listen_to_warnings(struct rank *rank, struct lockstep_config *config)
{
    small_caps(rank, config);
    config->log = warned;
    config->log_context = &warnings[rank->rank];
}

static void larger_body(struct rank *rank)
{
    const struct run *run = rank->context;
    struct trained_module net;
    make(rank, &net);
    RANK_OK(rank, lockstep_layout_load(rank->session, run->path));
    RANK_TRUE(rank, atomic_load(&warnings[rank->rank]));
    RANK_TRUE(rank, net.module->sets.set->learned);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &net, 1);
    trainer_free(&net);
}

static void case_36_loaded_into_another_world(const struct setting *setting)
{
    struct setting larger = *setting;
    struct run run;
    const struct cluster_test test = {
        .setting = &larger, .configure = listen_to_warnings, .body = larger_body, .context = &run};
    run_open(&run);
    run_body(setting, learn_body, &run);
    larger.world_size++;
    ranks_run_test(&test);
    run_close(&run);
}

// Only rank 1 has loaded a file, so lockstep_start fails on all ranks.
static void differ_body(struct rank *rank)
{
    const struct run *run = rank->context;
    struct trained_module net;
    make(rank, &net);
    if (rank->rank == 1)
        RANK_OK(rank, lockstep_session_load(rank->session, run->path));
    rank_meet(rank);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank,
              "loaded file: checksum="); // The order of the two ranks depends on who came first.
    RANK_SAYS(rank, "checksum=none on rank");
    RANK_SAYS(rank, "step=3 on rank 1");
    RANK_SAYS(rank, "\nload the same file on every rank, or on none");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    trainer_free(&net);
}

static void case_36_ranks_load_different_files(const struct setting *setting)
{
    struct run run;
    run_open(&run);
    run.saves = true;
    train(setting, &run, 1, 3);
    run_body(setting, differ_body, &run);
    run_close(&run);
}

// ---- Misuse ------------------------------------------------------------------------------------

static void other_modules(struct rank *rank, const struct run *run)
{
    const struct module_shape shape = {.name = "other", .count = TENSORS, .elements = sizes};
    struct trained_module other;
    trainer_make(rank, &shape, 0, &other);
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_session_load(rank->session, run->path));
    RANK_SAYS(rank, "'a net' in the place of 'other'");
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_session_load(rank->session, run->path));
    RANK_SAYS(rank, "before lockstep_start");
    trainer_begin(rank, NULL);
    trainer_end(rank);
    RANK_OK(rank, lockstep_module_close(other.module));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_session_load(rank->session, run->path));
    RANK_SAYS(rank, "before the first step");
    trainer_free(&other);
}

static void wrong_load_body(struct rank *rank)
{
    other_modules(rank, rank->context);
}

static void wrong_save_body(struct rank *rank)
{
    const struct run *run = rank->context;
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module net;
    make(rank, &net);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_session_save(rank->session, NULL));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_layout_load(rank->session, ""));
    RANK_FAILS(rank, LOCKSTEP_E_SYSTEM, lockstep_layout_load(rank->session, run->path));
    RANK_SAYS(rank, run->path);
    RANK_FAILS(rank, LOCKSTEP_E_SYSTEM, lockstep_layout_save(rank->session, "/nowhere/at/all"));
    RANK_SAYS(rank, "/nowhere/at/all");
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_layout_load(rank->session, run->directory));
    RANK_SAYS(rank, "not a file that Lockstep has saved");
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_layout_save(rank->session, run->path));
    RANK_SAYS(rank, "step 1 is open");
    trainer_end(rank);
    options.accumulate = 1;
    trainer_begin(rank, &options);
    trainer_end(rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_session_save(rank->session, run->path));
    RANK_SAYS(rank, "accumulates");
    trainer_begin(rank, NULL);
    trainer_end(rank);
    rank_meet(rank);
    if (rank->rank == 0)
        RANK_OK(rank, lockstep_session_save(rank->session, run->path));
    trainer_free(&net);
}

static void case_36_misuse(const struct setting *setting)
{
    struct run run;
    run_open(&run);
    run_body(setting, wrong_save_body, &run);
    run_body(setting, wrong_load_body, &run);
    run_close(&run);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_36_saved_in_the_middle", case_36_saved_in_the_middle, NULL},
        {"case_36_saved_after_every_step", case_36_saved_after_every_step, NULL},
        {"case_36_layout_decides_the_bits", case_36_layout_decides_the_bits, NULL},
        {"case_36_every_rank_writes_the_same", case_36_every_rank_writes_the_same, NULL},
        {"case_36_loaded_into_another_world", case_36_loaded_into_another_world, NULL},
        {"case_36_ranks_load_different_files", case_36_ranks_load_different_files, NULL},
        {"case_36_misuse", case_36_misuse, NULL},
    };
    return stamp_run("reducer: saved", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
