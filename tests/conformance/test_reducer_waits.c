// SPDX-License-Identifier: Apache-2.0
//
// Conformance: waits for single calls (lockstep_call_wait). The tests check the results of waits,
// the errors on ranks that wait for each other, and which waits are refused. Case numbers are those
// of the list of cases for reducers.

#include "base/clock.h"
#include "base/thread.h"
#include "tests/support/trainer.h"
#include "worker/session/session.h"

#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER

static const uint64_t sizes[4] = {40, 300, 1, 77};

// Small caps, so that each call has several buckets.
static void small_buckets(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->bucket_first_bytes = config->bucket_bytes = config->bucket_last_bytes = 200;
}

static void waits_run(const struct setting *setting, void (*body)(struct rank *rank))
{
    const struct cluster_test test = {.setting = setting, .configure = small_buckets, .body = body};
    ranks_run_test(&test);
}

static void make_two(struct rank *rank, struct trained_module *modules)
{
    const struct module_shape a = {.name = "actor", .count = 4, .elements = sizes};
    const struct module_shape b = {.name = "critic", .count = 3, .elements = sizes};
    trainer_make(rank, &a, 0, &modules[0]);
    trainer_make(rank, &b, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
}

static void free_two(struct trained_module *modules)
{
    trainer_free(&modules[0]);
    trainer_free(&modules[1]);
}

// Makes a call with known gradients. Returns the first failure.
static int try_call(struct rank *rank, struct trained_module *module, lockstep_call **call)
{
    int status = RANK_CALL(rank, lockstep_call_begin(module->module, call));
    trainer_fill_known(module, rank->rank, atomic_load(&rank->step));
    for (uint32_t i = 0; i < module->shape.count && status == 0; i++)
        status = RANK_CALL(
            rank, lockstep_grad_ready(module->module, *call, module->order[i], NULL, NULL));
    return status < 0 ? status : RANK_CALL(rank, lockstep_call_end(*call));
}

static int try_waited_call(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    const int status = try_call(rank, module, &call);
    return status < 0 ? status : RANK_CALL(rank, lockstep_call_wait(call, FOREVER));
}

static lockstep_call *make_call(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    RANK_EQUAL(rank, try_call(rank, module, &call), 0);
    return call;
}

static void waited_call(struct rank *rank, struct trained_module *module, const uint64_t *weights)
{
    RANK_EQUAL(rank, try_waited_call(rank, module), 0);
    trainer_expect_mean(rank, module, atomic_load(&rank->step), weights);
}

// ---- Case 38: waits that can end ---------------------------------------------------------------

// All ranks call and wait in the same order, from the learning step on. The gradients of a call are
// final when the wait returns, before the end of the step. Planned steps send no messages to the
// coordinator.
static void one_order_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 5; i++) {
        trainer_begin(rank, NULL);
        waited_call(rank, &modules[0], NULL);
        waited_call(rank, &modules[1], NULL);
        trainer_end(rank);
        for (uint32_t m = 0; m < 2; m++) {
            trainer_expect_mean(rank, &modules[m], atomic_load(&rank->step), NULL);
            trainer_digest(rank, &modules[m]);
        }
        RANK_EQUAL(rank, trainer_report(rank).learning, i == 0);
        if (i > 0)
            RANK_EQUAL(rank, trainer_report(rank).control_messages, 0);
    }
    free_two(modules);
}

static void case_38_waits_in_one_order(const struct setting *setting)
{
    waits_run(setting, one_order_body);
}

// Only rank 1 waits, and it calls the modules in the other order. Its waits end, because the other
// ranks go on to the calls that it waits for.
static void one_waits_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    trainer_step_known(rank, modules, 2);
    for (int i = 0; i < 4; i++) {
        const uint32_t first = rank->rank == 1 ? 1 : 0;
        trainer_begin(rank, NULL);
        if (rank->rank == 1)
            waited_call(rank, &modules[first], NULL);
        else
            make_call(rank, &modules[first]);
        make_call(rank, &modules[1 - first]);
        trainer_end(rank);
        for (uint32_t m = 0; m < 2; m++)
            trainer_expect_mean(rank, &modules[m], atomic_load(&rank->step), NULL);
    }
    free_two(modules);
}

