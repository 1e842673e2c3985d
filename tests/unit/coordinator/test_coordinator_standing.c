// SPDX-License-Identifier: Apache-2.0
//
// Claims of stall sentences: a link is blamed only for bytes that a sender holds, an excuse holds
// for some time only, and a sentence about a silent rank says what others prove.

#include "tests/unit/coordinator/fleet_case.h"

#include "coordinator/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum {
    FLOOR = LOCKSTEP_STALL_FLOOR_MS,
    FOUND = LOCKSTEP_HEARTBEAT_MS + FLEET_MS, // From a bound to the stall.
};

static void expect_nobody_is_blamed(void)
{
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_int_equal(stall->kind, STALL_UNKNOWN);
    assert_int_equal(stall->culprit_total, 0);
    assert_int_equal(stall->edge_count, 0);
    assert_null(strstr(stall->sentence, "network"));
    assert_null(strstr(stall->sentence, "position"));
}

// ---- Links -------------------------------------------------------------------------------------

// Condition: all wait, some of them for bytes that nobody has sent. Decision: no link is blamed.
static void test_a_link_without_bytes_is_innocent(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        fleet.ranks[rank].beat.link_count = 1;
        fleet.ranks[rank].beat.links[0] =
            (struct link_state){.rank = 1 - rank, .awaited = true, .received = 9};
    }
    fleet.ranks[1].beat.place = (struct place){.api = API_COLLECTIVE,
                                               .inside = true,
                                               .waits = true,
                                               .module = LOCKSTEP_MAX_MODULES,
                                               .plain = 5};
    fleet.ranks[1].beat.step = fleet.ranks[1].beat.settled;
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    expect_nobody_is_blamed();
    fleet_expect_says(
        &fleet,
        "and no rank is seen to be in the way: rank 0 waits in lockstep_step_end of step 11 "
        "until all ranks exchange 'actor' (call 1), to which it has given its part; rank 1 "
        "waits in a collective after step 10. Compare what they do: lockstep stacks 0, "
        "lockstep stacks 1.");
}

// Condition: two ranks wait for collectives of different names, in pieces or by several threads, so
// that no verdict is certain. Decision: the sentence names both, and which use of them.
static void test_collectives_are_named(void **state)
{
    static const char *const names[] = {"loss", "epoch"};
    (void)state;
    fleet_begin_waiting(2, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct up_heartbeat *beat = &fleet.ranks[rank].beat;
        beat->place = (struct place){.api = rank == 0 ? API_WORK_WAIT : API_COLLECTIVE,
                                     .inside = true,
                                     .waits = true,
                                     .module = LOCKSTEP_MAX_MODULES,
                                     .plain = 5};
        beat->step = beat->settled;
        snprintf(beat->collective, sizeof(beat->collective), "%s", names[rank]);
        beat->collective_use = rank;
    }
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    expect_nobody_is_blamed();
    fleet_expect_says(&fleet, "rank 0 waits in lockstep_work_wait 'loss' (use 1) after step 10; "
                              "rank 1 waits in a collective 'epoch' (use 2) after step 10.");
}

// Condition: the receiver's process does not take what its host has. Decision: that is said, and
// the network between the two is not blamed.
static void test_bytes_that_have_arrived_are_no_fault_of_the_network(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet.ranks[1].beat.link_count = 1;
    fleet.ranks[1].beat.links[0] =
        (struct link_state){.rank = 2, .unsent = 65536, .received = 7, .reached = true};
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    expect_nobody_is_blamed();
    fleet_expect_says(&fleet, "ranks 0, 1 and 2 wait in lockstep_step_end of step 11");
    fleet_expect_says(&fleet, "; rank 2 does not take 65536 bytes of rank 1. Look at the stacks of "
                              "all ranks: lockstep stacks 0.");
}

// The first link that holds bytes is the one, whichever others are awaited before it.
static void test_bytes_that_a_sender_holds_are_blamed_before_all(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet.ranks[0].beat.link_count = 2;
    fleet.ranks[0].beat.links[0] = (struct link_state){.rank = 1, .awaited = true};
    fleet.ranks[0].beat.links[1] = (struct link_state){.rank = 2, .unsent = 5, .reached = true};
    fleet.ranks[2].beat.link_count = 1;
    fleet.ranks[2].beat.links[0] = (struct link_state){.rank = 1, .unsent = 98};
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    fleet_expect_culprit(&fleet, 2, STALL_LINK);
    fleet_expect_says(&fleet,
                      "rank 2 (h2, pid 103) holds 98 bytes for rank 1 (h1, pid 102), which "
                      "do not arrive; 3 ranks wait. Look at the network between these two.");
}

// ---- Words -------------------------------------------------------------------------------------

