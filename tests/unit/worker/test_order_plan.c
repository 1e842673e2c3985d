// SPDX-License-Identifier: Apache-2.0
//
// Calls outside the plan and plans that come while the job runs, on one rank: what the close wave
// decides, the same on every rank. Order protocol R6, R10, R13.

#include "tale.h"
#include "worker/order/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct order_options extend = {.unplanned = UNPLANNED_EXTEND};
static const struct order_options fail = {.unplanned = UNPLANNED_FAIL};
static const struct order_options defer = {.unplanned = UNPLANNED_DEFER};

static struct tale *planned(const struct order_options *options, const char *slots)
{
    struct tale *tale = tale_begin_with(2, options);
    tale_plan(tale, slots);
    tale_step(tale, 1);
    tale_header(tale, 1, PHASE);
    tale_expect(tale, "header 1; ");
    return tale;
}

// The rest of a step whose plan has `count` slots, of which this rank makes none.
static void settle(struct tale *tale, uint32_t count, uint64_t agreed)
{
    const uint64_t step = tale->order.step;
    const struct close_wave result = {.plan_number = agreed};
    tale_header(tale, step, PHASE);
    order_step_ended(&tale->order);
    for (uint32_t i = 0; i < count; i++)
        tale_final(tale, i);
    order_close_completed(&tale->order, &result);
    order_commit_completed(&tale->order);
    assert_int_equal(tale->order.settled, step);
    tale_forget(tale);
}

// ---- Calls outside the plan --------------------------------------------------------------------

// "A1 is pending on r0; close wave result [A1]; both append A1 (r1 zero), run it, commit wave."
static void test_extra_call(void **state)
{
    struct tale *first = planned(&extend, "A B"); // r0: A B A.
    struct tale *second = planned(&extend, "A B"); // r1: A B.
    (void)state;
    tale_made(first, "A B A1");
    order_step_ended(&first->order);
    tale_expect(first, "launch 0; launch 1; close extras 1; ");
    tale_made(second, "A B");
    order_step_ended(&second->order);
    tale_expect(second, "launch 0; launch 1; close extras 0; ");
    for (uint32_t i = 0; i < 2; i++) {
        tale_final(first, i);
        tale_final(second, i);
    }
    tale_close(first, "A1");
    tale_expect(first, "launch 2 A1.0; ");
    tale_close(second, "A1");
    tale_expect(second, "launch 2 A1.0 zero; ");
    tale_final(first, 2);
    order_commit_completed(&first->order);
    tale_expect(first, "commit; settled 1; ");
    free(first);
    free(second);
}

static void test_extra_calls_run_in_one_order(void **state)
{
    struct tale *tale = tale_begin_with(2, &extend);
    (void)state;
    tale->buckets[1] = 2;
    tale_plan(tale, "A");
    tale_step(tale, 1);
    tale_header(tale, 1, PHASE);
    tale_made(tale, "C1 A B.1 B.0"); // Another rank brings D of the union.
    order_step_ended(&tale->order);
    tale_expect(tale, "header 1; launch 0; close extras 2; ");
    tale_close(tale, "B D C1");
    tale_expect(tale, "launch 1 B0.0; launch 2 B0.1; launch 3 D0.0 zero; launch 4 C1.0; ");
    free(tale);
}

static void test_extra_calls_wait_for_the_window(void **state)
{
    const struct order_options two = {.window = 2};
    struct tale *tale = planned(&two, "A B");
    (void)state;
    tale_made(tale, "C");
    order_step_ended(&tale->order);
    tale_close(tale, "C");
    tale_expect(tale, "launch 0 zero; launch 1 zero; close extras 1; ");
    tale_final(tale, 1);
    tale_expect(tale, "");
    tale_final(tale, 0);
    tale_expect(tale, "launch 2 C0.0; ");
    free(tale);
}

static void test_a_module_without_gradients_extends_by_nothing(void **state)
{
    struct tale *tale = tale_begin_with(2, &extend);
    (void)state;
    tale->buckets[2] = 0;
    tale_plan(tale, "");
    tale_step(tale, 1);
    tale_header(tale, 1, PHASE);
    order_step_ended(&tale->order);
    tale_close(tale, "C");
    tale_expect(tale, "header 1; close extras 0; commit; ");
    free(tale);
}

