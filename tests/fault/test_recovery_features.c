// SPDX-License-Identifier: Apache-2.0
//
// Survivors of a death go on (config.on_failure continue) in jobs that use more of the library than
// plain steps: windows that accumulate, weights, saved layouts, certificates and encrypted data,
// counters, metrics, parameters that are not used or have no elements, ranks that run out of data.
// recovery_job.h says what every job has to promise.

#include "tests/fault/recovery_job.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/lockstep-recovery-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

// ---- Windows that accumulate --------------------------------------------------------------------

// Adds a part of the gradients to what is there.
static void accumulate_part(struct job_rank *rank, uint64_t step, bool last)
{
    lockstep_call *call;
    int status = lockstep_call_begin(rank->module, &call);
    for (uint32_t t = JOB_TENSORS; t-- > 0 && status == 0;) {
        for (uint64_t e = 0; e < job_elements[t]; e++) {
            const float part = job_gradient(rank->rank, 0, 0);
            rank->gradients[t][e] =
                last ? rank->gradients[t][e] + job_gradient(rank->rank, step, e) - part : part;
        }
        status = lockstep_grad_ready(rank->module, call, t, NULL, NULL);
    }
    if (status == 0)
        status = lockstep_call_end(call);
    job_require(rank, status, "call");
}

static void step_accumulates(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.accumulate = 1;
    job_begin(rank, &options, NULL);
    accumulate_part(rank, step, false);
    job_require(rank, lockstep_step_end(rank->session, NULL), "the end of a step that accumulates");
    job_begin(rank, NULL, NULL);
    accumulate_part(rank, step, true);
    job_require(rank, job_end(rank), "step_end");
    job_look(rank, step, NULL, hash);
}

static void windows_accumulate(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(2); round++) {
        struct job job = {.name = "accumulation",
                          .size = 3 + round % 2,
                          .deaths = 1 + round % 2,
                          .tcp = round % 4 < 2,
                          .step = step_accumulates};
        job_run(&job, round, NULL);
    }
}

static void *dies_soon(void *argument)
{
    (void)argument;
    usleep((useconds_t)job_random(1500));
    kill(getpid(), SIGKILL);
    return NULL;
}

// ---- Weights ------------------------------------------------------------------------------------

// Rank 0 has no samples in every fourth step.
static uint64_t weight_of(uint32_t rank, uint64_t step)
{
    return rank == 0 && step % 4 == 0 ? 0 : 1 + (rank + step) % 3;
}

static void step_weighs(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    uint64_t weights[JOB_RANKS];
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        weights[r] = weight_of(r, step);
    options.weight = weights[rank->rank];
    job_begin(rank, &options, NULL);
    job_backward(rank, step);
    job_require(rank, job_end(rank), "step_end");
    job_look(rank, step, weights, hash);
}

static void steps_have_weights(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(2); round++) {
        struct job job = {.name = "weights",
                          .size = 3 + round % 2,
                          .deaths = 1 + round % 2,
                          .tcp = round % 2 == 0,
                          .step = step_weighs};
        job_run(&job, round, NULL);
    }
}

// One rank alone has a weight, and dies. Then all others have one, but for the last step, in which
// no rank has: only there this is an error.
static void step_weighs_nothing(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    uint64_t death = 0;
    uint64_t weights[JOB_RANKS];
    uint8_t used[JOB_TENSORS];
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        death += job_told(r)->dies_at; // It is 0 for all ranks but the one that dies.
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        weights[r] = step < JOB_STEPS && (step <= death) == (job_told(r)->dies_at != 0);
    options.weight = weights[rank->rank];
    job_begin(rank, &options, NULL);
    if (rank->told->dies_at == step && step % 2 == 0)
        job_thread(rank, dies_soon, NULL);
    else if (rank->told->dies_at == step)
        dies_soon(NULL); // Before it has contributed anything.
    job_backward(rank, step);
    const int status = job_end(rank);
    if (status != (step == JOB_STEPS ? LOCKSTEP_E_INVALID : 0))
        job_fails(rank, "step %llu: step_end is %d: %s", (unsigned long long)step, status,
                  lockstep_error_text());
    if (step == JOB_STEPS)
        return;
    job_look(rank, step, weights, hash);
    job_require(rank, lockstep_module_used(rank->module, used, JOB_TENSORS), "module_used");
    job_hash(hash, used, sizeof(used));
    for (uint32_t t = 0; t < JOB_TENSORS; t++)
        job_expect(rank, used[t] != 0 || step == death, "a tensor is not used");
}

static void prepare_weightless(const struct job *job, uint32_t round)
{
    job_dies_at(round % (job->size - 1), 4 + 2 * job_random(4) + round / 2 % 2);
}