static void case_38_one_rank_waits_in_another_order(const struct setting *setting)
{
    waits_run(setting, one_waits_body);
}

// Rank 0 waits for a call that the other ranks do not make. They end the step and contribute zeros.
static void left_out_body(struct rank *rank)
{
    const uint64_t only_0[CLUSTER_MAX_WORLD] = {1};
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 4; i++) {
        trainer_begin(rank, NULL);
        make_call(rank, &modules[0]);
        if (rank->rank == 0)
            waited_call(rank, &modules[1], only_0);
        trainer_end(rank);
        trainer_expect_mean(rank, &modules[1], atomic_load(&rank->step), only_0);
    }
    free_two(modules);
}

static void case_38_the_others_do_not_call(const struct setting *setting)
{
    waits_run(setting, left_out_body);
}

static void weighted_body(struct rank *rank)
{
    const uint64_t weights[CLUSTER_MAX_WORLD] = {3, 0, 4};
    const struct module_shape shape = {
        .name = "net", .count = 4, .elements = sizes, .kind = LOCKSTEP_GRADIENT_SUM};
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    options.weight = weights[rank->rank];
    for (int i = 0; i < 3; i++) {
        trainer_begin(rank, &options);
        waited_call(rank, &module, weights);
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), weights);
    }
    trainer_free(&module);
}

static void case_38_weights_and_sums(const struct setting *setting)
{
    waits_run(setting, weighted_body);
}

// The trainer changes a mean after the wait and before the end of the step. Lockstep keeps the
// change and does not send it.
static void changed_body(struct rank *rank)
{
    struct trained_module module;
    const struct module_shape shape = {.name = "net", .count = 4, .elements = sizes};
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 3; i++) {
        float *gradient = module.gradients[1];
        trainer_begin(rank, NULL);
        waited_call(rank, &module, NULL);
        for (uint64_t e = 0; e < sizes[1]; e++)
            gradient[e] = 0.5f;
        trainer_end(rank);
        for (uint64_t e = 0; e < sizes[1]; e++)
            RANK_TRUE(rank, gradient[e] >= 0.5f && gradient[e] <= 0.5f);
        trainer_expect_parameter(rank, &module, atomic_load(&rank->step), 0, NULL);
    }
    trainer_free(&module);
}

static void case_38_what_was_waited_for_may_change(const struct setting *setting)
{
    waits_run(setting, changed_body);
}

// ---- Case 38: waits that cannot end ------------------------------------------------------------

struct swap {
    uint32_t steps_before; // 0: in the learning step.
};

// Runs a step in which odd ranks wait for the critic first, and even ranks for the actor. Returns
// the first failure, which may come from any call.
static int swapped_step(struct rank *rank, struct trained_module *modules)
{
    int status = RANK_CALL(rank, lockstep_step_begin(rank->session, NULL, NULL));
    for (uint32_t i = 0; i < 2 && status == 0; i++)
        status = try_waited_call(rank, &modules[(i + rank->rank) % 2]);
    return status < 0 ? status : RANK_CALL(rank, lockstep_step_end(rank->session, NULL));
}

static void swapped_body(struct rank *rank)
{
    const struct swap *swap = rank->context;
    struct trained_module modules[2];
    uint64_t since_ms;
    make_two(rank, modules);
    for (uint32_t i = 0; i < swap->steps_before; i++)
        trainer_step_known(rank, modules, 2);
    rank_meet(rank);
    since_ms = clock_now_ms();
    RANK_EQUAL(rank, swapped_step(rank, modules), LOCKSTEP_E_MISMATCH);
    RANK_TRUE(rank, clock_now_ms() - since_ms < test_bound_ms(3000));
    RANK_SAYS(rank, "waits for 'actor' (call 1) and has not made 'critic' (call 1)");
    RANK_SAYS(rank, "waits for 'critic' (call 1) and has not made 'actor' (call 1)");
    RANK_SAYS(rank, "rank 1 (host ");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_step_begin(rank->session, NULL, NULL));
    free_two(modules);
}