static void test_what_many_ranks_wait_for_is_said_in_groups(void **state)
{
    (void)state;
    fleet_begin_waiting(20, 20);
    for (uint32_t rank = 0; rank < 20; rank++) {
        struct place *place = &fleet.ranks[rank].beat.place;
        if (rank % 3 == 1)
            place->done = false;
        if (rank % 3 == 2)
            place->api = API_CALL_WAIT, place->module = 1;
    }
    assert_true(fleet_until_stall(&fleet, 200000) > FLOOR);
    expect_nobody_is_blamed();
    fleet_expect_says(&fleet, ": ranks 0, 3, 6, 9, 12 and 2 more wait in lockstep_step_end of step "
                              "11 until all ranks exchange 'actor' (call 1), to which they have "
                              "given their part; ranks 1, 4, 7, 10, 13 and 2 more wait in");
    fleet_expect_says(&fleet, "to which they have not given their part; ranks 2, 5, 8, 11, 14 and "
                              "17 wait in lockstep_call_wait of 'critic' (call 1) of step 11");
}

static void test_more_things_than_are_told_are_counted(void **state)
{
    (void)state;
    fleet_begin_waiting(7, 1);
    for (uint32_t rank = 0; rank < 7; rank++)
        fleet.ranks[rank].beat.place.call = rank;
    for (uint32_t rank = 0; rank < 7; rank++)
        fleet.ranks[rank].beat.place.module = 0;
    fleet.ranks[6].beat.place.count = fleet.ranks[6].beat.place.position;
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    fleet_expect_says(&fleet, "; rank 3 waits in lockstep_step_end of 'actor' (call 4) of step 11");
    fleet_expect_says(&fleet, "; 3 more ranks are elsewhere. Compare what they do: ");
}

// A rank that has done its part is no culprit, but the sentence says that it is outside.
static void test_who_is_outside_is_told_as_well(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].beat.place.done = true;
    fleet.ranks[2].beat.place.position = fleet.ranks[2].beat.place.count;
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    expect_nobody_is_blamed();
    fleet_expect_says(&fleet, "; rank 1 is outside the library, after lockstep_call_end of 'actor' "
                              "(call 4) in step 11, while 'actor' (call 1) is to be exchanged, to "
                              "which it has given its part;");
    fleet_expect_says(&fleet, "; rank 2 waits in lockstep_step_end of step 11, all of whose "
                              "gradients are exchanged. Compare");
}

// ---- Labels ------------------------------------------------------------------------------------

// Condition: a trainer reads from a mount that is dead. Decision: it has three times the bound, and
// then it is named with what it sleeps in.
static void test_a_sleep_on_a_disk_has_an_end(void **state)
{
    (void)state;
    const uint64_t bound_ms = (uint64_t)LOCKSTEP_STALL_DISK_FACTOR * FLOOR;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].beat.flags = PLACE_DISK;
    snprintf(fleet.ranks[1].beat.sleeps, LOCKSTEP_KERNEL_BYTES, "read (nfs_wait_bit_\x1b[1m)");
    fleet.ranks[1].mute = true;
    const uint64_t passed = fleet_until_stall(&fleet, 200000);
    assert_in_range(passed, bound_ms, bound_ms + FOUND + LOCKSTEP_INSPECT_MS + LOCKSTEP_WATCH_MS);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    assert_int_equal(fleet_stall(&fleet)->culprits[0].bound_ms, bound_ms);
    assert_string_equal(fleet_stall(&fleet)->culprits[0].why, "sleeps in the kernel");
    fleet_expect_says(&fleet, "; it sleeps in the kernel: read (nfs_wait_bit_?[1m); 2 ranks wait");
    fleet.ranks[1].beat.sleeps[0] = '\0';
    fleet_pass(&fleet, 1000);
    fleet_expect_says(&fleet, "; it sleeps in the kernel; 2 ranks wait for it.");
}

static void test_no_label_excuses_for_ever(void **state)
{
    (void)state;
    static const uint32_t flags[] = {PLACE_TRACED, PLACE_THROTTLED, PLACE_TRACED | PLACE_DISK};
    const uint64_t bound_ms = (uint64_t)LOCKSTEP_STALL_FIRST_FACTOR * FLOOR;
    fleet_begin_waiting(2, 1);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        fleet_waits(&fleet, 1);
        fleet_pass(&fleet, 1500);
        assert_false(fleet_is_stalled(&fleet));
        fleet_outside(&fleet, 1);
        fleet.ranks[1].beat.flags = flags[i];
        assert_in_range(fleet_until_stall(&fleet, 200000), bound_ms, bound_ms + FOUND);
        fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    }
}

// ---- Silent ranks ------------------------------------------------------------------------------

static void stop(uint32_t rank, uint32_t mate, char letter, uint32_t tracer)
{
    fleet.ranks[rank].silent = true;
    fleet.ranks[mate].beat.mate_count = 1;
    fleet.ranks[mate].beat.mates[0] =
        (struct mate_state){.rank = rank, .state = letter, .tracer = tracer};
}

