// SPDX-License-Identifier: Apache-2.0
//
// Standstills without a trainer in the way, or with more than one: frozen and stopped ranks, links,
// ranks that wait for each other, several culprits, and how stalls end and are kept.

#include "coordinator/stall_view.h"
#include "tests/unit/coordinator/fleet_case.h"

#include "coordinator/core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum {
    FLOOR = LOCKSTEP_STALL_FLOOR_MS,
    SILENCE = LOCKSTEP_FROZEN_HEARTBEATS * LOCKSTEP_HEARTBEAT_MS + LOCKSTEP_FROZEN_SLACK_MS,
};

static void begin_anew(void)
{
    fleet_teardown(NULL);
    fleet_setup(NULL);
}

// ---- Frozen and stopped ------------------------------------------------------------------------

static void test_a_frozen_rank_is_labelled_and_named_within_three_seconds(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 1);
    fleet_say(&fleet, 1);
    fleet.ranks[1].silent = true;
    const uint64_t passed = fleet_until_stall(&fleet, 20000);
    assert_true(passed > SILENCE && passed <= 3000);
    fleet_expect_culprit(&fleet, 1, STALL_FROZEN);
    assert_true(fleet_worker(&fleet, 1).frozen);
    assert_int_equal(fleet_worker(&fleet, 1).kind, STALL_FROZEN);
    fleet_expect_says(&fleet, "rank 1 (h1, pid 102) has not been heard of for 2.");
    fleet_expect_says(
        &fleet,
        " s, since step 11; its connections stand; 2 ranks wait for it. See whether pid 102 "
        "runs there, and whether that host answers.");
    assert_int_equal(fleet_stall(&fleet)->culprits[0].bound_ms, SILENCE);
    // It goes on.
    fleet.ranks[1].silent = false;
    fleet_pass(&fleet, 1500);
    assert_false(fleet_is_stalled(&fleet));
    assert_int_equal(fleet_worker(&fleet, 1).kind, STALL_NONE);
}

// A rank of a large world may say hello long before the last one does, and the coordinator may need
// a while to tell all of them that the world has formed.
static void test_a_rank_is_not_silent_before_the_world_has_formed(void **state)
{
    struct up_message beat = {.kind = UP_HEARTBEAT};
    (void)state;
    for (uint32_t peer = 1; peer <= 3; peer++) {
        const struct up_hello hello = story_hello("j", 3, "h1");
        story_say_hello(&story, peer, &hello);
        story_sleep(&story, SILENCE);
    }
    assert_true(story_worker(&story, 0, 0).has_rank);
    assert_false(story_worker(&story, 0, 0).frozen);
    beat.u.heartbeat.place.api = API_OPEN;
    beat.u.heartbeat.place.module = LOCKSTEP_MAX_MODULES;
    story_say(&story, 3, &beat);
    story_sleep(&story, SILENCE);
    assert_false(story_worker(&story, 0, 0).frozen);
    story_sleep(&story, 1);
    assert_true(story_worker(&story, 0, 0).frozen);
}

// The time in which it did not run is not the trainer's.
static void test_a_frozen_rank_has_its_bound_again(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 1);
    fleet_say(&fleet, 1);
    fleet.ranks[1].silent = true;
    fleet_pass(&fleet, 60000);
    fleet.ranks[1].silent = false;
    const uint64_t number = fleet_stall(&fleet)->number;
    fleet_pass(&fleet, 10000);
    assert_false(fleet_is_stalled(&fleet));
    fleet_pass(&fleet, 2000);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
    assert_int_equal(fleet_stall(&fleet)->number, number + 1);
}

static void test_a_frozen_rank_that_waited_is_named_too(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_say(&fleet, 1);
    fleet.ranks[1].silent = true; // All have done their part, so it is what is missing.
    fleet_pass(&fleet, 3000);
    fleet_expect_culprit(&fleet, 1, STALL_FROZEN);
}

