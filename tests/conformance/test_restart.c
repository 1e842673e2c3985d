// SPDX-License-Identifier: Apache-2.0
//
// Conformance: modules that are closed or registered late, and a second lockstep_start. All ranks
// continue with other modules, or with the same memory, as if they had started with them. If ranks
// disagree, all ranks get the same error. Case numbers are those of the list of cases for reducers.

#include "base/clock.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BOUND_MS 3000 // Time limit from a disagreement to its error, before test_bound_ms().
#define HEAD_START_US 20000 // How much earlier one rank calls than the other, in both orders.

static const uint64_t sizes[8] = {40, 1, 300, 17, 64, 5, 128, 33};

static const struct module_shape net = {.name = "net", .count = 5, .elements = sizes};
static const struct module_shape head = {.name = "head", .count = 3, .elements = sizes};
static const struct module_shape tail = {.name = "tail", .count = 2, .elements = sizes + 2};

// Registers the same memory as before, under the same name.
static void register_again(struct rank *rank, struct trained_module *module)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    config.name = module->shape.name;
    config.parameters = module->parameters;
    config.parameter_count = module->shape.count;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module->module));
}

// Runs a step, checks the means, and checks whether it was a learning step.
static void step_known(struct rank *rank, struct trained_module *modules, uint32_t count,
                       bool learning)
{
    trainer_step_known(rank, modules, count);
    RANK_EQUAL(rank, trainer_report(rank).learning, learning);
    if (!learning)
        RANK_EQUAL(rank, trainer_report(rank).control_messages, 0);
    for (uint32_t m = 0; m < count; m++)
        trainer_digest(rank, &modules[m]);
}

static void steps_known(struct rank *rank, struct trained_module *modules, uint32_t count)
{
    step_known(rank, modules, count, true);
    step_known(rank, modules, count, false);
    step_known(rank, modules, count, false);
}

// ---- Case 30: the module is registered again ---------------------------------------------------

// Runs a step in which rank 1 aborts its backward pass in the middle.
static void failed_step(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    trainer_begin(rank, NULL);
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < module->shape.count; i++) {
        if (rank->rank != 1 || i < 2)
            RANK_OK(rank, lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    }
    RANK_OK(rank, rank->rank == 1 ? lockstep_call_abort(call) : lockstep_call_end(call));
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
}

static void expect_values(struct rank *rank, const struct trained_module *module, float value)
{
    for (uint32_t p = 0; p < module->shape.count; p++) {
        for (uint64_t i = 0; i < module->shape.elements[p]; i++) {
            const float found = ((const float *)module->data[p])[i];
            RANK_TRUE(rank, found >= value && found <= value);
        }
    }
}

// Overwrites all values, as a failure in the middle of an optimizer step does.
static void spoil(const struct trained_module *module, float value)
{
    for (uint32_t p = 0; p < module->shape.count; p++) {
        for (uint64_t i = 0; i < module->shape.elements[p]; i++)
            ((float *)module->data[p])[i] = value;
    }
}

static void registered_again_body(struct rank *rank)
{
    struct trained_module module;
    int64_t total = 0;
    trainer_make(rank, &net, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, &module, 1);
    for (uint32_t round = 1; round <= 3; round++) {
        RANK_OK(rank, lockstep_counter_add(rank->session, "samples", 1));
        failed_step(rank, &module);
        spoil(&module, (float)(rank->rank + round));
        RANK_OK(rank, lockstep_module_close(module.module));
        register_again(rank, &module);
        RANK_OK(rank, lockstep_start(rank->session));
        expect_values(rank, &module, (float)round);
        RANK_OK(rank, lockstep_state_check(rank->session));
        steps_known(rank, &module, 1);
        RANK_EQUAL(rank, atomic_load(&rank->step), 3 + 4 * round);
        RANK_OK(rank, lockstep_counter_read(rank->session, "samples", &total));
        RANK_EQUAL(rank, total, round * rank->world_size);
    }
    trainer_free(&module);
}

static void case_30_the_module_is_registered_again(const struct setting *setting)
{
    ranks_run(setting, registered_again_body, NULL);
}

// ---- Other modules -----------------------------------------------------------------------------