static void swapped_run(const struct setting *setting, uint32_t steps_before)
{
    struct swap swap = {.steps_before = steps_before};
    const struct cluster_test test = {
        .setting = setting, .configure = small_buckets, .body = swapped_body, .context = &swap};
    ranks_run_test(&test);
}

static void case_38_opposite_waits(const struct setting *setting)
{
    swapped_run(setting, 3);
}

static void case_38_opposite_waits_while_learning(const struct setting *setting)
{
    swapped_run(setting, 0);
}

// Opposite waits with a timeout fail at once, too, not only at the timeout.
static void bounded_body(struct rank *rank)
{
    struct trained_module modules[2];
    lockstep_call *call;
    uint64_t since_ms;
    int status;
    make_two(rank, modules);
    trainer_step_known(rank, modules, 2);
    rank_meet(rank);
    since_ms = clock_now_ms();
    status = RANK_CALL(rank, lockstep_step_begin(rank->session, NULL, NULL));
    if (status == 0)
        status = try_call(rank, &modules[rank->rank % 2], &call);
    if (status == 0)
        status = RANK_CALL(rank, lockstep_call_wait(call, (uint32_t)test_bound_ms(60000)));
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_TRUE(rank, clock_now_ms() - since_ms < test_bound_ms(3000));
    free_two(modules);
}

static void case_38_opposite_waits_with_a_bound(const struct setting *setting)
{
    waits_run(setting, bounded_body);
}

// An unplanned call runs only after all ranks have ended the step, so a rank that waits for it
// would wait for ever. All ranks get an error, also those that do not wait.
static void outside_body(struct rank *rank)
{
    struct trained_module modules[2];
    lockstep_call *call;
    uint64_t since_ms;
    int status;
    make_two(rank, modules);
    trainer_step_known(rank, modules, 1);
    trainer_step_known(rank, modules, 1);
    rank_meet(rank);
    since_ms = clock_now_ms();
    status = RANK_CALL(rank, lockstep_step_begin(rank->session, NULL, NULL));
    if (status == 0)
        status = try_call(rank, &modules[0], &call);
    if (status == 0 && rank->rank == 1)
        status = try_waited_call(rank, &modules[1]);
    if (status == 0)
        status = RANK_CALL(rank, lockstep_step_end(rank->session, NULL));
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_TRUE(rank, clock_now_ms() - since_ms < test_bound_ms(3000));
    RANK_SAYS(rank, "rank 1 (host ");
    RANK_SAYS(rank, "waits for module 'critic' (call 1), which is outside the plan of phase ''");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    free_two(modules);
}

static void case_40_waited_for_and_not_planned(const struct setting *setting)
{
    waits_run(setting, outside_body);
}

// ---- Time limits -------------------------------------------------------------------------------

static bool is_late(const struct rank *rank)
{
    return rank->rank == rank->world_size - 1;
}

// A rank is late. The others poll, wait with short timeouts, and wait again for finished calls.
static void pieces_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 3; i++) {
        lockstep_call *call = NULL;
        trainer_begin(rank, NULL);
        if (!is_late(rank)) {
            call = make_call(rank, &modules[0]);
            RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_call_wait(call, 0));
            RANK_SAYS(rank, "module 'actor' call 1 is not averaged after 0 ms");
            RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_call_wait(call, 3));
            RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_call_wait(call, 0));
        }
        rank_meet(rank);
        if (is_late(rank))
            call = make_call(rank, &modules[0]);
        RANK_OK(rank, lockstep_call_wait(call, FOREVER));
        trainer_expect_mean(rank, &modules[0], atomic_load(&rank->step), NULL);
        RANK_OK(rank, lockstep_call_wait(call, 0));
        RANK_OK(rank, lockstep_call_wait(call, FOREVER));
        waited_call(rank, &modules[1], NULL);
        trainer_end(rank);
    }
    free_two(modules);
}

static void case_38_waiting_in_pieces(const struct setting *setting)
{
    waits_run(setting, pieces_body);
}

