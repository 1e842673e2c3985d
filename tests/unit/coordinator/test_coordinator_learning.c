// SPDX-License-Identifier: Apache-2.0
//
// Learning: slots are granted in the order of completion, and the plan has the same order.

#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// One bucket with parameters 0 and 1; two buckets, {2} and {0, 1}.
static const uint32_t one_bucket[] = {1, 2, 0, 1};
static const uint32_t two_buckets[] = {2, 1, 3, 2, 0, 1};

static void test_two_ranks_with_different_ready_orders(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_ready(story, 2, 1, slot(1, 0, 0));
    story_ready(story, 1, 1, slot(1, 0, 0));
    story_ready(story, 2, 1, slot(0, 0, 0));
    story_layout(story, 1, 0, one_bucket, 4);
    story_layout(story, 1, 1, two_buckets, 6);
    story_step_end(story, 1, 1);
    story_expect(story, "1 > ready step 1 slot 0#0.0\n"
                        "2 > ready step 1 slot 1#0.0\n"
                        "1 > ready step 1 slot 1#0.0\n"
                        "1 < grant step 1 slot 1#0.0\n"
                        "2 < grant step 1 slot 1#0.0\n"
                        "2 > ready step 1 slot 0#0.0\n"
                        "1 < grant step 1 slot 0#0.0\n"
                        "2 < grant step 1 slot 0#0.0\n"
                        "1 > layout of module 0, words 0 to 4 of 4\n"
                        "1 > layout of module 1, words 0 to 6 of 6\n"
                        "1 > end step 1\n");
    story_step_end(story, 2, 1);
    story_expect(story, "2 > end step 1\n"
                        "1 < layout of module 0, words 0 to 4 of 4\n"
                        "1 < layout of module 1, words 0 to 6 of 6\n"
                        "1 < plan 1 closes step 1, slots 0 to 3 of 3, last: 1#0.0 1#0.1 0#0.0\n"
                        "2 < layout of module 0, words 0 to 4 of 4\n"
                        "2 < layout of module 1, words 0 to 6 of 6\n"
                        "2 < plan 1 closes step 1, slots 0 to 3 of 3, last: 1#0.0 1#0.1 0#0.0\n");
    assert_int_equal(story_job(story, 0).plan_number, 1);
}

// Says which of modules 0 and 1 have a group, and which of them the worker does not have.
static void say_groups(struct story *story, uint32_t peer, uint64_t grouped, uint64_t absent)
{
    struct up_message message = {.kind = UP_MODULES};
    message.u.modules.grouped = grouped;
    message.u.modules.absent = absent;
    story_say(story, peer, &message);
}

// Module 1 is of a group of ranks 1 and 2. Its slot waits for them, and until rank 0 has begun the
// step, but not for rank 0's end. Rank 0 is forced to nothing, and rank 1 proposes the layout.
static void test_a_slot_does_not_wait_for_ranks_without_its_module(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    say_groups(story, 2, 2, 0);
    story_ready(story, 2, 1, slot(1, 0, 0));
    say_groups(story, 3, 2, 0);
    story_ready(story, 3, 1, slot(1, 0, 0));
    say_groups(story, 1, 2, 2);
    story_forget(story);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_expect(story, "1 > ready step 1 slot 0#0.0\n"
                        "1 < grant step 1 slot 1#0.0\n"
                        "2 < grant step 1 slot 1#0.0\n"
                        "3 < grant step 1 slot 1#0.0\n");
    story_layout(story, 1, 0, one_bucket, 4);
    story_layout(story, 2, 1, two_buckets, 6);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_step_end(story, peer, 1);
    assert_int_equal(story_job(story, 0).plan_number, 1);
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
}

// Module 1 is of a group of ranks 1 and 2, which make module 0 first. Rank 0 has not made it yet.
static void make_both(struct story *story)
{
    story_run(story, 3);
    say_groups(story, 1, 2, 2);
    for (uint32_t peer = 2; peer <= 3; peer++) {
        say_groups(story, peer, 2, 0);
        story_ready(story, peer, 1, slot(0, 0, 0));
        story_ready(story, peer, 1, slot(1, 0, 0));
    }
    story_ready(story, 1, 1, slot(0, 1, 0));
    story_forget(story);
}

