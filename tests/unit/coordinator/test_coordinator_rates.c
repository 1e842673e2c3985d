// SPDX-License-Identifier: Apache-2.0
//
// Facts about a job that does move: step times, stragglers, and the rank that the others always
// wait for; and the log of a job.

#include "coordinator/culprit.h"
#include "coordinator/history.h"
#include "coordinator/journal.h"
#include "coordinator/rates.h"
#include "tests/unit/coordinator/fleet_case.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// Each rank does `steps` steps in a second, and waits `wait_us` of it, but for the slow rank, which
// does not wait.
static void run(uint32_t seconds, uint32_t steps, uint64_t wait_us, uint32_t slow)
{
    for (uint32_t second = 0; second < seconds; second++) {
        for (uint32_t rank = 0; rank < fleet.count; rank++) {
            struct up_heartbeat *beat = &fleet.ranks[rank].beat;
            beat->step += steps;
            beat->settled += steps;
            beat->totals.steps += steps;
            beat->totals.exposed_us += 1500 * (uint64_t)steps;
            beat->place.waited_us += rank == slow ? 0 : wait_us;
        }
        fleet_pass(&fleet, 1000);
    }
}

static void test_step_times_are_known(void **state)
{
    (void)state;
    struct rate_view rate;
    fleet_begin(&fleet, &story, 4, 1);
    assert_false(coordinator_rate_view(story.core, 0, 0, story.now_ms, &rate));
    run(20, 10, 0, 0);
    for (uint32_t i = 0; i < 10; i++) {
        assert_true(coordinator_rate_view(story.core, 0, i, story.now_ms, &rate));
        assert_in_range(rate.age_ms, i * 1000, i * 1000 + 2000);
        assert_in_range(rate.steps, 7, 13);
        assert_in_range(rate.step_us, 75000, 135000);
        assert_int_equal(rate.exposed_us, 1500);
    }
    run(5, 0, 0, 0);
    assert_true(coordinator_rate_view(story.core, 0, 0, story.now_ms, &rate));
    assert_int_equal(rate.steps, 0);
    assert_int_equal(rate.step_us, 0);
    run(LOCKSTEP_RATE_SAMPLES, 1, 0, 0);
    assert_true(
        coordinator_rate_view(story.core, 0, LOCKSTEP_RATE_SAMPLES - 1, story.now_ms, &rate));
    assert_false(coordinator_rate_view(story.core, 0, LOCKSTEP_RATE_SAMPLES, story.now_ms, &rate));
    assert_false(coordinator_rate_view(story.core, 1, 0, story.now_ms, &rate));
}

static void test_who_is_always_the_last_has_a_score(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 5, 1);
    run(100, 10, 400000, 3);
    assert_in_range(fleet_worker(&fleet, 3).straggler_permille, 380, 420);
    for (uint32_t rank = 0; rank < 5; rank++)
        if (rank != 3)
            assert_int_equal(fleet_worker(&fleet, rank).straggler_permille, 0);
    // It is not forgotten at once, and not kept for ever.
    run(15, 10, 400000, 99);
    assert_true(fleet_worker(&fleet, 3).straggler_permille > 100);
    run(200, 10, 400000, 99);
    assert_true(fleet_worker(&fleet, 3).straggler_permille < 20);
}

// Condition: a rank becomes slow. Decision: its score says so within seconds, and is true after 30;
// when another one is slow instead, both are true 30 seconds later.
static void test_a_score_is_true_after_thirty_seconds(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 5, 1);
    run(60, 10, 400000, 99);
    run(12, 10, 650000, 3);
    assert_in_range(fleet_worker(&fleet, 3).straggler_permille, 150, 300);
    run(20, 10, 650000, 3);
    assert_in_range(fleet_worker(&fleet, 3).straggler_permille, 610, 690);
    run(32, 10, 300000, 1);
    assert_in_range(fleet_worker(&fleet, 1).straggler_permille, 280, 320);
    assert_in_range(fleet_worker(&fleet, 3).straggler_permille, 0, 20);
}