static void refused(const struct order_options *options, uint32_t buckets, const char *extras,
                    const char *verdict)
{
    struct tale *tale = tale_begin_with(2, options);
    tale->buckets[2] = buckets;
    tale_plan(tale, "A");
    tale_step(tale, 1);
    tale_header(tale, 1, PHASE);
    tale_made(tale, "A C");
    order_step_ended(&tale->order);
    tale_expect(tale, "header 1; launch 0; close extras 1; ");
    tale_final(tale, 0);
    tale_close(tale, extras);
    tale_expect(tale, "commit; "); // Others may need this rank's part of the plan.
    order_commit_completed(&tale->order);
    tale_expect(tale, verdict);
    assert_int_equal(tale->order.settled, 0);
    free(tale);
}

static void test_what_cannot_be_run_is_the_verdict_of_all(void **state)
{
    (void)state;
    refused(&fail, 1, "C", "failed kind 4; ");
    refused(&fail, LOCKSTEP_MAX_SLOTS, "C", "failed kind 4; ");
    // With A one more than there may be.
    refused(&extend, LOCKSTEP_MAX_SLOTS, "C", "failed kind 11; ");
    refused(&extend, 1, "A", "failed kind 4; "); // Never said by a rank of this plan.
}

static void test_more_calls_than_can_be_named_are_too_many(void **state)
{
    struct tale *tale = planned(&extend, "B");
    struct close_wave wave = {.plan_number = 1};
    (void)state;
    tale_made(tale, "B A1 A2 A3 A4 A5 A6 A7 A8 A9");
    order_step_ended(&tale->order);
    tale_expect(tale, "launch 0; close extras 9; ");
    wave.extra_total = LOCKSTEP_MAX_EXTRA_CALLS + 1;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_EXTRA_CALLS; i++)
        wave.extras[i].call = 1 + i;
    order_close_completed(&tale->order, &wave);
    tale_final(tale, 0);
    order_commit_completed(&tale->order);
    tale_expect(tale, "commit; failed kind 4; ");
    free(tale);
}

static void test_more_slots_than_can_be_kept_are_too_many(void **state)
{
    struct tale *tale = planned(&extend, "A");
    (void)state;
    for (uint32_t i = 0; i <= LOCKSTEP_MAX_SLOTS; i++)
        order_slot_ready(&tale->order, (struct slot_id){.module = 1, .bucket = i}, DTYPE_FLOAT32,
                         1);
    order_step_ended(&tale->order);
    tale_expect(tale, "launch 0 zero; close extras 1 and more; ");
    order_close_completed(&tale->order, &tale->order.close);
    tale_final(tale, 0);
    order_commit_completed(&tale->order);
    tale_expect(tale, "commit; failed kind 11; ");
    free(tale);
}

static void test_deferred_calls_are_in_no_wave(void **state)
{
    struct tale *tale = planned(&defer, "A");
    (void)state;
    tale_made(tale, "B.0 A B.1");
    order_step_ended(&tale->order);
    tale_expect(tale, "defer B0.0; launch 0; defer B0.1; close extras 0; ");
    free(tale);
}

// ---- Strict ranks ------------------------------------------------------------------------------

static void test_a_strict_rank_launches_in_the_order_of_the_plan(void **state)
{
    const struct order_options strict = {.strict = true, .window = 2};
    struct tale *tale = tale_begin_with(2, &strict);
    (void)state;
    tale_plan(tale, "A B C");
    tale_step(tale, 1);
    tale_made(tale, "B A");
    tale_expect(tale, "header 1; "); // Not before the predecessor's.
    tale_header(tale, 1, PHASE);
    tale_expect(tale, "launch 0; launch 1; ");
    tale_made(tale, "C");
    tale_expect(tale, "");
    tale_final(tale, 0);
    tale_expect(tale, "launch 2; ");
    free(tale);
}