// Otherwise a plan would have module 1 first, although every rank that makes both makes it second.
static void test_a_group_comes_after_what_its_members_made_before(void **state)
{
    struct story *story = *state;
    make_both(story);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_expect(story, "1 > ready step 1 slot 0#0.0\n"
                        "1 < grant step 1 slot 0#0.0\n"
                        "2 < grant step 1 slot 0#0.0\n"
                        "3 < grant step 1 slot 0#0.0\n"
                        "1 < grant step 1 slot 1#0.0\n"
                        "2 < grant step 1 slot 1#0.0\n"
                        "3 < grant step 1 slot 1#0.0\n");
}

static void test_a_group_that_a_member_waits_for_comes_at_once(void **state)
{
    struct story *story = *state;
    make_both(story);
    story_wait(story, 3, 1, slot(1, 0, 0));
    story_expect(story, "3 > wait step 1 slot 1#0.0\n"
                        "1 < grant step 1 slot 1#0.0\n"
                        "2 < grant step 1 slot 1#0.0\n"
                        "3 < grant step 1 slot 1#0.0\n");
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
}

// Module 0 is of ranks 0 and 1, module 1 of ranks 1 and 2, module 2 of ranks 0 and 2. Each comes
// after another one on some rank, so no order suits all.
static void test_groups_in_a_circle_come_in_the_order_of_their_first_reports(void **state)
{
    static const uint32_t made[3][2] = {{0, 2}, {1, 0}, {2, 1}};
    struct story *story = *state;
    story_run(story, 3);
    for (uint32_t peer = 1; peer <= 3; peer++)
        say_groups(story, peer, 7, UINT64_C(1) << peer % 3);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_ready(story, peer, 1, slot(made[peer - 1][0], 0, 0));
    story_ready(story, 1, 1, slot(2, 0, 0));
    story_ready(story, 2, 1, slot(0, 0, 0));
    story_forget(story);
    story_ready(story, 3, 1, slot(1, 0, 0));
    story_expect(story, "3 > ready step 1 slot 1#0.0\n"
                        "1 < grant step 1 slot 0#0.0\n"
                        "2 < grant step 1 slot 0#0.0\n"
                        "3 < grant step 1 slot 0#0.0\n"
                        "1 < grant step 1 slot 2#0.0\n"
                        "2 < grant step 1 slot 2#0.0\n"
                        "3 < grant step 1 slot 2#0.0\n"
                        "1 < grant step 1 slot 1#0.0\n"
                        "2 < grant step 1 slot 1#0.0\n"
                        "3 < grant step 1 slot 1#0.0\n");
}

static void test_a_rank_proposes_no_layout_of_a_module_that_it_lacks(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    say_groups(story, 1, 2, 2);
    story_layout(story, 1, 1, two_buckets, 6);
    story_expect_piece(story, "proposed a layout, which only rank 0 does");
}

static void test_what_only_some_have_is_granted_when_the_others_end(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    story_layout(story, 1, 0, one_bucket, 4);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_ready(story, 1, 1, slot(0, 1, 0));
    story_ready(story, 2, 1, slot(0, 0, 0));
    story_ready(story, 2, 1, slot(0, 1, 0));
    story_step_end(story, 1, 1);
    story_step_end(story, 2, 1);
    story_forget(story);
    story_step_end(story, 3, 1);
    story_expect(story, "3 > end step 1\n"
                        "1 < grant step 1 slot 0#0.0\n"
                        "2 < grant step 1 slot 0#0.0\n"
                        "3 < grant step 1 slot 0#0.0\n"
                        "1 < grant step 1 slot 0#1.0\n"
                        "2 < grant step 1 slot 0#1.0\n"
                        "3 < grant step 1 slot 0#1.0\n"
                        "1 < layout of module 0, words 0 to 4 of 4\n"
                        "1 < plan 1 closes step 1, slots 0 to 2 of 2, last: 0#0.0 0#1.0\n"
                        "2 < layout of module 0, words 0 to 4 of 4\n"
                        "2 < plan 1 closes step 1, slots 0 to 2 of 2, last: 0#0.0 0#1.0\n"
                        "3 < layout of module 0, words 0 to 4 of 4\n"
                        "3 < plan 1 closes step 1, slots 0 to 2 of 2, last: 0#0.0 0#1.0\n");
}

static void test_a_slot_that_comes_after_another_has_ended_needs_only_the_rest(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_step_end(story, 2, 1);
    story_forget(story);
    story_ready(story, 1, 1, slot(4, 0, 0));
    story_expect(story, "1 > ready step 1 slot 4#0.0\n"
                        "1 < grant step 1 slot 4#0.0\n"
                        "2 < grant step 1 slot 4#0.0\n");
}

