// SPDX-License-Identifier: Apache-2.0
//
// A trainer that waits for its calls, on one rank: when it goes on, what it gives up, what is said.
// The stories are those of order protocol R9; what the coordinator makes of it is its tests'
// matter.

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

#define STEP 1

// In step 1 of a world of two, with that plan in force.
static struct tale *planned(const struct order_options *options, const char *slots)
{
    struct tale *tale = tale_begin_with(2, options);
    tale_plan(tale, slots);
    tale_step(tale, STEP);
    tale_header(tale, STEP, PHASE);
    tale_expect(tale, "header 1; ");
    return tale;
}

static struct tale *learning(const struct order_options *options)
{
    struct tale *tale = tale_begin_with(2, options);
    tale_step(tale, STEP);
    tale_header(tale, STEP, PHASE);
    tale_expect(tale, "header 1; ");
    return tale;
}

static void query(struct tale *tale, uint64_t step, bool withdrawn)
{
    order_queried(&tale->order, &(struct down_query){.step = step, .withdrawn = withdrawn});
}

static void grant(struct tale *tale, const char *slot, bool forced)
{
    order_granted(&tale->order,
                  &(struct down_grant){.step = STEP, .slot = tale_slot(slot), .forced = forced});
}

static void time_is_over(struct tale *tale, const char *call)
{
    order_wait_ended(&tale->order, tale_call(call));
}

static const struct order_options windowed = {.window = 8};
static const struct order_options strict = {.strict = true};
static const struct order_options zero_defer = {.zero_defer = true};
static const struct order_options threads = {.threads = 2};

// ---- Going on, in silence ----------------------------------------------------------------------

static void test_a_wait_in_the_order_of_the_plan_says_nothing(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_expect(tale, "launch 0; ");
    tale_final(tale, 0);
    tale_expect(tale, "release A0; ");
    tale_made(tale, "B");
    tale_final(tale, 1);
    tale_wait(tale, "B"); // It is final already.
    tale_expect(tale, "launch 1; release B0; ");
    order_step_ended(&tale->order);
    tale_close(tale, "");
    order_commit_completed(&tale->order);
    tale_expect(tale, "close extras 0; commit; settled 1; ");
    free(tale);
}

static void test_a_wait_for_a_final_call_says_nothing_of_earlier_ones(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_final(tale, 1);
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; release B0; ");
    free(tale);
}

static void test_every_bucket_of_a_call_is_waited_for(void **state)
{
    struct tale *tale = tale_begin_with(2, &windowed);
    (void)state;
    tale->buckets[0] = 2;
    tale_plan(tale, "A.0 B A.1");
    tale_step(tale, STEP);
    tale_made(tale, "A.0 A.1 B");
    tale_wait(tale, "A");
    tale_expect(tale, "header 1; launch 0; launch 2; launch 1; ");
    tale_final(tale, 2);
    tale_final(tale, 1);
    assert_int_equal(order_wait_ask(&tale->order, tale_call("A")), RELEASE_WITHDRAWN);
    tale_expect(tale, "");
    tale_final(tale, 0);
    tale_expect(tale, "release A0; ");
    assert_int_equal(order_wait_ask(&tale->order, tale_call("A")), RELEASE_FINAL);
    free(tale);
}

static void test_two_threads_wait_for_one_call(void **state)
{
    struct tale *tale = planned(&threads, "A");
    (void)state;
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_wait(tale, "A");
    tale_final(tale, 0);
    tale_expect(tale, "launch 0; release A0; release A0; ");
    free(tale);
}

static void test_what_is_not_in_any_step_is_not_waited_for(void **state)
{
    struct tale *tale = tale_begin_with(1, &windowed);
    (void)state;
    tale_wait(tale, "A"); // No step yet.
    tale_expect(tale, "release A0; ");
    tale->buckets[0] = 0; // Without gradients.
    tale_plan(tale, "B");
    tale_step(tale, STEP);
    tale_wait(tale, "A");
    tale_expect(tale, "release A0; ");
    order_step_ended(&tale->order);
    tale_final(tale, 0);
    tale_close(tale, "");
    order_commit_completed(&tale->order);
    tale_forget(tale);
    tale_wait(tale, "B"); // A call of a step that is settled.
    assert_int_equal(order_wait_ask(&tale->order, tale_call("B")), RELEASE_FINAL);
    tale_expect(tale, "release B0; ");
    free(tale);
}

