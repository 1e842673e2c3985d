// SPDX-License-Identifier: Apache-2.0
//
// The end of a link is no death: what the coordinator does with losses of which nobody has a proof,
// in jobs whose ranks go on.

#include "coordinator/view.h"
#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum {
    COMMITTED = 5
}; // The last step that is committed on every rank.

#define ANEW \
    "the link between rank 1 (host h2) and rank 0 (host h1) has ended in step 6 (connection " \
    "reset by peer), and nothing shows that a process has ended: the ranks connect anew"

static void report(struct story *story, uint32_t peer, uint64_t ballot)
{
    struct up_message message = {.kind = UP_REPORT,
                                 .u.report = {.ballot = {.number = ballot, .incarnation = 0xc0},
                                              .settled = COMMITTED,
                                              .step = COMMITTED}};
    story_say(story, peer, &message);
}

static void links(struct story *story, uint32_t peer)
{
    story_links(story, peer, &(struct up_links){.wish = ALGORITHM_BY_SIZE});
}

static void lost(struct story *story, uint32_t peer, uint32_t rank, enum loss_proof proof)
{
    struct up_message message = {
        .kind = UP_LOST,
        .u.lost = {.rank = rank, .step = 6, .proof = proof, .text = "connection reset by peer"}};
    story_say(story, peer, &message);
}

static void silent(struct story *story, uint32_t peer, uint32_t rank)
{
    struct up_message message = {.kind = UP_LOST,
                                 .u.lost = {.rank = rank, .step = 6, .silent = true}};
    story_say(story, peer, &message);
}

// A worker sends heartbeats of the generation before while the links of its generation are made.
static void beat_of_before(struct story *story, uint32_t peer)
{
    const struct generation_id now = story->generation[peer];
    struct up_message message = {.kind = UP_HEARTBEAT};
    story->generation[peer].number--;
    story_say(story, peer, &message);
    story->generation[peer] = now;
}

// The trace has no ballot and no verdict.
static void expect_nothing(struct story *story)
{
    assert_null(strstr(story->trace, "prepare"));
    assert_null(strstr(story->trace, "halt"));
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    assert_int_equal(story_job(story, 0).world_size, 3);
    story_forget(story);
}

static void test_the_end_of_a_link_begins_nothing(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    lost(story, 1, 1, PROOF_NONE);
    lost(story, 3, 1, PROOF_NONE);
    story_sleep(story, LOCKSTEP_ACCUSED_MS - 1);
    expect_nothing(story);
}

static void test_a_mate_has_the_proof(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    lost(story, 1, 1, PROOF_NONE);
    expect_nothing(story);
    lost(story, 3, 1, PROOF_PROCESS);
    story_expect_piece(story, "1 < prepare ballot 2, suspects 2: rank 1 on host h2 was lost");
    report(story, 1, 2);
    report(story, 3, 2);
    assert_int_equal(story_job(story, 0).world_size, 2);
}

// Its stream has not ended yet. A port that nobody has reached before proves nothing.
static void test_the_port_has_the_proof(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    lost(story, 1, 1, PROOF_NONE);
    story_probed(story, 2, false, true);
    expect_nothing(story);
    story_probed(story, 2, true, false);
    expect_nothing(story);
    story_probed(story, 2, false, true);
    story_expect_piece(story, "1 < prepare ballot 2, suspects 2: rank 1 on host h2 was lost: its "
                              "links have ended, and nothing listens at its data port any more");
}

// A rank that has left listens no more. A member that has no link to it cannot know why.
static void test_the_port_of_one_that_left_is_no_news(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_leave(story, 2, 10);
    story_forget(story);
    lost(story, 3, 1, PROOF_PORT);
    expect_nothing(story);
}

// A port that refuses is no proof of anything about a member that nobody misses.
static void test_a_refusal_alone_is_nothing(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_probed(story, 2, true, false);
    story_probed(story, 2, false, true);
    expect_nothing(story);
}

