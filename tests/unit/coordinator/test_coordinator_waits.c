// SPDX-License-Identifier: Apache-2.0
//
// Waits of planned steps: reports, the question to the others, and the verdict when ranks wait for
// each other. The stories are those of the order protocol, section 8. Modules are letters, and
// their first calls are the plan, in the order of the alphabet.

#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static struct story story;

static int setup(void **state)
{
    (void)state;
    story_begin(&story);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    story_end(&story);
    return 0;
}

static void set_add(struct slot_set *set, uint32_t position)
{
    set->words[position / 64] |= UINT64_C(1) << position % 64;
}

// A report of a rank whose threads wait for these calls, in a window that holds the whole plan.
static struct up_message report(uint64_t step, const char *waits, const char *lacks)
{
    struct up_message message = {.kind = UP_BLOCKED, .u.blocked = {.step = step, .space = 0xf0}};
    struct up_blocked *blocked = &message.u.blocked;
    for (; *waits != '\0'; waits++) {
        const uint32_t module = (uint32_t)(*waits - 'A');
        struct blocked_wait *wait = &blocked->waits[blocked->wait_count++];
        wait->call.module = module;
        set_add(&wait->needs, module);
    }
    for (; *lacks != '\0'; lacks++) {
        const uint32_t module = (uint32_t)(*lacks - 'A');
        struct blocked_lack *lack = &blocked->lacking[blocked->lack_count++];
        *lack = (struct blocked_lack){module, {.module = module}};
        set_add(&blocked->lacks, module);
    }
    return message;
}

static void blocked(uint32_t peer, uint64_t step, const char *waits, const char *lacks)
{
    struct up_message message = report(step, waits, lacks);
    story_say(&story, peer, &message);
}

// The same where positions pair: everything that is planned before is needed, too.
static void blocked_strict(uint32_t peer, uint64_t step, const char *waits, const char *lacks)
{
    struct up_message message = report(step, waits, lacks);
    struct slot_set *needs = &message.u.blocked.waits[0].needs;
    for (char before = 'A'; before < waits[0]; before++)
        set_add(needs, (uint32_t)(before - 'A'));
    story_say(&story, peer, &message);
}

static void names(const char *const *modules, uint32_t count)
{
    struct up_message message = {.kind = UP_MODULES, .u.modules = {.count = count}};
    message.u.modules.total = count;
    for (uint32_t i = 0; i < count; i++)
        snprintf(message.u.modules.names[i], sizeof(message.u.modules.names[i]), "%s", modules[i]);
    story_say(&story, 1, &message);
    story_forget(&story);
}

static void run(uint32_t world)
{
    static const char *const modules[] = {"actor", "critic"};
    story_run(&story, world);
    names(modules, 2);
}

static void expect_running(void)
{
    assert_int_equal(story_job(&story, 0).state, JOB_RUNNING);
    story_forget(&story);
}

#define ADVICE "wait for calls in one order on every rank, or only in lockstep_step_end\n"

// ---- Swap, waits -------------------------------------------------------------------------------

static void test_a_swap_is_found_by_asking(void **state)
{
    (void)state;
    run(2);
    blocked(2, 7, "B", "A");
    story_expect(&story, "2 > blocked step 7 by 1 waits for 1#0, lacks 0#0\n"
                         "1 < query step 7\n");
    blocked(1, 7, "A", "B");
#define SENTENCE \
    "halt order step 7: waits form a cycle: rank 0 (host h1) waits for 'actor' (call 1) and has " \
    "not made 'critic' (call 1); rank 1 (host h2) waits for 'critic' (call 1) and has not made " \
    "'actor' (call 1); " ADVICE
    story_expect(&story, "1 > blocked step 7 by 1 waits for 0#0, lacks 1#0\n"
                         "1 < " SENTENCE "2 < " SENTENCE);
#undef SENTENCE
    assert_int_equal(story_job(&story, 0).state, JOB_HALTED);
}

static void test_a_strict_swap_is_found_at_once(void **state)
{
    (void)state;
    run(2);
    blocked_strict(2, 7, "B", "A");
    story_expect_piece(&story,
                       "2 < halt order step 7: rank 1 (host h2) waits for 'critic' (call 1) and "
                       "has not made 'actor' (call 1); wait for calls in the order of the plan, "
                       "which is that of the first step of the phase, or only in "
                       "lockstep_step_end\n");
}

