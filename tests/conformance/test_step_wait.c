// SPDX-License-Identifier: Apache-2.0
//
// Conformance: lockstep_step_wait, which ends a step with a timeout. It may time out any number of
// times without harm. A rank that then waits again, by this function or by lockstep_step_end, gets
// the result that lockstep_step_end would have returned at first.

#include "tests/support/trainer.h"

#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t sizes[4] = {40, 1, 300, 9};

static void make(struct rank *rank, struct trained_module *module)
{
    const struct module_shape shape = {.name = "net", .count = 4, .elements = sizes};
    trainer_make(rank, &shape, 0, module);
    RANK_OK(rank, lockstep_start(rank->session));
}

static bool is_late(const struct rank *rank)
{
    return rank->rank == rank->world_size - 1;
}

static void not_yet(struct rank *rank, uint32_t timeout_ms)
{
    RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_step_wait(rank->session, NULL, timeout_ms));
    RANK_SAYS(rank, "is not over after");
    RANK_SAYS(rank, "lockstep_step_wait or lockstep_step_end");
}

static void nothing_else_is_possible(struct rank *rank, struct trained_module *module)
{
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    const uint64_t step = atomic_load(&rank->step);
    uint32_t ranks[4];
    lockstep_call *call;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_SAYS(rank, "is open: call lockstep_step_end first");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_begin(module->module, &call));
    RANK_SAYS(rank, "module 'net': no call in step");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_grad_ready(module->module, NULL, 0, module->gradients[0], NULL));
    RANK_SAYS(rank, "outside a call");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_report(rank->session, step, 0, &report));
    RANK_SAYS(rank, "is in its end");
    if (step > 1)
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_step_report(rank->session, step - 1, 0, &report));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_module_usage(module->module, ranks, 4));
    RANK_SAYS(rank, "inside step");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_state_check(rank->session));
    RANK_SAYS(rank, "outside a step");
}

// Checks that the call has ended as well.
static void its_call_is_over(struct rank *rank, lockstep_call *call)
{
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_end(call));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_unused(call, NULL, 0));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_abort(call));
    RANK_SAYS(rank, "ended already");
}

static void ask_often(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    for (uint32_t i = 0; i < 4; i++)
        RANK_OK(rank, lockstep_grad_ready(module->module, call, module->order[i], NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    not_yet(rank, 0);
    nothing_else_is_possible(rank, module);
    its_call_is_over(rank, call);
    for (uint32_t i = 0; i < 5; i++)
        not_yet(rank, i);
}

// Runs a step with a late rank. The other ranks poll for the end of the step several times, and
// then wait with either function.
static void late_step(struct rank *rank, struct trained_module *module)
{
    trainer_begin(rank, NULL);
    if (!is_late(rank))
        ask_often(rank, module);
    rank_meet(rank);
    if (is_late(rank)) {
        trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
        trainer_call(rank, module);
    }
    if (rank->rank % 2 == 0)
        RANK_OK(rank, lockstep_step_wait(rank->session, NULL, LOCKSTEP_WAIT_FOREVER));
    else
        trainer_end(rank);
    trainer_expect_mean(rank, module, atomic_load(&rank->step), NULL);
    RANK_EQUAL(rank, trainer_report(rank).step, atomic_load(&rank->step));
}

// A learning step and planned steps.
static void late_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, &module);
    for (int i = 0; i < 3; i++)
        late_step(rank, &module);
    trainer_step_known(rank, &module, 1);
    trainer_free(&module);
}

static void a_rank_is_late(const struct setting *setting)
{
    ranks_run(setting, late_body, NULL);
}

// The late rank has not begun the step yet.
static void absent_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, &module);
    trainer_step_known(rank, &module, 1);
    if (!is_late(rank)) {
        trainer_begin(rank, NULL);
        ask_often(rank, &module);
    }
    rank_meet(rank);
    if (is_late(rank))
        trainer_step_known(rank, &module, 1);
    else
        trainer_end(rank);
    trainer_step_known(rank, &module, 1);
    trainer_free(&module);
}

static void a_rank_has_not_begun(const struct setting *setting)
{
    ranks_run(setting, absent_body, NULL);
}

