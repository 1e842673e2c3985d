// SPDX-License-Identifier: Apache-2.0
//
// Jobs whose survivors go on (config.on_failure continue): real processes on one coordinator, of
// which some are killed by SIGKILL at random instants of their steps. Every step of every survivor
// ends with OK. They exchange over TCP, in memory of the host, or in registered memory; there a
// survivor may be stopped while another rank dies. Gradients are unique for each rank, step and
// element, so each result shows whose gradients are in it: those of all survivors. The results of
// all survivors have equal bits.
//
// LOCKSTEP_TEST_FAULT_ROUNDS jobs (9, and 2 without a coordinator), chosen by
// LOCKSTEP_TEST_FAULT_SEED, which is printed.

#include "tests/fault/recovery_job.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

// What a rank tells besides.
struct own {
    uint32_t in_place; // Steps that copied no gradient.
    uint64_t last_in_place; // The last one of them.
};

static void step_notes_copies(struct job_rank *rank, uint64_t step, uint64_t *hash)
{
    struct lockstep_report report = LOCKSTEP_REPORT_INIT;
    struct own *own = job_own(rank->rank);
    job_step(rank, step, hash);
    job_require(rank, lockstep_step_report(rank->session, step, 0, &report), "step_report");
    job_hash(hash, &report.weight_total, sizeof(report.weight_total));
    if (report.bytes_copied > 0)
        return;
    own->in_place++;
    own->last_in_place = step;
}

// Kills ranks, one after the other; the last one always survives.
static void one_job(struct job *job, uint32_t round)
{
    job_run(job, round, NULL);
    const struct told *last = job_told(job->size - 1);
    const struct own *own = job_own(job->size - 1);
    assert_true(last->generation > 1);
    assert_int_equal(last->changed, job->deaths);
    assert_int_equal(last->change.world_size, job->size - job->deaths);
    assert_int_equal(last->change.world_size_before, job->size - job->deaths + 1);
    assert_int_equal(last->change.rank, job->size - job->deaths - 1);
    assert_int_equal(last->change.lost_count, 1);
    assert_non_null(strstr(last->change.text, "rank"));
    printf("round %u: ok, slowest step_end %llu us, %u steps in place, the last one %llu%s\n",
           round, (unsigned long long)last->slowest_us, own->in_place,
           (unsigned long long)own->last_in_place, job->stops ? ", a survivor was stopped" : "");
    assert_true(!job->registered || own->in_place > 0);
}

static void survivors_finish_every_step(void **state)
{
    static const char *const names[] = {"registered", "tcp", "auto"};
    (void)state;
    for (uint32_t round = 0; round < job_rounds(9); round++) {
        const uint32_t way = (round + round / 3) % 3;
        const uint32_t size = 2 + round % 3;
        struct job job = {.name = names[way],
                          .size = size,
                          .deaths = size == 2 ? 1 : 1 + round / 3 % (size - 1),
                          .tcp = way == 1,
                          .registered = way == 0,
                          .blind = way == 2,
                          .stops = way == 0 && size > 2 && round % 4 == 1,
                          .step = step_notes_copies};
        one_job(&job, round);
    }
}

// Condition: the coordinator is gone when a rank dies, or goes while the others recover. Decision:
// the others wait for its return, and finish every step.
static void survivors_wait_for_the_coordinator(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < job_rounds(2); round++) {
        struct job job = {.name = "away",
                          .size = 2 + (round + 1) % 3,
                          .deaths = 1,
                          .first_death = 3, // In the first step the order is learned.
                          .tcp = round % 2 == 0,
                          .away = round % 2 == round / 2 % 2 ? JOB_AWAY_AFTER : JOB_AWAY_BEFORE,
                          .step = job_step};
        job_run(&job, round, NULL);
        assert_int_equal(job_told(job.size - 1)->change.world_size, job.size - 1);
    }
}

// A world of one, so that no thread is started.
static lockstep_session *open_alone(void)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session = NULL;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    assert_int_equal(lockstep_open(&config, &session), 0);
    return session;
}

static void refused(int status, const char *what)
{
    assert_int_equal(status, LOCKSTEP_E_UNSUPPORTED);
    if (!strstr(lockstep_error_text(), what) || !strstr(lockstep_error_text(), "on_failure"))
        fail_msg("'%s' does not name %s", lockstep_error_text(), what);
}

static void what_does_not_go_together_is_named(void **state)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session = open_alone();
    struct lockstep_collective gather = LOCKSTEP_COLLECTIVE_INIT;
    int32_t data = 1;
    int32_t all = 0;
    (void)state;
    assert_int_equal(lockstep_barrier(session, "b", 1000), 0);
    assert_int_equal(lockstep_allreduce(session, "a", &data, 1, LOCKSTEP_INT32, LOCKSTEP_SUM, 1000),
                     0);
    gather.kind = LOCKSTEP_ALL_GATHER;
    gather.name = "g";
    gather.input = &data;
    gather.output = &all;
    gather.count = 1;
    gather.dtype = LOCKSTEP_INT32;
    assert_int_equal(lockstep_collective_run(session, &gather, 1000), 0);
    assert_int_equal(all, data);
    lockstep_close(session);
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.transport = LOCKSTEP_TRANSPORT_LOOPBACK;
    refused(lockstep_open(&config, &session), "loopback");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_go_together_is_named),
        cmocka_unit_test_teardown(survivors_finish_every_step, job_teardown),
        cmocka_unit_test_teardown(survivors_wait_for_the_coordinator, job_teardown),
    };
    job_memory(sizeof(struct own));
    job_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