// Condition: a rank is stopped just before its next heartbeat, and the others finish step 11 and
// wait in step 12. Decision: it was in step 11 at least, and not in step 10, as it said last.
static void test_a_silent_rank_was_where_the_others_prove(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 3);
    fleet.ranks[1].beat.step = 10;
    fleet_say(&fleet, 1);
    fleet.ranks[1].silent = true;
    for (uint32_t rank = 0; rank < 3; rank += 2) {
        fleet.ranks[rank].beat.settled = 11;
        fleet_waits(&fleet, rank);
        fleet.ranks[rank].beat.place.position = 0;
    }
    stop(1, 0, 'T', 0);
    fleet_pass(&fleet, 4000);
    fleet_expect_culprit(&fleet, 1, STALL_STOPPED);
    fleet_expect_says(&fleet, " s, since step 11 or 12; 2 ranks wait for it.");
    assert_int_equal(fleet_stall(&fleet)->step, 12);
    assert_in_range(fleet_stall(&fleet)->culprits[0].age_ms, 3500, 5000);
    // A slot of step 12 is complete, so it has begun that.
    fleet.ranks[2].beat.place.position = 1;
    fleet_pass(&fleet, 1000);
    fleet_expect_says(&fleet, " s, since step 12; 2 ranks wait for it.");
}

// Condition: the same, and another rank stands still in its own code. Decision: both are named, and
// only ranks that are heard of are said to wait.
static void test_a_culprit_is_not_hidden_behind_a_stopped_one(void **state)
{
    (void)state;
    fleet_begin_waiting(4, 4);
    fleet_say(&fleet, 0);
    fleet.ranks[0].silent = true; // Its last word is that it waits.
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (rank == 0)
            continue;
        fleet.ranks[rank].beat.settled = 11;
        fleet_waits(&fleet, rank);
        fleet.ranks[rank].beat.place.position = 0;
    }
    fleet_outside(&fleet, 3);
    fleet.ranks[3].beat.place.position = 0;
    stop(0, 1, 'T', 0);
    fleet_pass(&fleet, FLOOR + FOUND + 1000);
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_int_equal(stall->culprit_total, 2);
    assert_int_equal(stall->culprits[0].rank, 0);
    assert_int_equal(stall->culprits[0].kind, STALL_STOPPED);
    assert_int_equal(stall->culprits[1].rank, 3);
    assert_int_equal(stall->culprits[1].kind, STALL_OUTSIDE);
    assert_int_equal(stall->waiting, 2);
    assert_int_equal(stall->edge_count, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(stall->edges[i].from, 1);
    fleet_expect_says(&fleet, "; also rank 3 (h0, pid 104) has been outside the library for 1");
    assert_int_equal(fleet_stalls(&fleet), 1); // No progress was seen when it became silent.
}

// With two ranks nobody waits: the other one is in its own code.
static void test_a_stopped_rank_is_named_beside_the_only_other_one(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 2);
    fleet_outside(&fleet, 0);
    fleet_outside(&fleet, 1);
    fleet_say(&fleet, 1);
    stop(1, 0, 'T', 0);
    fleet_pass(&fleet, FLOOR - 1000);
    assert_int_equal(fleet_stalls(&fleet), 0); // The other one may compute.
    fleet_pass(&fleet, 3000);
    assert_int_equal(fleet_stall(&fleet)->culprit_total, 2);
    assert_int_equal(fleet_stall(&fleet)->culprits[0].kind, STALL_OUTSIDE);
    assert_int_equal(fleet_stall(&fleet)->culprits[1].kind, STALL_STOPPED);
}

// A mate sees state t. A debugger looks at a process for moments, too, so it has to be silent.
static void test_a_rank_that_a_debugger_holds_is_named_with_it(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 3);
    fleet_outside(&fleet, 1);
    fleet_say(&fleet, 1);
    stop(1, 0, 't', 4711);
    fleet_say(&fleet, 0);
    assert_int_equal(fleet_worker(&fleet, 1).kind, STALL_NONE);
    fleet_pass(&fleet, 4000);
    fleet_expect_culprit(&fleet, 1, STALL_STOPPED);
    fleet_expect_says(&fleet, "rank 1 (h0, pid 102) is stopped by a debugger (pid 4711), as its "
                              "mates see, for ");
    fleet_expect_says(&fleet, " s, since step 11; 2 ranks wait for it. Let it go on in the "
                              "debugger, or detach that from pid 102.");
    assert_int_equal(fleet_stall(&fleet)->culprits[0].flags, PLACE_TRACED);
    fleet.ranks[1].silent = false;
    fleet.ranks[0].beat.mate_count = 0;
    fleet_pass(&fleet, 1500);
    assert_false(fleet_is_stalled(&fleet));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fleet_setup, fleet_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_link_without_bytes_is_innocent),
        TEST(test_collectives_are_named),
        TEST(test_bytes_that_have_arrived_are_no_fault_of_the_network),
        TEST(test_bytes_that_a_sender_holds_are_blamed_before_all),
        TEST(test_what_many_ranks_wait_for_is_said_in_groups),
        TEST(test_more_things_than_are_told_are_counted),
        TEST(test_who_is_outside_is_told_as_well),
        TEST(test_a_sleep_on_a_disk_has_an_end),
        TEST(test_no_label_excuses_for_ever),
        TEST(test_a_silent_rank_was_where_the_others_prove),
        TEST(test_a_culprit_is_not_hidden_behind_a_stopped_one),
        TEST(test_a_stopped_rank_is_named_beside_the_only_other_one),
        TEST(test_a_rank_that_a_debugger_holds_is_named_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
