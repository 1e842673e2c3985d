// SPDX-License-Identifier: Apache-2.0
//
// Standstills in which the waiting ranks need only some of the others: the members of a group, the
// peer of a message, or the ranks that have not begun a collective.

#include "tests/unit/coordinator/fleet_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum {
    FLOOR = LOCKSTEP_STALL_FLOOR_MS,
    // Time until a stall is found: the floor, and one heartbeat.
    FOUND = LOCKSTEP_STALL_FLOOR_MS + LOCKSTEP_HEARTBEAT_MS + FLEET_MS,
    SPACE = 77,
};

// Four ranks between two steps, none of which waits.
static void begin_between_steps(void)
{
    fleet_begin(&fleet, &story, 4, 1);
    fleet_pass(&fleet, 3000);
    fleet_settle(&fleet);
}

// The rank waits for a collective that needs these ranks (bits; 0: all).
static void blocked(uint32_t rank, uint64_t members)
{
    struct up_heartbeat *beat = &fleet.ranks[rank].beat;
    beat->place.api = API_COLLECTIVE;
    beat->place.inside = beat->place.waits = true;
    beat->await = (struct await){.key = {.kind = AWAIT_COLLECTIVE, .space = SPACE},
                                 .function = API_COLLECTIVE_RUN,
                                 .module = LOCKSTEP_MAX_MODULES,
                                 .step = beat->step,
                                 .name = "meet",
                                 .members = {members}};
    fleet.ranks[rank].api_at_ms = story.now_ms;
}

static void begun(uint32_t rank)
{
    fleet.ranks[rank].beat.overdue_count = 1;
    fleet.ranks[rank].beat.overdue[0] = (struct overdue){.space = SPACE};
}

static void paused(uint32_t rank)
{
    fleet.ranks[rank].beat.flags = PLACE_PAUSED;
    fleet.ranks[rank].beat.pause_ms = 60000;
}

// Asserts that so many ranks wait for this culprit, of which `from` is the lowest.
static void expect_edge(uint32_t from, uint32_t to, uint32_t members)
{
    const struct stall_view *stall = fleet_stall(&fleet);
    uint32_t found = 0;
    for (uint32_t i = 0; i < stall->edge_count; i++) {
        const struct stall_edge *edge = &stall->edges[i];
        found += edge->from == from && edge->to == to && edge->members == members;
    }
    assert_int_equal(found, 1);
}

// Condition: rank 0 waits for rank 1, which has announced its pause; the others are busy with
// something of their own. Decision: nobody is blamed until the pause is too long.
static void test_who_is_not_of_the_group_is_not_in_its_way(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 1 << 0 | 1 << 1);
    paused(1);
    fleet_pass(&fleet, 100000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    assert_true(fleet_until_stall(&fleet, 30000) != FLEET_NEVER);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    fleet_expect_says(&fleet, "; 1 rank waits for it.");
    assert_int_equal(fleet_stall(&fleet)->edge_count, 1);
    expect_edge(0, 1, 1);
}

static void test_only_the_member_is_named(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 1 << 0 | 1 << 1);
    assert_true(fleet_until_stall(&fleet, 60000) <= FOUND);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
}

// Condition: rank 0 waits for rank 1, rank 2 for all. Decision: the sentence counts both, and each
// culprit has the edges of the ranks that wait for it.
static void test_each_culprit_has_its_own_waits(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 1 << 0 | 1 << 1);
    blocked(2, 0);
    fleet.ranks[2].beat.await.key.number = 1;
    assert_true(fleet_until_stall(&fleet, 60000) <= FOUND);
    fleet_pass(&fleet, LOCKSTEP_HEARTBEAT_MS); // The others report, too.
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_int_equal(stall->culprit_total, 2);
    assert_int_equal(stall->edge_count, 2);
    expect_edge(0, 1, 2);
    expect_edge(2, 3, 1);
    fleet_expect_says(&fleet, "; 2 ranks wait for them.");
}

// Condition: as above, but nobody needs rank 3, and rank 2 waits for a message of rank 3, which is
// in a long pause. Decision: rank 2 does not wait for the culprit, and is not counted.
static void test_who_waits_for_another_rank_is_not_counted(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 1 << 0 | 1 << 1);
    blocked(2, 1 << 2 | 1 << 3);
    fleet.ranks[2].beat.await.key.number = 1;
    paused(3);
    assert_true(fleet_until_stall(&fleet, 60000) <= FOUND);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    fleet_expect_says(&fleet, "; 1 rank waits for it.");
    assert_int_equal(fleet_stall(&fleet)->waiting, 1);
}

// Condition: a broadcast that waits for its root only.
static void test_only_the_root_is_named(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 0);
    fleet.ranks[0].beat.await.rooted = true;
    fleet.ranks[0].beat.await.root = 2;
    assert_true(fleet_until_stall(&fleet, 60000) <= FOUND);
    fleet_expect_culprit(&fleet, 2, STALL_OUTSIDE);
}

// Condition: all but rank 2 have begun the collective that rank 0 waits for.
static void test_who_has_begun_the_collective_is_not_in_the_way(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 0);
    begun(0);
    begun(1);
    begun(3);
    paused(2);
    fleet_pass(&fleet, 100000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    assert_true(fleet_until_stall(&fleet, 30000) != FLEET_NEVER);
    fleet_expect_culprit(&fleet, 2, STALL_OUTSIDE);
}

