// SPDX-License-Identifier: Apache-2.0
//
// Survivors of a death go on (config.on_failure continue) in jobs in which calls are deferred, by a
// wait that gives them up or because no plan has them. recovery_job.h says what every job has to
// promise; here each gradient of a survivor is also in exactly one step's mean.

#include "tests/fault/recovery_job.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

// ---- Calls that are deferred --------------------------------------------------------------------

// In most steps half of the ranks wait for module "n" before they call module "m": the wait gives
// up "m", whose gradients travel with the call of the next step. In each fourth step, of another
// phase, all ranks call "x", too. In the others, but for the first one, "x" is called outside the
// plan, and its gradients travel with the next fourth step.
enum {
    OTHER = 2, // Modules beside "m".
    OTHER_ELEMENTS = 30000,
    PERIOD = 4,
};

static const char *const other_names[OTHER] = {"n", "x"};
static lockstep_module *others[OTHER];
static float *other_gradients[OTHER];

static bool is_last_of_period(uint64_t step)
{
    return step % PERIOD == 0;
}

static bool swaps(uint32_t rank, uint64_t step)
{
    return step > 1 && !is_last_of_period(step) && (rank + step) % 2 == 0;
}

// The number of a rank's last steps whose gradients of "m" travel in a step; 0: none.
static uint64_t steps_of_m(uint32_t rank, uint64_t step)
{
    return swaps(rank, step) ? 0 : swaps(rank, step - 1) ? 2 : 1;
}

static uint64_t steps_of_x(uint64_t step)
{
    return !is_last_of_period(step) ? 0 : step == PERIOD ? PERIOD - 1 : PERIOD;
}

static void register_others(struct job_rank *rank)
{
    static const int64_t shape = OTHER_ELEMENTS;
    for (uint32_t i = 0; i < OTHER; i++) {
        struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
        struct lockstep_parameter tensor;
        memset(&tensor, 0, sizeof(tensor));
        other_gradients[i] = calloc(OTHER_ELEMENTS, sizeof(float));
        tensor.name = "t";
        tensor.dtype = LOCKSTEP_FLOAT32;
        tensor.dims = 1;
        tensor.shape = &shape;
        tensor.data = calloc(OTHER_ELEMENTS, sizeof(float));
        tensor.gradient = other_gradients[i];
        config.name = other_names[i];
        config.parameters = &tensor;
        config.parameter_count = 1;
        job_require(rank, lockstep_module_register(rank->session, &config, &others[i]), "register");
    }
}

static void configure_deferral(struct lockstep_config *config,
                               struct lockstep_module_config *module)
{
    (void)module;
    config->order = LOCKSTEP_ORDER_ZERO_DEFER;
    config->unplanned = LOCKSTEP_UNPLANNED_DEFER;
}

static void wait_for(struct job_rank *rank, lockstep_call *call, int expected, const char *name)
{
    const int status = lockstep_call_wait(call, LOCKSTEP_WAIT_FOREVER);
    job_require(rank, status, name);
    if (status != expected)
        job_fails(rank, "the wait for '%s' is %d", name, status);
}

static lockstep_call *call_m(struct job_rank *rank, uint64_t step)
{
    lockstep_call *call;
    int status = lockstep_call_begin(rank->module, &call);
    for (uint32_t t = JOB_TENSORS; t-- > 0 && status == 0;) {
        for (uint64_t e = 0; e < job_elements[t]; e++)
            rank->gradients[t][e] = job_gradient(rank->rank, step, e);
        status = lockstep_grad_ready(rank->module, call, t, NULL, NULL);
    }
    if (status == 0)
        status = lockstep_call_end(call);
    job_require(rank, status, "call of m");
    return call;
}

static lockstep_call *call_other(struct job_rank *rank, uint32_t i, uint64_t step)
{
    lockstep_call *call;
    int status = lockstep_call_begin(others[i], &call);
    for (uint64_t e = 0; e < OTHER_ELEMENTS; e++)
        other_gradients[i][e] = job_gradient(rank->rank, step, e);
    if (status == 0)
        status = lockstep_grad_ready(others[i], call, 0, NULL, NULL);
    if (status == 0)
        status = lockstep_call_end(call);
    job_require(rank, status, other_names[i]);
    return call;
}

