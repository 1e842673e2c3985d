// SPDX-License-Identifier: Apache-2.0
//
// Plans that take the place of others: asked for by ranks whose steps differ from the plan time and
// again, published once, forgotten when they come too late.

#include "tests/unit/coordinator/story.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct story story;

static const uint32_t one_bucket[] = {1, 2, 0, 1};
static const uint32_t two_buckets[] = {2, 1, 3, 2, 0, 1};

static int teardown(void **state)
{
    (void)state;
    story_end(&story);
    return 0;
}

// Plan number 1 of phase 0: a call of module 0, with a bucket, and one of module 1, with two.
static int setup(void **state)
{
    (void)state;
    story_begin(&story);
    story_run(&story, 2);
    for (uint32_t peer = 1; peer <= 2; peer++) {
        story_ready(&story, peer, 1, slot(0, 0, 0));
        story_ready(&story, peer, 1, slot(1, 0, 0));
    }
    story_layout(&story, 1, 0, one_bucket, 4);
    story_layout(&story, 1, 1, two_buckets, 6);
    story_step_end(&story, 1, 1);
    story_step_end(&story, 2, 1);
    assert_int_equal(story_job(&story, 0).plan_number, 1);
    story_forget(&story);
    return 0;
}

static struct up_message ask(uint64_t replaces, uint64_t in_force)
{
    const struct up_message message = {
        .kind = UP_REPLAN,
        .u.replan = {.step = 4,
                     .replaces = replaces,
                     .in_force = in_force,
                     .call_count = 3,
                     .calls = {{1, 0}, {0, 0}, {0, 1}}},
    };
    return message;
}

static void say(uint32_t peer, uint64_t replaces, uint64_t in_force)
{
    struct up_message message = ask(replaces, in_force);
    story_say(&story, peer, &message);
}

static void expect_nothing(uint32_t peer, uint64_t replaces, uint64_t in_force)
{
    const uint64_t before = story_job(&story, 0).plan_number;
    story_forget(&story);
    say(peer, replaces, in_force);
    assert_null(strstr(story.trace, " < "));
    assert_int_equal(story_job(&story, 0).plan_number, before);
    assert_int_equal(story_job(&story, 0).state, JOB_RUNNING);
}

static void test_calls_in_another_order_and_more_of_them(void **state)
{
    (void)state;
    const uint64_t hash = story.last[2].u.plan_part.hash;
    say(2, 1, 1);
    story_expect(&story, "2 > replan step 4 in place of 1: 1#0 0#0 0#1\n"
                         "1 < plan 2 replaces 1, slots 0 to 4 of 4, last: 1#0.0 1#0.1 0#0.0 "
                         "0#1.0\n"
                         "2 < plan 2 replaces 1, slots 0 to 4 of 4, last: 1#0.0 1#0.1 0#0.0 "
                         "0#1.0\n");
    assert_int_equal(story.last[1].u.plan_part.hash, story.last[2].u.plan_part.hash);
    assert_int_not_equal(story.last[1].u.plan_part.hash, hash);
    assert_int_equal(story.last[1].u.plan_part.slots[0].algorithm, ALGORITHM_BY_SIZE);
}

static void test_who_says_it_second_is_not_heard(void **state)
{
    (void)state;
    say(2, 1, 1);
    expect_nothing(1, 1, 1);
}

// A rank holds one plan that is not in force yet.
static void test_the_next_one_waits_until_the_last_is_in_force(void **state)
{
    (void)state;
    say(1, 1, 1);
    expect_nothing(1, 2, 1);
    say(1, 2, 2);
    story_expect_piece(&story, "2 < plan 3 replaces 2, slots");
}

// A rank drops a plan that is not in force when a later one is learned.
static void test_a_plan_that_was_dropped_may_be_proposed_again(void **state)
{
    (void)state;
    say(1, 1, 1);
    expect_nothing(1, 1, 1);
    say(1, 1, 2);
    story_expect_piece(&story, "2 < plan 3 replaces 1, slots");
    expect_nothing(1, 2, 3);
}

static void test_other_phases_and_other_plans_are_not_known(void **state)
{
    struct up_message message = ask(1, 1);
    (void)state;
    expect_nothing(1, 0, 1);
    expect_nothing(1, 7, 7);
    message.u.replan.phase = 5;
    story_say(&story, 1, &message);
    assert_null(strstr(story.trace, " < "));
}

