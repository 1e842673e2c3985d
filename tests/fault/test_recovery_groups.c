// SPDX-License-Identifier: Apache-2.0
//
// Survivors of a death go on (config.on_failure continue) in jobs with modules of groups. Beside
// what recovery_job.h says of every job: members of a group that live have the same bits, which are
// means over a set of members that contains all of these. Among the groups is one that is left
// without members, one that is left with one member, and one that is made after a death.

#include "tests/fault/recovery_job.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEPS = 34,
    FOUNDED = 20, // The step before which a group is made, long after the death.
    GROUPS = 5,
    LATE = 4, // The group that is made then.
    FEW = 10,
    STRIDE = 13, // Of the elements that are looked at.
};

// Two groups have modules of one name.
static const struct {
    const char *group;
    const char *module;
    uint32_t count;
    uint32_t members[JOB_RANKS];
    uint64_t elements;
} shapes[GROUPS] = {
    {"even", "expert", 2, {2, 0}, 40000}, {"odd", "expert", 2, {3, 1}, 9000},
    {"single", "alone", 1, {1}, 700},     {"three", "three", 3, {0, 3, 1}, 70001},
    {"late", "late", 2, {3, 2}, 5000}, // Of rank 1's job; ranks 0, 2 and 3 are left.
};

// What a rank tells of a group's module.
struct own {
    uint64_t hash[GROUPS][STEPS + 1]; // 0: the rank has not made the step, or is no member.
    uint32_t in[GROUPS][STEPS + 1]; // Ranks that are in every element that was looked at.
};

static bool founds; // True if the job makes the last group.

// In a rank.
static struct {
    lockstep_group *group;
    lockstep_module *module; // NULL: this rank is no member.
    float *gradients[2]; // [elements], [FEW]
} mine[GROUPS];

static uint64_t weight_of(uint32_t rank)
{
    return 1 + rank % 3;
}

static bool is_member(uint32_t group, uint32_t rank)
{
    for (uint32_t i = 0; i < shapes[group].count; i++)
        if (shapes[group].members[i] == rank)
            return true;
    return false;
}

static void register_in(struct job_rank *rank, uint32_t g, const uint32_t *numbers)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter tensors[2];
    const int64_t lengths[2] = {(int64_t)shapes[g].elements, FEW};
    memset(tensors, 0, sizeof(tensors));
    job_require(rank,
                lockstep_group_create(rank->session, numbers, shapes[g].count, shapes[g].group,
                                      &mine[g].group),
                "group_create");
    for (uint32_t t = 0; t < 2; t++) {
        mine[g].gradients[t] = calloc((size_t)lengths[t], sizeof(float));
        tensors[t].name = t == 0 ? "many" : "few";
        tensors[t].dtype = LOCKSTEP_FLOAT32;
        tensors[t].dims = 1;
        tensors[t].shape = &lengths[t];
        tensors[t].data = calloc((size_t)lengths[t], sizeof(float));
        tensors[t].gradient = mine[g].gradients[t];
    }
    config.name = shapes[g].module;
    config.group = mine[g].group;
    config.parameters = tensors;
    config.parameter_count = 2;
    config.unused = LOCKSTEP_UNUSED_ACCEPT;
    job_require(rank, lockstep_module_register(rank->session, &config, &mine[g].module),
                "register in a group");
}

static void register_groups(struct job_rank *rank)
{
    for (uint32_t g = 0; g < LATE; g++)
        if (is_member(g, rank->rank))
            register_in(rank, g, shapes[g].members);
}

static void configure(struct lockstep_config *config, struct lockstep_module_config *module)
{
    (void)module;
    config->gradient_norm = 1;
}

// Rank 1 is gone: the others have lower numbers.
static void found(struct job_rank *rank)
{
    const uint32_t numbers[] = {2, 1};
    if (is_member(LATE, rank->rank))
        register_in(rank, LATE, numbers);
    job_require(rank, lockstep_start(rank->session), "start after a death");
}

static bool is_used(uint32_t tensor, uint64_t step)
{
    return tensor == 0 || step % 2 == 1;
}

static float gradient_of(uint32_t rank, uint32_t g, uint32_t t, uint64_t step, uint64_t e)
{
    return job_gradient(rank, step, e + 100 * g + 1000 * t);
}

static void backward(struct job_rank *rank, uint32_t g, uint64_t step)
{
    lockstep_call *call;
    int status = lockstep_call_begin(mine[g].module, &call);
    for (uint32_t t = 0; t < 2; t++) {
        const uint64_t elements = t == 0 ? shapes[g].elements : FEW;
        for (uint64_t e = 0; e < elements; e++)
            mine[g].gradients[t][e] =
                is_used(t, step) ? gradient_of(rank->rank, g, t, step, e) : JOB_UNTOUCHED;
        if (status == 0 && is_used(t, step))
            status = lockstep_grad_ready(mine[g].module, call, t, NULL, NULL);
    }
    if (status == 0)
        status = lockstep_call_end(call);
    job_require(rank, status, "call of a group's module");
}