// The first score comes after five seconds, not after the window.
static void test_a_young_job_has_scores(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 2, 1);
    run(8, 10, 650000, 1);
    assert_in_range(fleet_worker(&fleet, 1).straggler_permille, 500, 800);
    assert_int_equal(fleet_worker(&fleet, 0).straggler_permille, 0);
}

// Steps may be longer than the time between two looks: the score is of whole waits nevertheless.
static void test_long_steps_have_scores(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 3, 1);
    for (uint32_t step = 0; step < 5; step++) {
        run(19, 0, 650000, 2);
        run(1, 1, 650000, 2);
    }
    assert_in_range(fleet_worker(&fleet, 2).straggler_permille, 610, 690);
}

static void test_who_stands_still_is_no_straggler(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 5, 1);
    for (uint32_t rank = 0; rank < 5; rank++)
        fleet.ranks[rank].beat.totals.steps = 0;
    run(100, 0, 400000, 3);
    assert_int_equal(fleet_worker(&fleet, 3).straggler_permille, 0);
}

static void test_a_job_that_has_ended_has_no_straggler(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 2, 1);
    run(40, 10, 650000, 1);
    assert_in_range(fleet_worker(&fleet, 1).straggler_permille, 500, 800);
    for (uint32_t peer = 1; peer <= 2; peer++)
        story_leave(&story, peer, fleet.ranks[0].beat.settled);
    assert_int_equal(story_job(&story, 0).state, JOB_FINISHED);
    assert_int_equal(fleet_worker(&fleet, 1).straggler_permille, 0);
}

static void test_a_worker_that_counts_backwards_is_not_believed(void **state)
{
    (void)state;
    struct rate_view rate;
    fleet_begin(&fleet, &story, 3, 1);
    run(15, 10, 1000, 9);
    fleet.ranks[1].beat.totals.steps = 0;
    fleet.ranks[1].beat.totals.exposed_us = UINT64_MAX;
    fleet.ranks[1].beat.place.waited_us = 0;
    run(30, 10, UINT64_MAX / 3, 9);
    assert_true(coordinator_rate_view(story.core, 0, 0, story.now_ms, &rate));
    for (uint32_t rank = 0; rank < 3; rank++)
        assert_true(fleet_worker(&fleet, rank).straggler_permille <= 1000);
}

static void test_who_is_behind_the_median_lags(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 5, 1);
    for (uint32_t rank = 0; rank < 5; rank++)
        fleet.ranks[rank].beat.step = 100;
    fleet.ranks[2].beat.step = 93;
    fleet.ranks[4].beat.step = 101;
    fleet_pass(&fleet, 3000);
    assert_int_equal(fleet_worker(&fleet, 2).lag_steps, 7);
    assert_int_equal(fleet_worker(&fleet, 0).lag_steps, 0);
    assert_int_equal(fleet_worker(&fleet, 4).lag_steps, 0);
}

// Condition: a job runs for longer than there are slots. Decision: the slots cover the whole run,
// they are coarser, and what they count is what the ranks counted.
static void test_a_history_covers_the_whole_run(void **state)
{
    (void)state;
    const uint32_t seconds = 3 * LOCKSTEP_HISTORY_SLOTS + 7;
    struct history_view slot;
    double steps = 0;
    uint64_t span_ms = 0;
    uint64_t age_ms = UINT64_MAX;
    uint32_t count = 0;
    fleet_begin(&fleet, &story, 3, 1);
    for (uint32_t rank = 0; rank < 3; rank++)
        fleet.ranks[rank].beat.totals.steps = 0;
    run(seconds, 10, 0, 0);
    for (; coordinator_history_view(story.core, 0, count, story.now_ms, &slot); count++) {
        assert_true(slot.age_ms < age_ms);
        if (count > 0)
            assert_in_range((uint64_t)slot.step_us, 80000, 125000);
        age_ms = slot.age_ms;
        span_ms += slot.span_ms;
        steps += slot.steps;
    }
    assert_in_range(count, LOCKSTEP_HISTORY_SLOTS / 2, LOCKSTEP_HISTORY_SLOTS);
    assert_in_range(span_ms, 1000 * (uint64_t)(seconds - 10), 1000 * (uint64_t)(seconds + 1));
    assert_in_range((uint64_t)steps, 10 * (seconds - 10), 10 * (seconds + 1));
    assert_true(age_ms <= 4000);
    assert_false(coordinator_history_view(story.core, 1, 0, story.now_ms, &slot));
}