// A rank waits for the critic with a timeout, and has not called the actor. So it has told the
// coordinator that it is blocked. The coordinator is stopped, and says nothing to that. It is
// needed at the end of a learning step, and comes back before.
static void silent_step(struct rank *rank, struct trained_module *modules, const char *phase)
{
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.phase = phase;
    trainer_begin(rank, &options);
    if (is_late(rank)) {
        lockstep_call *call = make_call(rank, &modules[1]);
        cluster_signal_coordinator(SIGSTOP);
        const uint64_t began_ms = clock_now_ms();
        const int status = RANK_CALL(rank, lockstep_call_wait(call, 100));
        const uint64_t took_ms = clock_now_ms() - began_ms;
        cluster_signal_coordinator(SIGCONT);
        RANK_EQUAL(rank, status, LOCKSTEP_E_TIMEOUT);
        RANK_TRUE(rank, took_ms < test_bound_ms(5000));
        make_call(rank, &modules[0]);
        rank_meet(rank);
    } else {
        rank_meet(rank);
        make_call(rank, &modules[0]);
        make_call(rank, &modules[1]);
    }
    trainer_end(rank);
    for (uint32_t m = 0; m < 2; m++)
        trainer_expect_mean(rank, &modules[m], atomic_load(&rank->step), NULL);
}

static void silent_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    trainer_step_known(rank, modules, 2);
    silent_step(rank, modules, NULL);
    silent_step(rank, modules, "new");
    trainer_step_known(rank, modules, 2);
    free_two(modules);
}

static void case_38_the_coordinator_is_silent(const struct setting *setting)
{
    // NCCL runs collectives in the order of the plan, so that this wait is an error there at once.
    if (setting->devices > 1)
        skip();
    waits_run(setting, silent_body);
}

// Polling alone completes a call.
static void asking_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 3; i++) {
        lockstep_call *calls[2];
        int status;
        trainer_begin(rank, NULL);
        for (uint32_t m = 0; m < 2; m++)
            calls[m] = make_call(rank, &modules[(m + rank->rank) % 2]);
        for (uint32_t m = 0; m < 2; m++) {
            do
                status = RANK_CALL(rank, lockstep_call_wait(calls[m], 0));
            while (status == LOCKSTEP_E_TIMEOUT);
            RANK_EQUAL(rank, status, 0);
            trainer_expect_mean(rank, &modules[(m + rank->rank) % 2], atomic_load(&rank->step),
                                NULL);
        }
        trainer_end(rank);
    }
    free_two(modules);
}

static void case_38_asking_only(const struct setting *setting)
{
    waits_run(setting, asking_body);
}

// A rank waits for the critic after the other ranks' waits for the actor have timed out. The other
// ranks are about to call the critic, so this wait is no error.
static void gone_on_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 3; i++) {
        lockstep_call *call;
        trainer_begin(rank, NULL);
        if (!is_late(rank)) {
            call = make_call(rank, &modules[0]);
            RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_call_wait(call, 2));
        }
        rank_meet(rank);
        if (is_late(rank)) {
            waited_call(rank, &modules[1], NULL);
            make_call(rank, &modules[0]);
        } else {
            usleep(10000);
            make_call(rank, &modules[1]);
        }
        trainer_end(rank);
        for (uint32_t m = 0; m < 2; m++)
            trainer_expect_mean(rank, &modules[m], atomic_load(&rank->step), NULL);
    }
    free_two(modules);
}

static void case_38_a_wait_that_was_given_up(const struct setting *setting)
{
    waits_run(setting, gone_on_body);
}

// ---- Several threads ---------------------------------------------------------------------------

static void two_threads_configure(struct rank *rank, struct lockstep_config *config)
{
    small_buckets(rank, config);
    config->trainer_threads = 2;
}

struct waiter {
    struct thread thread;
    lockstep_call *call;
    int status;
    char text[512];
};

static void waiter_run(void *argument)
{
    struct waiter *waiter = argument;
    waiter->status = lockstep_call_wait(waiter->call, FOREVER);
    if (waiter->status < 0)
        snprintf(waiter->text, sizeof(waiter->text), "%s", lockstep_error_text());
}

