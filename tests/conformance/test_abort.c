// SPDX-License-Identifier: Apache-2.0
//
// Conformance: lockstep_abort. An abort takes effect at once on the calling rank and on all other
// ranks, in any function. If one of the other ranks has completed a step, all other ranks complete
// that step. Also the timeout of a blocking collective, which fails the session as an abort does,
// and the data port of a session that has failed and stays open.

#include "base/clock.h"
#include "tests/support/trainer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define MOST_STEPS 100000

static const uint64_t elements[] = {300, 7};
static const struct module_shape shape = {.name = "net", .count = 2, .elements = elements};

// ---- At once ------------------------------------------------------------------------------------

static void expect_closed(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call;
    uint64_t hash;
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_SAYS(rank, "this session was aborted: the loss is NaN");
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_call_begin(module->module, &call));
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_step_end(rank->session, NULL));
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_barrier(rank->session, "b", FOREVER));
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_state_hash(rank->session, &hash));
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_mark(rank->session, "here"));
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_start(rank->session));
    RANK_SAYS(rank, "the loss is NaN");
    RANK_OK(rank, lockstep_abort(rank->session, "twice"));
    RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_SAYS(rank, "the loss is NaN");
}

static void expect_lost(struct rank *rank, int status)
{
    RANK_EQUAL(rank, status, LOCKSTEP_E_PEER_LOST);
    RANK_SAYS(rank, "rank 0 (host ");
    RANK_SAYS(rank, "aborted: the loss is NaN");
}

// Rank 0 aborts between two steps, and calls the next function at once.
static void between_steps_body(struct rank *rank)
{
    struct trained_module module;
    const struct lockstep_step_options *none = NULL;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    if (rank->rank == 0) {
        const uint64_t began_ms = clock_now_ms();
        RANK_OK(rank, lockstep_abort(rank->session, "the loss is NaN"));
        expect_closed(rank, &module);
        RANK_TRUE(rank, clock_now_ms() - began_ms < test_bound_ms(500));
    } else {
        int status = lockstep_step_begin(rank->session, none, NULL);
        if (status == 0)
            status = lockstep_step_end(rank->session, NULL);
        expect_lost(rank, status);
        RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_step_begin(rank->session, none, NULL));
        RANK_SAYS(rank, "aborted: the loss is NaN");
    }
    rank_meet(rank);
    trainer_free(&module);
}

static void an_abort_takes_effect_at_once(const struct setting *setting)
{
    ranks_run(setting, between_steps_body, NULL);
}

// Rank 0 aborts inside a step, before its first call in the step.
static void inside_a_step_body(struct rank *rank)
{
    struct trained_module module;
    lockstep_call *call;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    RANK_OK(rank, lockstep_step_begin(rank->session, NULL, NULL));
    RANK_OK(rank, lockstep_call_begin(module.module, &call));
    rank_meet(rank);
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_abort(rank->session, "the loss is NaN"));
        RANK_FAILS(rank, LOCKSTEP_E_CLOSED,
                   lockstep_grad_ready(module.module, call, 0, NULL, NULL));
        expect_closed(rank, &module);
    } else {
        int status = lockstep_call_end(call);
        if (status == 0)
            status = lockstep_step_end(rank->session, NULL);
        expect_lost(rank, status);
    }
    rank_meet(rank);
    trainer_free(&module);
}

static void an_abort_ends_an_open_step(const struct setting *setting)
{
    ranks_run(setting, inside_a_step_body, NULL);
}

// ---- A step that others complete ----------------------------------------------------------------

struct race {
    uint64_t delay_us;
    _Atomic(uint64_t) completed[CLUSTER_MAX_WORLD];
};

struct aborter {
    lockstep_session *session;
    uint64_t delay_us;
};

static void *abort_later(void *context)
{
    const struct aborter *aborter = context;
    usleep((useconds_t)aborter->delay_us);
    (void)lockstep_abort(aborter->session, "the loss is NaN");
    return NULL;
}

static int one_step(struct rank *rank, struct trained_module *module)
{
    lockstep_call *call = NULL;
    int status = lockstep_step_begin(rank->session, NULL, NULL);
    if (status == 0)
        status = lockstep_call_begin(module->module, &call);
    for (uint32_t i = 0; status == 0 && i < shape.count; i++)
        status = lockstep_grad_ready(module->module, call, i, NULL, NULL);
    if (status == 0)
        status = lockstep_call_end(call);
    return status < 0 ? status : lockstep_step_end(rank->session, NULL);
}

// All ranks train as fast as they can; meanwhile another thread of rank 0 aborts.
static void race_body(struct rank *rank)
{
    struct race *race = rank->context;
    struct trained_module module;
    struct aborter aborter = {rank->session, race->delay_us};
    pthread_t thread;
    uint64_t completed = 0;
    int status = 0;
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_EQUAL(rank, one_step(rank, &module), 0);
    if (rank->rank == 0)
        RANK_EQUAL(rank, pthread_create(&thread, NULL, abort_later, &aborter), 0);
    while (completed < MOST_STEPS && (status = one_step(rank, &module)) == 0)
        completed++;
    if (rank->rank == 0)
        RANK_EQUAL(rank, pthread_join(thread, NULL), 0);
    RANK_EQUAL(rank, status, rank->rank == 0 ? LOCKSTEP_E_CLOSED : LOCKSTEP_E_PEER_LOST);
    race->completed[rank->rank] = completed;
    rank_meet(rank);
    // Rank 0 is not compared: it aborted, so it may not know of the last step that the other ranks
    // completed.
    for (uint32_t other = 1; rank->rank > 0 && other < rank->world_size; other++)
        RANK_EQUAL(rank, race->completed[other], completed);
    trainer_free(&module);
}

