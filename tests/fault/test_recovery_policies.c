// SPDX-License-Identifier: Apache-2.0
//
// Survivors of a death go on (config.on_failure continue) in jobs in which calls are deferred, by a
// wait that gives them up or because no plan has them, and in jobs with virtual ranks.
// recovery_job.h says what every job has to promise. Here each gradient of a survivor is also in
// exactly one step's mean, and a step that no death has hit has the same bits in every job with
// virtual ranks. In some jobs the deferred modules are of a group.

#include "tests/fault/recovery_job.h"
#include "worker/kernels/tree.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Calls that are deferred --------------------------------------------------------------------

// In most steps half of the ranks wait for module "n" before they call module "m": the wait gives
// up "m", whose gradients travel with the call of the next step. In each fourth step, of another
// phase, all ranks call "x", too. In the others, but for the first one, "x" is called outside the
// plan, and its gradients travel with the next fourth step. In jobs with a group, "n" and "x" are
// modules of it, and "n" is the one that is given up, by the wait for "m".
enum {
    OTHER = 2, // Modules beside "m".
    OTHER_ELEMENTS = 30000,
    PERIOD = 4,
};

static const char *const other_names[OTHER] = {"n", "x"};
static lockstep_module *others[OTHER];
static float *other_gradients[OTHER];

#define OUTSIDER 1 // The rank that is not in the group.
static bool grouped; // True if the job has the group.

// What a rank has seen of the modules "n" and "x".
struct own {
    uint64_t hash[JOB_STEPS + 1];
};

static bool has_others(uint32_t rank)
{
    return !grouped || rank != OUTSIDER;
}

static bool is_last_of_period(uint64_t step)
{
    return step % PERIOD == 0;
}

static bool swaps(uint32_t rank, uint64_t step)
{
    return step > 1 && !is_last_of_period(step) && (rank + step) % 2 == 0;
}

// The number of a rank's last steps whose gradients of the module that is given up travel in a
// step; 0: none.
static uint64_t steps_of_given_up(uint32_t rank, uint64_t step)
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
    lockstep_group *group = NULL;
    uint32_t members[JOB_RANKS];
    uint32_t count = 0;
    for (uint32_t r = 0; r < rank->size; r++)
        if (has_others(r))
            members[count++] = r;
    if (!has_others(rank->rank))
        return;
    if (grouped)
        job_require(rank, lockstep_group_create(rank->session, members, count, "group", &group),
                    "group_create");
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
        config.group = group;
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

static void look_at_others(struct job_rank *rank, uint64_t step, struct seen *seen)
{
    struct own *own = job_own(rank->rank);
    uint64_t counts[JOB_RANKS];
    for (uint32_t i = 0; i < OTHER; i++) {
        for (uint32_t r = 0; r < JOB_RANKS; r++)
            counts[r] = !has_others(r) ? 0
                        : i == 1       ? steps_of_x(step)
                        : grouped      ? steps_of_given_up(r, step)
                                       : 1;
        job_hash(&own->hash[step], other_gradients[i], OTHER_ELEMENTS * sizeof(float));
        look(rank, other_gradients[i], OTHER_ELEMENTS, step, counts, seen);
    }
}

static void look_at_all(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    const uint32_t whole = (1u << rank->size) - 1;
    struct seen seen = {.all = whole};
    uint64_t counts[JOB_RANKS];
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        counts[r] = grouped ? 1 : steps_of_given_up(r, step);
    for (uint32_t t = 0; t < JOB_TENSORS; t++) {
        job_hash(hash, rank->gradients[t], job_elements[t] * sizeof(float));
        look(rank, rank->gradients[t], job_elements[t], step, counts, &seen);
    }
    if (has_others(rank->rank))
        look_at_others(rank, step, &seen);
    // Each rank has gradients of the module that is not given up.
    rank->told->missing[step] = whole & ~seen.some;
    rank->told->partial[step] = seen.some & ~seen.all;
}