// On each rank one thread waits for the first call while another thread makes the second call; odd
// ranks use the opposite order. No rank waits for ever, because a thread of each rank goes on.
static void two_threads_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    for (int i = 0; i < 5; i++) {
        struct waiter waiter = {.status = 1};
        struct trained_module *first = &modules[rank->rank % 2];
        struct trained_module *second = &modules[1 - rank->rank % 2];
        trainer_begin(rank, NULL);
        waiter.call = make_call(rank, first);
        RANK_TRUE(rank, thread_start(&waiter.thread, "waiter", waiter_run, &waiter) == 0);
        if (i % 2 == 0)
            usleep(2000);
        const int status = try_waited_call(rank, second);
        thread_join(&waiter.thread);
        RANK_EQUAL(rank, status, 0);
        RANK_EQUAL(rank, waiter.status, 0);
        trainer_expect_mean(rank, first, atomic_load(&rank->step), NULL);
        trainer_expect_mean(rank, second, atomic_load(&rank->step), NULL);
        trainer_end(rank);
    }
    free_two(modules);
}

static void case_38_two_threads_wait(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = two_threads_configure, .body = two_threads_body};
    ranks_run_test(&test);
}

// A wait is refused if config.trainer_threads threads wait already. The step cannot end while a
// thread waits.
static void too_many_body(struct rank *rank)
{
    struct trained_module modules[2];
    lockstep_call *call = NULL;
    make_two(rank, modules);
    trainer_begin(rank, NULL);
    if (!is_late(rank)) {
        struct waiter waiter = {.status = 1};
        waiter.call = make_call(rank, &modules[0]);
        RANK_TRUE(rank, thread_start(&waiter.thread, "waiter", waiter_run, &waiter) == 0);
        call = make_call(rank, &modules[1]);
        while (atomic_load(&rank->session->waiting) == 0)
            sched_yield();
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_wait(call, 1));
        RANK_SAYS(rank, "1 threads wait for calls already; config.trainer_threads");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
        RANK_SAYS(rank, "a thread waits for a call");
        rank_meet(rank);
        thread_join(&waiter.thread);
        RANK_EQUAL(rank, waiter.status, 0);
    } else {
        rank_meet(rank);
        make_call(rank, &modules[0]);
        make_call(rank, &modules[1]);
    }
    trainer_end(rank);
    free_two(modules);
}

static void waits_of_too_many_threads(const struct setting *setting)
{
    waits_run(setting, too_many_body);
}

// On every rank a call is open that another thread will end, while this thread waits for a later
// call of the plan. With wait_while_open the trainer says that this is no wait without end.
static void open_configure(struct rank *rank, struct lockstep_config *config)
{
    small_buckets(rank, config);
    config->wait_while_open = 1;
}

struct backward {
    struct thread thread;
    struct rank *rank;
    struct trained_module *module;
    lockstep_call *call;
    int status;
};

static void backward_run(void *argument)
{
    struct backward *backward = argument;
    usleep(3000);
    backward->status = 0;
    for (uint32_t i = 0; i < backward->module->shape.count && backward->status == 0; i++)
        backward->status =
            lockstep_grad_ready(backward->module->module, backward->call, i, NULL, NULL);
    if (backward->status == 0)
        backward->status = lockstep_call_end(backward->call);
}

static void open_body(struct rank *rank)
{
    struct trained_module modules[2];
    make_two(rank, modules);
    trainer_step_known(rank, modules, 2);
    for (int i = 0; i < 3; i++) {
        struct backward backward = {.rank = rank, .module = &modules[rank->rank % 2], .status = 1};
        struct trained_module *second = &modules[1 - rank->rank % 2];
        int status;
        trainer_begin(rank, NULL);
        trainer_fill_known(backward.module, rank->rank, atomic_load(&rank->step));
        RANK_OK(rank, lockstep_call_begin(backward.module->module, &backward.call));
        RANK_TRUE(rank, thread_start(&backward.thread, "backward", backward_run, &backward) == 0);
        status = try_waited_call(rank, second);
        thread_join(&backward.thread);
        RANK_EQUAL(rank, backward.status, 0);
        RANK_EQUAL(rank, status, 0);
        trainer_expect_mean(rank, second, atomic_load(&rank->step), NULL);
        trainer_end(rank);
        trainer_expect_mean(rank, backward.module, atomic_load(&rank->step), NULL);
    }
    free_two(modules);
}

static void case_38_wait_while_a_call_is_open(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = open_configure, .body = open_body};
    ranks_run_test(&test);
}