// Condition: a rank dies, and the others, which have made more steps since their last heartbeats,
// say so when they close their sessions. Decision: the history has these steps, each once.
static void test_a_history_has_the_last_words_after_a_verdict(void **state)
{
    (void)state;
    struct history_view slot;
    double steps = 0;
    uint64_t span_ms = 0;
    fleet_begin(&fleet, &story, 3, 1);
    for (uint32_t rank = 0; rank < 3; rank++)
        fleet.ranks[rank].beat.totals.steps = 0;
    run(10, 10, 0, 0);
    story_lost(&story, 1, 2, 101, false);
    for (uint32_t times = 0; times < 2; times++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            fleet.ranks[rank].beat.totals.steps = 115;
            fleet_say(&fleet, rank);
        }
        story_sleep(&story, 5000);
    }
    for (uint32_t i = 0; coordinator_history_view(story.core, 0, i, story.now_ms, &slot); i++) {
        steps += slot.steps;
        span_ms += slot.span_ms;
    }
    assert_in_range((uint64_t)(3 * steps + 0.5), 2 * 115 + 90, 2 * 115 + 100);
    assert_in_range(span_ms, 9000, 11000);
}

static void test_numbers_in_marks_are_metrics(void **state)
{
    (void)state;
    struct history_view slot;
    fleet_begin(&fleet, &story, 3, 1);
    strcpy(fleet.ranks[0].beat.mark, "epoch 3, loss=0.5 lr=1e-3; nan=nan x=0x1 =3 y= z=1e99");
    strcpy(fleet.ranks[1].beat.mark, "loss=1.5");
    strcpy(fleet.ranks[2].beat.mark, "loss=a");
    run(10, 10, 0, 0);
    const struct job_view job = story_job(&story, 0);
    assert_int_equal(job.metric_count, 2);
    assert_string_equal(job.metrics[0], "loss");
    assert_string_equal(job.metrics[1], "lr");
    assert_true(coordinator_history_view(story.core, 0, 5, story.now_ms, &slot));
    assert_int_equal(slot.known, 3);
    assert_float_equal(slot.metrics[0], 1, 1e-6);
    assert_float_equal(slot.metrics[1], 0.001, 1e-9);
    // More names than a job has room for, and names that begin alike.
    strcpy(fleet.ranks[0].beat.mark, "loss=1 los=2 loss2=3 c=4 d=5 e=6 f=7 g=8 h=9");
    for (uint32_t i = 0; i < LOCKSTEP_JOB_METRICS; i++)
        snprintf(fleet.ranks[i % 2 + 1].beat.mark + 6 * (i / 2), 7, "m%02u=1 ", i);
    run(5, 10, 0, 0);
    assert_int_equal(story_job(&story, 0).metric_count, LOCKSTEP_JOB_METRICS);
    assert_string_equal(story_job(&story, 0).metrics[2], "los");
}

