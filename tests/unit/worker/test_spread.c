// SPDX-License-Identifier: Apache-2.0
//
// Ranks that share cores: who moves, when, and what becomes of its affinity. One rank of four is
// real, on a host of two cores; the others are what they have said on the board.

#include "worker/transport/host/host.h"
#include "worker/transport/host/spread.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEATS 4
#define CORES 2
#define MANY 1000 // Waits: more than it takes to see anything, and few enough for one move.

struct host {
    struct flows flows;
    struct shared shared;
    cpu_set_t allowed; // Affinity of this thread before the test.
};

static struct host *host_make(uint32_t seat)
{
    struct host *host = calloc(1, sizeof(*host));
    assert_non_null(host);
    const int fd = board_make(&host->shared.board, SEATS, BOARD_SLOT_BYTES);
    assert_true(fd >= 0);
    (void)close(fd);
    host->shared.flows = &host->flows;
    host->shared.seats = SEATS;
    host->shared.seat = seat;
    host->shared.stands = true;
    host->flows.shared = &host->shared;
    host->flows.processors = CORES;
    assert_int_equal(sched_getaffinity(0, sizeof(host->allowed), &host->allowed), 0);
    return host;
}

static void host_free(struct host *host)
{
    (void)sched_setaffinity(0, sizeof(host->allowed), &host->allowed);
    board_unmap(&host->shared.board);
    free(host);
}

static size_t here_now(void)
{
    const int core = sched_getcpu();
    assert_true(core >= 0);
    return (size_t)core;
}

static void stay_on(size_t core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
}

static void say(struct host *host, uint32_t seat, size_t core)
{
    board_publish(&host_seat(&host->shared, seat)->core, core + 1);
}

// This rank waits on a core, and the kernel is not to take it elsewhere; the others have said where
// they are: here, or in no seat that this thread may run on. Returns how often it has moved.
static uint64_t moves(struct host *host, const bool *here)
{
    const size_t core = here_now();
    for (uint32_t i = 0; i < SEATS; i++) {
        if (i != host->shared.seat)
            say(host, i, here[i] ? core : CPU_SETSIZE);
    }
    const uint64_t before = host->flows.totals.core_moves;
    for (uint32_t i = 0; i < MANY; i++)
        spread_wait(&host->flows);
    return host->flows.totals.core_moves - before;
}

static void the_highest_of_three_moves_and_keeps_its_affinity(void **state)
{
    (void)state;
    cpu_set_t after;
    struct host *host = host_make(2);
    if (CPU_COUNT(&host->allowed) < CORES) {
        host_free(host);
        skip();
    }
    // Wherever the kernel takes this thread, it is where the two others have said they are.
    uint64_t moved = 0;
    for (uint32_t attempts = 0; attempts < 100 && moved == 0; attempts++)
        moved = moves(host, (const bool[SEATS]){true, true, true, false});
    assert_true(moved > 0);
    assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
    assert_true(CPU_EQUAL(&after, &host->allowed));
    host_free(host);
}

// A rank of that seat does not move, and has seen no reason to.
static void stays(uint32_t seat, const bool *here)
{
    struct host *host = host_make(seat);
    stay_on(here_now());
    assert_int_equal(moves(host, here), 0);
    assert_int_equal(host->shared.spread.looks, 0);
    host_free(host);
}

static void nobody_moves_from_a_fair_share(void **state)
{
    (void)state;
    stays(3, (const bool[SEATS]){false, false, true, true});
}

static void one_of_those_that_are_too_many_stays(void **state)
{
    (void)state;
    stays(1, (const bool[SEATS]){true, true, true, false});
}

static void who_may_run_on_one_core_only_stays_there(void **state)
{
    (void)state;
    cpu_set_t after;
    struct host *host = host_make(3);
    const size_t core = here_now();
    stay_on(core);
    assert_int_equal(moves(host, (const bool[SEATS]){true, true, true, true}), 0);
    assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
    assert_int_equal(CPU_COUNT(&after), 1);
    assert_true(CPU_ISSET(core, &after));
    host_free(host);
}

static void without_a_board_nothing_is_said(void **state)
{
    (void)state;
    struct host *host = host_make(3);
    host->shared.stands = false;
    spread_wait(&host->flows);
    host->flows.shared = NULL;
    spread_wait(&host->flows);
    assert_int_equal(board_read(&host_seat(&host->shared, 3)->core), 0);
    host_free(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_highest_of_three_moves_and_keeps_its_affinity),
        cmocka_unit_test(nobody_moves_from_a_fair_share),
        cmocka_unit_test(one_of_those_that_are_too_many_stays),
        cmocka_unit_test(who_may_run_on_one_core_only_stays_there),
        cmocka_unit_test(without_a_board_nothing_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