// ---- What is refused ---------------------------------------------------------------------------

static void refused_body(struct rank *rank)
{
    const struct module_shape shape = {
        .name = "net", .count = 4, .elements = sizes, .calls_per_step = 2};
    struct lockstep_step_options adding = LOCKSTEP_STEP_INIT;
    struct trained_module module;
    lockstep_call *first;
    lockstep_call *second;
    adding.accumulate = 1;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(module.module, &first));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_wait(first, FOREVER));
    RANK_SAYS(rank, "its call is open");
    RANK_OK(rank, lockstep_call_end(first));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_wait(first, FOREVER));
    RANK_SAYS(rank, "travel with the last of 2 calls in a step (calls_per_step), not with call 1");
    second = make_call(rank, &module);
    RANK_OK(rank, lockstep_call_wait(second, FOREVER));
    trainer_end(rank);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_wait(second, FOREVER));
    RANK_SAYS(rank, "not a call of the open step");
    trainer_begin(rank, &adding);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_wait(second, FOREVER));
    RANK_SAYS(rank, "not a call of the open step");
    make_call(rank, &module);
    second = make_call(rank, &module);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_wait(second, FOREVER));
    RANK_SAYS(rank, "none travel that could be waited for");
    trainer_end(rank);
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_call_begin(module.module, &first));
    RANK_OK(rank, lockstep_call_abort(first));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_wait(first, FOREVER));
    RANK_SAYS(rank, "was given up");
    while (RANK_CALL(rank, lockstep_step_wait(rank->session, NULL, 0)) == LOCKSTEP_E_TIMEOUT)
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_wait(first, FOREVER));
    trainer_free(&module);
}

static void waits_that_are_refused(const struct setting *setting)
{
    waits_run(setting, refused_body);
}

// ---- Given up ----------------------------------------------------------------------------------

#define LONG_COUNT 20 // More buckets than may be in flight (LOCKSTEP_WINDOW).

static void accept_aborts(struct trained_module *module, struct lockstep_module_config *config)
{
    (void)module;
    config->on_abort = LOCKSTEP_ABORT_ACCEPT;
}

// Makes the first call of the long module's two in a step or window. Rank 1 may give it up instead.
// Then it makes no second call.
static void call_or_give_up(struct rank *rank, struct trained_module *module, bool gives_up)
{
    lockstep_call *call;
    if (!gives_up) {
        make_call(rank, module);
        return;
    }
    RANK_OK(rank, lockstep_call_begin(module->module, &call));
    RANK_OK(rank, lockstep_grad_ready(module->module, call, 0, NULL, NULL));
    RANK_OK(rank, lockstep_call_abort(call));
}

// Rank 1 gives up the long module in a call with which no gradients travel. It waits for another
// module, whose buckets come after those of the long one, and then in a barrier, while the other
// ranks wait for the long one.
static void given_up_early(struct rank *rank, bool window)
{
    static const uint64_t elements[LONG_COUNT] = {60, 60, 60, 60, 60, 60, 60, 60, 60, 60,
                                                  60, 60, 60, 60, 60, 60, 60, 60, 60, 60};
    struct lockstep_step_options adding = LOCKSTEP_STEP_INIT;
    const struct module_shape shape = {.name = "long",
                                       .count = LONG_COUNT,
                                       .elements = elements,
                                       .unused = LOCKSTEP_UNUSED_ACCEPT,
                                       .calls_per_step = window ? 1 : 2,
                                       .configure = accept_aborts};
    const struct module_shape critic = {.name = "critic", .count = 3, .elements = sizes};
    struct trained_module modules[2];
    adding.accumulate = 1;
    trainer_make(rank, &shape, 0, &modules[0]);
    trainer_make(rank, &critic, 1, &modules[1]);
    RANK_OK(rank, lockstep_start(rank->session));
    for (int i = 0; i < 4; i++) {
        const bool gives_up = i % 2 == 1 && rank->rank == 1;
        const uint64_t weights[CLUSTER_MAX_WORLD] = {1, i % 2 == 0, 1, 1};
        lockstep_call *last = NULL;
        trainer_begin(rank, window ? &adding : NULL);
        call_or_give_up(rank, &modules[0], gives_up);
        if (window) {
            trainer_end(rank);
            trainer_begin(rank, NULL);
        }
        if (!gives_up)
            last = make_call(rank, &modules[0]);
        waited_call(rank, &modules[1], NULL);
        if (last)
            RANK_OK(rank, lockstep_call_wait(last, FOREVER));
        RANK_OK(rank, lockstep_barrier(rank->session, "meet", FOREVER));
        trainer_end(rank);
        RANK_EQUAL(rank, trainer_report(rank).aborted, i % 2);
        trainer_expect_mean(rank, &modules[0], atomic_load(&rank->step), weights);
    }
    free_two(modules);
}

