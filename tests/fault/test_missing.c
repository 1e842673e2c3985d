// SPDX-License-Identifier: Apache-2.0
//
// Workers that never come, leave early, give up, or end without a word; and good ends that nobody
// may take for a failure: all leave at once, or one leaves while the coordinator is stopped. Real
// processes.

#include "tests/fault/process_world.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEAVER 1
#define LEAVES_AFTER 5

static struct coordinator_process coordinator;
static struct world world;

static int setup(void **state)
{
    (void)state;
    coordinator_start(&coordinator, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

static void expect_text(const struct report *report, uint32_t rank, const char *part)
{
    if (!strstr(report->text, part))
        fail_msg("rank %u: '%s' is not in: %s", rank, part, report->text);
}

static void expect_host(const struct report *report, uint32_t rank)
{
    char host[128] = "";
    gethostname(host, sizeof(host) - 1);
    expect_text(report, rank, host);
}

// ---- Never there --------------------------------------------------------------------------------

#define OPEN_MS slow_ms(700)

// Whether this rank was told with whom of `came` workers it waited to the end.
static uint32_t expect_timeout(uint32_t rank, uint32_t came, uint64_t started_us)
{
    struct report report;
    char count[64];
    snprintf(count, sizeof(count), "%u of 4 workers joined job 'job'", came);
    world_expect(&world, rank, REPORT_FAILED, &report);
    assert_string_equal(report.call, "open");
    assert_int_equal(report.status, LOCKSTEP_E_TIMEOUT);
    expect_text(&report, rank, count);
    expect_text(&report, rank, "missing rank hints: ");
    expect_host(&report, rank);
    assert_true(report.at_us - started_us >= OPEN_MS * 1000);
    assert_true(report.at_us - started_us < (OPEN_MS + LOST_MS) * 1000);
    printf("rank %u after %.1f ms: %s\n", rank, (double)(report.at_us - started_us) / 1000,
           report.text);
    return strstr(report.text, "rank hints: 2;") != NULL;
}

// Condition: three of four workers come. Decision: after the configured time lockstep_open says how
// many of how many came, and which hint is missing; who gives up later names those that gave up,
// too.
static void a_worker_never_arrives(void **state)
{
    (void)state;
    struct script scripts[4] = {{.open_timeout_ms = (uint32_t)OPEN_MS},
                                {.open_timeout_ms = (uint32_t)OPEN_MS},
                                {.absent = true},
                                {.open_timeout_ms = (uint32_t)OPEN_MS}};
    uint32_t told_all = 0;
    const uint64_t started_us = clock_now_us();
    world_start(&world, &coordinator, "job", 4, scripts);
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (rank != 2)
            told_all += expect_timeout(rank, 3, started_us);
    }
    assert_true(told_all >= 1);
    world_join(&world);
    coordinator_stop(&coordinator);
}

// Condition: nothing listens at the coordinator's address. Decision: E_UNREACHABLE, in time.
static void the_coordinator_is_absent(void **state)
{
    (void)state;
    struct script scripts[1] = {{.open_timeout_ms = (uint32_t)OPEN_MS}};
    struct report report;
    coordinator_stop(&coordinator);
    const uint64_t started_us = clock_now_us();
    world_start(&world, &coordinator, "job", 1, scripts);
    world_expect(&world, 0, REPORT_FAILED, &report);
    assert_int_equal(report.status, LOCKSTEP_E_UNREACHABLE);
    assert_true(report.at_us - started_us < (OPEN_MS + LOST_MS) * 1000);
    printf("%s\n", report.text);
    world_join(&world);
}

// ---- Gone too early -----------------------------------------------------------------------------

// All of four ranks train; rank 1 ends like this after five steps.
static void begin_with_leaver(enum ending ending)
{
    struct script scripts[4] = {{0}, {.last_step = LEAVES_AFTER, .ending = ending}, {0}, {0}};
    world_start(&world, &coordinator, "job", 4, scripts);
}

static void expect_lost(struct report *report, uint32_t rank)
{
    world_expect(&world, rank, REPORT_FAILED, report);
    printf("rank %u: %s in %s of step %llu: %s\n", rank, lockstep_status_name(report->status),
           report->call, (unsigned long long)report->step, report->text);
    if (report->status != LOCKSTEP_E_PEER_LOST)
        fail_msg("rank %u: %s: %s", rank, lockstep_status_name(report->status), report->text);
    expect_text(report, rank, "rank 1");
    expect_host(report, rank);
    assert_int_equal(report->elements_torn, 0);
}

static void expect_lost_everywhere(const char *reason)
{
    struct report report;
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (rank == LEAVER)
            continue;
        expect_lost(&report, rank);
        expect_text(&report, rank, reason);
        assert_true(report.settled >= LEAVES_AFTER);
    }
    world_join(&world);
    coordinator_stop(&coordinator);
}

// Condition: rank 1 closes its session, the others go on. Decision: they finish the last common
// step and are told in the next one that rank 1 has left.
static void a_worker_leaves_early(void **state)
{
    (void)state;
    begin_with_leaver(ENDING_CLOSE);
    world_expect(&world, LEAVER, REPORT_DONE, NULL);
    expect_lost_everywhere("closed its session");
}

// Condition: rank 1 aborts with a reason. Decision: the others are told the reason.
static void a_worker_aborts(void **state)
{
    (void)state;
    struct report report;
    begin_with_leaver(ENDING_ABORT);
    world_expect(&world, LEAVER, REPORT_DONE, &report);
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (rank == LEAVER)
            continue;
        expect_lost(&report, rank);
        expect_text(&report, rank, "the loss is not a number");
    }
    world_join(&world);
    coordinator_stop(&coordinator);
}