// Condition: rank 1 has begun another use of the same name.
static void test_another_use_counts_for_nothing(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 1 << 0 | 1 << 1);
    begun(1);
    fleet.ranks[1].beat.overdue[0].use = 1;
    assert_true(fleet_until_stall(&fleet, 60000) <= FOUND);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
}

// Condition: rank 1 has begun the collective, but a stream of its device has not made the input.
static void test_a_stream_is_in_the_way_of_what_was_begun(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 1 << 0 | 1 << 1);
    begun(1);
    fleet.ranks[1].beat.held = DEVICE_HOLD_STREAM;
    assert_true(fleet_until_stall(&fleet, 60000) <= FOUND);
    fleet_expect_culprit(&fleet, 1, STALL_DEVICE);
    expect_edge(0, 1, 1);
}

// Condition: nobody waits for the silent rank. Decision: it is not said to hold up anybody. A
// member of the group that is silent is named, even if it has begun its part.
static void test_a_silent_rank_is_named_only_if_it_is_needed(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 1 << 0 | 1 << 1);
    paused(1);
    begun(1);
    fleet.ranks[2].silent = true;
    fleet_pass(&fleet, 8000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    fleet.ranks[1].silent = true;
    assert_true(fleet_until_stall(&fleet, 60000) != FLEET_NEVER);
    fleet_expect_culprit(&fleet, 1, STALL_FROZEN);
}

// Condition: both members wait, and nothing moves; the others have nothing to do with it.
// Decision: nobody is blamed, but it is said.
static void test_members_that_all_wait_are_not_explained_by_others(void **state)
{
    (void)state;
    begin_between_steps();
    blocked(0, 1 << 0 | 1 << 1);
    blocked(1, 1 << 0 | 1 << 1);
    assert_true(fleet_until_stall(&fleet, 60000) <= FOUND + LOCKSTEP_HEARTBEAT_MS);
    assert_int_equal(fleet_stall(&fleet)->kind, STALL_UNKNOWN);
    assert_int_equal(fleet_stall(&fleet)->culprit_total, 0);
}

// Condition: ranks have been busy for long when rank 0 begins to wait, and its first heartbeat does
// not say yet for whom. Decision: nobody is blamed before it does.
static void test_a_wait_that_has_just_begun_accuses_nobody(void **state)
{
    (void)state;
    begin_between_steps();
    fleet.ranks[3].beat.flags = PLACE_TRACED; // So that one is within its bound, and none stalls.
    fleet_pass(&fleet, 60000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    blocked(0, 1 << 0 | 1 << 1);
    const struct await await = fleet.ranks[0].beat.await;
    fleet.ranks[0].beat.await = (struct await){.key = {.kind = AWAIT_NONE}};
    fleet_say(&fleet, 0);
    fleet.ranks[0].next_ms = story.now_ms + LOCKSTEP_HEARTBEAT_MS;
    fleet.ranks[0].beat.await = await;
    fleet_pass(&fleet, 500);
    assert_int_equal(fleet_stalls(&fleet), 0);
    fleet_pass(&fleet, 2000);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    assert_int_equal(fleet_stalls(&fleet), 1);
}

// Condition: more different waits than are kept one by one: pairs that wait for messages.
static void test_many_different_waits_accuse_only_their_peers(void **state)
{
    enum {
        PAIRS = LOCKSTEP_MAX_AWAITED + 4
    };
    (void)state;
    fleet_begin(&fleet, &story, 2 * PAIRS + 1, 1);
    fleet_pass(&fleet, 3000);
    fleet_settle(&fleet);
    for (uint32_t pair = 0; pair < PAIRS; pair++) {
        blocked(2 * pair, UINT64_C(3) << 2 * pair);
        fleet.ranks[2 * pair].beat.await.key.number = pair;
    }
    assert_true(fleet_until_stall(&fleet, 60000) <= FOUND);
    fleet_pass(&fleet, LOCKSTEP_HEARTBEAT_MS); // The others report, too.
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_int_equal(stall->culprit_total, PAIRS);
    assert_int_equal(stall->edge_count, LOCKSTEP_MAX_CULPRITS);
    for (uint32_t i = 0; i < stall->edge_count; i++) {
        assert_int_equal(stall->edges[i].from + 1, stall->edges[i].to);
        assert_int_equal(stall->edges[i].members, 1);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fleet_setup, fleet_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_who_is_not_of_the_group_is_not_in_its_way),
        TEST(test_only_the_member_is_named),
        TEST(test_each_culprit_has_its_own_waits),
        TEST(test_who_waits_for_another_rank_is_not_counted),
        TEST(test_only_the_root_is_named),
        TEST(test_who_has_begun_the_collective_is_not_in_the_way),
        TEST(test_another_use_counts_for_nothing),
        TEST(test_a_stream_is_in_the_way_of_what_was_begun),
        TEST(test_a_silent_rank_is_named_only_if_it_is_needed),
        TEST(test_members_that_all_wait_are_not_explained_by_others),
        TEST(test_a_wait_that_has_just_begun_accuses_nobody),
        TEST(test_many_different_waits_accuse_only_their_peers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