static void an_abort_fails_no_step_that_another_rank_completes(const struct setting *setting)
{
    const char *rounds = getenv("LOCKSTEP_TEST_ABORTS");
    const uint64_t count = rounds ? strtoull(rounds, NULL, 10) : 12;
    for (uint64_t round = 0; round < count; round++) {
        struct race race = {.delay_us = 500 + round * 613 % (12 * 613)};
        ranks_run(setting, race_body, &race);
    }
}

// ---- A timeout ----------------------------------------------------------------------------------

// After a blocking collective has timed out, every later call says that the session is over, and
// why. E_TIMEOUT would tell a loop around a wait to go on.
static void timeout_body(struct rank *rank)
{
    int64_t data = 1;
    int64_t alone = 1;
    const char *text = "this session was aborted: collective 'alone' did not complete within 20 ms";
    struct lockstep_work *asked = NULL;
    RANK_OK(rank, lockstep_barrier(rank->session, "together", FOREVER));
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_allreduce_async(rank->session, "asked", &data, 1, LOCKSTEP_INT64,
                                               LOCKSTEP_SUM, &asked));
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT,
                   lockstep_allreduce(rank->session, "alone", &alone, 1, LOCKSTEP_INT64,
                                      LOCKSTEP_SUM, 20));
        RANK_SAYS(rank, "collective 'alone' did not complete within 20 ms");
        RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_work_wait(asked, 0));
        RANK_SAYS(rank, text);
        RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_barrier(rank->session, "b", FOREVER));
        RANK_SAYS(rank, text);
        RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_start(rank->session));
        RANK_SAYS(rank, text);
        RANK_OK(rank, lockstep_abort(rank->session, "over"));
        RANK_FAILS(rank, LOCKSTEP_E_CLOSED, lockstep_mark(rank->session, "here"));
        return;
    }
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_barrier(rank->session, "never", FOREVER));
    RANK_SAYS(rank, "rank 0 (host ");
    RANK_SAYS(rank, "aborted: collective 'alone' did not complete within 20 ms");
}

static void a_timeout_ends_loops_that_wait(const struct setting *setting)
{
    ranks_run(setting, timeout_body, NULL);
}

// ---- The data port ------------------------------------------------------------------------------

#define MOST_DESCRIPTORS 4096

// Returns how many sockets of this process listen at a port of TCP.
static uint32_t listening_ports(void)
{
    uint32_t count = 0;
    for (int fd = 0; fd < MOST_DESCRIPTORS; fd++) {
        struct sockaddr_storage own;
        int listens = 0;
        socklen_t option = sizeof(listens);
        socklen_t length = sizeof(own);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &option) == 0 && listens &&
            getsockname(fd, (struct sockaddr *)&own, &length) == 0 &&
            (own.ss_family == AF_INET || own.ss_family == AF_INET6))
            count++;
    }
    return count;
}

static void go_on(struct rank *rank, struct lockstep_config *config)
{
    (void)rank;
    config->on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
}

// The sessions stay open until the ports are closed.
static void kept_open_body(struct rank *rank)
{
    struct trained_module module;
    const uint64_t give_up_ms = clock_now_ms() + test_bound_ms(10000);
    trainer_make(rank, &shape, 0, &module);
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_step_known(rank, &module, 1);
    const uint32_t before = listening_ports();
    RANK_TRUE(rank, before >= rank->world_size);
    rank_meet(rank);
    if (rank->rank == 0)
        RANK_OK(rank, lockstep_abort(rank->session, "the loss is NaN"));
    while (listening_ports() == before && clock_now_ms() < give_up_ms)
        usleep(2000);
    RANK_TRUE(rank, listening_ports() < before);
    rank_meet(rank);
    trainer_free(&module);
}

static void a_failed_session_refuses_at_its_data_port(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .configure = go_on, .body = kept_open_body};
    if (setting->transport == LOCKSTEP_TRANSPORT_LOOPBACK)
        skip(); // Such ranks have no data ports.
    ranks_run_test(&test);
}

int main(void)
{
    static const uint32_t worlds[] = {2, 3, 5, 0};
    static const uint32_t odd[] = {2, 3, 4, 5, 0};
    static const struct stamp stamps[] = {
        {"an_abort_takes_effect_at_once", an_abort_takes_effect_at_once, worlds},
        {"an_abort_ends_an_open_step", an_abort_ends_an_open_step, NULL},
        {"an_abort_fails_no_step_that_another_rank_completes",
         an_abort_fails_no_step_that_another_rank_completes, odd},
        {"a_timeout_ends_loops_that_wait", a_timeout_ends_loops_that_wait, NULL},
        {"a_failed_session_refuses_at_its_data_port", a_failed_session_refuses_at_its_data_port,
         NULL},
    };
    return stamp_run_whole("abort", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