static void test_a_rank_that_freezes_before_its_first_heartbeat_is_named(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 3, 1);
    fleet_all_wait(&fleet);
    fleet.ranks[1].silent = true;
    fleet_pass(&fleet, 5000);
    fleet_expect_culprit(&fleet, 1, STALL_FROZEN);
    // The lowest step of the ranks that are heard of.
    assert_int_equal(fleet_stall(&fleet)->step, 11);
}

static void test_late_heartbeats_of_a_job_that_moves_are_no_stall(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet.ranks[1].silent = true;
    for (uint32_t i = 0; i < 20; i++) {
        fleet_settle(&fleet);
        fleet_all_wait(&fleet);
        fleet_pass(&fleet, 400);
    }
    assert_true(fleet_worker(&fleet, 1).frozen);
    assert_int_equal(fleet_stalls(&fleet), 0);
}

static void test_a_late_heartbeat_is_not_blamed_for_what_another_rank_explains(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 0);
    fleet_pass(&fleet, 2000);
    fleet.ranks[1].silent = true; // It waited.
    fleet_pass(&fleet, 4000);
    assert_true(fleet_worker(&fleet, 1).frozen);
    assert_int_equal(fleet_stalls(&fleet), 0);
}

// It may wait for the first one by means of its own, so it is not blamed; but once that one has
// gone on, its next heartbeat is enough: the time that it has been there counts.
static void test_a_rank_that_is_stuck_further_on_is_named_next(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 0);
    fleet.ranks[0].beat.place.done = true;
    fleet_in_call(&fleet, 2);
    fleet_pass(&fleet, 20000);
    fleet_expect_culprit(&fleet, 2, STALL_IN_CALL);
    fleet.ranks[0].beat.place.done = false; // The others get to where it is.
    for (uint32_t rank = 0; rank < 3; rank++)
        fleet.ranks[rank].beat.place.position++;
    fleet_waits(&fleet, 2);
    fleet.ranks[2].beat.place.position = fleet.ranks[0].beat.place.position;
    fleet_pass(&fleet, 2 * LOCKSTEP_HEARTBEAT_MS);
    fleet_expect_culprit(&fleet, 0, STALL_OUTSIDE);
    assert_true(fleet_stall(&fleet)->culprits[0].age_ms > 20000);
}

static void test_two_ranks_stuck_for_different_reasons_are_both_named(void **state)
{
    (void)state;
    fleet_begin_waiting(4, 1);
    fleet_outside(&fleet, 3);
    fleet_pass(&fleet, 2000);
    fleet.ranks[1].silent = true; // It waited.
    fleet_pass(&fleet, 10000);
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_true(stall->active);
    assert_int_equal(stall->culprit_total, 2);
    assert_int_equal(stall->culprits[0].rank, 1);
    assert_int_equal(stall->culprits[0].kind, STALL_FROZEN);
    assert_int_equal(stall->culprits[1].rank, 3);
    assert_int_equal(stall->culprits[1].kind, STALL_OUTSIDE);
    assert_int_equal(stall->waiting, 2);
    assert_int_equal(stall->edge_count, 2);
    fleet_expect_says(&fleet, "rank 1 (h1, pid 102) has not been heard of");
    fleet_expect_says(&fleet, "; also rank 3 (h3, pid 104) has been outside");
    fleet_expect_says(&fleet, "; 2 ranks wait for them.");
    // One of them comes back and waits: only the other one is in the way, in the same stall.
    fleet_waits(&fleet, 3);
    fleet_pass(&fleet, 1500);
    fleet_expect_culprit(&fleet, 1, STALL_FROZEN);
    assert_int_equal(fleet_stalls(&fleet), 1);
    fleet.ranks[1].silent = false;
    fleet_settle(&fleet);
    fleet_pass(&fleet, 1500);
    assert_false(fleet_is_stalled(&fleet));
}