static void the_lost_rank_alone_has_a_weight(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(4); round++) {
        struct job job = {.name = "a weight of one",
                          .size = 2 + round % 2,
                          .deaths = 1,
                          .tcp = round % 4 < 2,
                          .prepares = prepare_weightless,
                          .step = step_weighs_nothing};
        job_run(&job, round, NULL);
    }
}

// ---- Saved layouts ------------------------------------------------------------------------------

static void layout_loads(struct job_rank *rank)
{
    job_require(rank, lockstep_session_load(rank->session, path_of("saved")), "load");
}

static void layout_saves(struct job_rank *rank)
{
    char name[32];
    snprintf(name, sizeof(name), "saved-%u", rank->rank);
    job_require(rank, lockstep_session_save(rank->session, path_of(name)), "save");
}

// Compares the files that survivors have saved, and makes the last one the file that is loaded.
static void compare_saved(uint32_t size, uint32_t dead)
{
    char first[4096] = "";
    char last[4096];
    for (uint32_t r = size; r-- > 0;) {
        char name[32];
        snprintf(name, sizeof(name), "saved-%u", r);
        if ((dead >> r & 1) != 0)
            continue;
        FILE *file = fopen(path_of(name), "r");
        assert_non_null(file);
        const size_t count = fread(last, 1, sizeof(last) - 1, file);
        last[count] = '\0';
        fclose(file);
        if (first[0] == '\0')
            memcpy(first, last, sizeof(first));
        assert_string_equal(first, last);
    }
    char from[256];
    snprintf(from, sizeof(from), "%s/saved-%u", folder, size - 1);
    assert_int_equal(rename(from, path_of("saved")), 0);
}

// Each job loads what the survivors of the one before have saved.
static void layouts_are_saved_and_loaded(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(3); round++) {
        struct job job = {.name = "saved layouts",
                          .size = 2 + round % 3,
                          .deaths = round == 0 ? 0 : 1,
                          .tcp = round % 2 == 0,
                          .loads = round == 0 ? NULL : layout_loads,
                          .step = job_step,
                          .ends = layout_saves};
        compare_saved(job.size, job_run(&job, round, NULL));
    }
}

// ---- Certificates -------------------------------------------------------------------------------

static void configure_tls(struct lockstep_config *config, struct lockstep_module_config *module)
{
    static char certificates[256];
    (void)module;
    snprintf(certificates, sizeof(certificates), "%s/ca/worker", folder);
    config->tls_dir = certificates;
    config->data_encryption = "tls";
}

static void data_is_encrypted(void **state)
{
    const char *bin = getenv("LOCKSTEP_TEST_BIN");
    char command[512];
    char option[300];
    const char *const arguments[] = {option, NULL};
    (void)state;
    snprintf(command, sizeof(command), "%s/lockstep certs init --dir %s/ca --name 127.0.0.1 >&2",
             bin ? bin : "build/bin", folder);
    assert_int_equal(system(command), 0);
    snprintf(option, sizeof(option), "--tls-dir=%s/ca/coordinator", folder);
    for (uint32_t round = 0; round < job_rounds(2); round++) {
        struct job job = {.name = "certificates",
                          .size = 2 + round % 3,
                          .deaths = round % 3 == 2 ? 2 : 1,
                          .tcp = round % 3 < 2,
                          .configure = configure_tls,
                          .step = job_step};
        job_run(&job, round, arguments);
    }
}

// ---- Counters and metrics -----------------------------------------------------------------------

// What a rank adds: a digit of its own, to the base of 1000.
static int64_t digit_of(uint32_t rank)
{
    int64_t digit = 1;
    while (rank-- > 0)
        digit *= 1000;
    return digit;
}

static void step_counts(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    double sum;
    double most;
    job_begin(rank, NULL, NULL);
    job_backward(rank, step);
    job_require(rank, lockstep_counter_add(rank->session, "samples", digit_of(rank->rank)),
                "counter_add");
    job_require(rank,
                lockstep_metric_add(rank->session, "sum", LOCKSTEP_METRIC_SUM,
                                    (double)digit_of(rank->rank)),
                "metric_add");
    job_require(rank,
                lockstep_metric_add(rank->session, "most", LOCKSTEP_METRIC_MAX,
                                    (double)(step * 10 + rank->rank)),
                "metric_add");
    job_require(rank, job_end(rank), "step_end");
    job_look(rank, step, NULL, hash);
    job_require(rank, lockstep_counter_read(rank->session, "samples", &rank->told->total),
                "counter_read");
    job_require(rank, lockstep_metric_read(rank->session, "sum", &sum, NULL), "metric_read");
    job_require(rank, lockstep_metric_read(rank->session, "most", &most, NULL), "metric_read");
    job_hash(hash, &rank->told->total, sizeof(rank->told->total));
    job_hash(hash, &sum, sizeof(sum));
    job_hash(hash, &most, sizeof(most));
    if ((int64_t)sum / digit_of(rank->rank) % 1000 != 1)
        job_fails(rank, "step %llu: the sum %.0f lacks this rank", (unsigned long long)step, sum);
    if (most < (double)(step * 10 + rank->rank))
        job_fails(rank, "step %llu: the maximum is %.0f", (unsigned long long)step, most);
}