// No proof comes: all freeze and connect anew, and nobody is removed.
static void test_all_connect_anew(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    lost(story, 1, 1, PROOF_NONE);
    lost(story, 2, 0, PROOF_NONE);
    story_forget(story);
    story_sleep(story, LOCKSTEP_ACCUSED_MS);
    story_expect_piece(story, "1 < prepare ballot 2, suspects 0: " ANEW
                              "\n2 < prepare ballot 2, suspects 0: " ANEW
                              "\n3 < prepare ballot 2, suspects 0: " ANEW "\n");
    lost(story, 3, 0, PROOF_NONE); // It has frozen, and its links have ended.
    story_sleep(story, 3 * LOCKSTEP_ACCUSED_MS);
    assert_null(strstr(story->trace, "prepare"));
    for (uint32_t peer = 1; peer <= 3; peer++)
        report(story, peer, 2);
    story_expect_piece(story, "decision ballot 2, settled 5, step 5, flags 0, removed 0\n");
    for (uint32_t peer = 1; peer <= 3; peer++)
        links(story, peer);
    assert_int_equal(story_job(story, 0).world_size, 3);
    assert_int_equal(story_job(story, 0).recoveries, 1);
    story_forget(story);
    story_sleep(story, 3 * LOCKSTEP_ACCUSED_MS);
    expect_nothing(story);
}

// Rank 0 has the word of rank 2, whose link has ended. Its own links stand.
static void test_the_link_of_a_witness_has_ended(void **state)
{
    struct up_message message = {
        .kind = UP_LOST,
        .u.lost = {
            .rank = 1, .told = true, .witness = 2, .step = 6, .text = "connection reset by peer"}};
    struct story *story = *state;
    story_run_on(story, 3);
    story_say(story, 1, &message);
    story_forget(story);
    story_sleep(story, LOCKSTEP_ACCUSED_MS);
    story_expect_piece(story, "suspects 0: the link between rank 2 (host h3) and rank 1 (host h2)");
}

// A new generation does not help: the link is cut, and the accused rank is removed. Making the
// links takes longer than a rank may be silent. Heartbeats of the generation before show that the
// rank is alive.
static void test_a_link_that_does_not_come_back_is_cut(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    lost(story, 1, 1, PROOF_NONE);
    story_sleep(story, LOCKSTEP_ACCUSED_MS);
    for (uint32_t peer = 1; peer <= 3; peer++)
        report(story, peer, 2);
    story_sleep(story, 3 * LOCKSTEP_HEARTBEAT_MS);
    beat_of_before(story, 2);
    lost(story, 1, 1, PROOF_NONE);
    story_forget(story);
    story_sleep(story, LOCKSTEP_ACCUSED_MS);
    story_expect_piece(story, "3 < prepare ballot 3, suspects 2: the link between rank 0 (host h1) "
                              "and rank 1 (host h2) is cut");
    report(story, 1, 3);
    report(story, 3, 3);
    story_expect_piece(story, "2 < excluded by ballot 3");
}

// Both do not hear each other. One of them goes, not both.
static void test_of_a_cut_pair_one_goes(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    silent(story, 1, 1);
    story_expect_piece(story, "3 < prepare ballot 2, suspects 2");
    silent(story, 2, 0);
    silent(story, 2, 2);
    assert_null(strstr(story->trace, "prepare"));
    report(story, 1, 2);
    report(story, 3, 2);
    assert_int_equal(story_job(story, 0).world_size, 2);
}

// The accused rank has no stream just now.
static void test_the_word_of_a_removed_rank_does_not_count(void **state)
{
    struct story *story = *state;
    story_run_on(story, 5);
    silent(story, 1, 1);
    story_expect_piece(story, "3 < prepare ballot 2, suspects 2");
    story_cut(story, 3);
    story_forget(story);
    silent(story, 2, 2);
    assert_null(strstr(story->trace, "prepare"));
}