static void given_up_first_body(struct rank *rank)
{
    given_up_early(rank, false);
}

static void case_30_no_rank_waits_for_what_was_given_up(const struct setting *setting)
{
    waits_run(setting, given_up_first_body);
}

static void given_up_in_a_window_body(struct rank *rank)
{
    given_up_early(rank, true);
}

static void case_30_nor_for_what_was_given_up_in_a_window(const struct setting *setting)
{
    waits_run(setting, given_up_in_a_window_body);
}

// All parameters of the module are frozen, so a wait for its call ends at once.
static void frozen_body(struct rank *rank)
{
    const uint32_t all[4] = {0, 1, 2, 3};
    struct trained_module modules[2];
    lockstep_call *call;
    make_two(rank, modules);
    RANK_OK(rank, lockstep_module_freeze(modules[0].module, all, 4, 1));
    for (int i = 0; i < 2; i++) {
        trainer_begin(rank, NULL);
        RANK_OK(rank, lockstep_call_begin(modules[0].module, &call));
        RANK_OK(rank, lockstep_call_end(call));
        RANK_OK(rank, lockstep_call_wait(call, 0));
        RANK_OK(rank, lockstep_call_wait(call, FOREVER));
        waited_call(rank, &modules[1], NULL);
        trainer_end(rank);
    }
    free_two(modules);
}

static void a_module_without_gradients(const struct setting *setting)
{
    waits_run(setting, frozen_body);
}

// ---- A rank goes away --------------------------------------------------------------------------

static void left_alone_body(struct rank *rank)
{
    struct trained_module modules[2];
    lockstep_call *call;
    int status;
    make_two(rank, modules);
    trainer_step_known(rank, modules, 2);
    rank_meet(rank);
    if (is_late(rank)) {
        RANK_OK(rank, lockstep_abort(rank->session, "the disk is full"));
        free_two(modules);
        return;
    }
    status = RANK_CALL(rank, lockstep_step_begin(rank->session, NULL, NULL));
    if (status == 0)
        status = try_call(rank, &modules[0], &call);
    if (status == 0)
        status = RANK_CALL(rank, lockstep_call_wait(call, FOREVER));
    RANK_EQUAL(rank, status, LOCKSTEP_E_PEER_LOST);
    RANK_SAYS(rank, "the disk is full");
    free_two(modules);
}

static void a_rank_aborts_while_others_wait(const struct setting *setting)
{
    waits_run(setting, left_alone_body);
}

// Another thread aborts the session while a thread waits for a call. The wait returns an error.
static void abort_run(void *argument)
{
    struct rank *rank = argument;
    usleep(5000);
    (void)lockstep_abort(rank->session, "enough");
}

static void released_body(struct rank *rank)
{
    struct trained_module modules[2];
    struct thread thread;
    lockstep_call *call;
    int status;
    make_two(rank, modules);
    rank_meet(rank); // Otherwise the abort could fail lockstep_start of a rank.
    trainer_begin(rank, NULL);
    rank_meet(rank); // Otherwise the abort could fail lockstep_step_begin of a rank.
    if (is_late(rank)) { // This rank never makes the call.
        status = RANK_CALL(rank, lockstep_step_end(rank->session, NULL));
    } else {
        RANK_TRUE(rank, thread_start(&thread, "abort", abort_run, rank) == 0);
        status = try_call(rank, &modules[0], &call);
        while (status == 0)
            status = RANK_CALL(rank, lockstep_call_wait(call, FOREVER));
        thread_join(&thread);
    }
    RANK_TRUE(rank, status == LOCKSTEP_E_CLOSED || status == LOCKSTEP_E_PEER_LOST);
    free_two(modules);
}

