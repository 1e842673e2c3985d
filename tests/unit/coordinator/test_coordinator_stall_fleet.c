// SPDX-License-Identifier: Apache-2.0
//
// Random jobs, in simulated time. Healthy ones compute, pause, evaluate on one rank, take long in
// their first steps and say so late: none of that is a stall. Then one rank gets stuck: it is named
// within its bound and a heartbeat, and nobody else is.

#include "tests/support/bounds.h"
#include "tests/support/choice.h"
#include "tests/unit/coordinator/fleet_case.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum {
    LATE_MS = 1400 // A late heartbeat: with the second before it, less than a silence.
};

enum phase {
    PHASE_OUTSIDE,
    PHASE_CALL,
    PHASE_WAIT
};

struct trainer {
    enum phase phase;
    uint64_t until_ms; // End of the phase; the last phase has none.
    uint64_t longest_us; // Outside, of those that were not declared.
    bool stuck;
    bool late; // True if its next heartbeat is late.
};

struct job_model {
    uint64_t random;
    uint64_t steps;
    struct trainer trainers[FLEET_RANKS];
};

static struct job_model model;

static int setup(void **state)
{
    memset(&model, 0, sizeof(model));
    return fleet_setup(state);
}

static uint64_t draw(uint64_t below)
{
    return choice_below(&model.random, below);
}

// ---- A trainer ---------------------------------------------------------------------------------

// Draws how long a rank is outside the library in this step, and fills in its heartbeat.
static uint64_t outside_ms(uint32_t rank)
{
    struct up_heartbeat *beat = &fleet.ranks[rank].beat;
    struct trainer *trainer = &model.trainers[rank];
    uint64_t ms = 100 + draw(300);
    beat->flags = 0;
    if (model.steps < LOCKSTEP_STALL_FIRST_STEPS)
        return 20000 + draw(20000); // The trainer compiles its kernels.
    if (draw(2000) == 0) {
        beat->flags = PLACE_PAUSED;
        beat->pause_ms = 30000;
        return 20000 + draw(30000); // A checkpoint, which may last longer than the pause said.
    }
    if (draw(100) == 0)
        ms = draw(3000); // The data loader is slow.
    if (rank == 0 && draw(200) == 0)
        ms = 5000 + draw(4900); // An evaluation.
    if (ms * 1000 > trainer->longest_us)
        trainer->longest_us = ms * 1000;
    return ms;
}

static void trainer_enter(uint32_t rank, enum phase phase)
{
    struct trainer *trainer = &model.trainers[rank];
    trainer->phase = phase;
    if (phase == PHASE_OUTSIDE) {
        const uint64_t ms = outside_ms(rank);
        trainer->until_ms = story.now_ms + ms;
        fleet_outside(&fleet, rank);
        fleet.ranks[rank].beat.place.usual_us = 400000;
        fleet.ranks[rank].beat.place.longest_us = trainer->longest_us;
    } else if (phase == PHASE_CALL) {
        trainer->until_ms = story.now_ms + 50 + draw(400);
        fleet.ranks[rank].beat.flags = 0;
        fleet_in_call(&fleet, rank);
    } else {
        fleet_waits(&fleet, rank);
    }
}

static void trainer_turn(uint32_t rank)
{
    struct trainer *trainer = &model.trainers[rank];
    if (trainer->stuck || trainer->phase == PHASE_WAIT || story.now_ms < trainer->until_ms)
        return;
    trainer_enter(rank, trainer->phase == PHASE_OUTSIDE ? PHASE_CALL : PHASE_WAIT);
}

// ---- A job -------------------------------------------------------------------------------------

static bool all_wait(void)
{
    for (uint32_t rank = 0; rank < fleet.count; rank++)
        if (model.trainers[rank].phase != PHASE_WAIT)
            return false;
    return true;
}

static void job_next_step(void)
{
    model.steps++;
    fleet_settle(&fleet);
    for (uint32_t rank = 0; rank < fleet.count; rank++) {
        fleet.ranks[rank].beat.totals.steps = model.steps;
        fleet.ranks[rank].beat.bytes_sent += 1000;
        trainer_enter(rank, PHASE_OUTSIDE);
    }
}

static void job_turn(void)
{
    for (uint32_t rank = 0; rank < fleet.count; rank++) {
        struct fleet_rank *of = &fleet.ranks[rank];
        struct trainer *trainer = &model.trainers[rank];
        trainer_turn(rank);
        trainer->late = trainer->late && of->next_ms <= story.now_ms + LATE_MS;
        if (story.now_ms + FLEET_MS < of->next_ms || trainer->late || draw(300) > 0)
            continue;
        trainer->late = true;
        of->next_ms += draw(LATE_MS);
    }
    if (all_wait())
        job_next_step();
    fleet_pass(&fleet, FLEET_MS);
}

