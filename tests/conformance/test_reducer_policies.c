// SPDX-License-Identifier: Apache-2.0
//
// Conformance: parameters without a gradient under each policy, and those declared unused. Case
// numbers are those of the list of cases for reducers; policy error is in test_reducer_ready.c.

#include "base/mutex.h"
#include "tests/support/listener.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t sizes[8] = {40, 1, 300, 17, 64, 5, 128, 33};

// The parameters that a rank uses in a step, as bits.
typedef uint64_t uses(uint32_t rank, uint64_t step);

static void policy_make(struct rank *rank, lockstep_unused_policy policy,
                        struct trained_module *module)
{
    const struct module_shape shape = {
        .name = "net", .count = 4, .elements = sizes, .unused = policy};
    trainer_make(rank, &shape, 0, module);
    RANK_OK(rank, lockstep_start(rank->session));
}

static void policy_call(struct rank *rank, struct trained_module *module, uint64_t used)
{
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    trainer_call_used(rank, module, used);
}

// Checks a gradient. Ranks that did not use the parameter count as zeros. If no rank used it, the
// gradient stays as each rank left it, and is not compared between ranks.
static void expect_used(struct rank *rank, const struct trained_module *module, uses *uses_of,
                        uint32_t parameter)
{
    const uint64_t step = atomic_load(&rank->step);
    bool anybody = false;
    for (uint32_t r = 0; r < rank->world_size; r++)
        anybody |= (uses_of(r, step) >> parameter & 1) != 0;
    for (uint64_t i = 0; i < module->shape.elements[parameter]; i++) {
        int64_t sum = 0;
        for (uint32_t r = 0; r < rank->world_size; r++) {
            if ((uses_of(r, step) >> parameter & 1) != 0)
                sum += trainer_known(module, r, step, parameter, i);
        }
        const double mean = (double)((float)sum / (float)rank->world_size);
        const double own = (double)trainer_known(module, rank->rank, step, parameter, i);
        const double expected = anybody ? mean : own;
        const double found = trainer_value(module, parameter, i);
        RANK_TRUE(rank, found >= expected && found <= expected);
    }
    if (anybody)
        rank_digest(rank, module->gradients[parameter],
                    module->shape.elements[parameter] * sizeof(float));
}

static uint64_t count_unused(const struct rank *rank, uses *uses_of)
{
    uint64_t count = 0;
    for (uint32_t r = 0; r < rank->world_size; r++) {
        for (uint32_t p = 0; p < 4; p++)
            count += (uses_of(r, atomic_load(&rank->step)) >> p & 1) == 0;
    }
    return count;
}

static void policy_step(struct rank *rank, struct trained_module *module, uses *uses_of)
{
    trainer_begin(rank, NULL);
    policy_call(rank, module, uses_of(rank->rank, atomic_load(&rank->step)));
    trainer_end(rank);
    for (uint32_t p = 0; p < 4; p++)
        expect_used(rank, module, uses_of, p);
    RANK_EQUAL(rank, trainer_report(rank).unused, count_unused(rank, uses_of));
}

// ---- Case 10 -----------------------------------------------------------------------------------

// A trunk and three heads. Every rank trains the trunk and one head, which changes in each step.
static uint64_t three_tasks(uint32_t rank, uint64_t step)
{
    return 1 | 2u << (rank + step) % 3;
}

static void three_tasks_body(struct rank *rank)
{
    struct trained_module module;
    policy_make(rank, LOCKSTEP_UNUSED_ACCEPT, &module);
    for (int i = 0; i < 7; i++)
        policy_step(rank, &module, three_tasks);
    trainer_free(&module);
}

static void case_10_three_tasks(const struct setting *setting)
{
    ranks_run(setting, three_tasks_body, NULL);
}

// ---- Case 11 -----------------------------------------------------------------------------------

// In steps 1 to 4 all ranks take the same branch, which alternates. Later only rank 0 branches, in
// even steps.
static uint64_t alternating(uint32_t rank, uint64_t step)
{
    if (step <= 4)
        return step % 2 == 0 ? 0xf : 0x9;
    return rank == 0 && step % 2 == 0 ? 0x5 : 0xf;
}

static void alternating_body(struct rank *rank)
{
    struct trained_module module;
    policy_make(rank, LOCKSTEP_UNUSED_ACCEPT, &module);
    for (int i = 0; i < 8; i++)
        policy_step(rank, &module, alternating);
    trainer_free(&module);
}

static void case_11_control_flow_alternates(const struct setting *setting)
{
    ranks_run(setting, alternating_body, NULL);
}

// ---- Case 12 -----------------------------------------------------------------------------------

static uint64_t first_without_2(uint32_t rank, uint64_t step)
{
    (void)rank;
    return step == 1 ? 0xb : 0xf;
}

static void optimize(const struct trained_module *module, bool used)
{
    for (uint32_t p = 0; p < module->shape.count; p++) {
        for (uint64_t i = 0; (p != 2 || used) && i < module->shape.elements[p]; i++)
            ((float *)module->data[p])[i] -= 0.5f * (float)trainer_value(module, p, i);
    }
}