// Condition: the stream of a silent rank ends, as gRPC ends it when nobody answers its pings.
// Decision: the process is not said to have ended; the sentence says for how long it was silent,
// and whether a mate or a debugger explains it.
static void expect_death_says(char state, const char *before, const char *advice)
{
    char text[512];
    fleet_begin_waiting(4, 2);
    fleet_outside(&fleet, 1);
    fleet_pass(&fleet, 1500);
    fleet.ranks[1].silent = true;
    fleet.ranks[0].beat.mate_count = state != 0;
    fleet.ranks[0].beat.mates[0] = (struct mate_state){.rank = 1, .state = state};
    fleet_pass(&fleet, 29000);
    fleet.story->quiet = false;
    story_close(fleet.story, 2, "its control connection was lost");
    snprintf(text, sizeof(text),
             "1 < halt lost step 0: rank 1 on host h0 was lost: %snothing was heard of it for "
             "29.1 s when its control stream ended (its control connection was lost); %s, then "
             "start the job again\n",
             before, advice);
    story_expect_piece(fleet.story, text);
}

static void test_the_end_of_a_silent_rank_is_no_proof_of_its_death(void **state)
{
    (void)state;
    expect_death_says(0, "", "see whether pid 102 there runs, and whether that host answers");
    begin_anew();
    expect_death_says('T', "its process was stopped, and ", "see what stopped pid 102 there");
    begin_anew();
    expect_death_says('t', "its process was stopped by a debugger, and ",
                      "see what stopped pid 102 there");
}

static void test_a_stopped_rank_is_seen_by_its_mates(void **state)
{
    (void)state;
    fleet_begin_waiting(4, 2);
    fleet_outside(&fleet, 1);
    fleet_pass(&fleet, 1500);
    fleet.ranks[1].silent = true;
    fleet.ranks[0].beat.mate_count = 1;
    fleet.ranks[0].beat.mates[0] = (struct mate_state){.rank = 1, .state = 'T'};
    fleet_say(&fleet, 0);
    assert_int_equal(fleet_worker(&fleet, 1).kind, STALL_STOPPED);
    assert_true(fleet_until_stall(&fleet, 10000) <= 1500);
    fleet_expect_culprit(&fleet, 1, STALL_STOPPED);
    fleet_expect_says(&fleet, "rank 1 (h0, pid 102) is stopped, as its mates see, for ");
    fleet_expect_says(&fleet,
                      " s, since step 11; 3 ranks wait for it. Let it run again there: kill "
                      "-CONT 102.");
    fleet_pass(&fleet, 10000);
    fleet_expect_culprit(&fleet, 1, STALL_STOPPED);
    assert_int_equal(fleet_stalls(&fleet), 1);
    // SIGCONT.
    fleet.ranks[0].beat.mate_count = 0;
    fleet.ranks[1].silent = false;
    fleet_pass(&fleet, 1500);
    assert_false(fleet_is_stalled(&fleet));
    assert_int_equal(fleet_worker(&fleet, 1).kind, STALL_NONE);
}

static void test_only_mates_are_believed_about_processes(void **state)
{
    (void)state;
    fleet_begin_waiting(4, 2);
    fleet.ranks[0].beat.mate_count = 3;
    fleet.ranks[0].beat.mates[0] = (struct mate_state){.rank = 2, .state = 'T'}; // Another host.
    fleet.ranks[0].beat.mates[1] = (struct mate_state){.rank = 1, .state = 'D'}; // A disk.
    fleet.ranks[0].beat.mates[2] = (struct mate_state){.rank = 900, .state = 'T'};
    fleet_pass(&fleet, 3000);
    for (uint32_t rank = 0; rank < 4; rank++)
        assert_int_equal(fleet_worker(&fleet, rank).kind, STALL_NONE);
    assert_int_equal(fleet_stalls(&fleet), 0);
}

static void test_a_debugged_rank_that_is_frozen_is_named(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].beat.flags = PLACE_TRACED;
    fleet_say(&fleet, 1);
    fleet.ranks[1].silent = true;
    fleet_pass(&fleet, 3000);
    fleet_expect_culprit(&fleet, 1, STALL_FROZEN);
    assert_int_equal(fleet_stall(&fleet)->culprits[0].flags, PLACE_TRACED);
}