// Gradients become ready in another order on each rank, so the learned layout differs from the
// first one. The first of three modules is closed, and a new one is registered.
static void other_modules_body(struct rank *rank)
{
    struct trained_module modules[3];
    trainer_make(rank, &net, 0, &modules[0]);
    trainer_make(rank, &head, 1, &modules[1]);
    trainer_make(rank, &tail, 2, &modules[2]);
    for (uint32_t m = 0; m < 3; m++)
        trainer_shuffle(modules[m].order, modules[m].shape.count, 5 * rank->rank + m);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, modules, 3);
    RANK_OK(rank, lockstep_module_close(modules[0].module));
    trainer_free(&modules[0]); // After the close the trainer may free the memory.
    modules[0] = modules[1];
    modules[1] = modules[2];
    trainer_make(rank, &net, 3, &modules[2]);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, modules, 3);
    for (uint32_t m = 0; m < 3; m++)
        trainer_free(&modules[m]);
}

static void other_modules_after_a_start(const struct setting *setting)
{
    ranks_run(setting, other_modules_body, NULL);
}

// ---- Case 50: modules are registered between steps ---------------------------------------------

// Values of the module: the rank's number. lockstep_start gives all ranks the root's, which are 0.
static void make_late(struct rank *rank, const struct module_shape *shape, uint32_t index,
                      struct trained_module *module)
{
    trainer_make(rank, shape, index, module);
    spoil(module, (float)rank->rank);
    trainer_shuffle(module->order, shape->count, 7 * rank->rank + index);
}

static void late_body(struct rank *rank)
{
    static const struct module_shape *const shapes[] = {&net, &head, &tail};
    struct trained_module modules[3];
    make_late(rank, shapes[0], 0, &modules[0]);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, modules, 1);
    for (uint32_t m = 1; m < 3; m++) {
        spoil(&modules[0], (float)(m + rank->rank));
        make_late(rank, shapes[m], m, &modules[m]);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_SAYS(rank, "again after lockstep_module_close and lockstep_module_register");
        RANK_OK(rank, lockstep_start(rank->session));
        expect_values(rank, &modules[0], (float)m);
        expect_values(rank, &modules[m], 0);
        RANK_OK(rank, lockstep_state_check(rank->session));
        steps_known(rank, modules, m + 1);
        RANK_EQUAL(rank, atomic_load(&rank->step), 3 * (m + 1));
    }
    for (uint32_t m = 0; m < 3; m++)
        trainer_free(&modules[m]);
}

static void case_50_modules_are_registered_late(const struct setting *setting)
{
    ranks_run(setting, late_body, NULL);
}

// A late module may share a parameter of an earlier one.
static void late_shared_body(struct rank *rank)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter second;
    struct trained_module module;
    lockstep_module *sharing;
    lockstep_call *call;
    trainer_make(rank, &net, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, &module, 1);
    second = module.parameters[2];
    second.flags |= LOCKSTEP_PARAMETER_SHARED;
    config.name = "sharing";
    config.parameters = &second;
    config.parameter_count = 1;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &sharing));
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        trainer_call(rank, &module);
        RANK_OK(rank, lockstep_call_begin(sharing, &call));
        RANK_OK(rank, lockstep_grad_ready(sharing, call, 0, NULL, NULL));
        RANK_OK(rank, lockstep_call_end(call));
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
    }
    trainer_free(&module);
}

static void case_50_shares_an_earlier_one(const struct setting *setting)
{
    ranks_run(setting, late_shared_body, NULL);
}

// A registration that fails changes nothing: steps go on without a new lockstep_start.
static void late_misuse_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct trained_module module;
    lockstep_module *other;
    trainer_make(rank, &net, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, &module, 1);
    config.name = "net";
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_register(rank->session, &config, &other));
    config.name = "other";
    config.parameters = module.parameters;
    config.parameter_count = 1;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_register(rank->session, &config, &other));
    RANK_SAYS(rank, "mark it LOCKSTEP_PARAMETER_SHARED");
    step_known(rank, &module, 1, false);
    config.parameter_count = 0;
    options.accumulate = 1;
    trainer_begin(rank, &options);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_register(rank->session, &config, &other));
    RANK_SAYS(rank, "module 'other' is registered inside a step: end step 5 first");
    trainer_end(rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_register(rank->session, &config, &other));
    RANK_SAYS(rank, "inside a window");
    step_known(rank, &module, 1, false);
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &other));
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, &module, 1);
    trainer_free(&module);
}

static void case_50_a_failure_changes_nothing(const struct setting *setting)
{
    ranks_run(setting, late_misuse_body, NULL);
}