// What ranks are in means.
struct seen {
    uint32_t all;
    uint32_t some;
};

// The set of ranks whose mean this is: of rank r the gradients of its last counts[r] steps;
// UINT32_MAX: none. Without gradients it is 0, as on a rank that has cleared them.
static uint32_t look_set(const struct job_rank *rank, float value, uint64_t step, uint64_t element,
                         const uint64_t *counts)
{
    if (value == 0)
        return 0;
    for (uint32_t set = 1; set < 1u << rank->size; set++) {
        float sum = 0;
        uint64_t total = 0;
        for (uint32_t r = 0; r < rank->size; r++)
            for (uint64_t k = 0; k < counts[r] && (set >> r & 1) != 0; k++) {
                sum += job_gradient(r, step - k, element);
                total++;
            }
        if (total > 0 && sum / (float)total == value)
            return set;
    }
    return UINT32_MAX;
}

static void look(struct job_rank *rank, const float *means, uint64_t elements, uint64_t step,
                 const uint64_t *counts, struct seen *seen)
{
    uint32_t idle = 0; // Ranks without gradients here.
    for (uint32_t r = 0; r < rank->size; r++)
        idle |= counts[r] == 0 ? 1u << r : 0;
    for (uint64_t e = 0; e < elements; e++) {
        const uint32_t set = look_set(rank, means[e], step, e, counts);
        if (set == UINT32_MAX)
            job_fails(rank, "step %llu: element %llu is %g, which is no mean",
                      (unsigned long long)step, (unsigned long long)e, (double)means[e]);
        seen->all &= set | idle;
        seen->some |= set;
    }
}

static void look_at_all(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    const uint32_t whole = (1u << rank->size) - 1;
    struct seen seen = {.all = whole};
    uint64_t counts[JOB_RANKS];
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        counts[r] = steps_of_m(r, step);
    for (uint32_t t = 0; t < JOB_TENSORS; t++) {
        job_hash(hash, rank->gradients[t], job_elements[t] * sizeof(float));
        look(rank, rank->gradients[t], job_elements[t], step, counts, &seen);
    }
    for (uint32_t i = 0; i < OTHER; i++) {
        for (uint32_t r = 0; r < JOB_RANKS; r++)
            counts[r] = i == 0 ? 1 : steps_of_x(step);
        job_hash(hash, other_gradients[i], OTHER_ELEMENTS * sizeof(float));
        look(rank, other_gradients[i], OTHER_ELEMENTS, step, counts, &seen);
    }
    // Each rank has gradients of "n".
    rank->told->missing[step] = whole & ~seen.some;
    rank->told->partial[step] = seen.some & ~seen.all;
}

static void step_defers(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.phase = is_last_of_period(step) ? "with x" : "";
    job_begin(rank, &options, NULL);
    if (swaps(rank->rank, step)) {
        wait_for(rank, call_other(rank, 0, step), LOCKSTEP_OK, "n");
        wait_for(rank, call_m(rank, step), LOCKSTEP_DEFERRED, "m");
    } else {
        lockstep_call *call = call_m(rank, step);
        if (step > 1 && !is_last_of_period(step))
            wait_for(rank, call, LOCKSTEP_OK, "m");
        (void)call_other(rank, 0, step);
    }
    if (step > 1)
        (void)call_other(rank, 1, step);
    job_require(rank, job_end(rank), "step_end");
    look_at_all(rank, step, hash);
}

static void calls_are_deferred(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(3); round++) {
        struct job job = {.name = "deferral",
                          .size = 2 + round % 3,
                          .deaths = round % 3 == 0 ? 1 : 1 + round % 2,
                          .tcp = round % 2 == 0,
                          .configure = configure_deferral,
                          .loads = register_others,
                          .step = step_defers};
        job_run(&job, round, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(calls_are_deferred, job_teardown),
    };
    job_memory();
    job_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