// In a step that is not the first of the job or the last of a period the ranks that do not give up
// the first call wait for it.
static void step_defers(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    const bool waits = step > 1 && !is_last_of_period(step);
    options.phase = is_last_of_period(step) ? "with x" : "";
    job_begin(rank, &options, NULL);
    if (!has_others(rank->rank)) {
        job_backward(rank, step);
    } else if (swaps(rank->rank, step)) {
        wait_for(rank, grouped ? job_backward(rank, step) : call_other(rank, 0, step), LOCKSTEP_OK,
                 "the second");
        wait_for(rank, grouped ? call_other(rank, 0, step) : job_backward(rank, step),
                 LOCKSTEP_DEFERRED, "the first");
    } else {
        lockstep_call *call = grouped ? call_other(rank, 0, step) : job_backward(rank, step);
        if (waits)
            wait_for(rank, call, LOCKSTEP_OK, "the first");
        (void)(grouped ? job_backward(rank, step) : call_other(rank, 0, step));
    }
    if (step > 1 && has_others(rank->rank))
        (void)call_other(rank, 1, step);
    job_require(rank, job_end(rank), "step_end");
    look_at_all(rank, step, hash);
}

// Survivors have the same bits of "n" and "x".
static void compare_others(const struct job *job, uint32_t dead)
{
    const struct own *first = NULL;
    for (uint32_t r = 0; r < job->size; r++) {
        const struct own *own = job_own(r);
        if ((dead >> r & 1) != 0 || !has_others(r))
            continue;
        first = first ? first : own;
        if (memcmp(first, own, sizeof(*own)) != 0)
            fail_msg("%s: rank %u differs from another one of the group", job->name, r);
    }
}

static void calls_are_deferred(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(4); round++) {
        grouped = round % 4 > 1;
        struct job job = {.name = grouped ? "deferral in a group" : "deferral",
                          .size = 2 + round % 3 + (round == 3),
                          .deaths = round % 3 == 0 ? 1 : 1 + round % 2,
                          .tcp = round % 2 == 0,
                          .configure = configure_deferral,
                          .loads = register_others,
                          .step = step_defers};
        compare_others(&job, job_run(&job, round, NULL));
    }
}

// ---- Virtual ranks ------------------------------------------------------------------------------

enum {
    LEAVES = 12,
    NOISE = 1 << 17, // Numbers of the table from which gradients are taken.
};

static float noise[NOISE];
static uint64_t reference[JOB_STEPS + 1]; // The hashes of a job in which nobody has died.

static void fill_noise(void)
{
    uint64_t state = 1;
    for (uint32_t i = 0; i < NOISE; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        noise[i] = (float)(int32_t)(state >> 32) / 1e9f;
    }
}

// The gradient of a leaf.
static const float *leaf_gradient(uint32_t leaf, uint64_t step, uint32_t tensor)
{
    static_assert(NOISE > 90000 + LEAVES * 977 + JOB_STEPS * 331 + JOB_TENSORS * 101,
                  "the table has the largest tensor at any place");
    return noise + leaf * 977 + step * 331 + tensor * 101;
}

// The mean of a tensor over all leaves but some.
static void tree_mean(uint64_t step, uint32_t tensor, uint64_t missing, float *out)
{
    const struct tree_format format = {DTYPE_FLOAT32, DTYPE_FLOAT32, DTYPE_FLOAT32, 0};
    struct tree_inputs inputs = {.count = LEAVES};
    uint64_t total = 0;
    for (uint32_t leaf = 0; leaf < LEAVES; leaf++) {
        const bool there = (missing >> leaf & 1) == 0;
        inputs.blocks[leaf] = (struct tree_block){leaf, leaf + 1};
        inputs.memory[leaf] = there ? (const void *)leaf_gradient(leaf, step, tensor) : NULL;
        total += there;
    }
    tree_sum(&format, &inputs, total, 0, out, job_elements[tensor]);
}