static void test_a_strict_rank_keeps_what_is_ready_too_early(void **state)
{
    const struct order_options strict = {.strict = true};
    struct tale *tale = planned(&strict, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_expect(tale, "");
    tale_made(tale, "A");
    tale_expect(tale, "launch 0; launch 1; ");
    free(tale);
}

static void test_a_strict_rank_launches_nothing_of_another_phase(void **state)
{
    const struct order_options strict = {.strict = true};
    struct tale *tale = tale_begin_with(2, &strict);
    (void)state;
    tale_step(tale, 1);
    tale_header(tale, 1, OTHER_PHASE);
    tale_made(tale, "A");
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = tale_slot("A")});
    tale_expect(tale, "header 1; fail kind 2 step 1; ready 0.0; ");
    free(tale);
}

// ---- Plans that come while the job runs --------------------------------------------------------

static uint64_t in_force(const struct tale *tale)
{
    const struct order_plan *plan = order_plan_of(&tale->order, PHASE);
    return !plan ? 0 : plan->number;
}

static void test_a_plan_waits_until_all_ranks_hold_it(void **state)
{
    struct tale *tale = tale_begin_with(2, &extend);
    (void)state;
    tale_plan(tale, "A B");
    tale_step(tale, 1);
    tale_newer_plan(tale, 1, "B A C");
    assert_int_equal(tale->order.plans.number, 2);
    settle(tale, 2, 1); // The minimum: another rank does not hold it yet.
    assert_int_equal(in_force(tale), 1);
    tale_step(tale, 2);
    settle(tale, 2, 2);
    assert_int_equal(in_force(tale), 2);
    tale_step(tale, 3);
    tale_made(tale, "B");
    tale_expect(tale, "header 3; launch 0; ");
    settle(tale, 3, 2);
    tale_newer_plan(tale, 2, "A"); // The next one may come.
    tale_step(tale, 4);
    assert_int_equal(tale->order.slot_count, 3);
    free(tale);
}

static void test_what_a_rank_holds_is_what_it_brings(void **state)
{
    struct tale *tale = planned(&extend, "A");
    (void)state;
    tale_newer_plan(tale, 1, "B");
    order_step_ended(&tale->order);
    assert_int_equal(tale->order.close.plan_number, 2);
    tale_newer_plan(tale, 2, "C"); // Only one can wait.
    tale_expect(tale, "launch 0 zero; close extras 0; failed kind 8; ");
    free(tale);
}

static void test_a_plan_that_comes_back_is_no_plan(void **state)
{
    struct tale *tale = planned(&extend, "A");
    (void)state;
    order_plan_received(&tale->order,
                        &(struct down_plan_part){.number = 1, .last = true, .phase = PHASE});
    tale_expect(tale, "failed kind 8; ");
    free(tale);
}

// Another rank may have lost the plan with its stream.
static void test_a_learned_plan_drops_one_that_waits(void **state)
{
    struct tale *tale = tale_begin_with(2, &extend);
    (void)state;
    tale_plan(tale, "A B");
    order_step_begun(&tale->order, 1, OTHER_PHASE, tale->buckets);
    tale_newer_plan(tale, 1, "B A");
    order_step_ended(&tale->order);
    tale_plan_of(tale, OTHER_PHASE, "C");
    assert_int_equal(in_force(tale), 1);
    assert_int_equal(tale->order.plans.newer.number, 0);
    assert_int_equal(tale->order.plans.in_force, 3);
    free(tale);
}

// Such a plan names buckets of forgotten layouts, so all ranks drop it, whenever it arrives.
static void test_a_plan_made_from_a_forgotten_one_is_dropped(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct tale *tale = tale_begin_with(2, &extend);
        tale_plan(tale, "A B");
        tale_step(tale, 1);
        settle(tale, 2, 1);
        if (first == 1)
            tale_newer_plan(tale, 1, "B A");
        order_forget_plans(&tale->order);
        tale_step(tale, 2);
        assert_true(tale->order.learning);
        if (first == 0)
            tale_newer_plan(tale, 1, "B A");
        order_step_ended(&tale->order);
        tale_plan(tale, "C");
        assert_int_equal(in_force(tale), 3);
        assert_int_equal(tale->order.plans.newer.number, 0);
        free(tale);
    }
}