static void test_a_wait_lasts_no_longer_than_its_step(void **state)
{
    struct tale *tale = planned(&threads, "A B");
    (void)state;
    tale_made(tale, "A");
    tale_wait(tale, "B"); // Another thread ends the step without it.
    order_step_ended(&tale->order);
    tale_expect(tale, "launch 0; launch 1 zero; close extras 0; ");
    tale_close(tale, "C"); // A call that only others made is waited for to the end.
    tale_wait(tale, "C");
    tale_final(tale, 0);
    tale_final(tale, 1);
    tale_expect(tale, "launch 2 C0.0 zero; release B0; ");
    tale_final(tale, 2);
    order_commit_completed(&tale->order);
    tale_expect(tale, "commit; release C0; settled 1; ");
    free(tale);
}

static void test_a_wait_for_what_nobody_makes_ends_with_the_step(void **state)
{
    struct tale *tale = planned(&windowed, "A");
    (void)state;
    order_step_ended(&tale->order);
    tale_wait(tale, "C");
    query(tale, STEP, false);
    tale_final(tale, 0);
    tale_close(tale, "");
    tale_expect(tale, "launch 0 zero; close extras 0; commit; ");
    order_commit_completed(&tale->order);
    tale_expect(tale, "release C0; settled 1; ");
    free(tale);
}

static void test_only_so_many_waits_are_kept(void **state)
{
    struct tale *tale = planned(&threads, "A");
    (void)state;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_WAITS; i++)
        tale_wait(tale, "A");
    tale_forget(tale);
    tale_wait(tale, "A");
    tale_expect(tale, "release A0 withdrawn; ");
    free(tale);
}

static void test_nothing_is_answered_after_a_halt(void **state)
{
    struct tale *tale = planned(&zero_defer, "A B");
    (void)state;
    tale_made(tale, "B");
    order_halted(&tale->order, &(struct down_halt){.kind = HALT_LOST, .text = "lost"});
    tale_expect(tale, "launch 1; failed kind 6; ");
    tale_wait(tale, "B");
    time_is_over(tale, "B");
    order_call_begun(&tale->order, tale_call("A"));
    order_call_ended(&tale->order, tale_call("A"));
    query(tale, STEP, true);
    order_coordinator_lost(&tale->order);
    tale_expect(tale, "");
    free(tale);
}

static void test_a_halt_ends_a_wait(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    order_halted(&tale->order, &(struct down_halt){.step = STEP, .kind = HALT_ORDER, .text = "o"});
    tale_expect(tale, "launch 1; blocked B0 needs 1 lacks 0=A0; failed kind 3; ");
    tale_final(tale, 1);
    tale_expect(tale, "");
    free(tale);
}

// ---- Order protocol, section 8: swap, waits ----------------------------------------------------

// r1: B wait A wait. "Blocked(B0, unready {A0}); need(B0) contains A0".
static void test_swap_with_waits_strict(void **state)
{
    struct tale *tale = planned(&strict, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "blocked B0 needs 0,1 lacks 0=A0; ");
    free(tale);
}

static void test_swap_with_waits_windowed(void **state)
{
    struct tale *first = planned(&windowed, "A B"); // r0: A wait B wait.
    struct tale *second = planned(&windowed, "A B"); // r1: B wait A wait.
    (void)state;
    tale_made(second, "B");
    tale_wait(second, "B");
    tale_expect(second, "launch 1; blocked B0 needs 1 lacks 0=A0; ");
    tale_made(first, "A");
    tale_wait(first, "A");
    tale_expect(first, "launch 0; "); // Nothing before A is unready: it is not this rank that asks.
    query(first, STEP, false);
    tale_expect(first, "blocked A0 needs 0 lacks 1=B0; ");
    free(first);
    free(second);
}

// "With r0: A B (no waits) windowed completes, since r0's B comes: r1 is released."
static void test_swap_where_only_one_waits(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; blocked B0 needs 1 lacks 0=A0; ");
    tale_final(tale, 1);
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_expect(tale, "release B0; launch 0; blocked A0 needs 0 lacks ; ");
    tale_final(tale, 0);
    tale_expect(tale, "release A0; ");
    free(tale);
}

