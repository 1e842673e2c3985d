// SPDX-License-Identifier: Apache-2.0
//
// The order core of one rank, told as stories: facts in, actions out, compared as a readable trace.
// Worlds of several cores are the simulator's business.

#include "tale.h"
#include "worker/order/header.h"
#include "worker/order/payloads.h"
#include "worker/order/plan.h"
#include "worker/order/recover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct slot_id slot(uint32_t module, uint32_t bucket)
{
    return (struct slot_id){.module = module, .call = 0, .bucket = bucket};
}

// A plan of `count` buckets of module 0, in parts; it closes the open learning step.
static void plan_of_buckets(struct tale *tale, uint64_t phase, uint32_t count)
{
    struct down_plan_part part = {.number = tale->order.plans.number + 1,
                                  .phase = phase,
                                  .hash = PLAN_HASH,
                                  .closes_step = true,
                                  .step = tale->order.step,
                                  .slot_total = count};
    do {
        part.slot_count = count - part.slot_first < LOCKSTEP_PLAN_PART ? count - part.slot_first
                                                                       : LOCKSTEP_PLAN_PART;
        for (uint32_t i = 0; i < part.slot_count; i++)
            part.slots[i].id = slot(0, part.slot_first + i);
        part.last = part.slot_first + part.slot_count == count;
        order_plan_received(&tale->order, &part);
        part.slot_first += part.slot_count;
    } while (!part.last);
}

// ---- Stories -----------------------------------------------------------------------------------

static void test_learning_step(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    tale_header(tale, 1, PHASE);
    order_slot_ready(&tale->order, slot(0, 0), DTYPE_FLOAT32, 10);
    tale_expect(tale, "header 1; ready 0.0; ");
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(0, 0)});
    order_step_ended(&tale->order);
    tale_expect(tale, "launch 0; end 1; ");
    // A slot that only the others have made: granted because this rank has ended.
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(1, 0)});
    order_slot_final(&tale->order, 0);
    tale_expect(tale, "launch 1 zero; ");
    plan_of_buckets(tale, PHASE, 1);
    tale_expect(tale, "");
    order_slot_final(&tale->order, 1);
    tale_expect(tale, "commit; ");
    order_commit_completed(&tale->order);
    tale_expect(tale, "settled 1; ");
    assert_non_null(order_plan_of(&tale->order, PHASE));
    free(tale);
}

// Slots that are granted already count, too. The coordinator hears of the one that is too many.
static void test_a_step_has_a_limit(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    tale_header(tale, 1, PHASE);
    order_slot_ready(&tale->order, slot(0, 0), DTYPE_FLOAT32, 10);
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(0, 0)});
    for (uint32_t i = 1; i < LOCKSTEP_MAX_SLOTS; i++) {
        tale_forget(tale);
        order_slot_ready(&tale->order, slot(1, i), DTYPE_FLOAT32, 10);
    }
    tale_expect(tale, "ready 1.1023; ");
    order_slot_ready(&tale->order, slot(2, 0), DTYPE_FLOAT32, 10);
    tale_expect(tale, "ready 2.0; failed kind 11; ");
    free(tale);
}

// What a rank says again of a learning step, at different places of it.
static void test_a_learning_step_is_said_again(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    order_set_absent(&tale->order, 4);
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    for (uint32_t bucket = 0; bucket < 3; bucket++)
        order_slot_ready(&tale->order, slot(0, bucket), DTYPE_FLOAT32, 10);
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(2, 0)});
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(0, 1)});
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(0, 0)});
    order_slot_final(&tale->order, 1);
    order_step_ended(&tale->order);
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(1, 0)});
    tale_forget(tale);
    order_learn_again(&tale->order);
    order_send_end(&tale->order);
    tale_expect(tale, "granted 1 of 4, unmade: ready 2.0; granted 2 of 4: ready 0.1; "
                      "granted 3 of 4: ready 0.0; granted 4 of 4, unmade: ready 1.0; ready 0.2; "
                      "end 1; ");
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(0, 2)});
    plan_of_buckets(tale, PHASE, 1);
    tale_forget(tale);
    order_send_end(&tale->order);
    tale_expect(tale, "end 1; plan 1; ");
    // After a death the plan is learned anew: it may be one that only this rank has.
    order_freeze(&tale->order);
    order_recover(&tale->order, &(struct order_decision){.world_size = 2});
    assert_non_null(strstr(tale->trace, "granted 5 of 5: ready 0.2; end 1; "));
    assert_null(strstr(tale->trace, "plan"));
    assert_false(tale->order.closed);
    tale_plan(tale, "B");
    assert_true(tale->order.closed);
    assert_int_equal(tale->order.plans.count, 1);
    // Slots of the plan count as made, because a rank that has died may have made them.
    tale_forget(tale);
    order_learn_again(&tale->order);
    assert_non_null(strstr(tale->trace, "granted 4 of 5: ready 1.0; "));
    free(tale);
}