static void later_used_body(struct rank *rank)
{
    struct trained_module module;
    policy_make(rank, LOCKSTEP_UNUSED_ACCEPT, &module);
    for (int i = 0; i < 5; i++) {
        policy_step(rank, &module, first_without_2);
        optimize(&module, i > 0);
        RANK_OK(rank, lockstep_state_check(rank->session));
    }
    trainer_free(&module);
}

static void case_12_unused_in_the_first_step_only(const struct setting *setting)
{
    ranks_run(setting, later_used_body, NULL);
}

static uint64_t without_1_and_3(uint32_t rank, uint64_t step)
{
    if (step % 2 == 0)
        return 0xf;
    return rank == 0 ? 0x7 : 0xd;
}

static void warned_body(struct rank *rank)
{
    struct listener *listener = listener_of(rank);
    struct trained_module module;
    policy_make(rank, LOCKSTEP_UNUSED_WARN, &module);
    for (uint32_t i = 1; i <= 4; i++) {
        policy_step(rank, &module, without_1_and_3);
        mutex_lock(&listener->mutex);
        RANK_EQUAL(rank, listener->lines, (i + 1) / 2);
        RANK_TRUE(rank, strstr(listener->last, "module 'net' parameter 'p1' on rank 1 ") != NULL);
        RANK_TRUE(rank, strstr(listener->last, "module 'net' parameter 'p3' on rank 0") != NULL);
        RANK_TRUE(rank, !strstr(listener->last, "'p2'"));
        rank_digest(rank, listener->last, strlen(listener->last));
        mutex_unlock(&listener->mutex);
    }
    trainer_free(&module);
}

static void case_14_a_warning_names_each(const struct setting *setting)
{
    listener_run(setting, "event=unused_parameters", NULL, warned_body);
}

// ---- Modules that a rank does not call ---------------------------------------------------------

#define NETS 3

static void nets_make(struct rank *rank, lockstep_unused_policy last, struct trained_module *nets)
{
    static const char *const names[NETS] = {"net", "head", "last"};
    static const uint64_t elements[] = {20, 3};
    for (uint32_t m = 0; m < NETS; m++) {
        const struct module_shape shape = {.name = names[m],
                                           .count = 2,
                                           .elements = elements,
                                           .unused = m + 1 < NETS ? LOCKSTEP_UNUSED_ERROR : last};
        trainer_make(rank, &shape, m, &nets[m]);
    }
    RANK_OK(rank, lockstep_start(rank->session));
}

// Runs a step in which this rank calls the modules whose bits are set.
static void nets_step(struct rank *rank, struct trained_module *nets, uint32_t called)
{
    trainer_begin(rank, NULL);
    for (uint32_t m = 0; m < NETS; m++) {
        trainer_fill_known(&nets[m], rank->rank, atomic_load(&rank->step));
        if ((called >> m & 1) != 0)
            trainer_call(rank, &nets[m]);
    }
    trainer_end(rank);
}

static uint32_t lines_of(struct rank *rank, const char *part)
{
    struct listener *listener = listener_of(rank);
    mutex_lock(&listener->mutex);
    const uint32_t lines = listener->lines;
    RANK_TRUE(rank, lines == 0 || strstr(listener->last, part));
    mutex_unlock(&listener->mutex);
    return lines;
}

// Rank 1 forgets the first module and the last one in steps 3 and 4, and the second one in step 5.
// The policy of the last one accepts that. In step 6 no rank calls the second one.
static void forgotten_body(struct rank *rank)
{
    static const uint32_t called[] = {7, 7, 2, 2, 5, 5};
    static const uint32_t lines[] = {0, 0, 1, 1, 2, 2};
    struct trained_module nets[NETS];
    nets_make(rank, LOCKSTEP_UNUSED_ACCEPT, nets);
    for (uint32_t i = 0; i < 6; i++) {
        nets_step(rank, nets, rank->rank == 1 || i == 5 ? called[i] : 7);
        RANK_EQUAL(rank,
                   lines_of(rank, i < 4 ? "step=3 module=net rank=1 " : "step=5 module=head "),
                   rank->rank == 1 ? lines[i] : 0);
    }
    for (uint32_t m = 0; m < NETS; m++)
        trainer_free(&nets[m]);
}

static void a_forgotten_call_is_a_warning(const struct setting *setting)
{
    listener_run(setting, "event=module_not_called", NULL, forgotten_body);
}

static void defer_unplanned(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->unplanned = LOCKSTEP_UNPLANNED_DEFER;
}

static void differing_body(struct rank *rank)
{
    struct trained_module nets[NETS];
    nets_make(rank, LOCKSTEP_UNUSED_ERROR, nets);
    for (uint32_t i = 0; i < 4; i++)
        nets_step(rank, nets, rank->rank == 1 && i > 1 ? 2 : 7);
    RANK_TRUE(rank, rank->rank != 1 || trainer_report(rank).zero_filled > 0);
    RANK_EQUAL(rank, lines_of(rank, ""), 0);
    for (uint32_t m = 0; m < NETS; m++)
        trainer_free(&nets[m]);
}