// "zero_defer: r1's wait forfeits A0: A0 = r0's, B0 = both, r1's A is in its next A contribution."
static void test_swap_zero_defer(void **state)
{
    struct tale *tale = planned(&zero_defer, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; launch 0 zero forfeited; ");
    tale_final(tale, 1);
    tale_final(tale, 0);
    tale_expect(tale, "release B0; ");
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_expect(tale, "defer A0.0; release A0 deferred; ");
    order_step_ended(&tale->order);
    tale_expect(tale, "close extras 0; ");
    free(tale);
}

// ---- What a report says ------------------------------------------------------------------------

static void test_needs_reach_back_to_where_the_window_begins(void **state)
{
    const struct order_options three = {.window = 3};
    struct tale *tale = planned(&three, "A B C D E");
    (void)state;
    tale_made(tale, "E");
    tale_wait(tale, "E");
    tale_expect(tale, "blocked E0 needs 0,1,4 lacks 0=A0,1=B0,2=C0,3=D0; ");
    free(tale);
}

static void test_a_call_needs_what_each_of_its_buckets_needs(void **state)
{
    const struct order_options two = {.window = 2};
    struct tale *tale = tale_begin_with(2, &two);
    (void)state;
    tale->buckets[1] = 3;
    tale_plan(tale, "A B.0 C B.1 D B.2 E");
    tale_step(tale, STEP);
    tale_made(tale, "B.0 B.1 B.2");
    tale_wait(tale, "B");
    tale_expect(tale, "header 1; launch 1; "
                      "blocked B0 needs 0,1,2,3,5 lacks 0=A0,2=C0,4=D0,6=E0; ");
    free(tale);
}

static void test_a_call_that_lacks_several_buckets_is_named_once(void **state)
{
    struct tale *tale = tale_begin_with(2, &windowed);
    (void)state;
    tale->buckets[0] = 2;
    tale_plan(tale, "A.0 B A.1 A1.0 A1.1");
    tale_step(tale, STEP);
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "header 1; launch 1; blocked B0 needs 1 lacks 0=A0,3=A1 of 0,2,3,4; ");
    free(tale);
}

static void test_only_so_many_calls_are_named(void **state)
{
    struct tale *tale =
        planned(&windowed, "A A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12 A13 A14 A15 A16 B");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    assert_int_equal(tale->order.waits.said.lack_count, LOCKSTEP_LACKS_NAMED);
    assert_int_equal(tale->order.waits.said.lacks.words[0], 0x1ffff);
    free(tale);
}

// A plan says that another rank pairs by position: then this one needs all before.
static void test_a_plan_of_a_strict_rank_needs_all_before(void **state)
{
    struct tale *tale = tale_begin_with(2, &windowed);
    struct down_plan_part part = {.number = 1,
                                  .phase = PHASE,
                                  .closes_step = true,
                                  .slot_total = 2,
                                  .slot_count = 2,
                                  .last = true,
                                  .strict = true};
    (void)state;
    part.slots[0].id = tale_slot("A");
    part.slots[1].id = tale_slot("B");
    order_plan_received(&tale->order, &part);
    tale_step(tale, STEP);
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "header 1; launch 1; blocked B0 needs 0,1 lacks 0=A0; ");
    free(tale);
}

// ---- When it is said ---------------------------------------------------------------------------

static void test_a_report_is_repeated_only_when_it_changed(void **state)
{
    struct tale *tale = planned(&windowed, "A B C");
    (void)state;
    tale_made(tale, "C");
    tale_wait(tale, "C");
    tale_expect(tale, "launch 2; blocked C0 needs 2 lacks 0=A0,1=B0; ");
    query(tale, STEP, false);
    tale_expect(tale, "");
    tale_made(tale, "B"); // By another thread.
    tale_expect(tale, "launch 1; blocked C0 needs 2 lacks 0=A0; ");
    tale_final(tale, 1);
    tale_expect(tale, "");
    free(tale);
}

// The first rank of a step to be blocked is not asked about it: it has to watch the step itself.
// r0: A C wait .. (C unready on r1); r1: B wait, A, then waits for A, which r0 lacks: unseen else.
static void test_who_has_said_it_goes_on_saying(void **state)
{
    const struct order_options three = {.window = 3};
    struct tale *tale = planned(&three, "A B C");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; blocked B0 needs 1 lacks 0=A0,2=C0; ");
    tale_final(tale, 1);
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_expect(tale, "release B0; launch 0; blocked A0 needs 0 lacks 2=C0; ");
    free(tale);
}

static void test_a_question_holds_for_its_step(void **state)
{
    struct tale *tale = tale_begin_with(1, &windowed);
    (void)state;
    tale_plan(tale, "A B");
    query(tale, 2, false); // The step after the next one: no rank can be there.
    query(tale, 1, false); // The peer that is blocked is ahead.
    tale_step(tale, 1);
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_expect(tale, "launch 0; blocked A0 needs 0 lacks 1=B0; ");
    order_step_ended(&tale->order);
    tale_final(tale, 0);
    tale_final(tale, 1);
    tale_close(tale, "");
    order_commit_completed(&tale->order);
    tale_forget(tale);
    tale_step(tale, 2);
    query(tale, 1, false); // Late.
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_expect(tale, "launch 0; ");
    free(tale);
}