static void test_a_plan_is_replaced_only_so_often(void **state)
{
    (void)state;
    for (uint64_t number = 1; number <= LOCKSTEP_REPLAN_TIMES; number++) {
        say(1, number, number);
        assert_int_equal(story_job(&story, 0).plan_number, number + 1);
    }
    expect_nothing(1, LOCKSTEP_REPLAN_TIMES + 1, LOCKSTEP_REPLAN_TIMES + 1);
}

// Workers have forgotten all plans by then.
static void test_after_a_second_start_earlier_plans_are_gone(void **state)
{
    (void)state;
    for (uint32_t peer = 1; peer <= 2; peer++) {
        struct up_message message = {
            .kind = UP_START, .u.start = {.manifest_hash = 8, .item_count = 3, .settled = 4}};
        if (peer == 2) // It came when the other one had started already.
            say(1, 1, 1);
        story_say(&story, peer, &message);
    }
    expect_nothing(1, 1, 1);
    assert_null(strstr(story.trace, "plan 2"));
}

// While a phase is learned the plan that closes the step puts this one into force as well.
static void test_a_learning_step_does_not_keep_it_away(void **state)
{
    struct up_message message = {.kind = UP_END, .u.end = {.step = 5, .phase = 9}};
    (void)state;
    story_say(&story, 1, &message);
    say(2, 1, 1);
    story_expect_piece(&story, "2 < plan 2 replaces 1, slots");
    story_say(&story, 2, &message);
    story_expect_piece(&story, "1 < plan 3 closes step 5, slots 0 to 0 of 0, last:\n");
}

static void test_impossible_plans_are_named(void **state)
{
    static const struct {
        const char *fault;
        uint32_t count;
        struct call_id calls[3];
    } wrong[] = {
        {"has an impossible number of calls", 0, {{0, 0}}},
        {"has an impossible number of calls", LOCKSTEP_REPLAN_CALLS + 1, {{0, 0}}},
        {"has a call twice", 3, {{0, 1}, {1, 0}, {0, 1}}},
        {"has a call that cannot be", 1, {{2, 0}}}, // Without a layout.
        {"has a call that cannot be", 1, {{LOCKSTEP_MAX_MODULES, 0}}},
        {"has a call that cannot be", 1, {{0, LOCKSTEP_MAX_CALLS}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char piece[256];
        struct up_message message = ask(1, 1);
        story_end(&story);
        setup(NULL);
        message.u.replan.call_count = wrong[i].count;
        memcpy(message.u.replan.calls, wrong[i].calls, sizeof(wrong[i].calls));
        story_say(&story, 2, &message);
        snprintf(piece, sizeof(piece),
                 "1 < halt protocol step 0: rank 1 (host h2) wants a plan that %s;",
                 wrong[i].fault);
        story_expect_piece(&story, piece);
    }
}

static void test_a_plan_with_too_many_slots_is_named(void **state)
{
    static uint32_t words[1 + 2 * 600];
    struct up_message message = ask(1, 1);
    (void)state;
    words[0] = 600;
    for (uint32_t i = 0; i < 600; i++) {
        words[1 + i] = i + 1;
        words[601 + i] = i;
    }
    story_end(&story);
    story_begin(&story);
    story_run(&story, 1);
    story_layout(&story, 1, 0, words, 1201);
    story_ready(&story, 1, 1, slot(0, 0, 0));
    story_step_end(&story, 1, 1);
    message.u.replan.call_count = 2;
    message.u.replan.calls[0] = (struct call_id){0, 0};
    message.u.replan.calls[1] = (struct call_id){0, 1};
    story_say(&story, 1, &message);
    story_expect_piece(&story, "wants a plan that has more slots than there may be;");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_calls_in_another_order_and_more_of_them),
        TEST(test_who_says_it_second_is_not_heard),
        TEST(test_the_next_one_waits_until_the_last_is_in_force),
        TEST(test_a_plan_that_was_dropped_may_be_proposed_again),
        TEST(test_other_phases_and_other_plans_are_not_known),
        TEST(test_a_plan_is_replaced_only_so_often),
        TEST(test_after_a_second_start_earlier_plans_are_gone),
        TEST(test_a_learning_step_does_not_keep_it_away),
        TEST(test_impossible_plans_are_named),
        TEST(test_a_plan_with_too_many_slots_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