static void test_planned_step_runs_any_ready_slot_in_the_window(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    plan_of_buckets(tale, PHASE, LOCKSTEP_WINDOW + 2);
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    order_slot_ready(&tale->order, slot(0, 3), DTYPE_FLOAT32, 1);
    order_slot_ready(&tale->order, slot(0, LOCKSTEP_WINDOW), DTYPE_FLOAT32, 1);
    tale_expect(tale, "header 1; launch 3; "); // W is one beyond the window of L = 0.
    order_slot_ready(&tale->order, slot(0, 0), DTYPE_FLOAT32, 1);
    order_slot_final(&tale->order, 3); // Not the lowest: L stays.
    tale_expect(tale, "launch 0; ");
    order_slot_final(&tale->order, 0);
    tale_expect(tale, "launch 8; ");
    free(tale);
}

// Its result waits for the trainer, and nobody else does.
static void test_what_is_summed_has_left_the_window(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    plan_of_buckets(tale, PHASE, LOCKSTEP_WINDOW + 2);
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    tale_header(tale, 1, PHASE);
    for (uint32_t bucket = 0; bucket < LOCKSTEP_WINDOW + 2; bucket++)
        order_slot_ready(&tale->order, slot(0, bucket), DTYPE_FLOAT32, 1);
    tale_expect(tale, "header 1; launch 0; launch 1; launch 2; launch 3; launch 4; launch 5; "
                      "launch 6; launch 7; ");
    order_slot_summed(&tale->order, 1); // Not the lowest: L stays.
    tale_expect(tale, "");
    order_slot_summed(&tale->order, 0);
    tale_expect(tale, "launch 8; launch 9; ");
    order_step_ended(&tale->order);
    tale_close(tale, "");
    for (uint32_t bucket = 1; bucket < LOCKSTEP_WINDOW + 2; bucket++)
        order_slot_final(&tale->order, bucket);
    order_slot_summed(&tale->order, 2); // It was final.
    tale_expect(tale, "close extras 0; "); // The first one is not.
    order_slot_final(&tale->order, 0);
    tale_expect(tale, "commit; ");
    free(tale);
}

static void test_what_is_missing_at_the_end_is_zero(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    plan_of_buckets(tale, PHASE, 2);
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    tale_header(tale, 1, PHASE);
    order_slot_ready(&tale->order, slot(0, 1), DTYPE_FLOAT32, 1);
    order_step_ended(&tale->order);
    tale_expect(tale, "header 1; launch 1; launch 0 zero; close extras 0; ");
    order_slot_final(&tale->order, 0);
    order_slot_final(&tale->order, 1);
    tale_expect(tale, ""); // The commit waits for the close.
    tale_close(tale, "");
    tale_expect(tale, "commit; ");
    free(tale);
}

static void test_a_call_outside_the_plan_fails_after_the_commit(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    plan_of_buckets(tale, PHASE, 1);
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    tale_header(tale, 1, PHASE);
    order_slot_ready(&tale->order, slot(0, 0), DTYPE_FLOAT32, 1);
    order_slot_ready(&tale->order, slot(5, 0), DTYPE_FLOAT32, 1);
    order_step_ended(&tale->order);
    tale_expect(tale, "header 1; launch 0; close extras 1; ");
    order_slot_final(&tale->order, 0);
    tale_close(tale, "F");
    tale_expect(tale, "commit; ");
    order_commit_completed(&tale->order);
    tale_expect(tale, "failed kind 4; ");
    assert_int_equal(tale->order.settled, 0);
    free(tale);
}