static void test_nothing_is_said_to_a_coordinator_that_is_lost(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    tale_made(tale, "B");
    order_coordinator_lost(&tale->order);
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; ");
    time_is_over(tale, "B");
    tale_expect(tale, "release B0 withdrawn; ");
    free(tale);
}

// ---- Calls that are open, several threads ------------------------------------------------------

static void test_an_open_call_counts_as_not_made(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    order_call_begun(&tale->order, tale_call("A"));
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; blocked B0 needs 1 lacks 0=A0; ");
    free(tale);
}

static void test_an_open_call_may_be_waited_for(void **state)
{
    const struct order_options allowed = {.wait_while_open = true};
    struct tale *tale = planned(&allowed, "A B C");
    (void)state;
    order_call_begun(&tale->order, tale_call("A"));
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; ");
    query(tale, STEP, false);
    tale_expect(tale, "blocked B0 needs 1 lacks 2=C0; ");
    order_call_ended(&tale->order, tale_call("A")); // Without any gradient.
    tale_expect(tale, "blocked B0 needs 1 lacks 0=A0,2=C0; ");
    free(tale);
}

static void test_an_open_call_is_given_up_unless_it_may_be_waited_for(void **state)
{
    (void)state;
    for (int allowed = 0; allowed < 2; allowed++) {
        const struct order_options options = {.zero_defer = true, .wait_while_open = allowed == 1};
        struct tale *tale = tale_begin_with(2, &options);
        tale->buckets[0] = 2;
        tale_plan(tale, "A.0 A.1 B");
        tale_step(tale, STEP);
        order_call_begun(&tale->order, tale_call("A"));
        tale_made(tale, "A.0 B"); // Its complete buckets are ready.
        tale_wait(tale, "B");
        tale_expect(tale, allowed == 1 ? "header 1; launch 0; launch 2; "
                                       : "header 1; launch 0; launch 2; launch 1 zero forfeited; ");
        tale_made(tale, "A.1");
        order_call_ended(&tale->order, tale_call("A"));
        tale_expect(tale, allowed == 1 ? "launch 1; " : "defer A0.1; ");
        assert_int_equal(order_wait_ask(&tale->order, tale_call("A")),
                         allowed == 1 ? RELEASE_WITHDRAWN : RELEASE_DEFERRED);
        free(tale);
    }
}

static void test_a_rank_is_blocked_when_all_its_threads_are(void **state)
{
    struct tale *tale = planned(&threads, "A B C D");
    (void)state;
    tale_made(tale, "D C");
    tale_wait(tale, "D");
    tale_expect(tale, "launch 3; launch 2; ");
    tale_wait(tale, "C");
    tale_expect(tale, "blocked D0 needs 3 C0 needs 2 lacks 0=A0,1=B0; ");
    tale_final(tale, 3); // One thread goes on: nothing that is said is wrong for ever.
    tale_made(tale, "B");
    tale_expect(tale, "release D0; launch 1; ");
    tale_wait(tale, "B");
    tale_expect(tale, "blocked C0 needs 2 B0 needs 1 lacks 0=A0; ");
    free(tale);
}

static void test_what_is_given_up_is_given_up_when_all_threads_wait(void **state)
{
    const struct order_options both = {.zero_defer = true, .threads = 2};
    struct tale *tale = planned(&both, "A B C D");
    (void)state;
    tale_made(tale, "B C");
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; launch 2; ");
    tale_wait(tale, "C");
    tale_expect(tale, "launch 0 zero forfeited; "); // D stands behind all that is waited for.
    free(tale);
}

static void test_a_wait_for_what_another_thread_gives_up_is_over(void **state)
{
    const struct order_options both = {.zero_defer = true, .threads = 2};
    struct tale *tale = tale_begin_with(2, &both);
    (void)state;
    tale->buckets[0] = 2;
    tale_plan(tale, "A.0 A.1 B");
    tale_step(tale, STEP);
    tale_made(tale, "A.0 B");
    tale_wait(tale, "A");
    tale_wait(tale, "B");
    tale_expect(tale, "header 1; launch 0; launch 2; launch 1 zero forfeited; "
                      "release A0 deferred; ");
    free(tale);
}

// ---- Time is over ------------------------------------------------------------------------------

static void test_a_wait_that_was_not_said_is_withdrawn_at_once(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    tale_made(tale, "A");
    tale_wait(tale, "A");
    time_is_over(tale, "B"); // Nobody waits for that one.
    time_is_over(tale, "A");
    tale_expect(tale, "launch 0; release A0 withdrawn; ");
    time_is_over(tale, "A");
    tale_final(tale, 0);
    tale_expect(tale, "");
    free(tale);
}

