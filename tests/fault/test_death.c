// SPDX-License-Identifier: Apache-2.0
//
// A worker is killed at a random instant: while it opens, starts, learns, trains, is in a plain
// collective or in its optimizer, or starts again, also with a forked child that holds every
// descriptor. The others learn within a second who it was, and nothing that they contributed is
// lost. Real processes on one coordinator, one world after the other under one job name; the way in
// which gradients are reduced changes from world to world. Memory that ranks share, descriptors and
// names go with the processes, or when a survivor closes its session.
//
// LOCKSTEP_TEST_FAULT_ROUNDS deaths (42, under a sanitizer 14), chosen by LOCKSTEP_TEST_FAULT_SEED,
// which is printed. LOCKSTEP_TEST_FAULT_WAY: only that one of world_ways.

#include "tests/fault/process_world.h"

#include "base/clock.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <dirent.h>
#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS_MAX 10000
#define OPEN_MS slow_ms(1000)

static struct coordinator_process coordinator;
static struct world world;

// One death, and what is known about it.
struct death {
    const struct way *way;
    uint32_t world_size;
    uint32_t victim;
    enum stand_place place;
    uint64_t step;
    uint64_t delay_us;
    bool child;
    bool waits; // Its world waits for the call of each step before the step's end.
    uint64_t killed_us;
    struct report seen[WORLD_MAX]; // Reports of the survivors.
};

// Times from the death to the error, one for each survivor that got E_PEER_LOST.
static uint64_t times_us[ROUNDS_MAX * WORLD_MAX];
static size_t times_count;

// ---- Choosing -----------------------------------------------------------------------------------

static uint64_t random_state;

// The longest delay between the victim's report and its death: about the time that a trainer spends
// at this place.
static uint64_t delay_bound_us(enum stand_place place)
{
    static const uint64_t bounds[PLACE_COUNT] = {
        [PLACE_OPENING] = 12000,    [PLACE_START] = 5000, [PLACE_LEARNING] = 20000,
        [PLACE_STEADY] = 20000,     [PLACE_PLAIN] = 5000, [PLACE_OPTIMIZER] = 5000,
        [PLACE_START_AGAIN] = 5000,
    };
    return slow_ms(bounds[place]);
}

static const char *place_name(enum stand_place place)
{
    static const char *const names[PLACE_COUNT] = {
        "nowhere", "opening", "start", "learning", "steady", "plain", "optimizer", "start again",
    };
    return names[place];
}

static const struct way *choose_way(uint32_t round)
{
    const char *only = getenv("LOCKSTEP_TEST_FAULT_WAY");
    if (!only || only[0] == '\0')
        return &world_ways[round % WORLD_WAYS];
    for (size_t i = 0; i < WORLD_WAYS; i++) {
        if (strcmp(only, world_ways[i].name) == 0)
            return &world_ways[i];
    }
    fail_msg("LOCKSTEP_TEST_FAULT_WAY='%s' is none", only);
    return NULL;
}

// 42 rounds meet every pair of a place and a way: 7 places and 6 ways have no common divisor.
static struct death choose(uint32_t round)
{
    struct death death = {.way = choose_way(round)};
    death.place = (enum stand_place)(PLACE_OPENING + round % (PLACE_COUNT - PLACE_OPENING));
    death.world_size = 2 + (round + round / 6) % 3;
    if (death.way->two_hosts && death.world_size == 2)
        death.world_size = 4;
    death.victim = (round + round / 3) % death.world_size;
    death.step = death.place > PLACE_LEARNING ? 2 + choice_below(&random_state, 8) : 0;
    death.delay_us = choice_below(&random_state, delay_bound_us(death.place));
    death.child = death.place > PLACE_START && choice_below(&random_state, 2) == 0;
    death.waits = choice_below(&random_state, 2) == 0;
    return death;
}

// ---- Telling ------------------------------------------------------------------------------------

static void describe(const struct death *death, uint32_t round)
{
    printf("round %u: %s, rank %u of %u, %s, step %llu, +%llu us%s%s:", round, death->way->name,
           death->victim, death->world_size, place_name(death->place),
           (unsigned long long)death->step, (unsigned long long)death->delay_us,
           death->child ? ", with a child" : "", death->waits ? ", waiting" : "");
    for (uint32_t rank = 0; rank < death->world_size; rank++) {
        const struct report *seen = &death->seen[rank];
        if (rank != death->victim)
            printf(" [%u] %s in %s after %.1f ms,", rank, lockstep_status_name(seen->status),
                   seen->call, ((double)seen->at_us - (double)death->killed_us) / 1000);
    }
    printf("\n");
}