static void counters_and_metrics_go_on(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(2); round++) {
        struct job job = {.name = "counters",
                          .size = 3 + round % 2,
                          .deaths = 1 + round % 2,
                          .tcp = round % 2 == 0,
                          .step = step_counts};
        const uint32_t dead = job_run(&job, round, NULL);
        const int64_t total = job_told(job.size - 1)->total;
        for (uint32_t r = 0; r < job.size; r++) {
            const int64_t counted = total / digit_of(r) % 1000;
            // What a rank added in the step in which it died may be missing.
            if ((dead >> r & 1) == 0)
                assert_int_equal(counted, JOB_STEPS);
            else
                assert_in_range(counted, atomic_load(&job_told(r)->ended),
                                atomic_load(&job_told(r)->begun));
        }
    }
}

// ---- Parameters that are not used ---------------------------------------------------------------

enum {
    SPARSE = 2
}; // The tensor that one rank uses in a step.

static void step_uses_some(struct job_rank *rank, uint64_t step, uint64_t *hash, bool accepted)
{
    const uint32_t user = (uint32_t)(step % rank->size);
    lockstep_call *call;
    job_begin(rank, NULL, NULL);
    int status = lockstep_call_begin(rank->module, &call);
    for (uint32_t t = JOB_TENSORS; t-- > 0 && status == 0;) {
        const bool uses = t != SPARSE || user == rank->rank;
        for (uint64_t e = 0; e < job_elements[t]; e++)
            rank->gradients[t][e] = uses ? job_gradient(rank->rank, step, e) : JOB_UNTOUCHED;
        if (uses)
            status = lockstep_grad_ready(rank->module, call, t, NULL, NULL);
    }
    if (status == 0)
        status = lockstep_call_end(call);
    job_require(rank, status, "call");
    status = job_end(rank);
    job_hash(hash, &status, sizeof(status));
    if (status != (accepted ? 0 : LOCKSTEP_E_UNUSED))
        job_fails(rank, "step_end is %d: %s", status, lockstep_error_text());
    job_check_of_one(rank, SPARSE, user, step);
    job_hash(hash, rank->gradients[SPARSE], job_elements[SPARSE] * sizeof(float));
    job_hash(hash, rank->gradients[0], job_elements[0] * sizeof(float));
}

static void step_accepts_unused(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    step_uses_some(rank, step, hash, true);
}

static void step_reports_unused(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    step_uses_some(rank, step, hash, rank->size == 1);
}

static void configure_accepts(struct lockstep_config *config, struct lockstep_module_config *module)
{
    (void)config;
    module->unused = LOCKSTEP_UNUSED_ACCEPT;
}

static void parameters_are_not_used(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(4); round++) {
        const bool accepts = round % 2 == 0;
        struct job job = {.name = accepts ? "unused accepted" : "unused errors",
                          .size = 3 + round / 2 % 2,
                          .deaths = 1 + round / 2 % 2,
                          .tcp = round % 8 < 4,
                          .configure = accepts ? configure_accepts : NULL,
                          .step = accepts ? step_accepts_unused : step_reports_unused};
        job_run(&job, round, NULL);
    }
}

// ---- Parameters without elements ----------------------------------------------------------------

enum {
    EMPTY = 24
}; // Modules with one parameter, which has no elements: a bucket each.

static lockstep_module *empty[EMPTY];

static void register_empty(struct job_rank *rank)
{
    static const int64_t shape = 0;
    static float none;
    for (uint32_t i = 0; i < EMPTY; i++) {
        struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
        struct lockstep_parameter tensor = LOCKSTEP_PARAMETER_INIT;
        char name[16];
        snprintf(name, sizeof(name), "empty%u", i);
        tensor.name = "t";
        tensor.dims = 1;
        tensor.shape = &shape;
        tensor.data = tensor.gradient = &none;
        config.name = name;
        config.parameters = &tensor;
        config.parameter_count = 1;
        job_require(rank, lockstep_module_register(rank->session, &config, &empty[i]), "register");
    }
}