static void test_the_close_waits_for_an_equal_header(void **state)
{
    struct tale *tale = tale_begin(3);
    (void)state;
    plan_of_buckets(tale, PHASE, 0);
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    order_step_ended(&tale->order);
    tale_expect(tale, "header 1; ");
    tale_header(tale, 1, PHASE);
    tale_expect(tale, "close extras 0; ");
    free(tale);
}

static void test_different_phases_are_said_once(void **state)
{
    struct tale *tale = tale_begin(2);
    const struct down_halt halt = {.step = 1, .kind = HALT_PHASE, .text = "phases differ"};
    (void)state;
    plan_of_buckets(tale, PHASE, 0);
    tale_header(tale, 1, OTHER_PHASE); // Early: the predecessor is ahead.
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    order_step_ended(&tale->order);
    tale_expect(tale, "header 1; fail kind 2 step 1; ");
    order_halted(&tale->order, &halt);
    tale_expect(tale, "failed kind 2; ");
    free(tale);
}

static void test_different_plans_of_one_phase_are_said(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    plan_of_buckets(tale, PHASE, 0);
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    order_header_received(&tale->order, &(struct step_header){.step = 1, .phase = PHASE});
    order_step_ended(&tale->order);
    tale_expect(tale, "header 1; fail kind 8 step 1; "); // It learns where this one does not.
    free(tale);
}

static void test_a_halt_waits_for_the_steps_before_it(void **state)
{
    struct tale *tale = tale_begin(1);
    const struct down_halt halt = {.step = 2, .kind = HALT_ORDER, .text = "a cycle"};
    (void)state;
    plan_of_buckets(tale, PHASE, 0);
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    order_halted(&tale->order, &halt);
    tale_expect(tale, "");
    order_step_ended(&tale->order);
    tale_close(tale, "");
    order_commit_completed(&tale->order);
    tale_expect(tale, "close extras 0; commit; settled 1; failed kind 3; ");
    free(tale);
}

static void test_a_loss_takes_effect_at_once_and_ends_everything(void **state)
{
    struct tale *tale = tale_begin(1);
    const struct down_halt halt = {.kind = HALT_LOST, .text = "rank 1 was lost"};
    (void)state;
    plan_of_buckets(tale, PHASE, 1);
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    order_halted(&tale->order, &halt);
    tale_expect(tale, "failed kind 6; ");
    order_slot_ready(&tale->order, slot(0, 0), DTYPE_FLOAT32, 1);
    order_step_ended(&tale->order);
    order_halted(&tale->order, &halt);
    tale_expect(tale, "");
    free(tale);
}

// A header of a predecessor that has called lockstep_start so often.
static void tale_started_header(struct tale *tale, uint64_t step, uint32_t starts)
{
    const struct order_plan *plan = order_plan_of(&tale->order, PHASE);
    order_header_received(&tale->order, &(struct step_header){.step = step,
                                                              .phase = PHASE,
                                                              .plan_hash = !plan ? 0 : plan->hash,
                                                              .starts = starts});
}

// Settles a planned step of one slot.
static void settle_step(struct tale *tale, uint64_t step)
{
    order_step_begun(&tale->order, step, PHASE, tale->buckets);
    tale_started_header(tale, step, 1);
    order_step_ended(&tale->order);
    order_slot_final(&tale->order, 0);
    tale_close(tale, "");
    order_commit_completed(&tale->order);
    tale->trace[0] = '\0';
}

// Returns the tale of a rank that has started and has settled planned step 1.
static struct tale *tale_begin_started(void)
{
    struct tale *tale = tale_begin(3);
    order_start_begun(&tale->order);
    plan_of_buckets(tale, PHASE, 1);
    settle_step(tale, 1);
    return tale;
}

static void test_starting_again_forgets_plans(void **state)
{
    struct tale *tale = tale_begin_started();
    (void)state;
    order_start_begun(&tale->order);
    assert_null(order_plan_of(&tale->order, PHASE));
    assert_int_equal(tale->order.plans.number, 1); // They are numbered on.
    tale_started_header(tale, 2, 2); // A header of a rank that was verified earlier.
    tale_expect(tale, "");
    order_step_begun(&tale->order, 2, PHASE, tale->buckets);
    order_step_ended(&tale->order);
    tale_expect(tale, "header 2; end 2; ");
    free(tale);
}

