// SPDX-License-Identifier: Apache-2.0
//
// A rank closes its session because one of its calls has failed. The other ranks, which still need
// it, get an error that tells this failure, not the advice to count their steps.

#include "base/clock.h"
#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const uint64_t elements[] = {30, 7};
static const struct module_shape shape = {.name = "model", .count = 2, .elements = elements};

// Checks the error of a rank that rank 0 has left. cause: the failure that the text tells; NULL:
// the text tells none.
static void expect_left_by(struct rank *rank, int status, const char *cause)
{
    RANK_EQUAL(rank, status, LOCKSTEP_E_PEER_LOST);
    RANK_SAYS(rank, "rank 0 (host ");
    RANK_SAYS(rank, ") closed its session while rank ");
    if (cause) {
        RANK_SAYS(rank, ", after LOCKSTEP_E_");
        RANK_SAYS(rank, cause);
        RANK_TRUE(rank, !strstr(lockstep_error_text(), "same steps and"));
    } else {
        RANK_SAYS(rank, ": every rank must make the same steps and collectives");
        RANK_TRUE(rank, !strstr(lockstep_error_text(), "LOCKSTEP_E_"));
    }
}

static void expect_left(struct rank *rank, bool with_cause)
{
    int status = lockstep_step_begin(rank->session, NULL, NULL);
    if (status == 0)
        status = lockstep_step_end(rank->session, NULL);
    expect_left_by(rank, status, with_cause ? "INVALID: " : NULL);
}

static void leave(struct rank *rank)
{
    lockstep_session *session = rank->session;
    rank->session = NULL;
    RANK_OK(rank, lockstep_close(session));
}

// Rank 0 makes one call too many in step 2, which fails, and closes its session.
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

// A call fails on another thread of rank 0, such as a thread of the backward pass.
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

// A failure before a successful step is not told as the reason for leaving.
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

// ---- Functions that do not block ----------------------------------------------------------------

#define TWO_BYTES "\xc3\xa9" // One character.
#define SIXTEEN TWO_BYTES TWO_BYTES TWO_BYTES TWO_BYTES TWO_BYTES TWO_BYTES TWO_BYTES TWO_BYTES

static lockstep_module *register_empty(struct rank *rank, uint32_t number, int *status)
{
    char name[32];
    lockstep_module *module;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    snprintf(name, sizeof(name), "empty%u", number);
    config.name = name;
    config.calls_per_step = LOCKSTEP_MAX_CALLS;
    *status = lockstep_module_register(rank->session, &config, &module);
    return module;
}

// Rank 0 registers modules until the process has no handle left.
static void no_handle_body(struct rank *rank)
{
    struct trained_module module;
    int status = 0;
    trainer_make(rank, &shape, 0, &module);
    rank_meet(rank);
    if (rank->rank == 0) {
        for (uint32_t i = 0; status == 0; i++)
            (void)register_empty(rank, i, &status);
        RANK_EQUAL(rank, status, LOCKSTEP_E_SYSTEM);
        leave(rank);
    } else {
        expect_left_by(rank, lockstep_start(rank->session), "SYSTEM: this process has ");
        RANK_SAYS(rank, "before the first step");
    }
    rank_meet(rank);
    trainer_free(&module);
}

static void a_failure_before_the_start_is_told(const struct setting *setting)
{
    ranks_run(setting, no_handle_body, NULL);
}

// Between the failure and the close, rank 0 makes calls that succeed without the other ranks.
static void small_successes_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    if (rank->rank == 0) {
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_start(rank->session));
        RANK_OK(rank, lockstep_pause(rank->session, "thinks", 0));
        RANK_OK(rank, lockstep_resume(rank->session));
        RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
        RANK_OK(rank, lockstep_call_begin(module.module, &call));
        RANK_OK(rank, lockstep_call_abort(call));
        leave(rank);
    } else {
        expect_left(rank, true);
        RANK_SAYS(rank, "the session has been started already");
    }
    rank_meet(rank);
    trainer_free(&module);
}

static void small_successes_do_not_hide_it(const struct setting *setting)
{
    ranks_run(setting, small_successes_body, NULL);
}

// A lockstep_parameter_move fails on rank 0 while the other ranks wait in a collective.
static void parameter_body(struct rank *rank)
{
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_barrier(rank->session, "all", LOCKSTEP_WAIT_FOREVER));
    if (rank->rank == 0) {
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_parameter_move(module.module, 77, NULL, NULL));
        leave(rank);
    } else {
        expect_left_by(rank, lockstep_barrier(rank->session, "all", LOCKSTEP_WAIT_FOREVER),
                       "INVALID: ");
    }
    rank_meet(rank);
    trainer_free(&module);
}

static void a_parameter_that_cannot_be_moved_is_told(const struct setting *setting)
{
    ranks_run(setting, parameter_body, NULL);
}

// The text of the failure has invalid UTF-8 from a path, and is long enough to be cut inside a
// character. The goodbye is sent all the same.
static void strange_text_body(struct rank *rank)
{
    static const char path[] = "/nowhere/\xff/" SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN
        SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN "/" SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN
            SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN
                               "/" SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN SIXTEEN;
    struct trained_module module;
    trainer_make(rank, &shape, 0, &module);
    rank_meet(rank);
    if (rank->rank == 0) {
        RANK_FAILS(rank, LOCKSTEP_E_SYSTEM, lockstep_session_save(rank->session, path));
        leave(rank);
    } else {
        expect_left_by(rank, lockstep_start(rank->session), "SYSTEM: cannot ");
        RANK_SAYS(rank, "/nowhere/?/" SIXTEEN);
    }
    rank_meet(rank);
    trainer_free(&module);
}

static void a_strange_text_does_not_prevent_it(const struct setting *setting)
{
    ranks_run(setting, strange_text_body, NULL);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"the_last_failure_is_told", the_last_failure_is_told, NULL},
        {"a_failure_of_another_thread_is_told", a_failure_of_another_thread_is_told, NULL},
        {"an_old_failure_is_not_told", an_old_failure_is_not_told, NULL},
        {"a_failure_before_the_start_is_told", a_failure_before_the_start_is_told, NULL},
        {"small_successes_do_not_hide_it", small_successes_do_not_hide_it, NULL},
        {"a_parameter_that_cannot_be_moved_is_told", a_parameter_that_cannot_be_moved_is_told,
         NULL},
        {"a_strange_text_does_not_prevent_it", a_strange_text_does_not_prevent_it, NULL},
    };
    return stamp_run_whole("goodbye", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