static void step_is_empty(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    lockstep_call *call;
    int status = 0;
    job_begin(rank, NULL, NULL);
    job_backward(rank, step);
    if (rank->told->dies_at == step)
        job_thread(rank, dies_soon, NULL);
    for (uint32_t i = 0; i < EMPTY && status == 0; i++) {
        status = lockstep_call_begin(empty[i], &call);
        if (status == 0)
            status = lockstep_grad_ready(empty[i], call, 0, NULL, NULL);
        if (status == 0)
            status = lockstep_call_end(call);
    }
    job_require(rank, status, "call");
    job_require(rank, job_end(rank), "step_end");
    job_look(rank, step, NULL, hash);
    for (uint32_t i = 0; i < EMPTY; i++) {
        uint8_t used = 0;
        job_require(rank, lockstep_module_used(empty[i], &used, 1), "module_used");
        job_expect(rank, used == 1, "a parameter without elements is not used");
    }
}

static void prepare_empty(const struct job *job, uint32_t round)
{
    for (uint32_t d = 0; d < job->deaths; d++)
        job_dies_at((round + d) % (job->size - 1), 5 + 10 * d + job_random(4));
}

static void parameters_have_no_elements(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(8); round++) {
        struct job job = {.name = "no elements",
                          .size = 4,
                          .deaths = 3,
                          .tcp = round % 2 == 0,
                          .prepares = prepare_empty,
                          .loads = register_empty,
                          .step = step_is_empty};
        job_run(&job, round, NULL);
    }
}

// ---- Ranks that run out of data -----------------------------------------------------------------

static void step_runs_out(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_step_view view;
    uint64_t weights[JOB_RANKS];
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        weights[r] = job_has_data(rank, r);
    options.exhausted = weights[rank->rank] == 0;
    const int status = job_begin(rank, &options, &view);
    job_hash(hash, &status, sizeof(status));
    if (status == LOCKSTEP_FINISHED) {
        job_require(rank, lockstep_uneven_set(rank->session, LOCKSTEP_UNEVEN_ALL), "uneven_set");
        return;
    }
    if (options.exhausted == 0)
        job_backward(rank, step);
    for (uint32_t t = 0; t < JOB_TENSORS && options.exhausted != 0; t++)
        for (uint64_t e = 0; e < job_elements[t]; e++)
            rank->gradients[t][e] = JOB_UNTOUCHED;
    job_require(rank, job_end(rank), "step_end");
    job_look(rank, step, weights, hash);
}

// With the other rule an epoch ends with the first rank that has no data.
static void step_runs_out_first(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.exhausted = !job_has_data(rank, rank->rank);
    const int status = job_begin(rank, &options, NULL);
    job_hash(hash, &status, sizeof(status));
    if (status == LOCKSTEP_FINISHED) {
        job_require(rank, lockstep_uneven_set(rank->session, LOCKSTEP_UNEVEN_FIRST), "uneven_set");
        return;
    }
    if (options.exhausted != 0)
        job_fails(rank, "step %llu begins without data", (unsigned long long)step);
    job_backward(rank, step);
    job_require(rank, job_end(rank), "step_end");
    job_look(rank, step, NULL, hash);
}

static void configure_all(struct lockstep_config *config, struct lockstep_module_config *module)
{
    (void)module;
    config->uneven = LOCKSTEP_UNEVEN_ALL;
}

static void configure_first(struct lockstep_config *config, struct lockstep_module_config *module)
{
    (void)module;
    config->uneven = LOCKSTEP_UNEVEN_FIRST;
}

static void ranks_run_out_of_data(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(6); round++) {
        const bool all = round % 3 != 2;
        struct job job = {.name = all ? "uneven, all" : "uneven, first",
                          .size = 2 + round % 3,
                          .deaths = round % 3 == 0 ? 1 : 1 + round / 3 % 2,
                          .tcp = round % 2 == 0,
                          .configure = all ? configure_all : configure_first,
                          .step = all ? step_runs_out : step_runs_out_first};
        job_run(&job, round, NULL);
    }
}

static int remove_folder(void **state)
{
    char command[300];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(windows_accumulate, job_teardown),
        cmocka_unit_test_teardown(steps_have_weights, job_teardown),
        cmocka_unit_test_teardown(the_lost_rank_alone_has_a_weight, job_teardown),
        cmocka_unit_test_teardown(layouts_are_saved_and_loaded, job_teardown),
        cmocka_unit_test_teardown(data_is_encrypted, job_teardown),
        cmocka_unit_test_teardown(counters_and_metrics_go_on, job_teardown),
        cmocka_unit_test_teardown(parameters_are_not_used, job_teardown),
        cmocka_unit_test_teardown(parameters_have_no_elements, job_teardown),
        cmocka_unit_test_teardown(ranks_run_out_of_data, job_teardown),
    };
    job_memory(0);
    job_seed();
    if (!mkdtemp(folder))
        return 1;
    return cmocka_run_group_tests(tests, NULL, remove_folder);
}