// r0: A B, then a wait for A; r1: B wait A.
static void test_a_swap_without_a_second_wait_goes_on(void **state)
{
    (void)state;
    run(2);
    blocked(2, 7, "B", "A");
    blocked(1, 7, "A", "");
    expect_running();
}

static void test_a_module_without_a_name_has_a_number(void **state)
{
    (void)state;
    story_run(&story, 2);
    blocked(2, 7, "B", "A");
    blocked(1, 7, "A", "B");
    story_expect_piece(&story, "rank 0 (host h1) waits for module 0 (call 1) and has not made "
                               "module 1 (call 1);");
}

// ---- More ranks --------------------------------------------------------------------------------

static void test_a_cycle_of_three(void **state)
{
    (void)state;
    run(3);
    blocked(1, 7, "A", "C");
    blocked(2, 7, "B", "A");
    expect_running();
    blocked(3, 7, "C", "B");
    story_expect_piece(&story,
                       "waits form a cycle: rank 2 (host h3) waits for module 2 (call 1) and has "
                       "not made 'critic' (call 1); rank 0 (host h1) waits for 'actor' (call 1) "
                       "and has not made module 2 (call 1); rank 1 (host h2) waits for 'critic' "
                       "(call 1) and has not made 'actor' (call 1); " ADVICE);
}

static void test_who_waits_for_the_cycle_is_not_in_it(void **state)
{
    (void)state;
    run(4);
    blocked(1, 7, "A", "");
    blocked(2, 7, "C", "A");
    blocked(4, 7, "D", "C");
    expect_running();
    blocked(3, 7, "C", "D");
    story_expect_piece(&story,
                       "cycle: rank 2 (host h3) waits for module 2 (call 1) and has not made "
                       "module 3 (call 1); rank 3 (host h4) waits for module 3 (call 1) and has "
                       "not made module 2 (call 1); " ADVICE);
}

static void test_a_long_cycle_is_cut_in_the_text(void **state)
{
    static const char *const calls[] = {"A", "B", "C", "D", "E", "F", "G", "H"};
    (void)state;
    run(8);
    for (uint32_t i = 0; i < 8; i++)
        blocked(1 + i, 7, calls[i], calls[(i + 1) % 8]);
    story_expect_piece(&story, "has not made module 3 (call 1); and so on over 8 ranks; " ADVICE);
}

static void test_all_are_asked_once_a_step(void **state)
{
    (void)state;
    run(3);
    blocked(1, 7, "A", "");
    blocked(1, 7, "A", "B");
    blocked(2, 7, "A", "");
    blocked(3, 8, "A", "");
    story_expect(&story, "1 > blocked step 7 by 1 waits for 0#0\n"
                         "2 < query step 7\n"
                         "3 < query step 7\n"
                         "1 > blocked step 7 by 1 waits for 0#0, lacks 1#0\n"
                         "2 > blocked step 7 by 1 waits for 0#0\n"
                         "3 > blocked step 8 by 1 waits for 0#0\n"
                         "1 < query step 8\n"
                         "2 < query step 8\n");
}

// ---- Several threads ---------------------------------------------------------------------------

// Rank 0 goes on when C comes, which nobody holds up.
static void test_a_cycle_with_a_way_out_is_none(void **state)
{
    (void)state;
    run(3);
    blocked(2, 7, "B", "A");
    blocked(1, 7, "AC", "B");
    expect_running();
    blocked(3, 7, "A", "C");
    story_expect_piece(
        &story, "cycle: rank 2 (host h3) waits for 'actor' (call 1) and has not made module 2 "
                "(call 1); rank 1 (host h2) waits for 'critic' (call 1) and has not made 'actor' "
                "(call 1); rank 0 (host h1) waits for module 2 (call 1), in other threads for 1 "
                "more, and has not made 'critic' (call 1); " ADVICE);
}

