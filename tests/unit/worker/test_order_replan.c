// SPDX-License-Identifier: Apache-2.0
//
// A rank whose steps differ from their plan time and again: when it says what the plan should be,
// and what that is. The coordinator's tests check what the coordinator makes of it.

#include "tale.h"
#include "worker/order/plan.h"
#include "worker/order/waits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const struct order_options extend = {.unplanned = UNPLANNED_EXTEND};
static const struct order_options zero_defer = {.zero_defer = true};

static struct tale *planned(const struct order_options *options, const char *slots)
{
    struct tale *tale = tale_begin_with(2, options);
    tale_plan(tale, slots);
    return tale;
}

// The rest of a step of this phase, in which all ranks together make these calls outside the plan.
static void settle(struct tale *tale, uint64_t phase, const char *extras)
{
    tale_header(tale, tale->order.step, phase);
    order_step_ended(&tale->order);
    tale_close(tale, extras);
    while (tale->order.low < tale->order.slot_count)
        tale_final(tale, tale->order.low);
    tale_forget(tale);
    order_commit_completed(&tale->order);
}

static void step(struct tale *tale, const char *extras)
{
    tale_step(tale, tale->order.settled + 1);
    settle(tale, PHASE, extras);
}

// The trainer waits for `first`, and makes `then` after that.
static void waits(struct tale *tale, const char *first, const char *then)
{
    tale_step(tale, tale->order.settled + 1);
    tale_made(tale, first);
    tale_wait(tale, first);
    tale_made(tale, then);
    settle(tale, PHASE, "");
}

static void test_the_same_extension_three_times(void **state)
{
    struct tale *tale = planned(&extend, "A B");
    (void)state;
    step(tale, "C A1");
    tale_expect(tale, "settled 1; ");
    step(tale, "C A1");
    tale_expect(tale, "settled 2; ");
    step(tale, "C A1");
    tale_expect(tale, "replan 1: A0 B0 C0 A1; settled 3; ");
    free(tale);
}

static void test_the_next_time_is_twice_as_far(void **state)
{
    struct tale *tale = planned(&extend, "A");
    uint32_t said = 0;
    (void)state;
    for (uint32_t number = 1; number <= 24; number++) {
        step(tale, "B");
        if (!strstr(tale->trace, "replan"))
            continue;
        said++;
        assert_true(number == 3 || number == 6 || number == 12 || number == 24);
    }
    assert_int_equal(said, 4);
    free(tale);
}

static void test_a_step_that_differs_otherwise_begins_anew(void **state)
{
    static const char *const extras[] = {"B", "B", "C", "B", "B", "", "B", "B"};
    struct tale *tale = planned(&extend, "A");
    (void)state;
    for (size_t i = 0; i < sizeof(extras) / sizeof(extras[0]); i++) {
        step(tale, extras[i]);
        assert_null(strstr(tale->trace, "replan"));
    }
    step(tale, "B");
    assert_non_null(strstr(tale->trace, "replan 1: A0 B0; "));
    free(tale);
}

static void test_steps_of_another_phase_do_not_count(void **state)
{
    struct tale *tale = planned(&extend, "A");
    (void)state;
    tale_plan_of(tale, OTHER_PHASE, "A");
    for (int i = 0; i < 2; i++) {
        step(tale, "B");
        order_step_begun(&tale->order, tale->order.settled + 1, OTHER_PHASE, tale->buckets);
        settle(tale, OTHER_PHASE, "");
        assert_null(strstr(tale->trace, "replan"));
    }
    step(tale, "B");
    assert_non_null(strstr(tale->trace, "replan 1: A0 B0; "));
    free(tale);
}

static void test_only_rank_0_speaks_of_what_all_know(void **state)
{
    struct tale *tale = planned(&extend, "A");
    (void)state;
    tale->order.rank = 1;
    for (int i = 0; i < 8; i++) {
        step(tale, "B");
        assert_null(strstr(tale->trace, "replan"));
    }
    free(tale);
}