static void test_a_wait_that_was_said_is_withdrawn_when_that_is_known(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_forget(tale);
    time_is_over(tale, "B");
    tale_expect(tale, "unblocked; ");
    query(tale, STEP, false); // No answer to that.
    tale_expect(tale, "");
    query(tale, STEP, true);
    tale_expect(tale, "release B0 withdrawn; ");
    tale_made(tale, "A"); // Nothing has changed: the step goes on.
    tale_final(tale, 0);
    tale_wait(tale, "B");
    tale_final(tale, 1);
    tale_expect(tale, "launch 0; blocked B0 needs 1 lacks ; release B0; ");
    free(tale);
}

static void test_what_becomes_final_meanwhile_is_final(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    time_is_over(tale, "B");
    tale_forget(tale);
    tale_final(tale, 1);
    tale_expect(tale, "release B0; ");
    tale_wait(tale, "B");
    query(tale, STEP, true);
    tale_expect(tale, "release B0; ");
    free(tale);
}

// Each answer is to one report: the first one does not end the wait whose report came later.
static void test_answers_are_counted(void **state)
{
    struct tale *tale = planned(&windowed, "A B C");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    time_is_over(tale, "B");
    tale_final(tale, 1);
    tale_made(tale, "C");
    tale_wait(tale, "C");
    tale_forget(tale);
    time_is_over(tale, "C");
    tale_expect(tale, "unblocked; ");
    query(tale, STEP, true);
    tale_expect(tale, "");
    query(tale, STEP, true);
    tale_expect(tale, "release C0 withdrawn; ");
    query(tale, STEP, true); // One too many.
    tale_expect(tale, "");
    free(tale);
}

static void test_a_lost_coordinator_knows_nothing_any_more(void **state)
{
    struct tale *tale = planned(&windowed, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    time_is_over(tale, "B");
    tale_forget(tale);
    order_coordinator_lost(&tale->order);
    tale_expect(tale, "release B0 withdrawn; ");
    tale_wait(tale, "B");
    time_is_over(tale, "B");
    tale_expect(tale, "release B0 withdrawn; ");
    free(tale);
}

static void test_waits_for_one_call_are_withdrawn_one_by_one(void **state)
{
    struct tale *tale = planned(&threads, "A B");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_wait(tale, "B");
    tale_forget(tale);
    time_is_over(tale, "B");
    time_is_over(tale, "B");
    tale_expect(tale, "unblocked; ");
    query(tale, STEP, true);
    tale_expect(tale, "release B0 withdrawn; release B0 withdrawn; ");
    free(tale);
}

static void test_a_withdrawn_wait_is_in_no_report(void **state)
{
    struct tale *tale = planned(&threads, "A B C D");
    (void)state;
    tale_made(tale, "B C D");
    tale_wait(tale, "B");
    tale_wait(tale, "C");
    tale_forget(tale);
    time_is_over(tale, "B");
    tale_wait(tale, "D"); // A third thread.
    tale_expect(tale, "unblocked; blocked C0 needs 2 D0 needs 3 lacks 0=A0; ");
    free(tale);
}

static void test_a_withdrawn_wait_is_in_no_report_of_a_learning_step(void **state)
{
    struct tale *tale = learning(&threads);
    (void)state;
    tale_made(tale, "B C D");
    tale_wait(tale, "B");
    tale_wait(tale, "C");
    tale_forget(tale);
    time_is_over(tale, "B");
    tale_wait(tale, "D");
    tale_expect(tale, "unblocked; wait C0.0 D0.0; ");
    free(tale);
}

// Settles step 1 of plan A B, in which this rank makes A late and B was waited for in vain.
static struct tale *settled_after_a_report(const struct order_options *options, bool withdrawn)
{
    struct tale *tale = tale_begin_with(1, options);
    tale_plan(tale, "A B");
    tale_step(tale, STEP);
    order_call_begun(&tale->order, tale_call("C"));
    tale_made(tale, "B");
    tale_wait(tale, "B");
    if (withdrawn)
        time_is_over(tale, "B");
    tale_final(tale, 1);
    order_step_ended(&tale->order);
    tale_final(tale, 0);
    tale_close(tale, "");
    order_commit_completed(&tale->order);
    assert_int_equal(tale->order.settled, STEP);
    tale_step(tale, STEP + 1);
    tale_forget(tale);
    return tale;
}

static void test_an_answer_of_the_step_before_ends_no_wait(void **state)
{
    struct tale *tale = settled_after_a_report(&windowed, true);
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    time_is_over(tale, "B");
    tale_expect(tale, "launch 1; blocked B0 needs 1 lacks 0=A0; unblocked; ");
    query(tale, STEP, true);
    tale_expect(tale, "");
    query(tale, STEP + 1, true);
    tale_expect(tale, "release B0 withdrawn; ");
    free(tale);
}

static void test_a_report_of_the_step_before_is_not_taken_back(void **state)
{
    struct tale *tale = settled_after_a_report(&windowed, false);
    (void)state;
    tale_made(tale, "A");
    tale_wait(tale, "A");
    time_is_over(tale, "A");
    tale_expect(tale, "launch 0; release A0 withdrawn; ");
    free(tale);
}

static void test_a_call_of_the_step_before_is_not_open(void **state)
{
    const struct order_options allowed = {.wait_while_open = true};
    struct tale *tale = settled_after_a_report(&allowed, false);
    (void)state;
    tale_made(tale, "B");
    assert_int_equal(tale->order.waits.open_call_count, 0);
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; blocked B0 needs 1 lacks 0=A0; ");
    free(tale);
}

// A call that was given up stays given up: the programs decide, not the time.
static void test_a_withdrawn_wait_has_given_up_all_the_same(void **state)
{
    struct tale *tale = planned(&zero_defer, "A B");
    (void)state;
    tale_made(tale, "B");
    assert_int_equal(order_wait_ask(&tale->order, tale_call("B")), RELEASE_WITHDRAWN);
    tale_expect(tale, "launch 1; "); // A wait that only asks gives up nothing.
    tale_wait(tale, "B");
    time_is_over(tale, "B");
    tale_expect(tale, "launch 0 zero forfeited; release B0 withdrawn; ");
    tale_made(tale, "A");
    tale_expect(tale, "defer A0.0; ");
    free(tale);
}

// ---- Giving up ---------------------------------------------------------------------------------

static void test_a_wait_for_a_final_call_gives_up_all_the_same(void **state)
{
    struct tale *tale = planned(&zero_defer, "A B C");
    (void)state;
    tale_made(tale, "B");
    tale_final(tale, 1);
    tale_expect(tale, "launch 1; ");
    tale_wait(tale, "B");
    tale_expect(tale, "launch 0 zero forfeited; release B0; "); // C stands behind it.
    tale_made(tale, "C A");
    tale_expect(tale, "launch 2; defer A0.0; ");
    free(tale);
}

static void test_a_wait_for_what_was_given_up_gives_up_nothing(void **state)
{
    struct tale *tale = planned(&zero_defer, "A B C");
    (void)state;
    tale_made(tale, "C");
    tale_wait(tale, "C");
    tale_final(tale, 2);
    tale_made(tale, "B");
    tale_forget(tale);
    tale_wait(tale, "B");
    tale_expect(tale, "release B0 deferred; ");
    tale_made(tale, "A");
    tale_expect(tale, "defer A0.0; ");
    free(tale);
}

static void test_a_call_in_the_order_of_the_plan_gives_up_nothing(void **state)
{
    struct tale *tale = planned(&zero_defer, "A B");
    (void)state;
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_final(tale, 0);
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "launch 0; release A0; launch 1; ");
    free(tale);
}