// Ends every step by polling with a timeout of 0.
static void polling_body(struct rank *rank)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module module;
    make(rank, &module);
    for (uint32_t i = 0; i < 12; i++) {
        int status;
        options.accumulate = i % 3 == 1;
        trainer_begin(rank, &options);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        trainer_call(rank, &module);
        do
            status = RANK_CALL(rank, lockstep_step_wait(rank->session, NULL, i % 2));
        while (status == LOCKSTEP_E_TIMEOUT && options.accumulate == 0);
        RANK_EQUAL(rank, status, LOCKSTEP_OK);
        if (options.accumulate == 0)
            trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_wait(rank->session, NULL, 0));
    RANK_SAYS(rank, "no step is open");
    trainer_free(&module);
}

static void every_end_is_polled(const struct setting *setting)
{
    ranks_run(setting, polling_body, NULL);
}

// The last call of lockstep_step_wait returns the error of the step.
static void verdict_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    make(rank, &module);
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(module.module, &call));
    RANK_OK(rank, lockstep_grad_ready(module.module, call, 1, NULL, NULL));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_wait(rank->session, NULL, 0));
    RANK_SAYS(rank, "open call");
    RANK_OK(rank, lockstep_call_end(call));
    if (rank->setting->devices == 0) // Without a device a stream is refused.
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_wait(rank->session, &module, 0));
    if (!is_late(rank))
        not_yet(rank, 2);
    rank_meet(rank);
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "parameter 'p3'");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_wait(rank->session, NULL, 0));
    trainer_free(&module);
}

static void the_verdict_comes_last(const struct setting *setting)
{
    ranks_run(setting, verdict_body, NULL);
}

// ---- What may happen meanwhile -----------------------------------------------------------------

// The late rank is lost. Ranks that wait again get an error.
static void lost_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, &module);
    trainer_step_known(rank, &module, 1);
    trainer_begin(rank, NULL);
    if (!is_late(rank))
        ask_often(rank, &module);
    rank_meet(rank);
    if (is_late(rank)) {
        RANK_OK(rank, lockstep_abort(rank->session, "the loss is NaN"));
    } else {
        int status;
        do
            status = RANK_CALL(rank, lockstep_step_wait(rank->session, NULL, 1));
        while (status == LOCKSTEP_E_TIMEOUT);
        RANK_EQUAL(rank, status, LOCKSTEP_E_PEER_LOST);
        RANK_SAYS(rank, "the loss is NaN");
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_step_end(rank->session, NULL));
    }
    trainer_free(&module);
}

static void the_late_rank_is_lost(const struct setting *setting)
{
    ranks_run(setting, lost_body, NULL);
}

// A rank aborts after its wait has timed out.
static void giving_up_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, &module);
    rank_meet(rank); // All ranks have returned from lockstep_start.
    trainer_begin(rank, NULL);
    if (rank->rank == 0) {
        ask_often(rank, &module);
        RANK_OK(rank, lockstep_abort(rank->session, "waited for long enough"));
        RANK_FAILS(rank, LOCKSTEP_E_CLOSED,
                   lockstep_step_wait(rank->session, NULL, LOCKSTEP_WAIT_FOREVER));
    }
    rank_meet(rank);
    if (rank->rank != 0) {
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "waited for long enough");
    }
    trainer_free(&module);
}

static void a_waiting_rank_gives_up(const struct setting *setting)
{
    ranks_run(setting, giving_up_body, NULL);
}

static void closing_body(struct rank *rank)
{
    struct trained_module module;
    make(rank, &module);
    trainer_step_known(rank, &module, 1);
    trainer_begin(rank, NULL);
    if (rank->rank == 0) {
        ask_often(rank, &module);
        RANK_OK(rank, lockstep_close(rank->session));
        rank->session = NULL;
    }
    rank_meet(rank);
    if (rank->rank != 0)
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_step_end(rank->session, NULL));
    trainer_free(&module);
}

static void a_waiting_rank_closes(const struct setting *setting)
{
    ranks_run(setting, closing_body, NULL);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"a_rank_is_late", a_rank_is_late, NULL},
        {"a_rank_has_not_begun", a_rank_has_not_begun, NULL},
        {"every_end_is_polled", every_end_is_polled, NULL},
        {"the_verdict_comes_last", the_verdict_comes_last, NULL},
        {"the_late_rank_is_lost", the_late_rank_is_lost, NULL},
        {"a_waiting_rank_gives_up", a_waiting_rank_gives_up, NULL},
        {"a_waiting_rank_closes", a_waiting_rank_closes, NULL},
    };
    return stamp_run("step_wait", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