static void test_a_coordinator_that_was_late_blames_nobody(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_pass(&fleet, 2000);
    story.now_ms += 20000; // The machine slept: no tick, no heartbeat.
    story_sleep(&story, 0);
    assert_int_equal(fleet_stalls(&fleet), 0);
    fleet_settle(&fleet); // The job went on meanwhile.
    for (uint32_t rank = 0; rank < 3; rank++)
        fleet.ranks[rank].next_ms = story.now_ms + 300 * rank;
    fleet_pass(&fleet, 5000);
    assert_int_equal(fleet_stalls(&fleet), 0);
}

static void test_the_first_heartbeats_show_no_stall(void **state)
{
    (void)state;
    story.now_ms = 100000;
    fleet_begin(&fleet, &story, 2, 1);
    fleet_all_wait(&fleet);
    fleet_outside(&fleet, 1);
    fleet.ranks[1].api_at_ms -= 30000; // Long past its bound when it is heard of first.
    fleet_say(&fleet, 0);
    fleet_say(&fleet, 1);
    fleet_pass(&fleet, 1900);
    assert_int_equal(fleet_stalls(&fleet), 0);
    fleet_pass(&fleet, 1000);
    fleet_expect_culprit(&fleet, 1, STALL_OUTSIDE);
}

// ---- Nobody's trainer --------------------------------------------------------------------------

static void test_a_link_that_holds_bytes_back_is_named(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet.ranks[1].beat.link_count = 2;
    fleet.ranks[1].beat.links[0] = (struct link_state){.rank = 0, .awaited = true, .received = 9};
    fleet.ranks[1].beat.links[1] = (struct link_state){.rank = 2, .unsent = 65536, .received = 7};
    fleet.ranks[0].beat.link_count = 1;
    fleet.ranks[0].beat.links[0] = (struct link_state){.rank = 2, .awaited = true, .received = 9};
    fleet_pass(&fleet, FLOOR - 1000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    fleet_pass(&fleet, 3000);
    fleet_expect_culprit(&fleet, 1, STALL_LINK);
    fleet_expect_says(
        &fleet, "rank 1 (h1, pid 102) holds 65536 bytes for rank 2 (h2, pid 103), which do not "
                "arrive; 3 ranks wait. Look at the network between these two.");
    assert_int_equal(fleet_stall(&fleet)->edges[0].from, 1);
    assert_int_equal(fleet_stall(&fleet)->edges[0].to, 2);
}

// Condition: the others have waited for a rank in a declared pause, and it comes. Decision: links
// have their whole bound from then on, not from the last progress.
static void test_a_link_is_not_blamed_for_a_pause(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet.ranks[1].beat.link_count = 1;
    fleet.ranks[1].beat.links[0] = (struct link_state){.rank = 2, .unsent = 1, .received = 9};
    fleet_outside(&fleet, 2);
    fleet.ranks[2].beat.flags |= PLACE_PAUSED;
    fleet.ranks[2].beat.pause_ms = 3 * FLOOR;
    fleet_pass(&fleet, 2 * FLOOR);
    fleet.ranks[2].beat.flags &= ~(uint32_t)PLACE_PAUSED;
    fleet_waits(&fleet, 2);
    fleet_pass(&fleet, FLOOR - 1000);
    assert_int_equal(fleet_stalls(&fleet), 0);
    fleet_pass(&fleet, 3000); // It is the link's turn now.
    fleet_expect_culprit(&fleet, 1, STALL_LINK);
}

static void test_a_link_that_receives_is_not_the_one(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet.ranks[1].beat.link_count = 1;
    fleet.ranks[1].beat.links[0] = (struct link_state){.rank = 0, .unsent = 5};
    for (uint32_t i = 0; i < 15; i++) {
        fleet.ranks[1].beat.links[0].received++;
        fleet_pass(&fleet, 1000);
    }
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_int_equal(stall->kind, STALL_UNKNOWN);
    assert_int_equal(stall->culprit_total, 0);
}

// ---- Devices -----------------------------------------------------------------------------------

// All wait in the library, one of them for its own device, and of that rank a link gets nothing.
static void test_a_rank_whose_stream_stands_still_is_named(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet.ranks[1].beat.held = DEVICE_HOLD_STREAM;
    fleet.ranks[2].beat.link_count = 1;
    fleet.ranks[2].beat.links[0] = (struct link_state){.rank = 1, .awaited = true, .received = 9};
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    fleet_expect_culprit(&fleet, 1, STALL_DEVICE);
    fleet_pass(&fleet, 500);
    fleet_expect_says(&fleet, "rank 1 (h1, pid 102) waits for the gradient of 'w7' on stream "
                              "0x7f00 in step 11 of phase 'aux', which its device has not finished "
                              "for 1");
    fleet_expect_says(&fleet, "; 2 ranks wait for it. See what pid 102 runs on its GPU, and");
    assert_string_equal(fleet_stall(&fleet)->culprits[0].awaited, "the gradient of 'w7'");
    assert_int_equal(fleet_stall(&fleet)->culprits[0].stream, 0x7f00);
    assert_int_equal(fleet_stall(&fleet)->waiting, 2);
    assert_int_equal(fleet_stall(&fleet)->edges[0].from, 0);
    assert_int_equal(fleet_stall(&fleet)->edges[0].members, 2);
    assert_int_equal(fleet_stall(&fleet)->edges[0].to, 1);
    fleet.ranks[1].beat.held = DEVICE_HOLD_NONE;
    fleet_settle(&fleet);
    fleet_pass(&fleet, 1500);
    assert_false(fleet_is_stalled(&fleet));
}

// The step ended by a stream, so the trainers are outside and wait for it there.
static void test_who_waits_for_a_stream_outside_is_named_for_that(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 0);
    fleet_outside(&fleet, 1);
    fleet.ranks[0].beat.held = DEVICE_HOLD_NCCL;
    fleet.ranks[1].beat.held = DEVICE_HOLD_STREAM;
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    fleet_expect_culprit(&fleet, 1, STALL_DEVICE);
    assert_int_equal(fleet_stall(&fleet)->waiting, 1);
    assert_int_equal(fleet_stall(&fleet)->edges[0].from, 0);
    assert_int_equal(fleet_stall(&fleet)->edges[0].to, 1);
}