static void test_an_empty_step_has_an_empty_plan(void **state)
{
    struct story *story = *state;
    story_run(story, 1);
    story_step_end(story, 1, 5);
    story_expect(story, "1 > end step 5\n"
                        "1 < plan 1 closes step 5, slots 0 to 0 of 0, last:\n");
}

static void test_plans_are_numbered_over_phases_and_layouts_belong_to_one_step(void **state)
{
    struct story *story = *state;
    story_run(story, 1);
    for (uint64_t step = 1; step <= 2; step++) {
        struct up_message message = {
            .kind = UP_READY,
            .u.ready = {.step = step, .phase = 10 + step, .dtype = DTYPE_FLOAT32, .elements = 10},
        };
        if (step == 1)
            story_layout(story, 1, 0, one_bucket, 4);
        else
            story_layout(story, 1, 0, two_buckets, 6);
        story_say(story, 1, &message);
        message.kind = UP_END;
        message.u.end.step = step;
        message.u.end.phase = 10 + step;
        story_say(story, 1, &message);
    }
    story_expect(story, "1 > layout of module 0, words 0 to 4 of 4\n"
                        "1 > ready step 1 slot 0#0.0\n"
                        "1 < grant step 1 slot 0#0.0\n"
                        "1 > end step 1\n"
                        "1 < layout of module 0, words 0 to 4 of 4\n"
                        "1 < plan 1 closes step 1, slots 0 to 1 of 1, last: 0#0.0\n"
                        "1 > layout of module 0, words 0 to 6 of 6\n"
                        "1 > ready step 2 slot 0#0.0\n"
                        "1 < grant step 2 slot 0#0.0\n"
                        "1 > end step 2\n"
                        "1 < layout of module 0, words 0 to 6 of 6\n"
                        "1 < plan 2 closes step 2, slots 0 to 2 of 2, last: 0#0.0 0#0.1\n");
    assert_int_equal(story->last[1].u.plan_part.phase, 12);
}

// The hash is part of the protocol: golden, and the same plan has the same hash in every job.
static uint64_t hash_of_plan(uint64_t phase, const uint32_t *words, uint32_t count)
{
    static struct story story;
    story_begin(&story);
    story_run(&story, 1);
    struct up_message message = {
        .kind = UP_READY,
        .u.ready = {.step = 1, .phase = phase, .dtype = DTYPE_FLOAT32, .elements = 10},
    };
    story_layout(&story, 1, 0, words, count);
    story_say(&story, 1, &message);
    message.kind = UP_END;
    message.u.end.step = 1;
    message.u.end.phase = phase;
    story_say(&story, 1, &message);
    const uint64_t hash = story.last[1].u.plan_part.hash;
    assert_true(story.last[1].u.plan_part.last);
    story_end(&story);
    return hash;
}

static uint64_t fnv(uint64_t hash, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        hash = (hash ^ (uint8_t)(value >> 8 * i)) * UINT64_C(1099511628211);
    return hash;
}

static void test_the_hash_covers_phase_slots_and_layouts(void **state)
{
    static const uint32_t other_order[] = {1, 2, 1, 0};
    (void)state;
    uint64_t expected = fnv(UINT64_C(14695981039346656037), 3, 8);
    for (int i = 0; i < 3; i++) // Module, call, bucket.
        expected = fnv(expected, 0, 4);
    expected = fnv(expected, ALGORITHM_BY_SIZE, 4);
    expected = fnv(expected, 0, 4); // Module.
    expected = fnv(expected, 4, 4); // Words.
    for (int i = 0; i < 4; i++)
        expected = fnv(expected, one_bucket[i], 4);
    assert_int_equal(hash_of_plan(3, one_bucket, 4), expected);
    assert_int_not_equal(hash_of_plan(4, one_bucket, 4), expected);
    assert_int_not_equal(hash_of_plan(3, other_order, 4), expected);
}