static int compare_times(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void describe_times(void)
{
    if (times_count == 0)
        return;
    qsort(times_us, times_count, sizeof(times_us[0]), compare_times);
    printf("%zu survivors were told after (ms): least %.1f, median %.1f, p90 %.1f, most %.1f\n",
           times_count, (double)times_us[0] / 1000, (double)times_us[times_count / 2] / 1000,
           (double)times_us[times_count * 9 / 10] / 1000, (double)times_us[times_count - 1] / 1000);
}

// ---- Judging ------------------------------------------------------------------------------------

// "rank 2" and the host come first; a witness may be named after them.
static bool names_first(const char *text, uint32_t rank)
{
    char host[128] = "";
    const char *first = strstr(text, "rank ");
    gethostname(host, sizeof(host) - 1);
    return first && strtoul(first + strlen("rank "), NULL, 10) == rank && strstr(text, host);
}

static void judge_lost(const struct death *death, uint32_t rank)
{
    const struct report *seen = &death->seen[rank];
    if (seen->status != LOCKSTEP_E_PEER_LOST)
        fail_msg("rank %u: %s in %s: %s", rank, lockstep_status_name(seen->status), seen->call,
                 seen->text);
    if (!names_first(seen->text, death->victim))
        fail_msg("rank %u: does not name rank %u and its host: %s", rank, death->victim,
                 seen->text);
    if (seen->at_us < death->killed_us || seen->at_us - death->killed_us > LOST_MS * 1000)
        fail_msg("rank %u: heard of it %.1f ms after the death: %s", rank,
                 ((double)seen->at_us - (double)death->killed_us) / 1000, seen->text);
    times_us[times_count++] = seen->at_us - death->killed_us;
}

// Checks the error of a survivor whose world never formed, because the victim had not joined yet.
static void judge_timeout(const struct death *death, uint32_t rank)
{
    const struct report *seen = &death->seen[rank];
    char count[64];
    snprintf(count, sizeof(count), " of %u workers joined", death->world_size);
    if (!strstr(seen->text, count) || !strstr(seen->text, "missing rank hints: "))
        fail_msg("rank %u: does not say who is missing: %s", rank, seen->text);
    if (seen->at_us > death->killed_us + (OPEN_MS + LOST_MS) * 1000)
        fail_msg("rank %u: timed out too late: %s", rank, seen->text);
}

// Checks that the call after the failed one returned the same status, and that each element of the
// gradients is the rank's input or the final mean.
static void judge_state(const struct report *seen, uint32_t rank)
{
    if (seen->elements_torn > 0)
        fail_msg("rank %u: %llu elements are neither its own nor the mean", rank,
                 (unsigned long long)seen->elements_torn);
    if (strcmp(seen->call, "open") != 0)
        assert_int_equal(seen->status_again, seen->status);
}

// Checks that a step which ended on one survivor has its results on all survivors.
static void judge_steps(const struct death *death)
{
    uint64_t settled = 0;
    for (uint32_t rank = 0; rank < death->world_size; rank++) {
        if (rank != death->victim && death->seen[rank].settled > settled)
            settled = death->seen[rank].settled;
    }
    for (uint32_t rank = 0; rank < death->world_size; rank++) {
        const struct report *seen = &death->seen[rank];
        if (rank == death->victim || seen->settled == settled)
            continue;
        if (seen->settled + 1 != settled || seen->step != settled || seen->elements_intact > 0)
            fail_msg("rank %u is in step %llu with %llu elements not final, another rank has left "
                     "step %llu",
                     rank, (unsigned long long)seen->step,
                     (unsigned long long)seen->elements_intact, (unsigned long long)settled);
    }
}

static void judge(const struct death *death)
{
    for (uint32_t rank = 0; rank < death->world_size; rank++) {
        const struct report *seen = &death->seen[rank];
        if (rank == death->victim)
            continue;
        if (death->place == PLACE_OPENING && seen->status == LOCKSTEP_E_TIMEOUT)
            judge_timeout(death, rank);
        else
            judge_lost(death, rank);
        judge_state(seen, rank);
    }
    judge_steps(death);
}

// ---- One death ----------------------------------------------------------------------------------

static void begin(const struct death *death)
{
    struct script scripts[WORLD_MAX] = {0};
    for (uint32_t rank = 0; rank < death->world_size; rank++)
        scripts[rank].open_timeout_ms =
            (uint32_t)(death->place == PLACE_OPENING ? OPEN_MS : WAIT_MS);
    for (uint32_t rank = 0; rank < death->world_size; rank++)
        scripts[rank].starts_after = death->place == PLACE_START_AGAIN ? death->step : 0;
    for (uint32_t rank = 0; rank < death->world_size; rank++)
        scripts[rank].way = *death->way;
    for (uint32_t rank = 0; rank < death->world_size; rank++)
        scripts[rank].waits = death->waits;
    scripts[death->victim].place = death->place;
    scripts[death->victim].place_step = death->step;
    scripts[death->victim].child = death->child;
    world_start(&world, &coordinator, "job", death->world_size, scripts);
}

// Number of named shared memory objects. Such memory outlives its processes.
static uint32_t named_memory(void)
{
    uint32_t count = 0;
    DIR *directory = opendir("/dev/shm");
    const struct dirent *entry = NULL;
    while (directory && (entry = readdir(directory)))
        count += strstr(entry->d_name, "lockstep") != NULL;
    if (directory)
        (void)closedir(directory);
    return count;
}

// Files without a name and abstract sockets are gone with the processes, and world_join waits for
// these. A survivor's exit code says that it has kept nothing after it has closed its session.
static void one_death(struct death *death, uint32_t round)
{
    const uint32_t named_before = named_memory();
    begin(death);
    world_expect(&world, death->victim, REPORT_PLACE, NULL);
    pause_us(death->delay_us);
    death->killed_us = world_kill(&world, death->victim);
    for (uint32_t rank = 0; rank < death->world_size; rank++) {
        if (rank != death->victim)
            world_expect(&world, rank, REPORT_FAILED, &death->seen[rank]);
    }
    describe(death, round);
    judge(death);
    world_join(&world);
    assert_int_equal(named_memory(), named_before);
}

// Condition: any worker dies at any instant. Decision: every survivor's wait ends within a second,
// names it, and the coordinator serves the next world under the same job name.
static void survivors_learn_who_died(void **state)
{
    (void)state;
    const uint64_t seed = choice_number("LOCKSTEP_TEST_FAULT_SEED", clock_now_us());
    const uint64_t usual = !getenv("LOCKSTEP_TEST_SLOW") ? 42 : 14;
    uint64_t rounds = choice_number("LOCKSTEP_TEST_FAULT_ROUNDS", usual);
    if (rounds > ROUNDS_MAX)
        rounds = ROUNDS_MAX;
    random_state = seed * 2 + 1;
    printf("LOCKSTEP_TEST_FAULT_SEED=%llu LOCKSTEP_TEST_FAULT_ROUNDS=%llu\n",
           (unsigned long long)seed, (unsigned long long)rounds);
    coordinator_start(&coordinator, NULL);
    for (uint32_t round = 0; round < rounds; round++) {
        struct death death = choose(round);
        one_death(&death, round);
    }
    describe_times();
    coordinator_stop(&coordinator);
}

// ---- A new world --------------------------------------------------------------------------------

// Condition: a world has ended by a death. Decision: the next one of that name trains to its end.
static void a_new_world_trains(void **state)
{
    (void)state;
    struct script scripts[WORLD_MAX] = {0};
    struct death death = {
        .way = &world_ways[0], .world_size = 3, .victim = 1, .place = PLACE_STEADY, .step = 3};
    coordinator_start(&coordinator, NULL);
    one_death(&death, 0);
    for (uint32_t rank = 0; rank < 4; rank++)
        scripts[rank].last_step = 8;
    world_start(&world, &coordinator, "job", 4, scripts);
    world_expect_done(&world);
    coordinator_stop(&coordinator);
}

// ---- A stopped process --------------------------------------------------------------------------

#define STOPPED_US 3000000 // Three heartbeats: long enough to be shown as frozen.

// Condition: a worker is stopped for three seconds and goes on. Decision: the others wait, nobody
// fails, and all have the same bits.
static void a_stopped_worker_is_waited_for(void **state)
{
    (void)state;
    struct script scripts[WORLD_MAX] = {0};
    struct report report;
    for (uint32_t rank = 0; rank < 3; rank++)
        scripts[rank].report_every = 5;
    coordinator_start(&coordinator, NULL);
    world_start(&world, &coordinator, "job", 3, scripts);
    world_expect_step(&world, 1, 5);
    world_signal(&world, 1, SIGSTOP);
    pause_us(STOPPED_US);
    for (uint32_t rank = 0; rank < 3; rank++) {
        if (world_next(&world, rank, 0, &report))
            fail_msg("rank %u: %s in %s: %s", rank, lockstep_status_name(report.status),
                     report.call, report.text);
    }
    world_signal(&world, 1, SIGCONT);
    for (uint32_t rank = 0; rank < 3; rank++)
        world_expect_step(&world, rank, 30);
    world_stop(&world);
    world_expect_done(&world);
    coordinator_stop(&coordinator);
}

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(survivors_learn_who_died, teardown),
        cmocka_unit_test_teardown(a_new_world_trains, teardown),
        cmocka_unit_test_teardown(a_stopped_worker_is_waited_for, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