static void late_alone_body(struct rank *rank)
{
    struct trained_module modules[2];
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    trainer_make(rank, &net, 0, &modules[0]);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 1);
    trainer_make(rank, &head, 1, &modules[1]);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 2);
    RANK_EQUAL(rank, atomic_load(&rank->step), 2);
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_50_alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = late_alone_body, .without_session = true};
    ranks_run_test(&test);
}

// Collectives and counters also work between the close of a module and the next lockstep_start.
static void in_between_body(struct rank *rank)
{
    struct trained_module modules[2];
    int64_t sum = 1;
    trainer_make(rank, &net, 0, &modules[0]);
    trainer_make(rank, &head, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, modules, 2);
    RANK_OK(rank, lockstep_module_close(modules[0].module));
    RANK_OK(rank, lockstep_allreduce(rank->session, "sum", &sum, 1, LOCKSTEP_INT64, LOCKSTEP_SUM,
                                     LOCKSTEP_WAIT_FOREVER));
    RANK_EQUAL(rank, sum, rank->world_size);
    RANK_OK(rank, lockstep_module_close(modules[1].module));
    register_again(rank, &modules[1]); // The order of the modules is reversed now.
    RANK_OK(rank, lockstep_barrier(rank->session, "here", LOCKSTEP_WAIT_FOREVER));
    register_again(rank, &modules[0]);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, modules, 2);
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void collectives_between_close_and_start(const struct setting *setting)
{
    ranks_run(setting, in_between_body, NULL);
}

static void before_start_body(struct rank *rank)
{
    struct trained_module modules[2];
    trainer_make(rank, &net, 0, &modules[0]);
    trainer_make(rank, &head, 1, &modules[1]);
    RANK_OK(rank, lockstep_module_close(modules[0].module));
    trainer_free(&modules[0]);
    modules[0] = modules[1];
    trainer_make(rank, &net, 2, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, modules, 2);
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void a_module_is_closed_before_start(const struct setting *setting)
{
    ranks_run(setting, before_start_body, NULL);
}

static void empty_steps(struct rank *rank)
{
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).learning, i == 0);
        RANK_EQUAL(rank, trainer_report(rank).buckets, 0);
    }
}

static void nothing_left_body(struct rank *rank)
{
    struct trained_module modules[2];
    trainer_make(rank, &net, 0, &modules[0]);
    trainer_make(rank, &head, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, modules, 2);
    RANK_OK(rank, lockstep_module_close(modules[1].module));
    RANK_OK(rank, lockstep_module_close(modules[0].module));
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_state_check(rank->session));
    empty_steps(rank);
}

static void all_modules_are_closed(const struct setting *setting)
{
    ranks_run(setting, nothing_left_body, NULL);
}

// ---- Misuse ------------------------------------------------------------------------------------

static void close_inside(struct rank *rank, const struct trained_module *module)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.accumulate = 1;
    trainer_begin(rank, &options);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_close(module->module));
    RANK_SAYS(rank, "module 'net' is closed inside a step: end step 4 first");
    trainer_end(rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_close(module->module));
    RANK_SAYS(rank, "inside a window");
    options.accumulate = 0;
    trainer_begin(rank, &options);
    trainer_end(rank);
}

static void misuse_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    trainer_make(rank, &net, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, &module, 1);
    close_inside(rank, &module);
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(module.module, &call));
    RANK_OK(rank, lockstep_call_abort(call));
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    RANK_OK(rank, lockstep_module_close(module.module));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_close(module.module));
    RANK_SAYS(rank, "this is not a module, or it was closed");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_end(call));
    RANK_SAYS(rank, "this is not a call, or its module was closed");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_SAYS(rank, "call lockstep_start before the first step, and again after");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_state_check(rank->session));
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_start(rank->session));
    RANK_SAYS(rank, "no module was closed since");
    empty_steps(rank);
    trainer_free(&module);
}

static void misuse_changes_nothing(const struct setting *setting)
{
    ranks_run(setting, misuse_body, NULL);
}

// ---- Alone -------------------------------------------------------------------------------------

static void alone_body(struct rank *rank)
{
    struct trained_module modules[2];
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    trainer_make(rank, &net, 0, &modules[0]);
    trainer_make(rank, &head, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 2);
    RANK_OK(rank, lockstep_module_close(modules[0].module));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, NULL, NULL));
    register_again(rank, &modules[0]);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, modules, 2);
    RANK_EQUAL(rank, atomic_load(&rank->step), 2);
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void a_world_of_one_starts_again(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = alone_body, .without_session = true};
    ranks_run_test(&test);
}