static void test_a_large_plan_travels_in_parts(void **state)
{
    static uint32_t words[1 + 300 + 4000];
    struct story *story = *state;
    words[0] = 300;
    for (uint32_t i = 0; i < 300; i++)
        words[1 + i] = i + 1;
    words[300] = 4000;
    for (uint32_t i = 0; i < 4000; i++)
        words[301 + i] = 3999 - i;
    story_run(story, 1);
    story_layout(story, 1, 7, words, 4301);
    story_ready(story, 1, 1, slot(7, 0, 0));
    story_forget(story);
    story_step_end(story, 1, 1);
    story_expect(story,
                 "1 > end step 1\n"
                 "1 < layout of module 7, words 0 to 2048 of 4301\n"
                 "1 < layout of module 7, words 2048 to 4096 of 4301\n"
                 "1 < layout of module 7, words 4096 to 4301 of 4301\n"
                 "1 < plan 1 closes step 1, slots 0 to 128 of 300: 7#0.0 7#0.1 7#0.2 7#0.3 "
                 "7#0.4 7#0.5 7#0.6 7#0.7 7#0.8 7#0.9 7#0.10 7#0.11 ...\n"
                 "1 < plan 1 closes step 1, slots 128 to 256 of 300: 7#0.128 7#0.129 7#0.130 "
                 "7#0.131 7#0.132 7#0.133 7#0.134 7#0.135 7#0.136 7#0.137 7#0.138 7#0.139 "
                 "...\n"
                 "1 < plan 1 closes step 1, slots 256 to 300 of 300, last: 7#0.256 7#0.257 "
                 "7#0.258 7#0.259 7#0.260 7#0.261 7#0.262 7#0.263 7#0.264 7#0.265 7#0.266 "
                 "7#0.267 ...\n");
}

// ---- What cannot be learned ------------------------------------------------------------------

static void test_another_phase_is_not_heard_until_the_ranks_name_it(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_END, .u.end = {.step = 1, .phase = 0xbeef}};
    story_run(story, 2);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_forget(story);
    story_say(story, 2, &message);
    // Neither grants nor plans after it.
    story_step_end(story, 1, 1);
    assert_true(!strstr(story->trace, " < "));
    story_fail(story, 2, 1, HALT_PHASE, "trains 'w' of module 'net'");
    story_expect_piece(story,
                       "1 < halt phase step 1: rank 1 (host h2): trains 'w' of module 'net'");
}

static void test_another_step_is_named(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_forget(story);
    story_step_end(story, 2, 2);
    story_expect_piece(story, "rank 1 (host h2) learns step 2, while rank 0 learns step 1");
}

static void test_gradients_that_differ_are_named(void **state)
{
    struct story *story = *state;
    struct up_message message = {
        .kind = UP_READY,
        .u.ready = {.step = 1, .slot = {0, 0, 3}, .dtype = DTYPE_FLOAT32, .elements = 11},
    };
    story_run(story, 2);
    story_ready(story, 1, 1, slot(0, 0, 3));
    story_forget(story);
    story_say(story, 2, &message);
    story_expect_piece(story,
                       "1 < halt layout step 1: module 0 call 0 bucket 3 has 10 elements of "
                       "dtype 1 on rank 0 (host h1), 11 of dtype 1 on rank 1 (host h2): every "
                       "rank must report the same gradients\n");
}

static void test_a_module_without_a_layout_is_named(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_ready(story, 2, 1, slot(5, 0, 0));
    story_step_end(story, 2, 1);
    story_forget(story);
    story_step_end(story, 1, 1);
    story_expect_piece(story,
                       "2 < halt layout step 1: step 1 cannot become a plan: rank 0 proposed "
                       "no bucket layout for module 5\n");
}

static void test_too_many_slots_are_named(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story->quiet = true;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_SLOTS; i++)
        story_ready(story, 1, 1, slot(i % 4, i / 4, 0));
    story->quiet = false;
    story_ready(story, 1, 1, slot(9, 0, 0));
    story_expect_piece(story,
                       "halt limit step 1: rank 0 (host h1) reported more than 1024 buckets in "
                       "step 1, and a step has at most 1024; each bucket counts once for each "
                       "separate call: make the buckets larger");
}

static void test_a_plan_with_too_many_slots_is_named(void **state)
{
    static uint32_t words[1 + 2 * 600];
    struct story *story = *state;
    words[0] = 600;
    for (uint32_t i = 0; i < 600; i++) {
        words[1 + i] = i + 1;
        words[601 + i] = i;
    }
    story_run(story, 1);
    story_layout(story, 1, 0, words, 1201);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_ready(story, 1, 1, slot(0, 1, 0));
    story_forget(story);
    story_step_end(story, 1, 1);
    story_expect_piece(story,
                       "halt limit step 1: step 1 cannot become a plan: each bucket counts once "
                       "for each separate call, and its calls have more buckets than the limit of "
                       "1024\n");
}

