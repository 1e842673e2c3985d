// SPDX-License-Identifier: Apache-2.0
//
// Worlds that take their time to form: the coordinator is killed meanwhile and comes back, or stays
// away; a worker never comes, and those that came are told of it one after the other. And worlds
// that are opened again while some workers have not closed the last one.

#include "tests/fault/process_world.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static struct coordinator_process coordinator;
static struct world world;

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

// Condition: the coordinator is killed while two of three workers wait for the third, and started
// again. Decision: they say hello to the new one, and all train.
static void a_coordinator_comes_back(void **state)
{
    (void)state;
    struct report done;
    struct script scripts[3] = {
        {.last_step = 4},
        {.last_step = 4},
        {.last_step = 4, .place = PLACE_OPENING, .hold = HOLD_READ},
    };
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 3, scripts);
    world_expect(&world, 2, REPORT_PLACE, NULL);
    pause_us(500000); // The others have said hello.
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    pause_us(700000);
    coordinator_start(&coordinator, NULL);
    world_release(&world, 2);
    for (uint32_t rank = 0; rank < 3; rank++)
        world_expect(&world, rank, REPORT_DONE, &done);
    world_join(&world);
}

// Condition: all three workers have come and been given their ranks, and one of them is stopped, so
// that no link to it can be made; then the coordinator is killed, and started again. Decision: all
// say hello to the new one, and train.
static void a_coordinator_comes_back_while_links_form(void **state)
{
    (void)state;
    struct report done;
    struct script scripts[3] = {
        {.last_step = 4},
        {.last_step = 4},
        {.last_step = 4, .place = PLACE_OPENING, .hold = HOLD_READ},
    };
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 3, scripts);
    world_expect(&world, 2, REPORT_PLACE, NULL);
    pause_us(500000); // The others have said hello.
    world_signal(&world, 0, SIGSTOP);
    world_release(&world, 2);
    pause_us(500000); // All have their ranks.
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    pause_us(300000);
    world_signal(&world, 0, SIGCONT);
    pause_us(300000);
    coordinator_start(&coordinator, NULL);
    for (uint32_t rank = 0; rank < 3; rank++)
        world_expect(&world, rank, REPORT_DONE, &done);
    world_join(&world);
}

// Condition: it stays away. Decision: E_UNREACHABLE when the open timeout is over, and not before.
static void a_coordinator_stays_away(void **state)
{
    (void)state;
    struct report report;
    const uint64_t timeout_ms = slow_ms(1500);
    struct script scripts[3] = {{.open_timeout_ms = (uint32_t)timeout_ms},
                                {.open_timeout_ms = (uint32_t)timeout_ms},
                                {.absent = true}};
    const uint64_t began_us = clock_now_us();
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 3, scripts);
    pause_us(500000);
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    for (uint32_t rank = 0; rank < 2; rank++) {
        world_expect(&world, rank, REPORT_FAILED, &report);
        printf("rank %u after %.1f ms: %s\n", rank,
               ((double)report.at_us - (double)began_us) / 1000, report.text);
        assert_string_equal(report.call, "open");
        assert_int_equal(report.status, LOCKSTEP_E_UNREACHABLE);
        assert_true(report.at_us - began_us >= timeout_ms * 1000);
        assert_true(report.at_us - began_us < (timeout_ms + LOST_MS) * 1000);
    }
    world_join(&world);
}

// Condition: three of four workers come, one after the other. Decision: when their times are over,
// one after the other, all are told the same.
static void all_are_told_the_same(void **state)
{
    (void)state;
    struct report first;
    struct report report;
    struct script scripts[4] = {{0}, {0}, {0}, {.absent = true}};
    for (uint32_t rank = 0; rank < 3; rank++) {
        scripts[rank].open_timeout_ms = (uint32_t)slow_ms(1000);
        scripts[rank].place = PLACE_OPENING;
        scripts[rank].hold = HOLD_READ;
    }
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 4, scripts);
    for (uint32_t rank = 0; rank < 3; rank++)
        world_expect(&world, rank, REPORT_PLACE, NULL);
    for (uint32_t rank = 0; rank < 3; rank++) {
        world_release(&world, rank);
        pause_us(200000);
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        world_expect(&world, rank, REPORT_FAILED, rank == 0 ? &first : &report);
        printf("rank %u: %s\n", rank, rank == 0 ? first.text : report.text);
        if (rank == 0)
            assert_non_null(strstr(first.text, "3 of 4 workers joined job 'job'"));
        else
            assert_string_equal(report.text, first.text);
    }
    world_join(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_coordinator_comes_back, teardown),
        cmocka_unit_test_teardown(a_coordinator_comes_back_while_links_form, teardown),
        cmocka_unit_test_teardown(a_coordinator_stays_away, teardown),
        cmocka_unit_test_teardown(all_are_told_the_same, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