// ---- Some start again, others begin a step -----------------------------------------------------

struct parting {
    uint32_t starters; // Bit set of the ranks that call lockstep_start again.
    bool learning; // True if the step of the other ranks learns.
    bool registers; // True if the starters register a module, false if they close one.
    bool step_first; // True if the step begins before the second lockstep_start.
};

static void expect_parted(struct rank *rank, const struct parting *parting)
{
    const char *text = lockstep_error_text();
    const char *second = strstr(text, ", rank ");
    unsigned starter = 0;
    unsigned stepper = 0;
    RANK_SAYS(rank, "called lockstep_start again after step 3");
    RANK_SAYS(rank, "began step 4 instead");
    RANK_TRUE(rank, sscanf(text, "rank %u (host ", &starter) == 1);
    RANK_TRUE(rank, second && sscanf(second, ", rank %u ", &stepper) == 1);
    RANK_TRUE(rank, (parting->starters >> starter & 1) == 1);
    RANK_TRUE(rank, (parting->starters >> stepper & 1) == 0);
    rank_digest(rank, text, strlen(text));
}

// Runs a step. Returns the first failure, which may come from any call of the step.
static int step_status(struct rank *rank, const struct trained_module *module, const char *phase,
                       bool meets)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    lockstep_call *call;
    int status;
    options.phase = phase;
    status = RANK_CALL(rank, lockstep_step_begin(rank->session, &options, NULL));
    if (meets)
        rank_meet(rank);
    if (status == 0)
        status = RANK_CALL(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t p = 0; status == 0 && p < module->shape.count; p++)
        status = RANK_CALL(rank, lockstep_grad_ready(module->module, call, p, NULL, NULL));
    if (status == 0)
        status = RANK_CALL(rank, lockstep_call_end(call));
    return status == 0 ? RANK_CALL(rank, lockstep_step_end(rank->session, NULL)) : status;
}

static void register_further(struct rank *rank)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *further;
    config.name = "further";
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &further));
}

static int part(struct rank *rank, const struct trained_module *modules,
                const struct parting *parting)
{
    const char *phase = parting->learning ? "another" : "";
    if ((parting->starters >> rank->rank & 1) == 1) {
        if (parting->registers)
            register_further(rank);
        else
            RANK_OK(rank, lockstep_module_close(modules[1].module));
        rank_meet(rank);
        return RANK_CALL(rank, lockstep_start(rank->session));
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_start(rank->session)); // No module was closed.
    if (parting->step_first)
        return step_status(rank, &modules[0], phase, true);
    rank_meet(rank);
    usleep(HEAD_START_US);
    return step_status(rank, &modules[0], phase, false);
}