struct wrong_layout {
    const char *fault;
    uint32_t count;
    uint32_t words[8];
};

static void test_wrong_layouts_are_named(void **state)
{
    static const struct wrong_layout wrong[] = {
        {"has more buckets than words", 2, {2, 1}},
        {"has more buckets than words", 1, {0xffffffff}},
        {"has bucket ends that do not grow to the number of its parameters", 5, {2, 1, 1, 0, 1}},
        {"has bucket ends that do not grow to the number of its parameters", 5, {2, 2, 9, 0, 1}},
        {"has parameters outside its buckets", 4, {1, 1, 0, 1}},
        {"has parameters outside its buckets", 2, {0, 0}},
        {"has a parameter twice", 4, {1, 2, 5, 5}},
        {"has a parameter index above the limit", 4, {1, 2, 0, LOCKSTEP_MAX_PARAMETERS}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        static struct story story;
        char piece[256];
        story_begin(&story);
        story_run(&story, 2);
        story_layout(&story, 1, 3, wrong[i].words, wrong[i].count);
        snprintf(
            piece, sizeof(piece),
            "2 < halt protocol step 0: rank 0 (host h1) proposed a layout of module 3 that %s;",
            wrong[i].fault);
        story_expect_piece(&story, piece);
        story_end(&story);
    }
}

struct wrong_part {
    const char *fault;
    struct layout_part parts[2]; // The last one is wrong. total 0: there is only one.
};

static void test_wrong_parts_of_layouts_are_named(void **state)
{
    static const struct wrong_part wrong[] = {
        {"is of a module above the limit", {{.module = 64, .total = 4, .count = 4}}},
        {"has an impossible number of words", {{.total = 4, .count = 0}}},
        {"has an impossible number of words",
         {{.total = 2 * LOCKSTEP_LAYOUT_PART, .count = LOCKSTEP_LAYOUT_PART + 1}}},
        {"has more words than it announces", {{.total = 4, .count = 5}}},
        {"has more words than it announces",
         {{.total = LOCKSTEP_MAX_LAYOUT_WORDS + 1, .count = 4}}},
        {"does not go on where the last part ended", {{.total = 4, .first = 1, .count = 1}}},
        {"does not go on where the last part ended",
         {{.total = 4, .count = 2}, {.total = 4, .first = 3, .count = 1}}},
        {"changes its size", {{.total = 4, .count = 2}, {.total = 5, .first = 2, .count = 2}}},
        {"begins in the middle of another one",
         {{.total = 4, .count = 2}, {.module = 1, .total = 4, .count = 2}}},
        {"was proposed already", {{.total = 1, .count = 1}, {.total = 4, .first = 1, .count = 2}}},
        {"does not fit beside the other layouts",
         {{.total = 1, .count = 1}, {.module = 1, .total = LOCKSTEP_MAX_LAYOUT_WORDS, .count = 2}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        static struct story story;
        char piece[256];
        story_begin(&story);
        story_run(&story, 2);
        for (int k = 0; k < 2 && wrong[i].parts[k].total != 0; k++) {
            struct up_message message = {.kind = UP_LAYOUT_PART};
            message.u.layout_part = wrong[i].parts[k];
            story_say(&story, 1, &message);
        }
        snprintf(piece, sizeof(piece), "that %s; this is misuse or a bug there", wrong[i].fault);
        story_expect_piece(&story, piece);
        story_end(&story);
    }
}

// ---- Waits -----------------------------------------------------------------------------------

static void test_waits_in_opposite_orders_are_a_cycle(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_await(story, 1, 4, slot(0, 0, 0));
    story_ready(story, 2, 4, slot(1, 0, 0));
    story_forget(story);
    story_wait(story, 2, 4, slot(1, 0, 0));
    story_expect_piece(
        story, "2 > wait step 4 slot 1#0.0\n"
               "1 < halt order step 4: waits form a cycle: rank 1 (host h2) waits for module 1 "
               "(call 1) and has not made module 0 (call 1); rank 0 (host h1) waits for module 0 "
               "(call 1) and has not made module 1 (call 1); wait for calls in one order on "
               "every rank, or only in lockstep_step_end\n");
}

static void test_a_cycle_over_three_ranks(void **state)
{
    struct story *story = *state;
    // Rank i makes slots i and i + 1 and waits for the second: rank i + 2 has not made it.
    story_run(story, 3);
    for (uint32_t i = 0; i < 3; i++) {
        story_ready(story, 1 + i, 1, slot(i, 0, 0));
        story_ready(story, 1 + i, 1, slot((i + 1) % 3, 0, 0));
    }
    story_wait(story, 1, 1, slot(1, 0, 0));
    story_wait(story, 2, 1, slot(2, 0, 0));
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    story_forget(story);
    story_wait(story, 3, 1, slot(0, 0, 0));
    story_expect_piece(
        story, "waits form a cycle: rank 2 (host h3) waits for module 0 (call 1) and has not made "
               "module 1 (call 1); rank 1 (host h2) waits for module 2 (call 1) and has not made "
               "module 0 (call 1); rank 0 (host h1) waits for module 1 (call 1) and has not made "
               "module 2 (call 1); wait");
}

static void test_waits_for_one_that_may_still_come_are_no_cycle(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    story_await(story, 1, 1, slot(0, 0, 0));
    story_await(story, 2, 1, slot(0, 0, 0));
    story_forget(story);
    story_await(story, 3, 1, slot(0, 0, 0));
    story_expect(story, "3 > ready step 1 slot 0#0.0\n"
                        "1 < grant step 1 slot 0#0.0\n"
                        "2 < grant step 1 slot 0#0.0\n"
                        "3 < grant step 1 slot 0#0.0\n"
                        "3 > wait step 1 slot 0#0.0\n");
}

static void test_waits_for_one_that_has_ended_are_no_cycle(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_await(story, 1, 1, slot(0, 0, 0));
    story_forget(story);
    story_step_end(story, 2, 1);
    story_expect(story, "2 > end step 1\n"
                        "1 < grant step 1 slot 0#0.0\n"
                        "2 < grant step 1 slot 0#0.0\n");
}

// Slots 0 to 2 are of the modules 0 to 2. Rank 0 waits for 0 and 2 in two threads.
static void two_threads(struct story *story)
{
    struct up_message message = {
        .kind = UP_WAIT,
        .u.wait = {.step = 1, .slot = {0, 0, 0}, .also_count = 1, .also = {{2, 0, 0}}},
    };
    story_run(story, 3);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_ready(story, 1, 1, slot(2, 0, 0));
    story_say(story, 1, &message);
    story_ready(story, 2, 1, slot(1, 0, 0));
    story_ready(story, 2, 1, slot(2, 0, 0));
    story_wait(story, 2, 1, slot(1, 0, 0)); // A cycle, but rank 0 goes on when slot 2 comes.
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    story_forget(story);
}

static void test_a_thread_that_goes_on_is_a_way_out(void **state)
{
    struct story *story = *state;
    two_threads(story);
    story_await(story, 3, 1, slot(2, 0, 0));
    story_expect(story, "3 > ready step 1 slot 2#0.0\n"
                        "1 < grant step 1 slot 2#0.0\n"
                        "2 < grant step 1 slot 2#0.0\n"
                        "3 < grant step 1 slot 2#0.0\n"
                        "3 > wait step 1 slot 2#0.0\n");
    // The thread that went on does so without slot 1: now there is no way out.
    story_wait(story, 1, 1, slot(0, 0, 0));
    story_expect_piece(story, "cycle: rank 0 (host h1) waits for module 0 (call 1) and has not "
                              "made module 1 (call 1); rank 1 (host h2)");
}

static void test_the_last_thread_closes_the_cycle(void **state)
{
    struct story *story = *state;
    two_threads(story);
    story_await(story, 3, 1, slot(1, 0, 0));
    story_expect_piece(story, "halt order step 1: waits form a cycle: rank 2 (host h3) waits for "
                              "module 1 (call 1) and has not made module ");
}

static void test_a_wait_for_a_grant_that_is_on_its_way_is_none(void **state)
{
    struct story *story = *state;
    story->zero_defer = true;
    story_run(story, 2);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_ready(story, 1, 1, slot(1, 0, 0));
    story_ready(story, 2, 1, slot(0, 0, 0));
    story_ready(story, 2, 1, slot(2, 0, 0));
    struct up_message message = {
        .kind = UP_WAIT,
        .u.wait = {.step = 1, .slot = {1, 0, 0}, .also_count = 1, .also = {{0, 0, 0}}},
    };
    story_say(story, 1, &message);
    story_forget(story);
    story_wait(story, 2, 1, slot(2, 0, 0));
    story_expect(story, "2 > wait step 1 slot 2#0.0\n");
}

static void test_a_wait_that_was_given_up_is_none(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_BLOCKED, .u.blocked = {.step = 1}};
    story_run(story, 2);
    story_await(story, 1, 1, slot(0, 0, 0));
    story_ready(story, 2, 1, slot(1, 0, 0));
    story_forget(story);
    story_say(story, 1, &message);
    story_expect(story, "1 > blocked step 1 by 0 waits\n"
                        "1 < query step 1, withdrawn\n");
    story_wait(story, 2, 1, slot(1, 0, 0));
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
}

// Another thread reports gradients while the trainer is blocked.
static void test_what_becomes_ready_meanwhile_is_no_end_of_a_wait(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_await(story, 1, 1, slot(0, 0, 0));
    story_ready(story, 1, 1, slot(2, 0, 0));
    story_await(story, 2, 1, slot(1, 0, 0));
    story_expect_piece(story, "halt order step 1: waits form a cycle");
}

static void test_too_many_threads_are_impossible(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_WAIT,
                                 .u.wait = {.step = 1, .also_count = LOCKSTEP_MAX_WAITS}};
    story_run(story, 2);
    story_say(story, 2, &message);
    story_expect_piece(story, "1 < halt protocol step 0: rank 1 (host h2) waits in 17 threads;");
}

// ---- Waits under zero_defer --------------------------------------------------------------------

static void run_zero_defer(struct story *story, uint32_t world)
{
    story->zero_defer = true;
    story_run(story, world);
}

static void test_a_swap_is_granted_when_nobody_can_go_on(void **state)
{
    struct story *story = *state;
    run_zero_defer(story, 2);
    story_await(story, 2, 1, slot(1, 0, 0));
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_forget(story);
    story_wait(story, 1, 1, slot(0, 0, 0));
    story_expect(story, "1 > wait step 1 slot 0#0.0\n"
                        "1 < grant step 1 slot 0#0.0\n"
                        "2 < forced grant step 1 slot 0#0.0\n");
    // Rank 0 goes on to slot 1, which rank 1 waits for still.
    story_ready(story, 1, 1, slot(1, 0, 0));
    story_expect(story, "1 > ready step 1 slot 1#0.0\n"
                        "1 < grant step 1 slot 1#0.0\n"
                        "2 < grant step 1 slot 1#0.0\n");
    // A grant that was given up is not repeated at the end of the step.
    story_layout(story, 1, 0, one_bucket, 4);
    story_layout(story, 1, 1, one_bucket, 4);
    story_step_end(story, 1, 1);
    story_forget(story);
    story_step_end(story, 2, 1);
    story_expect(story, "2 > end step 1\n"
                        "1 < layout of module 0, words 0 to 4 of 4\n"
                        "1 < layout of module 1, words 0 to 4 of 4\n"
                        "1 < plan 1 closes step 1, slots 0 to 2 of 2, last: 0#0.0 1#0.0\n"
                        "2 < layout of module 0, words 0 to 4 of 4\n"
                        "2 < layout of module 1, words 0 to 4 of 4\n"
                        "2 < plan 1 closes step 1, slots 0 to 2 of 2, last: 0#0.0 1#0.0\n");
}

static void test_nothing_is_forced_while_one_may_go_on(void **state)
{
    struct story *story = *state;
    run_zero_defer(story, 3);
    story_await(story, 1, 1, slot(0, 0, 0));
    story_ready(story, 2, 1, slot(1, 0, 0));
    story_forget(story);
    story_wait(story, 2, 1, slot(1, 0, 0));
    story_expect(story, "2 > wait step 1 slot 1#0.0\n");
    story_step_end(story, 3, 1); // Without a slot: that is zero, and nothing is given up.
    story_expect(story, "3 > end step 1\n"
                        "1 < grant step 1 slot 0#0.0\n"
                        "2 < forced grant step 1 slot 0#0.0\n"
                        "3 < grant step 1 slot 0#0.0\n");
}

static void test_the_smallest_of_what_is_waited_for_is_granted(void **state)
{
    struct story *story = *state;
    struct up_message message = {
        .kind = UP_WAIT,
        .u.wait = {.step = 1, .slot = {2, 1, 0}, .also_count = 2, .also = {{2, 0, 1}, {2, 0, 0}}},
    };
    run_zero_defer(story, 2);
    story_ready(story, 1, 1, slot(2, 0, 1));
    story_ready(story, 1, 1, slot(1, 5, 0)); // Smaller, but not waited for.
    story_ready(story, 1, 1, slot(2, 1, 0));
    story_ready(story, 1, 1, slot(2, 0, 0));
    story_await(story, 2, 1, slot(3, 0, 0));
    story_forget(story);
    story_say(story, 1, &message);
    story_expect(story, "1 > wait step 1 slot 2#1.0 and 2#0.1 and 2#0.0\n"
                        "1 < grant step 1 slot 2#0.0\n"
                        "2 < forced grant step 1 slot 2#0.0\n");
}

// It was made while the grant was on its way: its data counts, and nothing is granted twice.
static void test_a_slot_that_was_forced_may_still_be_said_to_be_ready(void **state)
{
    struct story *story = *state;
    run_zero_defer(story, 2);
    story_await(story, 1, 1, slot(0, 0, 0));
    story_await(story, 2, 1, slot(1, 0, 0));
    story_forget(story);
    story_ready(story, 2, 1, slot(0, 0, 0));
    story_wait(story, 2, 1, slot(1, 0, 0)); // Rank 0 has gone on, and waits for nothing.
    story_expect(story, "2 > ready step 1 slot 0#0.0\n"
                        "2 > wait step 1 slot 1#0.0\n");
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
}

static void test_one_that_left_is_missed_in_a_learning_step(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_leave(story, 2, 0);
    story_forget(story);
    story_ready(story, 1, 1, slot(0, 0, 0));
    story_expect(story, "1 > ready step 1 slot 0#0.0\n"
                        "1 < halt left step 1: rank 1 (host h2) closed its session while rank 0 "
                        "(host h1) still needed it in step 1: every rank must make the same steps "
                        "and collectives\n");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_two_ranks_with_different_ready_orders),
        TEST(test_a_slot_does_not_wait_for_ranks_without_its_module),
        TEST(test_a_group_comes_after_what_its_members_made_before),
        TEST(test_a_group_that_a_member_waits_for_comes_at_once),
        TEST(test_groups_in_a_circle_come_in_the_order_of_their_first_reports),
        TEST(test_a_rank_proposes_no_layout_of_a_module_that_it_lacks),
        TEST(test_what_only_some_have_is_granted_when_the_others_end),
        TEST(test_a_slot_that_comes_after_another_has_ended_needs_only_the_rest),
        TEST(test_an_empty_step_has_an_empty_plan),
        TEST(test_plans_are_numbered_over_phases_and_layouts_belong_to_one_step),
        TEST(test_the_hash_covers_phase_slots_and_layouts),
        TEST(test_a_large_plan_travels_in_parts),
        TEST(test_another_phase_is_not_heard_until_the_ranks_name_it),
        TEST(test_another_step_is_named),
        TEST(test_gradients_that_differ_are_named),
        TEST(test_a_module_without_a_layout_is_named),
        TEST(test_too_many_slots_are_named),
        TEST(test_a_plan_with_too_many_slots_is_named),
        TEST(test_wrong_layouts_are_named),
        TEST(test_wrong_parts_of_layouts_are_named),
        TEST(test_waits_in_opposite_orders_are_a_cycle),
        TEST(test_a_cycle_over_three_ranks),
        TEST(test_waits_for_one_that_may_still_come_are_no_cycle),
        TEST(test_waits_for_one_that_has_ended_are_no_cycle),
        TEST(test_a_thread_that_goes_on_is_a_way_out),
        TEST(test_the_last_thread_closes_the_cycle),
        TEST(test_a_wait_for_a_grant_that_is_on_its_way_is_none),
        TEST(test_a_wait_that_was_given_up_is_none),
        TEST(test_what_becomes_ready_meanwhile_is_no_end_of_a_wait),
        TEST(test_too_many_threads_are_impossible),
        TEST(test_a_swap_is_granted_when_nobody_can_go_on),
        TEST(test_nothing_is_forced_while_one_may_go_on),
        TEST(test_the_smallest_of_what_is_waited_for_is_granted),
        TEST(test_a_slot_that_was_forced_may_still_be_said_to_be_ready),
        TEST(test_one_that_left_is_missed_in_a_learning_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