static void test_what_was_given_up_comes_behind_what_was_waited_for(void **state)
{
    struct tale *tale = planned(&zero_defer, "A B C");
    (void)state;
    tale->order.rank = 1; // Nobody else knows of it.
    waits(tale, "B", "A");
    waits(tale, "B", "A");
    assert_null(strstr(tale->trace, "replan"));
    waits(tale, "B", "A");
    assert_non_null(strstr(tale->trace, "replan 1: B0 A0 C0; settled 3; "));
    free(tale);
}

// It is given up in favour of the first wait of the two.
static void test_two_waits_keep_their_order(void **state)
{
    struct tale *tale = planned(&zero_defer, "A B C D");
    (void)state;
    for (int i = 0; i < 3; i++) {
        tale_step(tale, tale->order.settled + 1);
        tale_made(tale, "B");
        tale_wait(tale, "B");
        tale_made(tale, "D");
        tale_wait(tale, "D");
        settle(tale, PHASE, "");
    }
    assert_non_null(strstr(tale->trace, "replan 1: B0 A0 D0 C0; "));
    free(tale);
}

static void test_all_buckets_of_a_call_go_with_it(void **state)
{
    struct tale *tale = planned(&zero_defer, "A0.0 A0.1 B0.0 B0.1 C");
    (void)state;
    tale->buckets[0] = tale->buckets[1] = 2;
    for (int i = 0; i < 3; i++)
        waits(tale, "B0.0 B0.1", "A0.0 A0.1");
    assert_non_null(strstr(tale->trace, "replan 1: B0 A0 C0; "));
    free(tale);
}

// Under the new plan the count begins anew, and its number is the one to be replaced.
static void test_a_new_plan_begins_anew(void **state)
{
    struct tale *tale = planned(&extend, "A");
    (void)state;
    for (int i = 0; i < 3; i++)
        step(tale, "B");
    tale_newer_plan(tale, 1, "A B");
    for (int i = 0; i < 3; i++) { // The first one under the old plan.
        step(tale, "C");
        assert_null(strstr(tale->trace, "replan"));
    }
    step(tale, "C");
    assert_non_null(strstr(tale->trace, "replan 2: A0 B0 C0; "));
    free(tale);
}

static void test_nobody_is_told_without_a_coordinator(void **state)
{
    struct tale *tale = planned(&extend, "A");
    (void)state;
    order_coordinator_lost(&tale->order);
    for (int i = 0; i < 8; i++) {
        step(tale, "B");
        assert_null(strstr(tale->trace, "replan"));
    }
    free(tale);
}

static void test_a_plan_with_too_many_calls_stays(void **state)
{
    struct tale *tale = tale_begin_with(2, &extend);
    struct down_plan_part part = {.number = 1, .phase = PHASE, .hash = 1, .closes_step = true};
    (void)state;
    for (uint32_t call = 0; call < LOCKSTEP_REPLAN_CALLS; call++) {
        part.slots[part.slot_count++].id = (struct slot_id){.module = 0, .call = call};
        part.last = call + 1 == LOCKSTEP_REPLAN_CALLS;
        if (part.slot_count < LOCKSTEP_PLAN_PART && !part.last)
            continue;
        order_plan_received(&tale->order, &part);
        part.slot_first += part.slot_count;
        part.slot_count = 0;
    }
    for (int i = 0; i < 3; i++)
        step(tale, "B");
    tale_expect(tale, "settled 3; ");
    free(tale);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_extension_three_times),
        cmocka_unit_test(test_the_next_time_is_twice_as_far),
        cmocka_unit_test(test_a_step_that_differs_otherwise_begins_anew),
        cmocka_unit_test(test_steps_of_another_phase_do_not_count),
        cmocka_unit_test(test_only_rank_0_speaks_of_what_all_know),
        cmocka_unit_test(test_what_was_given_up_comes_behind_what_was_waited_for),
        cmocka_unit_test(test_two_waits_keep_their_order),
        cmocka_unit_test(test_all_buckets_of_a_call_go_with_it),
        cmocka_unit_test(test_a_new_plan_begins_anew),
        cmocka_unit_test(test_nobody_is_told_without_a_coordinator),
        cmocka_unit_test(test_a_plan_with_too_many_calls_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