// A world of `size` ranks that goes on after a death has started. hosts[i]: the host of rank i.
static void world_on_hosts(struct story *story, const char *const *hosts, uint32_t size)
{
    for (uint32_t peer = 1; peer <= size; peer++) {
        struct up_hello hello = story_hello("j", size, hosts[peer - 1]);
        hello.on_failure = FAILURE_CONTINUE;
        story_say_hello(story, peer, &hello);
    }
    for (uint32_t peer = 1; peer <= size; peer++)
        links(story, peer);
    for (uint32_t peer = 1; peer <= size; peer++)
        story_start(story, peer, 7, 3, 0);
}

// Condition: two hosts with two ranks each do not reach each other. Decision: both ranks of one
// host go, also if one of them accuses the other host.
static void test_a_cut_between_two_hosts_takes_one_of_them(void **state)
{
    static const char *const hosts[] = {"a", "a", "b", "b"};
    struct story *story = *state;
    world_on_hosts(story, hosts, 4);
    silent(story, 1, 2);
    story_expect_piece(story, "4 < prepare ballot 2, suspects 4: the link between");
    report(story, 1, 2);
    report(story, 2, 2);
    report(story, 4, 2);
    assert_int_equal(story_job(story, 0).world_size, 3);
    silent(story, 4, 0);
    story_expect_piece(story, "2 < prepare ballot 3, suspects 4: the link between");
    report(story, 1, 3);
    report(story, 2, 3);
    story_expect_piece(story, "4 < excluded by ballot 3");
    assert_int_equal(story_job(story, 0).world_size, 2);
}

// Condition: a rank of a larger host is suspect already. The only rank of its host, which does not
// know that yet, accuses it, too. Decision: that rank stays.
static void test_one_of_a_cut_pair_goes_already(void **state)
{
    static const char *const hosts[] = {"x", "y", "y", "y", "z", "z", "z", "z"};
    struct story *story = *state;
    world_on_hosts(story, hosts, 8);
    silent(story, 3, 1); // A mate of its own host accuses it first.
    story_forget(story);
    silent(story, 1, 1);
    assert_null(strstr(story->trace, "prepare"));
}

// A member that is away, and that others have lost, has time to come back.
static void test_two_silences_are_no_proof(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_cut(story, 2);
    lost(story, 1, 1, PROOF_NONE);
    story_sleep(story, LOCKSTEP_ACCUSED_MS);
    assert_true(story_job(story, 0).recovering);
    assert_null(strstr(story->trace, "prepare"));
    story_sleep(story, LOCKSTEP_BALLOT_AWAY_MS);
    story_expect_piece(story, "3 < prepare ballot 2, suspects 2: ");
}

// Where a loss ends the job, it does so at once.
static void test_without_the_policy_a_loss_is_the_end(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    lost(story, 1, 1, PROOF_NONE);
    story_expect_piece(story, "3 < halt lost");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_end_of_a_link_begins_nothing),
        TEST(test_a_mate_has_the_proof),
        TEST(test_the_port_has_the_proof),
        TEST(test_the_port_of_one_that_left_is_no_news),
        TEST(test_a_refusal_alone_is_nothing),
        TEST(test_all_connect_anew),
        TEST(test_the_link_of_a_witness_has_ended),
        TEST(test_a_link_that_does_not_come_back_is_cut),
        TEST(test_of_a_cut_pair_one_goes),
        TEST(test_the_word_of_a_removed_rank_does_not_count),
        TEST(test_a_cut_between_two_hosts_takes_one_of_them),
        TEST(test_one_of_a_cut_pair_goes_already),
        TEST(test_two_silences_are_no_proof),
        TEST(test_without_the_policy_a_loss_is_the_end),
    };
    return cmocka_run_group_tests_name("suspicion", tests, NULL, NULL);
}
