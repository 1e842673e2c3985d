// SPDX-License-Identifier: Apache-2.0
//
// Survivors of a death go on (config.on_failure continue) in jobs with modules of groups. Beside
// what recovery_job.h says of every job: members of a group that live have the same bits, which are
// means over a set of members that contains all of these. Among the groups is one that is left
// without members, one that is left with one member, and one that is made after a death. In each
// third step one member of each group uses a parameter, in another third nobody. In some jobs
// members run out of data. Calls of groups that are deferred are in test_recovery_policies.

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
    SOME = 20001,
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

// What the jobs of one test do.
static struct {
    bool founds; // The last group is made.
    bool uneven; // Ranks run out of data.
    bool reports; // Parameters that are not used are an error.
} now;

// In a rank.
static struct {
    lockstep_group *group;
    lockstep_module *module; // NULL: this rank is no member.
    float *gradients[2]; // [elements], [SOME]
} mine[GROUPS];

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
    const int64_t lengths[2] = {(int64_t)shapes[g].elements, SOME};
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
    config.unused = now.reports ? LOCKSTEP_UNUSED_ERROR : LOCKSTEP_UNUSED_ACCEPT;
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
    config->uneven = now.uneven ? LOCKSTEP_UNEVEN_ALL : LOCKSTEP_UNEVEN_NONE;
}

// Rank 1 is gone: the others have lower numbers.
static void found(struct job_rank *rank)
{
    const uint32_t numbers[] = {2, 1};
    if (is_member(LATE, rank->rank))
        register_in(rank, LATE, numbers);
    job_require(rank, lockstep_start(rank->session), "start after a death");
}

// The only member that uses tensor 1 in this step, for each third step.
static uint32_t user_of(uint32_t g, uint64_t step)
{
    return shapes[g].members[step / 3 % shapes[g].count];
}