static void parted_body(struct rank *rank)
{
    struct trained_module modules[2];
    uint64_t since_ms;
    trainer_make(rank, &net, 0, &modules[0]);
    trainer_make(rank, &head, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, modules, 2);
    since_ms = clock_now_ms();
    RANK_EQUAL(rank, part(rank, modules, rank->context), LOCKSTEP_E_MISMATCH);
    expect_parted(rank, rank->context);
    RANK_TRUE(rank, clock_now_ms() - since_ms < test_bound_ms(BOUND_MS));
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void part_all(const struct setting *setting, bool learning)
{
    for (uint32_t starters = 1; starters + 1 < 1u << setting->world_size; starters++) {
        for (int first = 0; first < 2; first++) {
            struct parting parting = {starters, learning, .step_first = first == 1};
            ranks_run(setting, parted_body, &parting);
        }
    }
}

static void parted_configure(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->uneven = LOCKSTEP_UNEVEN_ALL;
}

// With LOCKSTEP_UNEVEN_ALL lockstep_step_begin waits for the other ranks, and would wait for ever.
static void some_wait_in_an_open_wave(const struct setting *setting)
{
    for (uint32_t starters = 1; starters + 1 < 1u << setting->world_size; starters++) {
        struct parting parting = {.starters = starters};
        const struct cluster_test test = {.setting = setting,
                                          .configure = parted_configure,
                                          .body = parted_body,
                                          .context = &parting};
        ranks_run_test(&test);
    }
}

static void case_50_some_begin_a_step(const struct setting *setting)
{
    for (int last = 0; last < 2; last++) {
        struct parting parting = {.starters = last == 0 ? 1 : 1u << (setting->world_size - 1),
                                  .registers = true,
                                  .learning = last == 1};
        ranks_run(setting, parted_body, &parting);
    }
}

static void some_begin_a_planned_step(const struct setting *setting)
{
    part_all(setting, false);
}

static void some_begin_a_learning_step(const struct setting *setting)
{
    part_all(setting, true);
}

// ---- Differences in a later start --------------------------------------------------------------

// Rank 1 closes one module less, or registers one of another shape.
static void different_body(struct rank *rank)
{
    const bool *shape = rank->context;
    struct trained_module modules[2];
    trainer_make(rank, &net, 0, &modules[0]);
    trainer_make(rank, &head, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, modules, 2);
    RANK_OK(rank, lockstep_module_close(modules[0].module));
    modules[0].sizes[2] += rank->rank == 1 ? -1 : 0;
    if (*shape || rank->rank == 1)
        register_again(rank, &modules[0]);
    rank_meet(rank);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_start(rank->session));
    RANK_SAYS(rank, "manifests differ: rank ");
    RANK_SAYS(rank, *shape ? "shape [299] on rank 1" : "only on rank 1: module net");
    if (*shape)
        RANK_SAYS(rank, "shape [300] on rank "); // Rank 0 or 2, whichever reported first.
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

static void case_31_differences_of_a_later_start(const struct setting *setting)
{
    for (int shape = 0; shape < 2; shape++) {
        bool context = shape == 1;
        ranks_run(setting, different_body, &context);
    }
}

// ---- Ends in a later start ---------------------------------------------------------------------

// The last rank closes or aborts its session while the other ranks are in lockstep_start, or just
// before.
static void ended_body(struct rank *rank)
{
    const bool *aborts = rank->context;
    struct trained_module module;
    trainer_make(rank, &net, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    steps_known(rank, &module, 1);
    RANK_OK(rank, lockstep_module_close(module.module));
    rank_meet(rank);
    if (rank->rank + 1 < rank->world_size) {
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_start(rank->session));
        RANK_SAYS(rank, *aborts ? "aborted: enough" : "needed it in lockstep_start after step 3");
    } else if (*aborts) {
        usleep(HEAD_START_US);
        RANK_OK(rank, lockstep_abort(rank->session, "enough"));
        RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_start(rank->session));
    } else {
        usleep(HEAD_START_US);
        RANK_OK(rank, lockstep_close(rank->session));
        rank->session = NULL;
    }
    trainer_free(&module);
}

static void a_rank_ends_in_a_later_start(const struct setting *setting)
{
    for (int aborts = 0; aborts < 2; aborts++) {
        bool context = aborts == 1;
        ranks_run(setting, ended_body, &context);
    }
}

int main(void)
{
    static const uint32_t only_one[] = {1, 0};
    static const struct stamp stamps[] = {
        {"case_30_the_module_is_registered_again", case_30_the_module_is_registered_again, NULL},
        {"other_modules_after_a_start", other_modules_after_a_start, NULL},
        {"case_50_modules_are_registered_late", case_50_modules_are_registered_late, NULL},
        {"case_50_shares_an_earlier_one", case_50_shares_an_earlier_one, NULL},
        {"case_50_a_failure_changes_nothing", case_50_a_failure_changes_nothing, NULL},
        {"case_50_alone", case_50_alone, only_one},
        {"case_50_some_begin_a_step", case_50_some_begin_a_step, NULL},
        {"collectives_between_close_and_start", collectives_between_close_and_start, NULL},
        {"a_module_is_closed_before_start", a_module_is_closed_before_start, NULL},
        {"all_modules_are_closed", all_modules_are_closed, NULL},
        {"misuse_changes_nothing", misuse_changes_nothing, NULL},
        {"a_world_of_one_starts_again", a_world_of_one_starts_again, only_one},
        {"some_begin_a_planned_step", some_begin_a_planned_step, NULL},
        {"some_begin_a_learning_step", some_begin_a_learning_step, NULL},
        {"some_wait_in_an_open_wave", some_wait_in_an_open_wave, NULL},
        {"case_31_differences_of_a_later_start", case_31_differences_of_a_later_start, NULL},
        {"a_rank_ends_in_a_later_start", a_rank_ends_in_a_later_start, NULL},
    };
    return stamp_run("restart", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