static void test_a_step_of_another_rank_in_start_is_said_once(void **state)
{
    struct tale *tale = tale_begin_started();
    (void)state;
    order_start_begun(&tale->order);
    tale_started_header(tale, 2, 1);
    tale_started_header(tale, 2, 1);
    tale_expect(tale, "fail kind 1 step 2; ");
    order_halted(&tale->order, &(struct down_halt){.step = 2, .kind = HALT_MANIFEST});
    tale_expect(tale, "failed kind 1; ");
    order_start_begun(&tale->order);
    tale_started_header(tale, 2, 1);
    tale_expect(tale, "");
    free(tale);
}

static void test_a_step_of_another_rank_before_start_is_said(void **state)
{
    struct tale *tale = tale_begin_started();
    (void)state;
    tale_started_header(tale, 2, 1);
    tale_expect(tale, "");
    order_start_begun(&tale->order);
    tale_expect(tale, "fail kind 1 step 2; ");
    free(tale);
}

// A header of a predecessor that waits in the open wave of a step.
static void tale_opening(struct tale *tale, uint64_t step, uint32_t starts)
{
    order_header_received(&tale->order,
                          &(struct step_header){.step = step, .opening = true, .starts = starts});
}

static void test_an_open_wave_of_another_rank_is_said(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct tale *tale = tale_begin_started();
        if (first == 1)
            tale_opening(tale, 2, 1);
        order_start_begun(&tale->order);
        if (first == 0)
            tale_opening(tale, 2, 1);
        tale_expect(tale, "fail kind 1 step 2; ");
        free(tale);
    }
}

// There was no step 2: all were exhausted. Then all start again.
static void test_an_open_wave_that_is_over_is_no_step(void **state)
{
    const struct open_wave opening = {.exhausted = 1, .first = OPEN_NOBODY};
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct tale *tale = tale_begin_started();
        if (first == 1)
            tale_opening(tale, 2, 1);
        order_step_opening(&tale->order, 2, &opening);
        tale_expect(tale, "open 2, exhausted 1; opening 2; ");
        order_start_begun(&tale->order);
        if (first == 0)
            tale_opening(tale, 2, 1);
        tale_expect(tale, "");
        free(tale);
    }
}

static void test_a_header_of_a_later_start_is_impossible(void **state)
{
    struct tale *tale = tale_begin_started();
    (void)state;
    tale_started_header(tale, 2, 2);
    tale_expect(tale, "rank 2 sent an impossible header: no rank can be in that step; ");
    free(tale);
}

static void test_hostile_coordinators_fail_by_name(void **state)
{
    struct tale *tale = tale_begin(1);
    const struct down_plan_part torn = {.number = 2, .slot_first = 5, .slot_count = 1};
    const struct down_plan_part twice = {
        .number = 1,
        .slot_total = 3,
        .slot_count = 3,
        .last = true,
        .slots = {{.id = {0, 0, 1}}, {.id = {0, 0, 0}}, {.id = {0, 0, 1}}}};
    (void)state;
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(0, 0)});
    tale_expect(tale, "failed kind 8; ");
    free(tale);
    tale = tale_begin(1);
    order_plan_received(&tale->order, &torn);
    tale_expect(tale, "failed kind 8; ");
    free(tale);
    tale = tale_begin(2); // A slot that comes again when it is launched already.
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    order_slot_ready(&tale->order, slot(0, 0), DTYPE_FLOAT32, 1);
    order_step_ended(&tale->order);
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(0, 0)});
    tale_expect(tale, "header 1; ready 0.0; end 1; launch 0; ");
    order_granted(&tale->order, &(struct down_grant){.step = 1, .slot = slot(0, 0)});
    tale_expect(tale, "failed kind 8; ");
    free(tale);
    tale = tale_begin(1); // No rank gives up calls here.
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    order_granted(&tale->order,
                  &(struct down_grant){.step = 1, .slot = slot(0, 0), .forced = true});
    tale_expect(tale, "failed kind 8; ");
    free(tale);
    tale = tale_begin(1);
    order_plan_received(&tale->order, &twice);
    tale_expect(tale, "failed kind 8; ");
    free(tale);
}