// Condition: rank 1 ends without closing. Decision: it counts as lost.
static void a_worker_ends_without_a_word(void **state)
{
    (void)state;
    struct report report;
    begin_with_leaver(ENDING_EXIT);
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (rank != LEAVER)
            expect_lost(&report, rank);
    }
    world_join(&world);
    coordinator_stop(&coordinator);
}

// ---- The common end -----------------------------------------------------------------------------

// Condition: all ranks close right after the last step, 30 times (under a sanitizer 10). Decision:
// nobody ever fails, and all have the same state.
static void all_close_at_once(void **state)
{
    (void)state;
    const uint32_t rounds = !getenv("LOCKSTEP_TEST_SLOW") ? 30 : 10;
    struct script scripts[4];
    struct report done;
    for (uint32_t rank = 0; rank < 4; rank++)
        scripts[rank] = (struct script){.last_step = 3, .rounds = rounds};
    world_start(&world, &coordinator, "job", 4, scripts);
    for (uint32_t round = 0; round < rounds; round++) {
        uint64_t hash = 0;
        for (uint32_t rank = 0; rank < 4; rank++) {
            if (!world_next(&world, rank, -1, &done) || done.kind != REPORT_DONE)
                fail_msg("round %u: rank %u: %s in %s: %s", round, rank,
                         lockstep_status_name(done.status), done.call, done.text);
            assert_true(rank == 0 || done.value == hash);
            hash = done.value;
        }
    }
    world_join(&world);
    coordinator_stop(&coordinator);
}

// ---- A goodbye to a coordinator that is stopped ------------------------------------------------

#define PARTY 3

// What the processes of the test share.
struct farewell_party {
    _Atomic(uint32_t) met; // Ranks that have met in lockstep_start.
    _Atomic(bool) leave; // The last rank closes its session.
    _Atomic(bool) over; // The others do so.
};

static int work_on(struct farewell_party *party, lockstep_session *session, uint32_t rank)
{
    static const uint32_t ranks[] = {0, 1};
    struct lockstep_collective sum = LOCKSTEP_COLLECTIVE_INIT;
    float values[2]; // The number of ranks, and of those that have seen the end.
    sum.name = "sum";
    sum.output = values;
    sum.count = 2;
    if (lockstep_group_create(session, ranks, 2, "two", &sum.group) < 0)
        return -1;
    do {
        pause_us(1000);
        values[0] = 1;
        values[1] = rank == 0 && atomic_load(&party->over);
        if (lockstep_collective_run(session, &sum, LOCKSTEP_WAIT_FOREVER) < 0 || values[0] != 2)
            return -1;
    } while (values[1] == 0);
    return 0;
}

static void meet_and_part(struct farewell_party *party, uint32_t rank)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct lockstep_change change = LOCKSTEP_CHANGE_INIT;
    lockstep_session *session;
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    config.coordinator = address;
    config.job = "party";
    config.world_size = PARTY;
    config.rank_hint = (int32_t)rank;
    if (lockstep_open(&config, &session) < 0 || lockstep_start(session) < 0)
        _exit(1);
    atomic_fetch_add(&party->met, 1);
    while (rank == PARTY - 1 && !atomic_load(&party->leave))
        pause_us(1000);
    if (rank < PARTY - 1 && work_on(party, session, rank) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, lockstep_error_text());
        _exit(2);
    }
    if (lockstep_world_change(session, &change) < 0 || change.changes > 0)
        _exit(3);
    _exit(lockstep_close(session) < 0 ? 4 : 0);
}

// Condition: a rank closes its session and ends, while the coordinator is stopped for longer than
// the close waits. The others work on. Decision: the coordinator takes the goodbye when it goes on,
// and no rank is lost.
static void a_goodbye_waits_for_it(void **state)
{
    struct farewell_party *party =
        mmap(NULL, sizeof(*party), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[PARTY];
    int status = 0;
    assert_true(party != MAP_FAILED);
    setenv("LOCKSTEP_ON_FAILURE", *state, 1);
    for (uint32_t rank = 0; rank < PARTY; rank++) {
        pids[rank] = process_fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0)
            meet_and_part(party, rank);
    }
    unsetenv("LOCKSTEP_ON_FAILURE");
    const uint64_t until_ms = clock_now_ms() + slow_ms(5000);
    while (atomic_load(&party->met) < PARTY && clock_now_ms() < until_ms)
        pause_us(1000);
    coordinator_signal(&coordinator, SIGSTOP);
    atomic_store(&party->leave, true);
    assert_true(process_reap(pids[PARTY - 1], slow_ms(10000), &status));
    assert_int_equal(status, 0);
    pause_us(1500000); // Heartbeats of the others wait for it, too.
    coordinator_signal(&coordinator, SIGCONT);
    pause_us(500000);
    atomic_store(&party->over, true);
    for (uint32_t rank = 0; rank < PARTY - 1; rank++) {
        assert_true(process_reap(pids[rank], slow_ms(10000), &status));
        assert_int_equal(status, 0);
    }
    munmap(party, sizeof(*party));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_worker_never_arrives, setup, teardown),
        cmocka_unit_test_setup_teardown(the_coordinator_is_absent, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_leaves_early, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_aborts, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_ends_without_a_word, setup, teardown),
        cmocka_unit_test_setup_teardown(all_close_at_once, setup, teardown),
        {"a_goodbye_waits_for_it_error", a_goodbye_waits_for_it, setup, teardown, "error"},
        {"a_goodbye_waits_for_it_continue", a_goodbye_waits_for_it, setup, teardown, "continue"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