// Either wait alone is on a cycle with another rank; the one with rank 2 can end.
static void test_all_waits_of_a_rank_must_be_held_up(void **state)
{
    (void)state;
    run(3);
    blocked(1, 7, "AB", "CD");
    blocked(2, 7, "C", "A");
    expect_running();
    blocked(3, 7, "DA", "B"); // Its wait for A is held up by rank 1, which waits for rank 0.
    story_expect_piece(&story, "halt order step 7");
}

// ---- What does not count -----------------------------------------------------------------------

static void test_a_later_report_takes_the_place_of_an_earlier_one(void **state)
{
    (void)state;
    run(2);
    blocked(2, 7, "B", "A");
    blocked(2, 7, "C", "");
    blocked(1, 7, "A", "BC");
    expect_running();
}

static void test_reports_of_other_steps_do_not_meet(void **state)
{
    (void)state;
    run(2);
    blocked(2, 7, "B", "A");
    blocked(1, 8, "A", "B");
    expect_running();
}

static void test_reports_of_other_plans_do_not_meet(void **state)
{
    struct up_message message = report(7, "A", "B");
    (void)state;
    run(2);
    blocked(2, 7, "B", "A");
    message.u.blocked.space = 0xf1;
    story_say(&story, 1, &message);
    expect_running();
}

static void test_a_withdrawn_wait_is_none(void **state)
{
    (void)state;
    run(2);
    blocked(2, 7, "B", "A");
    story_forget(&story);
    blocked(2, 7, "", "A");
    story_expect(&story, "2 > blocked step 7 by 0 waits, lacks 0#0\n"
                         "2 < query step 7, withdrawn\n");
    blocked(1, 7, "A", "B");
    expect_running();
}

static void test_who_has_left_waits_for_nothing(void **state)
{
    (void)state;
    run(2);
    blocked(2, 7, "B", "A");
    story_leave(&story, 2, 6);
    blocked(1, 7, "A", "B");
    expect_running();
}

static void test_a_death_comes_before_what_the_dead_waited_for(void **state)
{
    (void)state;
    run(2);
    blocked(2, 7, "B", "A");
    story_close(&story, 2, "reset");
    story_expect_piece(&story, "1 < halt lost step 0: rank 1 on host h2 was lost");
    blocked(1, 7, "A", "B");
    story_expect(&story, "1 > blocked step 7 by 1 waits for 0#0, lacks 1#0\n");
}

// ---- Hostile reports ---------------------------------------------------------------------------

static void test_waits_that_need_nothing_end(void **state)
{
    struct up_message message = report(7, "A", "B");
    (void)state;
    run(2);
    memset(&message.u.blocked.waits[0].needs, 0, sizeof(struct slot_set));
    story_say(&story, 1, &message);
    blocked(2, 7, "B", "A");
    expect_running();
}

static void test_positions_without_a_call_are_numbers(void **state)
{
    struct up_message message = report(7, "A", "");
    (void)state;
    run(2);
    set_add(&message.u.blocked.waits[0].needs, 1023);
    set_add(&message.u.blocked.lacks, 1);
    story_say(&story, 1, &message);
    message = report(7, "B", "");
    set_add(&message.u.blocked.lacks, 1023);
    story_say(&story, 2, &message);
    story_expect_piece(&story, "rank 1 (host h2) waits for 'critic' (call 1) and has not made the "
                               "call at position 1023 of the plan; rank 0 (host h1) waits for "
                               "'actor' (call 1) and has not made the call at position 1 of the "
                               "plan; ");
}

// The message has names for 16 of 17 missing calls. What comes behind the last name may be another
// call.
static void test_only_calls_that_are_named_are_named(void **state)
{
    struct up_message message = report(7, "Z", "ABCDEFGHIJKLMNOP");
    (void)state;
    run(3);
    set_add(&message.u.blocked.lacks, 16);
    story_say(&story, 1, &message);
    blocked(2, 7, "Q", "Z");
    story_expect_piece(&story, "and has not made the call at position 16 of the plan; ");
}

// A bucket of a call is found under the name of the call's first.
static void test_buckets_of_a_call_have_its_name(void **state)
{
    struct up_message message = report(7, "A", "BD");
    (void)state;
    run(2);
    set_add(&message.u.blocked.lacks, 2); // A second bucket of critic.
    story_say(&story, 1, &message);
    message = report(7, "C", "A");
    message.u.blocked.waits[0].call.module = 1;
    story_say(&story, 2, &message);
    story_expect_piece(&story, "rank 0 (host h1) waits for 'actor' (call 1) and has not made "
                               "'critic' (call 1); ");
}