// A step of a phase that calls nothing: learned when the phase has no plan.
static void tale_empty_step(struct tale *tale, uint64_t step, uint64_t phase, bool learning)
{
    order_step_begun(&tale->order, step, phase, tale->buckets);
    assert_int_equal(tale->order.learning, learning);
    order_step_ended(&tale->order);
    if (learning)
        plan_of_buckets(tale, phase, 0);
    else
        tale_close(tale, "");
    order_commit_completed(&tale->order);
    assert_int_equal(tale->order.settled, step);
    tale->trace[0] = '\0';
}

static void test_the_plan_used_longest_ago_makes_room(void **state)
{
    struct tale *tale = tale_begin(1);
    (void)state;
    tale->order.plans.room = 2;
    tale_empty_step(tale, 1, PHASE, true);
    tale_empty_step(tale, 2, OTHER_PHASE, true);
    tale_empty_step(tale, 3, PHASE, false);
    tale_empty_step(tale, 4, 5, true);
    tale_empty_step(tale, 5, PHASE, false);
    tale_empty_step(tale, 6, OTHER_PHASE, true);
    tale_empty_step(tale, 7, 5, true);
    order_forget_plans(&tale->order);
    tale_empty_step(tale, 8, OTHER_PHASE, true);
    free(tale);
}

static void test_steps_go_on_where_they_were_saved(void **state)
{
    struct tale *tale = tale_begin(2);
    const struct down_halt halt = {.step = 41, .kind = HALT_PHASE, .text = "phases differ"};
    (void)state;
    order_resume(&tale->order, 40);
    tale_header(tale, 40, PHASE); // A header of a step that is over.
    tale_header(tale, 41, PHASE);
    order_step_begun(&tale->order, 41, PHASE, tale->buckets);
    tale_expect(tale, "header 41; ");
    assert_true(tale->order.header_equal);
    order_halted(&tale->order, &halt);
    tale_expect(tale, "failed kind 2; ");
    free(tale);
}

// ---- Waves: merging must not depend on the order of ranks --------------------------------------

#define RANKS 7

static void commit_fill(struct commit_wave *wave, uint32_t rank)
{
    memset(wave, 0, sizeof(*wave));
    for (uint32_t i = 0; i < 5; i++) {
        wave->unused[wave->unused_named++] =
            (struct unused_parameter){.module = i,
                                      .parameter = rank,
                                      .rank = rank,
                                      .severity = i < 2 ? UNUSED_IS_ERROR : UNUSED_IS_WARNING};
        wave->unused_total++;
    }
    wave->aborted_total = wave->aborted_named = rank % 3;
    for (uint32_t i = 0; i < rank % 3; i++)
        wave->aborted[i] = (struct aborted_call){.module = i * 5 + rank % 2, .rank = rank};
    wave->called = 3u << rank;
    wave->weighted = 1u << rank;
    wave->unused_errors = 2;
    wave->unused_warnings = 3;
    for (uint32_t i = 0; i < 4; i++)
        wave->counters[wave->counter_count++] =
            (struct counter_delta){.name = 1 + i * (1 + rank % 2), .delta = (int64_t)rank + 1};
}

static void close_fill(struct close_wave *wave, uint32_t rank)
{
    memset(wave, 0, sizeof(*wave));
    wave->plan_number = 10 + rank;
    wave->extra_total = 2;
    wave->extras[0] = (struct call_id){.module = rank, .call = 0};
    wave->extras[1] = (struct call_id){.module = rank / 2, .call = 1};
}