static void job_begin(uint32_t world, uint64_t seed)
{
    model.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    fleet_begin(&fleet, &story, world, 8);
    for (uint32_t rank = 0; rank < world; rank++) {
        fleet.ranks[rank].beat.totals.steps = 0;
        trainer_enter(rank, PHASE_OUTSIDE);
    }
}

static void job_run(uint64_t ms)
{
    const uint64_t end = story.now_ms + ms;
    while (story.now_ms < end) {
        job_turn();
        if (!fleet_is_stalled(&fleet))
            continue;
        print_error("%s\n", fleet_stall(&fleet)->sentence);
        fail_msg("a healthy job is called stalled");
    }
    assert_int_equal(fleet_stalls(&fleet), 0);
}

static void test_ten_hours_of_a_healthy_job_are_no_stall(void **state)
{
    (void)state;
    job_begin(8, 1);
    const uint64_t hours = test_slow() > 1 ? 2 : 10;
    job_run(hours * 3600 * 1000);
    assert_true(model.steps > 1000 * hours);
}

static void test_a_thousand_healthy_ranks_are_no_stall(void **state)
{
    (void)state;
    job_begin(1000, 2);
    job_run(UINT64_C(120) * 1000);
}

// ---- One that gets stuck -----------------------------------------------------------------------

static enum stall_kind get_stuck(uint32_t rank)
{
    struct trainer *trainer = &model.trainers[rank];
    trainer->stuck = true;
    fleet.ranks[rank].mute = draw(2) == 0;
    if (draw(3) == 0) {
        fleet.ranks[rank].silent = true;
        return STALL_FROZEN;
    }
    return trainer->phase == PHASE_CALL ? STALL_IN_CALL : STALL_OUTSIDE;
}

// True if all other ranks wait for this rank.
static bool all_wait_for(uint32_t rank)
{
    for (uint32_t other = 0; other < fleet.count; other++)
        if (other != rank && model.trainers[other].phase != PHASE_WAIT)
            return false;
    return true;
}

// At the latest when it is at the end of its bound and all others wait for it, by heartbeats that
// may be late. A frozen one has no bound, but others must have waited for a moment.
static void assert_found(uint32_t rank, enum stall_kind kind)
{
    const uint64_t from = fleet.ranks[rank].api_at_ms;
    const uint64_t answer = fleet.ranks[rank].mute ? LOCKSTEP_INSPECT_MS + LOCKSTEP_WATCH_MS : 0;
    uint64_t due = 0;
    while (!fleet_is_stalled(&fleet)) {
        if (due == 0 && all_wait_for(rank))
            due = story.now_ms + (kind == STALL_FROZEN ? 3000 : 0);
        job_turn();
        const uint64_t end = kind == STALL_FROZEN ? 0 : from + fleet_worker(&fleet, rank).bound_ms;
        if (due != 0)
            assert_true(story.now_ms <= (due > end ? due : end) + LOCKSTEP_HEARTBEAT_MS + LATE_MS +
                                            answer + 4 * FLEET_MS);
    }
    const struct stall_view *stall = fleet_stall(&fleet);
    if (stall->culprit_total != 1 || stall->culprits[0].rank != rank || stall->kind != kind)
        print_error("rank %" PRIu32 " is stuck: %s\n", rank, stall->sentence);
    assert_int_equal(stall->culprit_total, 1);
    assert_int_equal(stall->culprits[0].rank, rank);
    assert_int_equal(stall->kind, kind);
}

static void test_one_stuck_rank_is_found_and_nobody_else(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= (test_slow() > 1 ? 30 : 100); seed++) {
        fleet_teardown(NULL);
        setup(NULL);
        job_begin(2 + (uint32_t)seed % 15, seed);
        for (uint32_t rank = 0; rank < fleet.count; rank++)
            model.trainers[rank].until_ms = story.now_ms + 100; // No first steps.
        model.steps = 10;
        job_run(30000 + draw(60000));
        uint32_t rank = (uint32_t)draw(fleet.count);
        while (model.trainers[rank].phase == PHASE_WAIT ||
               (fleet.ranks[rank].beat.flags & PLACE_PAUSED) != 0) {
            job_turn();
            rank = (uint32_t)draw(fleet.count);
        }
        const enum stall_kind kind = get_stuck(rank);
        assert_found(rank, kind);
        job_turn();
        assert_true(fleet_is_stalled(&fleet));
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fleet_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_ten_hours_of_a_healthy_job_are_no_stall),
        TEST(test_a_thousand_healthy_ranks_are_no_stall),
        TEST(test_one_stuck_rank_is_found_and_nobody_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
