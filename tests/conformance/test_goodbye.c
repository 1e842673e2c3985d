// SPDX-License-Identifier: Apache-2.0
//
// A rank that closes its session because a call has failed says so: the others, who still need it,
// are told that failure, and not that they should count their steps.

#include "base/clock.h"
#include "tests/support/trainer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>

static const uint64_t elements[] = {30, 7};
static const struct module_shape shape = {.name = "model", .count = 2, .elements = elements};

static void expect_left(struct rank *rank, bool with_cause)
{
    int status = lockstep_step_begin(rank->session, NULL, NULL);
    if (status == 0)
        status = lockstep_step_end(rank->session, NULL);
    RANK_EQUAL(rank, status, LOCKSTEP_E_PEER_LOST);
    RANK_SAYS(rank, "rank 0 (host ");
    RANK_SAYS(rank, ") closed its session while rank ");
    if (with_cause) {
        RANK_SAYS(rank, ", after LOCKSTEP_E_INVALID: ");
        RANK_TRUE(rank, strstr(lockstep_error_text(), "same number of steps") == NULL);
    } else {
        RANK_SAYS(rank, ": every rank must run the same number of steps");
        RANK_TRUE(rank, strstr(lockstep_error_text(), "LOCKSTEP_E_") == NULL);
    }
}

static void leave(struct rank *rank)
{
    lockstep_session *session = rank->session;
    rank->session = NULL;
    RANK_OK(rank, lockstep_close(session));
}

// Rank 0 makes one call too many in step 2, and gives up.
static void one_more_call_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    if (rank->rank == 0) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, 0, 2);
        trainer_call(rank, &module);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_begin(module.module, &call));
        leave(rank);
    } else {
        expect_left(rank, true);
        RANK_SAYS(rank, "module 'model'");
    }
    rank_meet(rank);
    trainer_free(&module);
}

static void the_last_failure_is_told(const struct setting *setting)
{
    ranks_run(setting, one_more_call_body, NULL);
}

static void *wrong_report(void *context)
{
    (void)lockstep_grad_ready(context, NULL, 77, NULL, NULL);
    return NULL;
}

// The failure is one of another thread, as those of backward passes are.
static void another_thread_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    pthread_t thread;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    if (rank->rank == 0) {
        trainer_begin(rank, NULL);
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        RANK_EQUAL(rank, pthread_create(&thread, NULL, wrong_report, module.module), 0);
        RANK_EQUAL(rank, pthread_join(thread, NULL), 0);
        RANK_OK(rank, lockstep_call_end(call));
        leave(rank);
    } else {
        expect_left(rank, true);
    }
    rank_meet(rank);
    trainer_free(&module);
}

static void a_failure_of_another_thread_is_told(const struct setting *setting)
{
    ranks_run(setting, another_thread_body, NULL);
}

// What failed before a step that ended well was not why it leaves.
static void long_ago_body(struct rank *rank)
{
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    trainer_step_known(rank, &module, 1);
    if (rank->rank == 0)
        leave(rank);
    else
        expect_left(rank, false);
    rank_meet(rank);
    trainer_free(&module);
}

static void an_old_failure_is_not_told(const struct setting *setting)
{
    ranks_run(setting, long_ago_body, NULL);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"the_last_failure_is_told", the_last_failure_is_told, NULL},
        {"a_failure_of_another_thread_is_told", a_failure_of_another_thread_is_told, NULL},
        {"an_old_failure_is_not_told", an_old_failure_is_not_told, NULL},
    };
    return stamp_run_whole("goodbye", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