// ---- Calls outside the plan --------------------------------------------------------------------

static void test_a_wait_for_a_call_outside_the_plan_never_ends(void **state)
{
    static const enum order_unplanned policies[] = {UNPLANNED_EXTEND, UNPLANNED_FAIL};
    (void)state;
    for (int i = 0; i < 4; i++) {
        const struct order_options options = {.unplanned = policies[i % 2], .zero_defer = i >= 2};
        struct tale *tale = planned(&options, "A");
        tale_made(tale, "B");
        tale_wait(tale, "B");
        tale_expect(tale, "fail kind 4 step 1 for B0; ");
        query(tale, STEP, false);
        tale_expect(tale, ""); // Once, and it is not an inversion.
        assert_int_equal(order_wait_ask(&tale->order, tale_call("B")), RELEASE_WITHDRAWN);
        free(tale);
    }
}

static void test_a_wait_for_a_deferred_call_is_over(void **state)
{
    const struct order_options options = {.unplanned = UNPLANNED_DEFER};
    struct tale *tale = planned(&options, "A");
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "defer B0.0; release B0 deferred; ");
    assert_int_equal(order_wait_ask(&tale->order, tale_call("B")), RELEASE_DEFERRED);
    order_step_ended(&tale->order);
    tale_expect(tale, "launch 0 zero; close extras 0; ");
    free(tale);
}