static void test_a_plan_made_from_another_one_is_dropped(void **state)
{
    struct tale *tale = planned(&extend, "A");
    (void)state;
    tale_newer_plan(tale, 7, "B");
    settle(tale, 1, 2);
    assert_int_equal(in_force(tale), 1);
    tale_newer_plan(tale, 1, "B"); // There is room for another.
    tale_step(tale, 2);
    settle(tale, 1, 3);
    assert_int_equal(in_force(tale), 3);
    free(tale);
}

// The steps decide which plan makes room.
static void test_a_newer_plan_is_as_old_as_its_phase(void **state)
{
    struct tale *tale = tale_begin_with(1, &extend);
    (void)state;
    tale->order.plans.room = 2;
    order_step_begun(&tale->order, 1, OTHER_PHASE, tale->buckets);
    order_step_ended(&tale->order);
    tale_plan_of(tale, OTHER_PHASE, "");
    order_commit_completed(&tale->order);
    tale_step(tale, 2);
    order_step_ended(&tale->order);
    tale_plan(tale, "");
    order_commit_completed(&tale->order);
    tale_newer_plan(tale, 2, "A");
    order_switch_plans(&tale->order, 3); // All ranks hold it.
    order_step_begun(&tale->order, 3, 5, tale->buckets);
    order_step_ended(&tale->order);
    tale_plan_of(tale, 5, "");
    assert_int_equal(in_force(tale), 3);
    assert_null(order_plan_of(&tale->order, OTHER_PHASE));
    free(tale);
}

static void test_a_newer_plan_is_not_used_later_for_its_age(void **state)
{
    struct tale *tale = tale_begin_with(1, &extend);
    (void)state;
    tale->order.plans.room = 2;
    tale_plan(tale, "A");
    tale_step(tale, 1);
    settle(tale, 1, 1);
    order_step_begun(&tale->order, 2, OTHER_PHASE, tale->buckets);
    order_step_ended(&tale->order);
    tale_plan_of(tale, OTHER_PHASE, "");
    order_commit_completed(&tale->order);
    tale_newer_plan(tale, 1, "A"); // PHASE was begun longest ago all the same.
    order_switch_plans(&tale->order, 3); // All ranks hold it.
    order_step_begun(&tale->order, 3, 5, tale->buckets);
    order_step_ended(&tale->order);
    tale_plan_of(tale, 5, "");
    assert_int_equal(in_force(tale), 0);
    assert_non_null(order_plan_of(&tale->order, OTHER_PHASE));
    free(tale);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_extra_call),
        cmocka_unit_test(test_extra_calls_run_in_one_order),
        cmocka_unit_test(test_extra_calls_wait_for_the_window),
        cmocka_unit_test(test_a_module_without_gradients_extends_by_nothing),
        cmocka_unit_test(test_what_cannot_be_run_is_the_verdict_of_all),
        cmocka_unit_test(test_more_calls_than_can_be_named_are_too_many),
        cmocka_unit_test(test_more_slots_than_can_be_kept_are_too_many),
        cmocka_unit_test(test_deferred_calls_are_in_no_wave),
        cmocka_unit_test(test_a_strict_rank_launches_in_the_order_of_the_plan),
        cmocka_unit_test(test_a_strict_rank_keeps_what_is_ready_too_early),
        cmocka_unit_test(test_a_strict_rank_launches_nothing_of_another_phase),
        cmocka_unit_test(test_a_plan_waits_until_all_ranks_hold_it),
        cmocka_unit_test(test_what_a_rank_holds_is_what_it_brings),
        cmocka_unit_test(test_a_plan_that_comes_back_is_no_plan),
        cmocka_unit_test(test_a_learned_plan_drops_one_that_waits),
        cmocka_unit_test(test_a_plan_made_from_a_forgotten_one_is_dropped),
        cmocka_unit_test(test_a_plan_made_from_another_one_is_dropped),
        cmocka_unit_test(test_a_newer_plan_is_as_old_as_its_phase),
        cmocka_unit_test(test_a_newer_plan_is_not_used_later_for_its_age),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