static void test_merges_do_not_depend_on_the_order(void **state)
{
    struct commit_wave first_commit;
    struct close_wave first_close;
    (void)state;
    for (uint32_t start = 0; start < RANKS; start++) {
        struct commit_wave commit;
        struct close_wave close;
        commit_fill(&commit, start);
        close_fill(&close, start);
        for (uint32_t i = 1; i < RANKS; i++) {
            const uint32_t rank = (start + i * 3) % RANKS;
            struct commit_wave other_commit;
            struct close_wave other_close;
            commit_fill(&other_commit, rank);
            close_fill(&other_close, rank);
            order_commit_merge(&commit, &other_commit);
            order_close_merge(&close, &other_close);
        }
        if (start == 0) {
            first_commit = commit;
            first_close = close;
        }
        assert_memory_equal(&commit, &first_commit, sizeof(commit));
        assert_memory_equal(&close, &first_close, sizeof(close));
    }
    assert_int_equal(first_commit.unused_total, RANKS * 5);
    assert_int_equal(first_commit.called, (1 << (RANKS + 1)) - 1);
    assert_int_equal(first_commit.weighted, (1 << RANKS) - 1);
    assert_int_equal(first_commit.aborted_total, 6);
    assert_int_equal(first_commit.aborted_named, 6);
    assert_int_equal(first_commit.aborted[0].rank, 2); // Modules 0, 0, 1, 1, 5, 6.
    assert_int_equal(first_commit.aborted[1].rank, 4);
    assert_int_equal(first_commit.aborted[5].module, 6);
    assert_int_equal(first_commit.unused_errors, RANKS * 2);
    assert_int_equal(first_commit.unused_warnings, RANKS * 3);
    assert_int_equal(first_commit.unused_named, ORDER_UNUSED_NAMED);
    // Every error is named before the first warning.
    assert_int_equal(first_commit.unused[RANKS * 2 - 1].severity, UNUSED_IS_ERROR);
    assert_int_equal(first_commit.unused[RANKS * 2].severity, UNUSED_IS_WARNING);
    assert_int_equal(first_close.plan_number, 10);
    assert_int_equal(first_close.extra_total, LOCKSTEP_MAX_EXTRA_CALLS + 1);
}

// The step that is being opened is the one that is spoken of, and nothing of it is under way. The
// predecessor may be done with the open wave earlier.
static void test_a_step_is_opened_before_it_is_begun(void **state)
{
    const struct open_wave opening = {.exhausted = 1, .first = OPEN_NOBODY};
    struct tale *tale = tale_begin(2);
    (void)state;
    order_step_opening(&tale->order, 1, &opening);
    tale_expect(tale, "open 1, exhausted 1; opening 1; ");
    assert_int_equal(order_present_step(&tale->order), 1);
    assert_false(tale->order.open);
    tale_header(tale, 1, PHASE);
    tale_expect(tale, "");
    order_step_begun(&tale->order, 1, PHASE, tale->buckets);
    tale_expect(tale, "header 1; ");
    assert_true(tale->order.header_equal);
    assert_int_equal(order_present_step(&tale->order), 1);
    free(tale);
}

// A peer is gone. A rank in the commit wave that needs nothing more from it can complete the step.
static void test_a_loss_names_the_first_step_that_cannot_be_completed(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    assert_int_equal(order_lost_step(&tale->order, false), 0);
    tale_plan(tale, "A");
    tale_step(tale, 1);
    tale_header(tale, 1, PHASE);
    assert_int_equal(order_lost_step(&tale->order, false), 1);
    tale_made(tale, "A");
    order_step_ended(&tale->order);
    tale_close(tale, "");
    assert_int_equal(order_lost_step(&tale->order, false), 1);
    tale_final(tale, 0);
    assert_true(tale->order.commit_joined);
    assert_int_equal(order_lost_step(&tale->order, true), 1);
    assert_int_equal(order_lost_step(&tale->order, false), 2);
    order_commit_completed(&tale->order);
    assert_int_equal(order_lost_step(&tale->order, true), 2);
    free(tale);
}

// No rank may complete a step that this rank has called lost, so this rank's part of the commit
// wave is not sent.
static void test_a_step_that_was_called_lost_is_not_committed(void **state)
{
    struct tale *tale = tale_begin(2);
    (void)state;
    tale_plan(tale, "A");
    tale_step(tale, 1);
    tale_header(tale, 1, PHASE);
    tale_made(tale, "A");
    order_give_up(&tale->order, order_lost_step(&tale->order, false));
    order_step_ended(&tale->order);
    tale_close(tale, "");
    tale_forget(tale);
    tale_final(tale, 0);
    tale_expect(tale, "");
    assert_false(tale->order.commit_joined);
    free(tale);
}