static void ranks_that_defer_may_call_other_modules(const struct setting *setting)
{
    listener_run(setting, "event=module_not_called", defer_unplanned, differing_body);
}

// ---- Policies of several modules ---------------------------------------------------------------

// The first module accepts more unused gradients than an error can name. They do not hide the error
// of the second module.
static void mixed_policies_body(struct rank *rank)
{
    uint64_t ones[40];
    const struct module_shape lenient = {
        .name = "lenient", .count = 40, .elements = ones, .unused = LOCKSTEP_UNUSED_ACCEPT};
    const struct module_shape strict = {.name = "strict", .count = 4, .elements = sizes};
    struct trained_module modules[2];
    char text[256];
    for (int i = 0; i < 40; i++)
        ones[i] = 1;
    trainer_make(rank, &lenient, 0, &modules[0]);
    trainer_make(rank, &strict, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        policy_call(rank, &modules[0], 0);
        policy_call(rank, &modules[1], rank->rank == 1 ? 0xd : 0xf);
        RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
        snprintf(text, sizeof(text),
                 "step %" PRIu64 ": 1 gradient was not produced by the backward pass:"
                 "\n  module 'strict' parameter 'p1' on rank 1",
                 atomic_load(&rank->step));
        RANK_TRUE(rank, strcmp(lockstep_error_text(), text) == 0);
        RANK_EQUAL(rank, trainer_report(rank).unused, 40 * rank->world_size + 1);
        trainer_step_known(rank, modules, 2);
    }
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_14_policies_are_per_module(const struct setting *setting)
{
    ranks_run(setting, mixed_policies_body, NULL);
}

// ---- Case 18 -----------------------------------------------------------------------------------

static uint64_t without_2_on_rank_0(uint32_t rank, uint64_t step)
{
    (void)step;
    return rank == 0 ? 0xb : 0xf;
}

// Runs a step in which rank 0 declares p2 unused, before or after its report of p3.
static void declared_step(struct rank *rank, struct trained_module *module, bool early)
{
    const uint32_t declared = 2;
    lockstep_call *call;
    trainer_begin(rank, NULL);
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    if (!early)
        RANK_OK(rank, lockstep_grad_ready(module->module, call, 3, NULL, NULL));
    if (rank->rank == 0)
        RANK_OK(rank, lockstep_call_unused(call, &declared, 1));
    if (early)
        RANK_OK(rank, lockstep_grad_ready(module->module, call, 3, NULL, NULL));
    RANK_STATUS(rank, rank->rank == 0 ? LOCKSTEP_E_INVALID : LOCKSTEP_OK,
                lockstep_grad_ready(module->module, call, 2, NULL, NULL));
    if (rank->rank == 0)
        RANK_SAYS(rank, "'p2' is ready after it was declared unused");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_unused(call, &declared, 1));
    RANK_SAYS(rank, rank->rank == 0 ? "declared unused twice" : "declared unused after it was");
    RANK_OK(rank, lockstep_grad_ready(module->module, call, 1, NULL, NULL));
    RANK_OK(rank, lockstep_grad_ready(module->module, call, 0, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    trainer_end(rank); // A declared parameter is no error with any policy.
    for (uint32_t p = 0; p < 4; p++)
        expect_used(rank, module, without_2_on_rank_0, p);
    RANK_EQUAL(rank, trainer_report(rank).unused, 1);
    trainer_digest(rank, module);
}

static void declared_body(struct rank *rank)
{
    struct trained_module module;
    policy_make(rank, LOCKSTEP_UNUSED_ERROR, &module);
    for (int i = 0; i < 3; i++) {
        declared_step(rank, &module, i % 2 == 0);
        trainer_step_known(rank, &module, 1); // The declaration held for that call only.
    }
    trainer_begin(rank, NULL);
    policy_call(rank, &module, rank->rank == 0 ? 0xb : 0xf);
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    trainer_free(&module);
}

static void case_18_declared_unused(const struct setting *setting)
{
    ranks_run(setting, declared_body, NULL);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_10_three_tasks", case_10_three_tasks, NULL},
        {"case_11_control_flow_alternates", case_11_control_flow_alternates, NULL},
        {"case_12_unused_in_the_first_step_only", case_12_unused_in_the_first_step_only, NULL},
        {"case_14_a_warning_names_each", case_14_a_warning_names_each, NULL},
        {"a_forgotten_call_is_a_warning", a_forgotten_call_is_a_warning, NULL},
        {"ranks_that_defer_may_call_other_modules", ranks_that_defer_may_call_other_modules, NULL},
        {"case_14_policies_are_per_module", case_14_policies_are_per_module, NULL},
        {"case_18_declared_unused", case_18_declared_unused, NULL},
    };
    return stamp_run("reducer: policies", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