// A late report about the step before, or a report from another phase, must not count as a wait in
// the step that is being learned. The headers show a phase that differs.
static void test_a_step_that_is_learned_has_no_plan_to_be_blocked_in(void **state)
{
    struct up_message late = report(6, "A", "");
    (void)state;
    run(2);
    memset(&late.u.blocked.waits[0].needs, 0, sizeof(struct slot_set));
    story_ready(&story, 1, 7, slot(0, 0, 0));
    blocked(2, 7, "", "");
    expect_running();
    blocked(2, 7, "A", "A");
    expect_running();
    story_say(&story, 2, &late);
    expect_running();
    story_wait(&story, 1, 7, slot(0, 0, 0));
    expect_running();
    story_ready(&story, 2, 7, slot(0, 0, 0));
    story_expect_piece(&story, "2 < grant step 7 slot 0#0.0");
}

// ---- Many ranks, and any -----------------------------------------------------------------------

// Every rank waits for the next one, and they report in no order. The last one closes the circle.
static void circle(uint32_t world)
{
    story.quiet = true;
    story_run(&story, world);
    memset(story.received, 0, sizeof(story.received));
    for (uint32_t i = 0; i < world; i++) {
        const uint32_t rank = i * 421 % world; // A prime.
        struct up_message message = report(7, "A", "");
        memset(&message.u.blocked.waits[0].needs, 0, sizeof(struct slot_set));
        set_add(&message.u.blocked.waits[0].needs, rank);
        set_add(&message.u.blocked.lacks, (rank + 1) % world);
        assert_int_equal(story_job(&story, 0).state, JOB_RUNNING);
        story_say(&story, 1 + rank, &message);
    }
    assert_int_equal(story_job(&story, 0).state, JOB_HALTED);
}

static void test_a_large_world_reports_in_one_burst(void **state)
{
    const uint32_t world = 64;
    (void)state;
    circle(world);
    for (uint32_t i = 0; i < world; i++)
        assert_int_equal(story.received[1 + i], i == 0 ? 1 : 2);
}

// 1,024 searches in chains of up to as many ranks, and everything that goes with a message.
static void test_the_largest_world_is_looked_at_in_no_time(void **state)
{
    struct timespec begin;
    struct timespec end;
    (void)state;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    circle(LOCKSTEP_MAX_WORLD);
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double us =
        (double)(end.tv_sec - begin.tv_sec) * 1e6 + (double)(end.tv_nsec - begin.tv_nsec) / 1e3;
    print_message("%.0f us for each report of %d ranks\n", us / LOCKSTEP_MAX_WORLD,
                  LOCKSTEP_MAX_WORLD);
    assert_true(us < 20e6); // It takes some 50 us for each; sanitizers and loaded machines more.
}

enum {
    RANDOM_RANKS = 6,
    RANDOM_POSITIONS = 5,
};

static uint32_t draw(uint64_t *random, uint32_t bound)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*random >> 33) % bound;
}

static bool held_up(const struct up_blocked *reports, const bool *in, const struct slot_set *needs)
{
    for (uint32_t i = 0; i < RANDOM_RANKS; i++)
        if (in[i] && (needs->words[0] & reports[i].lacks.words[0]) != 0)
            return true;
    return false;
}

// The greatest set, by its definition: drop one and begin again, until nobody has to go.
static bool waits_for_ever(const struct up_blocked *reports)
{
    bool in[RANDOM_RANKS];
    uint32_t left = 0;
    for (uint32_t i = 0; i < RANDOM_RANKS; i++)
        left += in[i] = reports[i].wait_count > 0;
    for (uint32_t i = 0; i < RANDOM_RANKS; i++) {
        bool stays = true;
        for (uint32_t k = 0; k < reports[i].wait_count; k++)
            stays = stays && held_up(reports, in, &reports[i].waits[k].needs);
        if (!in[i] || stays)
            continue;
        in[i] = false;
        left--;
        i = UINT32_MAX;
    }
    return left > 0;
}