// One thread waits for a planned call: when that comes, it may end the step.
static void test_another_thread_may_end_the_step(void **state)
{
    struct tale *tale = planned(&threads, "A B");
    (void)state;
    tale_made(tale, "C B");
    tale_wait(tale, "C");
    tale_wait(tale, "B");
    tale_expect(tale, "launch 1; blocked B0 needs 1 lacks 0=A0; ");
    tale_final(tale, 1);
    order_step_ended(&tale->order);
    tale_expect(tale, "release B0; launch 0 zero; close extras 1; ");
    tale_close(tale, "C");
    tale_final(tale, 0);
    tale_final(tale, 2);
    tale_expect(tale, "launch 2 C0.0; commit; release C0; ");
    free(tale);
}

// ---- Learning ----------------------------------------------------------------------------------

static void test_a_wait_in_a_learning_step_is_said(void **state)
{
    struct tale *tale = learning(&windowed);
    (void)state;
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_expect(tale, "ready 0.0; wait A0.0; ");
    query(tale, STEP, false);
    tale_expect(tale, "");
    grant(tale, "A", false);
    tale_expect(tale, "launch 0; ");
    tale_final(tale, 0);
    tale_expect(tale, "release A0; ");
    tale_made(tale, "B");
    grant(tale, "B", false);
    tale_wait(tale, "B"); // Granted: only the data plane is waited for.
    tale_expect(tale, "ready 1.0; launch 1; ");
    tale_final(tale, 1);
    tale_expect(tale, "release B0; ");
    free(tale);
}

static void test_a_wait_for_several_buckets_is_said_of_the_next(void **state)
{
    struct tale *tale = tale_begin_with(2, &windowed);
    (void)state;
    tale->buckets[0] = 3;
    tale_step(tale, STEP);
    tale_made(tale, "A.2 A.0 A.1");
    tale_forget(tale);
    tale_wait(tale, "A");
    tale_expect(tale, "wait A0.0; ");
    grant(tale, "A.1", false);
    tale_expect(tale, "launch 0; ");
    grant(tale, "A.0", false);
    tale_expect(tale, "launch 1; wait A0.2; ");
    grant(tale, "A.2", false);
    tale_final(tale, 0);
    tale_final(tale, 1);
    tale_expect(tale, "launch 2; ");
    tale_final(tale, 2);
    tale_expect(tale, "release A0; ");
    free(tale);
}

static void test_all_threads_have_to_wait_in_a_learning_step(void **state)
{
    struct tale *tale = learning(&threads);
    (void)state;
    tale_made(tale, "A B");
    tale_wait(tale, "A");
    tale_expect(tale, "ready 0.0; ready 1.0; ");
    tale_wait(tale, "B");
    tale_expect(tale, "wait A0.0 B0.0; ");
    grant(tale, "A", false);
    tale_final(tale, 0);
    tale_expect(tale, "launch 0; release A0; ");
    tale_made(tale, "C");
    tale_wait(tale, "C");
    tale_expect(tale, "ready 2.0; wait B0.0 C0.0; ");
    free(tale);
}

static void test_a_withdrawn_wait_in_a_learning_step(void **state)
{
    struct tale *tale = learning(&windowed);
    (void)state;
    tale_made(tale, "A");
    tale_wait(tale, "A");
    time_is_over(tale, "A");
    tale_expect(tale, "ready 0.0; wait A0.0; unblocked; ");
    query(tale, STEP, true);
    tale_expect(tale, "release A0 withdrawn; ");
    tale_wait(tale, "A"); // It is said again.
    tale_expect(tale, "wait A0.0; ");
    free(tale);
}

// zero_defer: the coordinator grants what a rank waits for; ranks that have not made it give it up.
static void test_a_forced_grant_gives_up(void **state)
{
    struct tale *tale = learning(&zero_defer);
    (void)state;
    tale_made(tale, "B");
    tale_wait(tale, "B");
    tale_expect(tale, "ready 1.0; wait B0.0; ");
    grant(tale, "A", true);
    tale_expect(tale, "launch 0 zero forfeited; ");
    grant(tale, "B", true); // The report was on its way: this rank's part is in it.
    tale_expect(tale, "launch 1; ");
    tale_final(tale, 0);
    tale_final(tale, 1);
    tale_made(tale, "A");
    tale_wait(tale, "A");
    tale_expect(tale, "release B0; defer A0.0; release A0 deferred; ");
    order_step_ended(&tale->order);
    grant(tale, "C", true); // After its end there is nothing to give up.
    tale_expect(tale, "end 1; launch 2 zero; ");
    free(tale);
}