static uint64_t leaves_of(struct tree_block run)
{
    return ((UINT64_C(1) << run.end) - 1) & ~((UINT64_C(1) << run.first) - 1);
}

// True if the tensor has the leaves of all ranks of a world but some others than this one.
static bool tensor_lacks_ranks(const struct job_rank *rank, uint64_t step, uint32_t tensor,
                               uint64_t own, float *room)
{
    for (uint32_t size = 1; size <= rank->size; size++)
        for (uint32_t set = 0; set < 1u << size; set++) {
            uint64_t missing = 0;
            for (uint32_t r = 0; r < size; r++)
                missing |= (set >> r & 1) != 0 ? leaves_of(tree_dealt(LEAVES, size, r)) : 0;
            if ((missing & own) != 0)
                continue;
            tree_mean(step, tensor, missing, room);
            if (memcmp(room, rank->gradients[tensor], job_elements[tensor] * sizeof(float)) == 0)
                return true;
        }
    return false;
}

static void check_leaves(struct job_rank *rank, uint64_t step, uint64_t own)
{
    float *room = calloc(job_elements[0], sizeof(float));
    for (uint32_t t = 0; t < JOB_TENSORS; t++)
        if (!room || !tensor_lacks_ranks(rank, step, t, own, room))
            job_fails(rank, "step %llu: tensor %u is no mean over the leaves of ranks",
                      (unsigned long long)step, t);
    free(room);
}

static void leaf_backward(struct job_rank *rank, uint64_t step, uint32_t leaf)
{
    lockstep_call *call;
    int status = lockstep_call_begin(rank->module, &call);
    for (uint32_t t = JOB_TENSORS; t-- > 0 && status == 0;) {
        memcpy(rank->gradients[t], leaf_gradient(leaf, step, t), job_elements[t] * sizeof(float));
        status = lockstep_grad_ready(rank->module, call, t, NULL, NULL);
    }
    if (status == 0)
        status = lockstep_call_end(call);
    job_require(rank, status, "call");
}

static void step_has_leaves(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    uint32_t first;
    uint32_t count;
    job_require(rank, lockstep_leaves(rank->session, &first, &count, NULL), "leaves");
    for (uint32_t i = 0; i < count; i++) {
        options.accumulate = i + 1 < count;
        job_begin(rank, &options, NULL);
        leaf_backward(rank, step, first + i);
        job_require(rank, job_end(rank), "step_end");
    }
    for (uint32_t t = 0; t < JOB_TENSORS; t++)
        job_hash(hash, rank->gradients[t], job_elements[t] * sizeof(float));
    if (reference[step] != (*hash | 1))
        check_leaves(rank, step, leaves_of((struct tree_block){first, first + count}));
}

static void configure_leaves(struct lockstep_config *config, struct lockstep_module_config *module)
{
    (void)module;
    config->virtual_ranks = LEAVES;
}

// In a job in which ranks die only the steps in which they die may have other bits.
static void leaves_are_dealt_anew(void **state)
{
    (void)state;
    fill_noise();
    for (uint32_t round = 0; round <= job_rounds(2); round++) {
        struct job job = {.name = "virtual ranks",
                          .size = 2 + (round + 1) % 3,
                          .deaths = round == 0 ? 0 : 1 + (round + 1) % 3 / 2,
                          .tcp = round % 2 == 0,
                          .configure = configure_leaves,
                          .step = step_has_leaves};
        uint32_t differ = 0;
        (void)job_run(&job, round, NULL);
        const struct told *last = job_told(job.size - 1);
        for (uint64_t step = 1; step <= JOB_STEPS; step++) {
            if (round == 0)
                reference[step] = last->hash[step];
            differ += last->hash[step] != reference[step];
        }
        printf("%s: %u steps lack leaves\n", job.name, differ);
        assert_in_range(differ, 0, job.deaths);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(calls_are_deferred, job_teardown),
        cmocka_unit_test_teardown(leaves_are_dealt_anew, job_teardown),
    };
    job_memory(sizeof(struct own));
    job_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