static void test_a_rank_that_gave_nothing_to_nccl_is_the_one(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 2);
    fleet.ranks[0].beat.held = DEVICE_HOLD_NCCL;
    fleet.ranks[1].beat.held = DEVICE_HOLD_NCCL;
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    fleet_expect_culprit(&fleet, 2, STALL_OUTSIDE);
}

static void test_nccl_that_does_not_end_is_said_of_all(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet.ranks[0].beat.held = DEVICE_HOLD_NCCL;
    fleet.ranks[1].beat.held = DEVICE_HOLD_NCCL;
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    assert_int_equal(fleet_stall(&fleet)->kind, STALL_DEVICE);
    assert_int_equal(fleet_stall(&fleet)->culprit_total, 2);
    fleet_pass(&fleet, 500);
    fleet_expect_says(&fleet, "rank 0 (h0, pid 101) has given its part to NCCL in step 11");
    fleet_expect_says(&fleet, ", which does not end; that is so for 1");
    fleet_expect_says(&fleet, "has given its part to NCCL (it said last: 'no socket') in step 11");
    fleet_expect_says(&fleet, "; nobody waits for them.");
}

// ---- Nobody in the way -------------------------------------------------------------------------

static void test_ranks_that_only_wait_are_not_blamed(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet.ranks[2].beat.place.api = API_COLLECTIVE;
    assert_true(fleet_until_stall(&fleet, 60000) > FLOOR);
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_int_equal(stall->kind, STALL_UNKNOWN);
    assert_int_equal(stall->culprit_total, 0);
    assert_int_equal(stall->culprit_count, 0);
    assert_int_equal(stall->waiting, 3);
    fleet_expect_says(&fleet, "nothing has moved for 10.");
    fleet_expect_says(
        &fleet,
        ", and no rank is seen to be in the way: ranks 0 and 1 wait in lockstep_step_end of step "
        "11 "
        "until all ranks exchange 'actor' (call 1), to which they have given their part; rank 2 "
        "waits in a collective of step 11 until all ranks exchange 'actor' (call 1), to which it "
        "has given its part. Compare what they do: lockstep stacks 0, lockstep stacks 2.");
}