static void test_a_wait_for_what_is_granted_by_force_is_over(void **state)
{
    const struct order_options options = {.zero_defer = true, .wait_while_open = true};
    struct tale *tale = tale_begin_with(2, &options);
    (void)state;
    tale->buckets[0] = 2;
    tale_step(tale, STEP);
    tale_made(tale, "A.0");
    tale_wait(tale, "A"); // While it is open.
    grant(tale, "A.1", true);
    tale_expect(tale, "header 1; ready 0.0; wait A0.0; launch 0 zero forfeited; "
                      "release A0 deferred; ");
    free(tale);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_in_the_order_of_the_plan_says_nothing),
        cmocka_unit_test(test_a_wait_for_a_final_call_says_nothing_of_earlier_ones),
        cmocka_unit_test(test_every_bucket_of_a_call_is_waited_for),
        cmocka_unit_test(test_two_threads_wait_for_one_call),
        cmocka_unit_test(test_what_is_not_in_any_step_is_not_waited_for),
        cmocka_unit_test(test_a_wait_lasts_no_longer_than_its_step),
        cmocka_unit_test(test_a_wait_for_what_nobody_makes_ends_with_the_step),
        cmocka_unit_test(test_only_so_many_waits_are_kept),
        cmocka_unit_test(test_nothing_is_answered_after_a_halt),
        cmocka_unit_test(test_a_halt_ends_a_wait),
        cmocka_unit_test(test_swap_with_waits_strict),
        cmocka_unit_test(test_swap_with_waits_windowed),
        cmocka_unit_test(test_swap_where_only_one_waits),
        cmocka_unit_test(test_swap_zero_defer),
        cmocka_unit_test(test_needs_reach_back_to_where_the_window_begins),
        cmocka_unit_test(test_a_call_needs_what_each_of_its_buckets_needs),
        cmocka_unit_test(test_a_call_that_lacks_several_buckets_is_named_once),
        cmocka_unit_test(test_only_so_many_calls_are_named),
        cmocka_unit_test(test_a_plan_of_a_strict_rank_needs_all_before),
        cmocka_unit_test(test_a_report_is_repeated_only_when_it_changed),
        cmocka_unit_test(test_who_has_said_it_goes_on_saying),
        cmocka_unit_test(test_a_question_holds_for_its_step),
        cmocka_unit_test(test_nothing_is_said_to_a_coordinator_that_is_lost),
        cmocka_unit_test(test_an_open_call_counts_as_not_made),
        cmocka_unit_test(test_an_open_call_may_be_waited_for),
        cmocka_unit_test(test_an_open_call_is_given_up_unless_it_may_be_waited_for),
        cmocka_unit_test(test_a_rank_is_blocked_when_all_its_threads_are),
        cmocka_unit_test(test_what_is_given_up_is_given_up_when_all_threads_wait),
        cmocka_unit_test(test_a_wait_for_what_another_thread_gives_up_is_over),
        cmocka_unit_test(test_a_wait_that_was_not_said_is_withdrawn_at_once),
        cmocka_unit_test(test_a_wait_that_was_said_is_withdrawn_when_that_is_known),
        cmocka_unit_test(test_what_becomes_final_meanwhile_is_final),
        cmocka_unit_test(test_answers_are_counted),
        cmocka_unit_test(test_a_lost_coordinator_knows_nothing_any_more),
        cmocka_unit_test(test_waits_for_one_call_are_withdrawn_one_by_one),
        cmocka_unit_test(test_a_withdrawn_wait_is_in_no_report),
        cmocka_unit_test(test_a_withdrawn_wait_is_in_no_report_of_a_learning_step),
        cmocka_unit_test(test_an_answer_of_the_step_before_ends_no_wait),
        cmocka_unit_test(test_a_report_of_the_step_before_is_not_taken_back),
        cmocka_unit_test(test_a_call_of_the_step_before_is_not_open),
        cmocka_unit_test(test_a_withdrawn_wait_has_given_up_all_the_same),
        cmocka_unit_test(test_a_wait_for_a_final_call_gives_up_all_the_same),
        cmocka_unit_test(test_a_wait_for_what_was_given_up_gives_up_nothing),
        cmocka_unit_test(test_a_call_in_the_order_of_the_plan_gives_up_nothing),
        cmocka_unit_test(test_a_wait_for_a_call_outside_the_plan_never_ends),
        cmocka_unit_test(test_a_wait_for_a_deferred_call_is_over),
        cmocka_unit_test(test_another_thread_may_end_the_step),
        cmocka_unit_test(test_a_wait_in_a_learning_step_is_said),
        cmocka_unit_test(test_a_wait_for_several_buckets_is_said_of_the_next),
        cmocka_unit_test(test_all_threads_have_to_wait_in_a_learning_step),
        cmocka_unit_test(test_a_withdrawn_wait_in_a_learning_step),
        cmocka_unit_test(test_a_forced_grant_gives_up),
        cmocka_unit_test(test_a_wait_for_what_is_granted_by_force_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