// Condition: rank 0 reports metrics and counters; another rank reports some, too; a mark has the
// name of a metric. Decision: those of rank 0 are the job's, last and over time, and the mark's is
// left out.
static void test_metrics_and_counters_of_a_job(void **state)
{
    (void)state;
    struct history_view slot;
    fleet_begin(&fleet, &story, 3, 1);
    struct up_heartbeat *first = &fleet.ranks[0].beat;
    first->metric_count = 3;
    first->metrics[0] = (struct metric_state){"loss", METRIC_MEAN, 3, 0.25};
    first->metrics[1] = (struct metric_state){"broken", METRIC_MAX, 3, NAN};
    first->metrics[2] = (struct metric_state){"most", METRIC_MAX, 3, 8};
    first->counter_count = 1;
    first->counters[0] = (struct counter_state){"all\tsamples", -7};
    fleet.ranks[1].beat.metric_count = 1;
    fleet.ranks[1].beat.metrics[0] = (struct metric_state){"mine", METRIC_SUM, 1, 5};
    strcpy(fleet.ranks[2].beat.mark, "loss=99 lr=2");
    run(10, 10, 0, 0);
    const struct job_view job = story_job(&story, 0);
    assert_int_equal(job.numbers.metric_count, 3);
    assert_string_equal(job.numbers.metrics[0].name, "loss");
    assert_true(job.numbers.metrics[0].value == 0.25);
    assert_int_equal(job.numbers.counter_count, 1);
    assert_string_equal(job.numbers.counters[0].name, "all?samples");
    assert_int_equal(job.numbers.counters[0].total, -7);
    assert_int_equal(job.metric_count, 4);
    assert_string_equal(job.metrics[0], "loss");
    assert_string_equal(job.metrics[1], "most");
    assert_string_equal(job.metrics[2], "all?samples");
    assert_string_equal(job.metrics[3], "lr");
    assert_true(coordinator_history_view(story.core, 0, 5, story.now_ms, &slot));
    assert_int_equal(slot.known, 15);
    assert_float_equal(slot.metrics[0], 0.25, 0);
    assert_float_equal(slot.metrics[1], 8, 0);
    assert_float_equal(slot.metrics[2], -7, 0);
    assert_float_equal(slot.metrics[3], 2, 0);
}

static void test_a_job_keeps_its_last_lines(void **state)
{
    (void)state;
    struct event_view line;
    story.quiet = true;
    for (uint32_t i = 0; i < LOCKSTEP_JOB_EVENTS; i++) {
        story_join(&story, 2 * i + 1, "a");
        story_join(&story, 2 * i + 2, "b");
        story_leave(&story, 2 * i + 1, 0);
        story_close(&story, 2 * i + 2, "reset");
        story_sleep(&story, 10);
    }
    assert_true(coordinator_event_view(story.core, 0, 0, story.now_ms, &line));
    assert_string_equal(line.id, "generation_halted");
    assert_non_null(strstr(line.text, "its control stream ended without a goodbye (reset)"));
    assert_int_equal(line.age_ms, 10);
    assert_true(coordinator_event_view(story.core, 0, 1, story.now_ms, &line));
    assert_string_equal(line.id, "world_formed");
    assert_true(
        coordinator_event_view(story.core, 0, LOCKSTEP_JOB_EVENTS - 1, story.now_ms, &line));
    assert_false(coordinator_event_view(story.core, 0, LOCKSTEP_JOB_EVENTS, story.now_ms, &line));
    assert_false(coordinator_event_view(story.core, 1, 0, story.now_ms, &line));
}

static void test_functions_and_kinds_have_names(void **state)
{
    (void)state;
    assert_string_equal(api_function_name(API_CALL_END), "call_end");
    assert_string_equal(api_function_name(API_CLOSE), "close");
    assert_string_equal(api_function_name(API_GROUP_CREATE + 1), "unknown");
    assert_string_equal(coordinator_stall_kind_name(STALL_IN_CALL), "in_call");
    assert_string_equal(coordinator_stall_kind_name(STALL_UNKNOWN), "unknown");
    assert_string_equal(coordinator_stall_kind_name(STALL_DEVICE), "device");
    assert_string_equal(coordinator_stall_kind_name(STALL_DEVICE + 1), "unknown");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fleet_setup, fleet_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_step_times_are_known),
        TEST(test_who_is_always_the_last_has_a_score),
        TEST(test_a_score_is_true_after_thirty_seconds),
        TEST(test_a_young_job_has_scores),
        TEST(test_long_steps_have_scores),
        TEST(test_who_stands_still_is_no_straggler),
        TEST(test_a_job_that_has_ended_has_no_straggler),
        TEST(test_a_worker_that_counts_backwards_is_not_believed),
        TEST(test_who_is_behind_the_median_lags),
        TEST(test_a_history_covers_the_whole_run),
        TEST(test_a_history_has_the_last_words_after_a_verdict),
        TEST(test_numbers_in_marks_are_metrics),
        TEST(test_metrics_and_counters_of_a_job),
        TEST(test_a_job_keeps_its_last_lines),
        TEST(test_functions_and_kinds_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
