// SPDX-License-Identifier: Apache-2.0
//
// Promises of the manual that no larger test checks: data that is copied, times that are limited,
// memory that is freed. docs/internals/promises.md says which test checks which promise.

#include "base/clock.h"
#include "tests/support/trainer.h"

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define CLOSE_MS 2000

static const uint64_t elements[] = {30, 7, 11};
static const struct module_shape shape = {.name = "net", .count = 3, .elements = elements};

static void the_version_is_that_of_the_header(const struct setting *setting)
{
    char version[32];
    (void)setting;
    snprintf(version, sizeof(version), "%d.%d.%d", LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR,
             LOCKSTEP_VERSION_PATCH);
    assert_string_equal(lockstep_version(), version);
}

// The test overwrites each description right after the call that copied it.
static void copied_body(struct rank *rank)
{
    struct lockstep_config config = rank_config(rank);
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config net = LOCKSTEP_MODULE_INIT;
    char job[128];
    char name[] = "net";
    char reason[] = "the disk is full";
    int64_t length = 2;
    float data[2] = {1, 2};
    float gradient[2] = {0, 0};
    lockstep_session *session;
    lockstep_module *module;
    lockstep_call *call;
    snprintf(job, sizeof(job), "%s", config.job);
    config.job = job;
    RANK_OK(rank, lockstep_open(&config, &session));
    memset(job, 'x', sizeof(job) - 1);
    memset(&config, 0x55, sizeof(config));
    parameter.name = name;
    parameter.dims = 1;
    parameter.shape = &length;
    parameter.data = data;
    parameter.gradient = gradient;
    net.name = name;
    net.parameters = &parameter;
    net.parameter_count = 1;
    RANK_OK(rank, lockstep_module_register(session, &net, &module));
    memset(name, 'x', sizeof(name) - 1);
    memset(&net, 0x55, sizeof(net));
    memset(&parameter, 0x55, sizeof(parameter));
    length = 77;
    RANK_OK(rank, lockstep_start(session));
    RANK_OK(rank, lockstep_step_begin(session, NULL, NULL));
    RANK_OK(rank, lockstep_call_begin(module, &call));
    RANK_OK(rank, lockstep_call_end(call));
    RANK_FAILS(rank, LOCKSTEP_E_UNUSED, lockstep_step_end(session, NULL));
    RANK_SAYS(rank, "'net'");
    rank_meet(rank);
    if (rank->rank == 0)
        RANK_OK(rank, lockstep_abort(session, reason));
    memset(reason, 'x', sizeof(reason) - 1);
    const int status = lockstep_barrier(session, "b", FOREVER);
    RANK_EQUAL(rank, status, rank->rank == 0 ? LOCKSTEP_E_CLOSED : LOCKSTEP_E_PEER_LOST);
    RANK_SAYS(rank, "the disk is full");
    RANK_OK(rank, lockstep_close(session));
}

static void descriptions_are_copied(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = copied_body, .without_session = true};
    ranks_run_test(&test);
}

// Rank 0 closes its session while the other ranks keep theirs open and make no call.
static void close_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_barrier(rank->session, "together", FOREVER));
    if (rank->rank == 0) {
        lockstep_session *session = rank->session;
        const uint64_t began_ms = clock_now_ms();
        rank->session = NULL;
        RANK_OK(rank, lockstep_close(session));
        RANK_TRUE(rank, clock_now_ms() - began_ms < CLOSE_MS + test_bound_ms(1000));
    }
    rank_meet(rank);
}

static void a_close_waits_two_seconds_at_most(const struct setting *setting)
{
    ranks_run(setting, close_body, NULL);
}

static void work_body(struct rank *rank)
{
    lockstep_work *work;
    int64_t data = 1;
    RANK_OK(rank, lockstep_allreduce_async(rank->session, "sum", &data, 1, LOCKSTEP_INT64,
                                           LOCKSTEP_SUM, &work));
    RANK_OK(rank, lockstep_work_wait(work, FOREVER));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_work_wait(work, FOREVER));
    RANK_SAYS(rank, "'sum' was waited for already");
}

static void a_wait_frees_the_work(const struct setting *setting)
{
    ranks_run(setting, work_body, NULL);
}

// A list of unused parameters that names an unknown parameter declares nothing. If a list names a
// parameter that is already ready, the parameters before it stay declared, so a report of one of
// them fails.
static void unused_body(struct rank *rank)
{
    const uint32_t unknown[] = {1, 77};
    const uint32_t reported[] = {1, 0, 2};
    struct trained_module module;
    lockstep_call *call;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_OK(rank, lockstep_call_begin(module.module, &call));
    RANK_OK(rank, lockstep_grad_ready(module.module, call, 0, NULL, NULL));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_unused(call, unknown, 2));
    RANK_SAYS(rank, "77");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_call_unused(call, reported, 3));
    RANK_SAYS(rank, "'p0'");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_grad_ready(module.module, call, 1, NULL, NULL));
    RANK_OK(rank, lockstep_grad_ready(module.module, call, 2, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    RANK_OK(rank, lockstep_step_end(rank->session, NULL));
    trainer_free(&module);
}

static void what_is_declared_before_an_error_stays(const struct setting *setting)
{
    ranks_run(setting, unused_body, NULL);
}

// A whole session without config.log, with an error in it.
static void silent_body(struct rank *rank)
{
    struct lockstep_config config = rank_config(rank);
    lockstep_session *session;
    float value = 1;
    config.log = NULL;
    RANK_OK(rank, lockstep_open(&config, &session));
    RANK_OK(rank, lockstep_start(session));
    RANK_OK(rank,
            lockstep_allreduce(session, "sum", &value, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, FOREVER));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(session, NULL));
    RANK_OK(rank, lockstep_close(session));
}

static void nothing_is_printed(const struct setting *setting)
{
    FILE *file = tmpfile();
    const int kept[] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    assert_non_null(file);
    unsetenv("LOCKSTEP_LOG");
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    ranks_run_test(
        &(struct cluster_test){.setting = setting, .body = silent_body, .without_session = true});
    fflush(stdout);
    for (int fd = 0; fd < 2; fd++) {
        dup2(kept[fd], STDOUT_FILENO + fd);
        close(kept[fd]);
    }
    assert_int_equal(lseek(fileno(file), 0, SEEK_END), 0);
    fclose(file);
}

int main(void)
{
    static const uint32_t two[] = {2, 0};
    static const struct stamp stamps[] = {
        {"the_version_is_that_of_the_header", the_version_is_that_of_the_header, two},
        {"nothing_is_printed", nothing_is_printed, two},
        {"descriptions_are_copied", descriptions_are_copied, two},
        {"a_close_waits_two_seconds_at_most", a_close_waits_two_seconds_at_most, NULL},
        {"a_wait_frees_the_work", a_wait_frees_the_work, two},
        {"what_is_declared_before_an_error_stays", what_is_declared_before_an_error_stays, two},
    };
    return stamp_run_whole("promises", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
