// SPDX-License-Identifier: Apache-2.0
//
// Ranks end when nobody but they themselves can say why: the coordinator was killed before. A rank
// that dies takes its neighbours with it, and these theirs; every survivor names the one that died
// first all the same, since each tells its neighbours what it saw before it ends its own links. The
// same for a rank that gives up, or that leaves while others still need it.
//
// LOCKSTEP_TEST_FAULT_ROUNDS deaths (12, under a sanitizer 4), chosen by LOCKSTEP_TEST_FAULT_SEED,
// which is printed.

#include "tests/fault/process_world.h"

#include "base/clock.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct coordinator_process coordinator;
static struct world world;

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

static uint64_t random_state;

// Trains a world of so many ranks to step 5, and then kills the coordinator.
static void begin_alone(uint32_t size, const struct script *scripts)
{
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", size, scripts);
    for (uint32_t rank = 0; rank < size; rank++)
        world_expect_step(&world, rank, 5);
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
}

// Every rank but `gone` fails, and its text begins with that rank.
static void expect_all_name(uint32_t size, uint32_t gone, uint64_t since_us, const char *words)
{
    char name[32];
    struct report report;
    snprintf(name, sizeof(name), "rank %u (host ", gone);
    for (uint32_t rank = 0; rank < size; rank++) {
        if (rank == gone)
            continue;
        world_expect(&world, rank, REPORT_FAILED, &report);
        printf("rank %u: %s in %s after %.1f ms: %s\n", rank, lockstep_status_name(report.status),
               report.call, ((double)report.at_us - (double)since_us) / 1000, report.text);
        assert_int_equal(report.status, LOCKSTEP_E_PEER_LOST);
        assert_int_equal(report.elements_torn, 0);
        if (strncmp(report.text, name, strlen(name)) != 0 || !strstr(report.text, words))
            fail_msg("rank %u does not name rank %u (%s): %s", rank, gone, words, report.text);
        if (!strstr(report.text, "; the connection to the coordinator is lost, and with it"))
            fail_msg("rank %u does not say that the coordinator is gone: %s", rank, report.text);
        assert_true(report.at_us - since_us < LOST_MS * 1000);
    }
}

// Condition: the coordinator is dead, and one of three to six ranks is killed. Decision: all
// survivors name it within a second, whether they were its neighbours or not.
static void all_name_the_rank_that_was_killed(void **state)
{
    (void)state;
    static const struct way ways[] = {
        {.name = "shared", .transport = "auto", .algorithm = "shared"},
        {.name = "ring", .transport = "tcp", .algorithm = "ring"},
        {.name = "two_level", .transport = "auto", .algorithm = "two_level", .two_hosts = true},
    };
    const uint64_t seed = choice_number("LOCKSTEP_TEST_FAULT_SEED", clock_now_us());
    const uint64_t usual = !getenv("LOCKSTEP_TEST_SLOW") ? 12 : 4;
    const uint64_t rounds = choice_number("LOCKSTEP_TEST_FAULT_ROUNDS", usual);
    random_state = seed * 2 + 1;
    printf("LOCKSTEP_TEST_FAULT_SEED=%llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < rounds; round++) {
        const uint32_t size = (uint32_t)(3 + round % 4);
        const uint32_t victim = (uint32_t)choice_below(&random_state, size);
        const struct way *way = &ways[size < 4 ? round % 2 : round % 3];
        struct script scripts[WORLD_MAX] = {0};
        for (uint32_t rank = 0; rank < size; rank++)
            scripts[rank] = (struct script){.report_every = 5, .way = *way};
        printf("round %llu: %s, rank %u of %u\n", (unsigned long long)round, way->name, victim,
               size);
        begin_alone(size, scripts);
        pause_us(choice_below(&random_state, 30000));
        const uint64_t killed_us = world_kill(&world, victim);
        expect_all_name(size, victim, killed_us, "was lost: ");
        world_join(&world);
    }
}

// Condition: without a coordinator a rank aborts. Decision: all others name it and its reason.
static void all_learn_why_a_rank_aborts(void **state)
{
    (void)state;
    struct script scripts[5] = {0};
    struct report done;
    for (uint32_t rank = 0; rank < 5; rank++)
        scripts[rank] = (struct script){.report_every = 5};
    scripts[2].last_step = 40;
    scripts[2].ending = ENDING_ABORT;
    scripts[2].place = PLACE_STEADY;
    scripts[2].place_step = 39;
    scripts[2].hold = HOLD_READ;
    begin_alone(5, scripts);
    world_expect(&world, 2, REPORT_PLACE, NULL);
    const uint64_t released_us = clock_now_us();
    world_release(&world, 2);
    expect_all_name(5, 2, released_us, "aborted: ");
    world_expect(&world, 2, REPORT_DONE, &done);
    world_join(&world);
}

// Condition: without a coordinator a rank closes its session, and the others go on. Decision: all
// of them name it, also those that are not its neighbours.
static void all_learn_who_has_left(void **state)
{
    (void)state;
    struct script scripts[5] = {0};
    struct report done;
    for (uint32_t rank = 0; rank < 5; rank++)
        scripts[rank] = (struct script){.report_every = 5, .way = {.transport = "tcp"}};
    scripts[3].last_step = 40;
    begin_alone(5, scripts);
    const uint64_t before_us = clock_now_us();
    world_expect(&world, 3, REPORT_DONE, &done);
    (void)before_us;
    expect_all_name(5, 3, done.at_us - slow_ms(500) * 1000, " closed its session while ");
    world_join(&world);
}

// Condition: the same for ranks that would go on (config.on_failure continue). They wait for the
// coordinator, which does not come back, and the first of them that gives up leaves. Decision: all
// name the rank that was killed.
static void all_that_wait_name_the_rank_that_was_killed(void **state)
{
    (void)state;
    struct script scripts[4] = {0};
    // Rank 0 gives up first. Its goodbye tells the others why.
    for (uint32_t rank = 0; rank < 4; rank++)
        scripts[rank] = (struct script){.report_every = 5,
                                        .survives = true,
                                        .away_timeout_ms = rank == 0 ? 1000 : 1500,
                                        .way = {.transport = "tcp"}};
    begin_alone(4, scripts);
    const uint64_t killed_us = world_kill(&world, 1);
    expect_all_name(4, 1, killed_us + 1000000,
                    ": connection refused (nothing listens there any more);");
    world_join(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(all_name_the_rank_that_was_killed, teardown),
        cmocka_unit_test_teardown(all_that_wait_name_the_rank_that_was_killed, teardown),
        cmocka_unit_test_teardown(all_learn_why_a_rank_aborts, teardown),
        cmocka_unit_test_teardown(all_learn_who_has_left, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