static void an_abort_releases_waits(const struct setting *setting)
{
    waits_run(setting, released_body);
}

// ---- A world of one ----------------------------------------------------------------------------

// In a world of one rank without a coordinator a sum is divided by the weight once, in the wait.
static void alone_body(struct rank *rank)
{
    const struct module_shape shape = {
        .name = "net", .count = 4, .elements = sizes, .kind = LOCKSTEP_GRADIENT_SUM};
    struct lockstep_step_options options = LOCKSTEP_STEP_INIT;
    struct trained_module module;
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint64_t weight = 0; weight < 4; weight++) {
        const uint64_t weights[CLUSTER_MAX_WORLD] = {weight};
        lockstep_call *call;
        options.weight = weight;
        trainer_begin(rank, &options);
        call = make_call(rank, &module);
        RANK_OK(rank, lockstep_call_wait(call, weight % 2 == 0 ? 0 : FOREVER));
        RANK_OK(rank, lockstep_call_wait(call, 0));
        if (weight > 0)
            trainer_expect_mean(rank, &module, atomic_load(&rank->step), weights);
        RANK_STATUS(rank, weight > 0 ? LOCKSTEP_OK : LOCKSTEP_E_INVALID,
                    lockstep_step_end(rank->session, NULL));
        if (weight > 0)
            trainer_expect_mean(rank, &module, atomic_load(&rank->step), weights);
    }
    trainer_free(&module);
}

static void case_38_waits_alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = alone_body, .without_session = true};
    ranks_run_test(&test);
}

// Waits in a world of one rank with a coordinator.
static void case_38_waits_in_a_world_of_one(const struct setting *setting)
{
    waits_run(setting, one_order_body);
}

static const uint32_t one[] = {1, 0};
static const uint32_t three[] = {3, 0};

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_38_waits_alone", case_38_waits_alone, one},
        {"case_38_waits_in_a_world_of_one", case_38_waits_in_a_world_of_one, one},
        {"case_38_waits_in_one_order", case_38_waits_in_one_order, NULL},
        {"case_38_one_rank_waits_in_another_order", case_38_one_rank_waits_in_another_order, NULL},
        {"case_38_the_others_do_not_call", case_38_the_others_do_not_call, NULL},
        {"case_38_weights_and_sums", case_38_weights_and_sums, NULL},
        {"case_38_what_was_waited_for_may_change", case_38_what_was_waited_for_may_change, NULL},
        {"case_38_opposite_waits", case_38_opposite_waits, NULL},
        {"case_38_opposite_waits_while_learning", case_38_opposite_waits_while_learning, NULL},
        {"case_38_opposite_waits_with_a_bound", case_38_opposite_waits_with_a_bound, NULL},
        {"case_40_waited_for_and_not_planned", case_40_waited_for_and_not_planned, NULL},
        {"case_38_waiting_in_pieces", case_38_waiting_in_pieces, NULL},
        {"case_38_the_coordinator_is_silent", case_38_the_coordinator_is_silent, three},
        {"case_38_asking_only", case_38_asking_only, NULL},
        {"case_38_a_wait_that_was_given_up", case_38_a_wait_that_was_given_up, NULL},
        {"case_38_two_threads_wait", case_38_two_threads_wait, NULL},
        {"waits_of_too_many_threads", waits_of_too_many_threads, NULL},
        {"case_38_wait_while_a_call_is_open", case_38_wait_while_a_call_is_open, NULL},
        {"waits_that_are_refused", waits_that_are_refused, NULL},
        {"case_30_no_rank_waits_for_what_was_given_up", case_30_no_rank_waits_for_what_was_given_up,
         NULL},
        {"case_30_nor_for_what_was_given_up_in_a_window",
         case_30_nor_for_what_was_given_up_in_a_window, NULL},
        {"a_module_without_gradients", a_module_without_gradients, NULL},
        {"a_rank_aborts_while_others_wait", a_rank_aborts_while_others_wait, NULL},
        {"an_abort_releases_waits", an_abort_releases_waits, NULL},
    };
    return stamp_run("reducer: waits", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