static bool is_used(uint32_t rank, uint32_t g, uint32_t tensor, uint64_t step)
{
    return tensor == 0 || step % 3 == 1 || (step % 3 == 2 && user_of(g, step) == rank);
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
        const uint64_t elements = t == 0 ? shapes[g].elements : SOME;
        for (uint64_t e = 0; e < elements; e++)
            mine[g].gradients[t][e] = is_used(rank->rank, g, t, step)
                                          ? gradient_of(rank->rank, g, t, step, e)
                                          : JOB_UNTOUCHED;
        if (status == 0 && is_used(rank->rank, g, t, step))
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

// The set of members of whom this is the weighted mean, with those of weight 0; UINT32_MAX: none.
static uint32_t set_of(const struct job_rank *rank, uint32_t g, uint32_t t, uint64_t step,
                       uint64_t e, const uint64_t *weights)
{
    const float value = mine[g].gradients[t][e];
    uint32_t idle = 0;
    uint32_t set = 0;
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        idle |= weights[r] == 0 ? 1u << r : 0;
    if (value != JOB_UNTOUCHED)
        set = job_set_of_mean(rank, value, step, e + 100 * g + 1000 * t, weights);
    return set == UINT32_MAX ? set : set | idle;
}

// True if the value is the part of one member in a mean over some, or as it was. If that member was
// lost, its part may be missing.
static bool is_of_one(uint32_t rank, uint32_t g, uint64_t step, uint64_t e, const uint64_t *weights)
{
    const float value = mine[g].gradients[1][e];
    const uint32_t user = user_of(g, step);
    const float part = (float)weights[user] * gradient_of(user, g, 1, step, e);
    if (value == JOB_UNTOUCHED || value == 0)
        return user != rank || weights[user] == 0;
    for (uint64_t total = 1; total <= 3 * JOB_RANKS; total++)
        if (part / (float)total == value)
            return true;
    return false;
}

// Looks at the result of a group. Returns the square of its norm.
static double look(struct job_rank *rank, uint32_t g, uint64_t step, const uint64_t *weights_of_all)
{
    struct own *own = job_own(rank->rank);
    uint64_t weights[JOB_RANKS];
    uint64_t hash = 1;
    uint32_t in = (1u << JOB_RANKS) - 1;
    double norm = 0;
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        weights[r] = is_member(g, r) ? weights_of_all[r] : 0;
    for (uint32_t t = 0; t < 2; t++) {
        const uint64_t elements = t == 0 ? shapes[g].elements : SOME;
        const float *values = mine[g].gradients[t];
        job_hash(&hash, values, elements * sizeof(*values));
        if (values[0] != JOB_UNTOUCHED)
            norm += square(values, elements);
        for (uint64_t e = 0; e < elements; e += STRIDE) {
            uint32_t set = in;
            if (t == 0 || step % 3 == 1)
                set = set_of(rank, g, t, step, e, weights);
            else if (step % 3 == 2 ? !is_of_one(rank->rank, g, step, e, weights)
                                   : values[e] != JOB_UNTOUCHED)
                set = UINT32_MAX;
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

static void give_nothing(struct job_rank *rank)
{
    for (uint32_t t = 0; t < JOB_TENSORS; t++)
        for (uint64_t e = 0; e < job_elements[t]; e++)
            rank->gradients[t][e] = JOB_UNTOUCHED;
    for (uint32_t g = 0; g < GROUPS; g++)
        for (uint32_t t = 0; t < 2 && mine[g].module; t++)
            for (uint64_t e = 0; e < (t == 0 ? shapes[g].elements : SOME); e++)
                mine[g].gradients[t][e] = JOB_UNTOUCHED;
}

static void give(struct job_rank *rank, uint64_t step)
{
    for (uint32_t g = 0; g < GROUPS; g++)
        if (mine[g].module && g % 2 == 0)
            backward(rank, g, step);
    job_backward(rank, step);
    for (uint32_t g = 0; g < GROUPS; g++)
        if (mine[g].module && g % 2 == 1)
            backward(rank, g, step);
}

// All survivors end a step with E_UNUSED or none. In a step with one user it depends on who lives.
static void check_status(struct job_rank *rank, uint64_t step, int status, uint64_t *hash)
{
    if (!now.reports || status != LOCKSTEP_E_UNUSED)
        job_require(rank, status, "step_end");
    job_expect(rank, !now.reports || step % 3 == 2 || (step % 3 == 0) == (status < 0),
               "parameters that are not used");
    job_hash(hash, &status, sizeof(status));
}

static void step_in_groups(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    struct lockstep_step_view view;
    struct own *own = job_own(rank->rank);
    uint64_t weights[JOB_RANKS];
    double norm = 0;
    for (uint32_t r = 0; r < JOB_RANKS; r++)
        weights[r] = now.uneven && !job_has_data(rank, r) ? 0 : 1 + r % 3; // 0: no data is left.
    if (now.founds && step == FOUNDED)
        found(rank);
    options.weight = weights[rank->rank];
    options.exhausted = options.weight == 0;
    if (job_begin(rank, &options, &view) == LOCKSTEP_FINISHED) {
        job_require(rank, lockstep_uneven_set(rank->session, LOCKSTEP_UNEVEN_ALL), "uneven_set");
        for (uint32_t g = 0; g < GROUPS; g++) {
            own->hash[g][step] = 1;
            own->in[g][step] = (1u << JOB_RANKS) - 1; // Nothing is missing.
        }
        return;
    }
    if (options.exhausted != 0)
        give_nothing(rank);
    else
        give(rank, step);
    check_status(rank, step, job_end(rank), hash);
    job_require(rank, lockstep_step_report(rank->session, view.step, 0, &report), "report");
    job_look(rank, step, weights, hash);
    for (uint32_t g = 0; g < GROUPS; g++)
        if (mine[g].module)
            norm += look(rank, g, step, weights);
    for (uint32_t t = 0; t < JOB_TENSORS; t++)
        norm += square(rank->gradients[t], job_elements[t]);
    // The norm leaves out gradients that only a lost rank has given.
    job_expect(rank, now.uneven || fabs(report.gradient_norm - sqrt(norm)) <= 1e-5 * sqrt(norm),
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
    for (uint32_t round = 0; round < job_rounds(6); round++) {
        now.founds = false;
        now.uneven = round % 3 == 1;
        now.reports = round % 3 == 2;
        struct job job = {.name = now.uneven    ? "groups, uneven"
                                  : now.reports ? "groups, unused errors"
                                                : "groups",
                          .size = 4,
                          .deaths = 1 + (round + round / 3) % 3,
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
    now.founds = true;
    now.uneven = now.reports = false;
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