// A job whose floor is lower than the time between two heartbeats.
static void test_between_two_heartbeats_nothing_has_to_move(void **state)
{
    (void)state;
    fleet_begin(&fleet, &story, 3, 1);
    story.core->config.stall_floor_ms = 100;
    for (uint32_t i = 0; i < 20; i++) {
        fleet_settle(&fleet);
        fleet_all_wait(&fleet);
        if (i < 10)
            fleet.ranks[0].beat.totals.steps = 0; // Nor in the first steps.
        fleet_pass(&fleet, 2200);
    }
    assert_int_equal(fleet_stalls(&fleet), 0);
    assert_true(fleet_until_stall(&fleet, 60000) < FLOOR);
}

static void test_bytes_on_their_way_are_no_standstill(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    for (uint32_t i = 0; i < 60; i++) {
        fleet.ranks[0].beat.bytes_sent += 1000;
        fleet_pass(&fleet, 1000);
    }
    assert_int_equal(fleet_stalls(&fleet), 0);
}

static void test_a_worker_that_says_nothing_of_itself_may_be_the_one(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet.ranks[2].beat.place.api = API_NONE;
    fleet_pass(&fleet, 30000);
    assert_int_equal(fleet_stalls(&fleet), 0);
}

// ---- Beginning and end -------------------------------------------------------------------------

static void test_who_has_not_called_start_is_named(void **state)
{
    (void)state;
    struct up_message message = {.kind = UP_HEARTBEAT};
    struct up_heartbeat *beat = &message.u.heartbeat;
    struct stall_view stall;
    story.quiet = true;
    story_form(&story, 2);
    story_start(&story, 1, 7, 3, 0);
    for (uint32_t second = 0; second < 105; second++) {
        *beat = (struct up_heartbeat){.place = {.api = API_START, .inside = true, .waits = true}};
        story_say(&story, 1, &message);
        *beat = (struct up_heartbeat){.place = {.api = API_OPEN, .api_ms = second * 1000}};
        story_say(&story, 2, &message);
        story_sleep(&story, 1000);
        const bool found = coordinator_stall_view(story.core, 0, 0, story.now_ms, &stall);
        assert_int_equal(found, second >= 101);
    }
    assert_int_equal(stall.kind, STALL_OUTSIDE);
    assert_int_equal(stall.culprits[0].rank, 1);
}

static void test_a_death_ends_a_stall(void **state)
{
    (void)state;
    fleet_begin_waiting(3, 1);
    fleet_outside(&fleet, 1);
    fleet_pass(&fleet, 12000);
    assert_true(fleet_is_stalled(&fleet));
    story_close(&story, 2, "reset");
    assert_false(fleet_is_stalled(&fleet));
    assert_int_equal(fleet_stalls(&fleet), 1);
    assert_int_equal(fleet_worker(&fleet, 1).kind, STALL_LOST);
    assert_int_equal(fleet_worker(&fleet, 0).kind, STALL_NONE);
    assert_int_equal(coordinator_deadline(story.core), UINT64_MAX);
}

static void test_more_culprits_than_are_named_are_counted(void **state)
{
    (void)state;
    fleet_begin_waiting(14, 1);
    for (uint32_t rank = 1; rank < 13; rank++)
        fleet_outside(&fleet, rank);
    fleet_pass(&fleet, 12500);
    const struct stall_view *stall = fleet_stall(&fleet);
    assert_int_equal(stall->culprit_total, 12);
    assert_int_equal(stall->culprit_count, LOCKSTEP_MAX_CULPRITS);
    assert_int_equal(stall->waiting, 2);
    fleet_expect_says(&fleet, "; and 9 more ranks; 2 ranks wait for them.");
}

