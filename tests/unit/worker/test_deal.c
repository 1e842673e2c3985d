// SPDX-License-Identifier: Apache-2.0
//
// Which rank has which leaves, and when that changes.

#include "worker/session/deal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

static void lose(struct leaf_deal *deal, uint64_t settled, uint64_t ranks)
{
    const uint64_t removed[LOCKSTEP_RANK_WORDS] = {ranks};
    deal_lost(deal, settled, removed);
}

// Fails unless `count` ranks have these leaves: the first one, and the one after the last.
static void expect(const struct leaf_deal *deal, uint32_t count, const uint32_t (*runs)[2])
{
    assert_int_equal(deal->count, count);
    for (uint32_t rank = 0; rank < count; rank++) {
        assert_int_equal(deal->ranks[rank].first, runs[rank][0]);
        assert_int_equal(deal->ranks[rank].end, runs[rank][1]);
    }
}

static const uint32_t of_four[][2] = {{0, 2}, {2, 4}, {4, 6}, {6, 8}};
static const uint32_t of_three[][2] = {{0, 2}, {2, 5}, {5, 8}};
static const uint32_t of_two[][2] = {{0, 4}, {4, 8}};

static void test_a_lost_rank_is_missing_in_one_step(void **state)
{
    static const uint32_t without[][2] = {{0, 2}, {4, 6}, {6, 8}};
    struct leaf_deal deal;
    (void)state;
    deal_begin(&deal, 8, 4);
    expect(&deal, 4, of_four);
    deal_settled(&deal, 1);
    expect(&deal, 4, of_four);
    lose(&deal, 1, 1u << 1);
    expect(&deal, 3, without);
    deal_settled(&deal, 2);
    expect(&deal, 3, of_three);
    deal_settled(&deal, 3);
    expect(&deal, 3, of_three);
}

// Two decisions on one step: the step lacks the leaves of both ranks.
static void test_two_decisions_on_one_step(void **state)
{
    static const uint32_t without[][2] = {{0, 2}, {6, 8}};
    struct leaf_deal deal;
    (void)state;
    deal_begin(&deal, 8, 4);
    lose(&deal, 0, 1u << 1);
    lose(&deal, 0, 1u << 1);
    expect(&deal, 2, without);
    deal_settled(&deal, 1);
    expect(&deal, 2, of_two);
}

// A member that is one step behind deals as the others did when the step settled.
static void test_a_rank_that_is_behind(void **state)
{
    struct leaf_deal ahead;
    struct leaf_deal behind;
    (void)state;
    deal_begin(&ahead, 8, 4);
    deal_begin(&behind, 8, 4);
    lose(&ahead, 4, 1u << 0);
    lose(&behind, 4, 1u << 0);
    deal_settled(&ahead, 5);
    lose(&ahead, 5, 1u << 1);
    lose(&behind, 5, 1u << 1);
    static const uint32_t without[][2] = {{0, 2}, {5, 8}};
    expect(&ahead, 2, without);
    expect(&behind, 2, without);
    // The decision is said again, with another rank lost, before the rank has gone on.
    lose(&ahead, 5, 1u << 0);
    lose(&behind, 5, 1u << 0);
    expect(&ahead, 1, without + 1);
    expect(&behind, 1, without + 1);
    deal_settled(&behind, 5);
    expect(&behind, 1, without + 1);
}

static uint32_t rooms(uint32_t leaves, uint32_t ranks)
{
    struct leaf_deal deal;
    deal_begin(&deal, leaves, ranks);
    return deal_rooms(&deal);
}

static void test_rooms_are_for_smaller_worlds(void **state)
{
    (void)state;
    assert_int_equal(rooms(8, 1), 3);
    assert_int_equal(rooms(8, 8), 3);
    assert_int_equal(rooms(1, 1), 1);
    for (uint32_t leaves = 1; leaves <= LOCKSTEP_MAX_LEAVES; leaves++)
        for (uint32_t ranks = 2; ranks <= leaves; ranks++)
            assert_true(rooms(leaves, ranks) >= rooms(leaves, ranks - 1) &&
                        rooms(leaves, ranks) <= TREE_BLOCKS + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_lost_rank_is_missing_in_one_step),
        cmocka_unit_test(test_two_decisions_on_one_step),
        cmocka_unit_test(test_a_rank_that_is_behind),
        cmocka_unit_test(test_rooms_are_for_smaller_worlds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