static void test_a_halt_ends_a_step_that_is_being_opened(void **state)
{
    const struct open_wave opening = {.exhausted = 0, .first = 0};
    struct tale *tale = tale_begin(2);
    (void)state;
    order_step_opening(&tale->order, 1, &opening);
    order_halted(&tale->order, &(struct down_halt){.step = 1, .kind = HALT_LEFT, .text = "left"});
    order_step_opening(&tale->order, 2, &opening);
    tale_expect(tale, "open 1, exhausted 0; opening 1; failed kind 7; ");
    free(tale);
}

static void test_the_lowest_rank_with_data_names_the_phase(void **state)
{
    const struct open_wave said[4] = {
        {1, OPEN_NOBODY, ""}, {0, 1, "one"}, {0, 2, "two"}, {1, OPEN_NOBODY, ""}};
    (void)state;
    for (uint32_t start = 0; start < 4; start++) {
        struct open_wave all = said[start];
        for (uint32_t i = 1; i < 4; i++)
            order_open_merge(&all, &said[(start + 3 * i) % 4]);
        assert_int_equal(all.exhausted, 2);
        assert_int_equal(all.first, 1);
        assert_string_equal(all.phase, "one");
    }
}

static void test_counters_of_one_name_add_up(void **state)
{
    struct commit_wave a = {.counter_count = 1,
                            .counters = {{.name = 5, .delta = LOCKSTEP_MAX_COUNT}}};
    struct commit_wave b = {.counter_count = 2,
                            .counters = {{.name = 3, .delta = 7}, {.name = 5, .delta = 1}}};
    (void)state;
    order_commit_merge(&a, &b);
    assert_int_equal(a.counter_count, 2);
    assert_int_equal(a.counters[0].delta, 7);
    assert_true(a.counters[1].delta == LOCKSTEP_MAX_COUNT + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learning_step),
        cmocka_unit_test(test_a_step_has_a_limit),
        cmocka_unit_test(test_a_learning_step_is_said_again),
        cmocka_unit_test(test_planned_step_runs_any_ready_slot_in_the_window),
        cmocka_unit_test(test_what_is_summed_has_left_the_window),
        cmocka_unit_test(test_what_is_missing_at_the_end_is_zero),
        cmocka_unit_test(test_a_call_outside_the_plan_fails_after_the_commit),
        cmocka_unit_test(test_the_close_waits_for_an_equal_header),
        cmocka_unit_test(test_different_phases_are_said_once),
        cmocka_unit_test(test_different_plans_of_one_phase_are_said),
        cmocka_unit_test(test_the_plan_used_longest_ago_makes_room),
        cmocka_unit_test(test_steps_go_on_where_they_were_saved),
        cmocka_unit_test(test_a_halt_waits_for_the_steps_before_it),
        cmocka_unit_test(test_a_loss_takes_effect_at_once_and_ends_everything),
        cmocka_unit_test(test_starting_again_forgets_plans),
        cmocka_unit_test(test_a_step_of_another_rank_in_start_is_said_once),
        cmocka_unit_test(test_a_step_of_another_rank_before_start_is_said),
        cmocka_unit_test(test_an_open_wave_of_another_rank_is_said),
        cmocka_unit_test(test_an_open_wave_that_is_over_is_no_step),
        cmocka_unit_test(test_a_header_of_a_later_start_is_impossible),
        cmocka_unit_test(test_hostile_coordinators_fail_by_name),
        cmocka_unit_test(test_merges_do_not_depend_on_the_order),
        cmocka_unit_test(test_a_step_is_opened_before_it_is_begun),
        cmocka_unit_test(test_a_loss_names_the_first_step_that_cannot_be_completed),
        cmocka_unit_test(test_a_step_that_was_called_lost_is_not_committed),
        cmocka_unit_test(test_a_halt_ends_a_step_that_is_being_opened),
        cmocka_unit_test(test_the_lowest_rank_with_data_names_the_phase),
        cmocka_unit_test(test_counters_of_one_name_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