static void test_the_last_stalls_are_kept(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    for (uint32_t i = 0; i < LOCKSTEP_STALLS_KEPT + 8; i++) {
        fleet_waits(&fleet, 0);
        fleet_outside(&fleet, 1);
        fleet_pass(&fleet, 12000);
        fleet_settle(&fleet);
        fleet_pass(&fleet, 1500);
    }
    assert_int_equal(fleet_stalls(&fleet), LOCKSTEP_STALLS_KEPT);
    assert_int_equal(fleet_stall(&fleet)->number, LOCKSTEP_STALLS_KEPT + 8);
    struct stall_view oldest;
    assert_true(
        coordinator_stall_view(story.core, 0, LOCKSTEP_STALLS_KEPT - 1, story.now_ms, &oldest));
    assert_int_equal(oldest.number, 9);
    assert_int_equal(oldest.step, 19);
}

// A stall of an earlier generation is kept, and none goes on into the next one.
static void test_stalls_outlive_their_generation(void **state)
{
    (void)state;
    fleet_begin_waiting(2, 1);
    fleet_outside(&fleet, 1);
    fleet_pass(&fleet, 12000);
    story_close(&story, 2, "reset");
    story_close(&story, 1, "reset");
    story_join(&story, 11, "a");
    story_join(&story, 12, "b");
    assert_int_equal(fleet_stalls(&fleet), 1);
    assert_false(fleet_is_stalled(&fleet));
    assert_int_equal(fleet_worker(&fleet, 0).kind, STALL_NONE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fleet_setup, fleet_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_frozen_rank_is_labelled_and_named_within_three_seconds),
        TEST(test_a_rank_is_not_silent_before_the_world_has_formed),
        TEST(test_a_frozen_rank_has_its_bound_again),
        TEST(test_a_frozen_rank_that_waited_is_named_too),
        TEST(test_a_rank_that_freezes_before_its_first_heartbeat_is_named),
        TEST(test_late_heartbeats_of_a_job_that_moves_are_no_stall),
        TEST(test_a_late_heartbeat_is_not_blamed_for_what_another_rank_explains),
        TEST(test_a_rank_that_is_stuck_further_on_is_named_next),
        TEST(test_two_ranks_stuck_for_different_reasons_are_both_named),
        TEST(test_the_end_of_a_silent_rank_is_no_proof_of_its_death),
        TEST(test_a_stopped_rank_is_seen_by_its_mates),
        TEST(test_only_mates_are_believed_about_processes),
        TEST(test_a_debugged_rank_that_is_frozen_is_named),
        TEST(test_a_coordinator_that_was_late_blames_nobody),
        TEST(test_the_first_heartbeats_show_no_stall),
        TEST(test_a_link_that_holds_bytes_back_is_named),
        TEST(test_a_link_is_not_blamed_for_a_pause),
        TEST(test_a_link_that_receives_is_not_the_one),
        TEST(test_a_rank_whose_stream_stands_still_is_named),
        TEST(test_who_waits_for_a_stream_outside_is_named_for_that),
        TEST(test_a_rank_that_gave_nothing_to_nccl_is_the_one),
        TEST(test_nccl_that_does_not_end_is_said_of_all),
        TEST(test_ranks_that_only_wait_are_not_blamed),
        TEST(test_between_two_heartbeats_nothing_has_to_move),
        TEST(test_bytes_on_their_way_are_no_standstill),
        TEST(test_a_worker_that_says_nothing_of_itself_may_be_the_one),
        TEST(test_who_has_not_called_start_is_named),
        TEST(test_a_death_ends_a_stall),
        TEST(test_more_culprits_than_are_named_are_counted),
        TEST(test_the_last_stalls_are_kept),
        TEST(test_stalls_outlive_their_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