static double square(const float *values, uint64_t count)
{
    double sum = 0;
    for (uint64_t e = 0; e < count; e++)
        sum += (double)values[e] * (double)values[e];
    return sum;
}

// Looks at the result of a group. Returns the square of its norm.
static double look(struct job_rank *rank, uint32_t g, uint64_t step)
{
    struct own *own = job_own(rank->rank);
    uint64_t weights[JOB_RANKS];
    uint64_t hash = 1;
    uint32_t in = (1u << JOB_RANKS) - 1;
    double norm = 0;
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        weights[r] = is_member(g, r) ? weight_of(r) : 0;
    for (uint32_t t = 0; t < 2; t++) {
        const uint64_t elements = t == 0 ? shapes[g].elements : FEW;
        const float *values = mine[g].gradients[t];
        job_hash(&hash, values, elements * sizeof(*values));
        if (is_used(t, step))
            norm += square(values, elements);
        for (uint64_t e = 0; e < elements; e += t == 0 ? STRIDE : 1) {
            const uint32_t set = is_used(t, step) ? job_set_of_mean(rank, values[e], step,
                                                                    e + 100 * g + 1000 * t, weights)
                                 : values[e] == JOB_UNTOUCHED ? in
                                                              : UINT32_MAX;
            if (set == UINT32_MAX)
                job_fails(rank, "step %llu, group %u: element %llu of tensor %u is %g",
                          (unsigned long long)step, g, (unsigned long long)e, t, (double)values[e]);
            in &= set;
        }
    }
    own->hash[g][step] = hash | 1;
    own->in[g][step] = in;
    return norm;
}

static void step_in_groups(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    uint64_t weights[JOB_RANKS];
    double norm = 0;
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        weights[r] = weight_of(r);
    if (founds && step == FOUNDED)
        found(rank);
    options.weight = weight_of(rank->rank);
    job_begin(rank, &options, NULL);
    for (uint32_t g = 0; g < GROUPS; g++)
        if (mine[g].module && g % 2 == 0)
            backward(rank, g, step);
    job_backward(rank, step);
    for (uint32_t g = 0; g < GROUPS; g++)
        if (mine[g].module && g % 2 == 1)
            backward(rank, g, step);
    job_require(rank, job_end(rank), "step_end");
    job_require(rank, lockstep_step_report(rank->session, step, 0, &report), "report");
    job_look(rank, step, weights, hash);
    for (uint32_t g = 0; g < GROUPS; g++)
        if (mine[g].module)
            norm += look(rank, g, step);
    for (uint32_t t = 0; t < JOB_TENSORS; t++)
        norm += square(rank->gradients[t], job_elements[t]);
    job_expect(rank, fabs(report.gradient_norm - sqrt(norm)) <= 1e-5 * sqrt(norm),
               "the norm of the gradients");
}

// ---- The test -----------------------------------------------------------------------------------

static void check_groups(const char *name, uint32_t dead, uint64_t first, uint32_t g)
{
    for (uint64_t step = first; step <= STEPS; step++) {
        uint32_t one = JOB_RANKS;
        for (uint32_t r = 0; r < JOB_RANKS; r++) {
            const struct own *own = job_own(r);
            if (!is_member(g, r) || (dead >> r & 1) != 0)
                continue;
            one = one == JOB_RANKS ? r : one;
            if (own->hash[g][step] == 0 ||
                own->hash[g][step] != ((struct own *)job_own(one))->hash[g][step])
                fail_msg("%s: ranks %u and %u differ in step %llu of group %u", name, one, r,
                         (unsigned long long)step, g);
            for (uint32_t m = 0; m < JOB_RANKS; m++)
                if (is_member(g, m) && (dead >> m & 1) == 0 && (own->in[g][step] >> m & 1) == 0)
                    fail_msg("%s: step %llu of group %u lacks gradients of rank %u", name,
                             (unsigned long long)step, g, m);
        }
    }
}

static void modules_of_groups(void **state)
{
    (void)state;
    founds = false;
    for (uint32_t round = 0; round < job_rounds(3); round++) {
        struct job job = {.name = "groups",
                          .size = 4,
                          .deaths = 1 + round % 3,
                          .steps = STEPS,
                          .tcp = round % 2 == 0,
                          .configure = configure,
                          .loads = register_groups,
                          .step = step_in_groups};
        const uint32_t dead = job_run(&job, round, NULL);
        for (uint32_t g = 0; g < LATE; g++)
            check_groups(job.name, dead, 1, g);
    }
}

static void a_group_after_a_death(void **state)
{
    struct job job = {.name = "late group",
                      .size = 4,
                      .deaths = 1,
                      .steps = STEPS,
                      .configure = configure,
                      .loads = register_groups,
                      .step = step_in_groups};
    (void)state;
    founds = true;
    const uint32_t dead = job_run(&job, 1, NULL); // Rank 1 dies.
    for (uint32_t g = 0; g < GROUPS; g++)
        check_groups(job.name, dead, g == LATE ? FOUNDED : 1, g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(modules_of_groups, job_teardown),
        cmocka_unit_test_teardown(a_group_after_a_death, job_teardown),
    };
    job_memory(sizeof(struct own));
    job_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