static void random_report(uint64_t *random, struct up_message *message)
{
    struct up_blocked *blocked = &message->u.blocked;
    *message = report(7, "", "");
    blocked->wait_count = draw(random, 8) == 0 ? 0 : 1 + draw(random, 3) / 2 * draw(random, 3);
    for (uint32_t k = 0; k < blocked->wait_count; k++) {
        set_add(&blocked->waits[k].needs, draw(random, RANDOM_POSITIONS));
        if (draw(random, 4) == 0)
            set_add(&blocked->waits[k].needs, draw(random, RANDOM_POSITIONS));
    }
    for (uint32_t i = 0; i < RANDOM_POSITIONS; i++)
        if (draw(random, 10) == 0)
            set_add(&blocked->lacks, i);
}

// The next world of the same job; its streams follow those of the last one.
static void form_again(uint32_t first)
{
    const struct up_hello hello = story_hello("j", RANDOM_RANKS, "h");
    for (uint32_t i = 0; i < RANDOM_RANKS; i++)
        story_say_hello(&story, first + i, &hello);
    for (uint32_t i = 0; i < RANDOM_RANKS; i++)
        story_start(&story, first + i, 7, 3, 0);
    story_forget(&story);
}

// Plays one step: at most a dozen random reports. Returns true if the ranks wait for ever.
static bool random_step(uint64_t *random, uint32_t first, uint64_t step)
{
    struct up_blocked reports[RANDOM_RANKS] = {{.step = 0}};
    bool ends = false;
    for (uint32_t event = 0; event < 12 && !ends; event++) {
        struct up_message message;
        const uint32_t rank = draw(random, RANDOM_RANKS);
        random_report(random, &message);
        message.u.blocked.step = step;
        reports[rank] = message.u.blocked;
        story_say(&story, first + rank, &message);
        ends = waits_for_ever(reports);
        if ((story_job(&story, 0).state == JOB_HALTED) != ends)
            print_error("step %" PRIu64 ", event %" PRIu32 "\n%s", step, event, story.trace);
        assert_int_equal(story_job(&story, 0).state == JOB_HALTED, ends);
    }
    story_forget(&story);
    return ends;
}

static void test_random_reports_end_when_the_obvious_search_says_so(void **state)
{
    uint64_t random = 1;
    uint32_t first = 1;
    uint32_t halts = 0;
    (void)state;
    form_again(first);
    for (uint64_t step = 1; step <= 500; step++) {
        if (!random_step(&random, first, step))
            continue;
        halts++;
        first += RANDOM_RANKS;
        form_again(first);
    }
    assert_in_range(halts, 100, 450); // Both happen.
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_swap_is_found_by_asking),
        TEST(test_a_strict_swap_is_found_at_once),
        TEST(test_a_swap_without_a_second_wait_goes_on),
        TEST(test_a_module_without_a_name_has_a_number),
        TEST(test_a_cycle_of_three),
        TEST(test_who_waits_for_the_cycle_is_not_in_it),
        TEST(test_a_long_cycle_is_cut_in_the_text),
        TEST(test_all_are_asked_once_a_step),
        TEST(test_a_cycle_with_a_way_out_is_none),
        TEST(test_all_waits_of_a_rank_must_be_held_up),
        TEST(test_a_later_report_takes_the_place_of_an_earlier_one),
        TEST(test_reports_of_other_steps_do_not_meet),
        TEST(test_reports_of_other_plans_do_not_meet),
        TEST(test_a_withdrawn_wait_is_none),
        TEST(test_who_has_left_waits_for_nothing),
        TEST(test_a_death_comes_before_what_the_dead_waited_for),
        TEST(test_waits_that_need_nothing_end),
        TEST(test_positions_without_a_call_are_numbers),
        TEST(test_only_calls_that_are_named_are_named),
        TEST(test_buckets_of_a_call_have_its_name),
        TEST(test_a_step_that_is_learned_has_no_plan_to_be_blocked_in),
        TEST(test_a_large_world_reports_in_one_burst),
        TEST(test_the_largest_world_is_looked_at_in_no_time),
        TEST(test_random_reports_end_when_the_obvious_search_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
