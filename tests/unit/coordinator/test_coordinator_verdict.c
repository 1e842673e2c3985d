// SPDX-License-Identifier: Apache-2.0
//
// How generations end: deaths, goodbyes, disagreements. All ranks get the first verdict.

#include "coordinator/view.h"
#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_a_stream_that_breaks_is_a_death(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    story_close(story, 2, "connection reset by peer");
    story_expect(
        story,
        "2 broke\n"
        "1 < halt lost step 0: rank 1 on host h2 was lost: its control stream ended "
        "without a goodbye (connection reset by peer); see why pid 102 there ended or called exec, "
        "then start the job again\n"
        "3 < halt lost step 0: rank 1 on host h2 was lost: its control stream ended "
        "without a goodbye (connection reset by peer); see why pid 102 there ended or called exec, "
        "then start the job again\n");
    assert_true(story->last[1].u.halt.has_rank);
    assert_int_equal(story->last[1].u.halt.rank, 1);
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
    assert_true(story_worker(story, 0, 1).lost);
}

static void test_a_loss_seen_by_a_peer_is_the_same_death(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    story_lost(story, 3, 1, 12, false);
    // The one that is called lost is told too: its stream may stand while its links are broken.
    story_expect(story,
                 "3 > lost rank 1 step 12: connection reset by peer\n"
                 "1 < halt lost step 0: rank 1 on host h2 was lost: rank 2 (host h3) saw "
                 "\"connection reset by peer\" in step 12; see whether pid 102 there ended or "
                 "the network to that host is cut, then start the job again\n"
                 "2 < halt lost step 0: rank 1 on host h2 was lost: rank 2 (host h3) saw "
                 "\"connection reset by peer\" in step 12; see whether pid 102 there ended or "
                 "the network to that host is cut, then start the job again\n"
                 "3 < halt lost step 0: rank 1 on host h2 was lost: rank 2 (host h3) saw "
                 "\"connection reset by peer\" in step 12; see whether pid 102 there ended or "
                 "the network to that host is cut, then start the job again\n");
    story_close(story, 2, NULL);
    story_lost(story, 1, 1, 12, false);
    story_close(story, 3, NULL);
    story_expect(story, "2 broke\n"
                        "1 > lost rank 1 step 12: connection reset by peer\n"
                        "3 broke\n");
}

// Condition: a rank has the word of another one about a loss. Decision: the sentence says who saw
// it.
static void test_a_loss_that_was_told_names_its_witness(void **state)
{
    struct up_message message = {
        .kind = UP_LOST,
        .u.lost = {.rank = 1, .told = true, .witness = 2, .step = 12, .text = "connection reset"}};
    struct story *story = *state;
    story_run(story, 3);
    story_say(story, 1, &message);
    story_expect_piece(story,
                       "rank 1 on host h2 was lost: rank 2 (host h3) saw \"connection reset\" "
                       "in step 12, as rank 0 heard; see whether pid 102");
}

// A witness that is no rank is not looked up.
static void test_a_witness_that_is_no_rank(void **state)
{
    struct up_message message = {
        .kind = UP_LOST,
        .u.lost = {.rank = 1, .told = true, .witness = 4000, .text = "connection reset"}};
    struct story *story = *state;
    story_run(story, 2);
    story_say(story, 1, &message);
    story_expect_piece(story, "rank 0 (host h1) saw \"connection reset\"; see whether pid 102");
}

// Condition: a rank dies before lockstep_start. Decision: neither text nor log names a step.
static void test_a_death_before_the_first_step_has_no_step(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story->logging = true;
    story_lost(story, 1, 1, 0, false);
    story_expect_piece(
        story, "log generation_halted job=j generation=1 kind=lost text=\"rank 1 on host h2 "
               "was lost: rank 0 (host h1) saw \\\"connection reset by peer\\\"; see");
}

// No network lies between ranks of one host.
static void test_a_loss_seen_by_a_mate_is_the_end_of_a_process(void **state)
{
    struct story *story = *state;
    story_join(story, 1, "a");
    story_join(story, 2, "a");
    story_lost(story, 1, 1, 0, false);
    story_expect_piece(story,
                       "see why pid 102 there ended or called exec, then start the job again");
}

static void silent(struct story *story, uint32_t peer, uint32_t rank)
{
    struct up_message message = {
        .kind = UP_LOST,
        .u.lost = {.rank = rank, .step = 12, .silent = true, .text = "its host has been silent"},
    };
    story_say(story, peer, &message);
}

// Its links say nothing, its stream does: it has not ended, and is not told to have.
static void test_a_cut_link_is_no_death(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    silent(story, 1, 1);
    story_expect(
        story,
        "1 > lost rank 1 step 12: its host has been silent\n"
        "1 < halt lost step 0: the link between rank 0 (host h1) and rank 1 (host h2) is cut: in "
        "step 12 nothing that rank 0 sends is acknowledged any more, and both ranks are alive; "
        "look at the network between these two hosts, then start the job again\n"
        "2 < halt lost step 0: the link between rank 0 (host h1) and rank 1 (host h2) is cut: in "
        "step 12 nothing that rank 0 sends is acknowledged any more, and both ranks are alive; "
        "look at the network between these two hosts, then start the job again\n");
    assert_false(story_worker(story, 0, 1).lost);
}

// Nobody hears it: then it may have ended.
static void test_a_silent_host_is_a_death(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story->now_ms += 20000;
    silent(story, 1, 1);
    story_expect_piece(story,
                       "1 < halt lost step 0: rank 1 on host h2 was lost: rank 0 (host h1) saw "
                       "\"its host has been silent\" in step 12; see whether pid 102 there runs, "
                       "and whether that host answers, then start the job again");
    assert_true(story_worker(story, 0, 1).lost);
}

static void test_the_second_death_changes_nothing(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    story_close(story, 1, NULL);
    story_expect_piece(story, "3 < halt lost step 0: rank 0 on host h1 was lost");
    story_close(story, 2, NULL);
    story_lost(story, 3, 1, 4, false);
    story_expect(story, "2 broke\n3 > lost rank 1 step 4: connection reset by peer\n");
}

static void test_a_death_in_the_middle_of_start(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_start(story, 1, 1, 5, 0);
    story_start(story, 2, 2, 5, 0);
    story_forget(story);
    story_close(story, 1, NULL);
    story_expect(story,
                 "1 broke\n"
                 "2 < halt lost step 0: rank 0 on host h1 was lost: its control stream ended "
                 "without a goodbye; see why pid 101 there ended or called exec, then start the "
                 "job again\n");
    assert_int_equal(coordinator_deadline(story->core), UINT64_MAX);
}

static void test_everybody_leaves(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_leave(story, 1, 10);
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    assert_int_equal(story_job(story, 0).left, 1);
    story_leave(story, 2, 10);
    story_expect(story, "1 > leave settled 10\n1 closed\n2 > leave settled 10\n2 closed\n");
    assert_int_equal(story_job(story, 0).state, JOB_FINISHED);
    assert_true(story_worker(story, 0, 0).left);
    assert_false(story_worker(story, 0, 0).lost);
    assert_int_equal(story_worker(story, 0, 0).settled, 10);
}

static void test_one_left_while_another_needed_it(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_leave(story, 2, 10);
    story_forget(story);
    story_lost(story, 1, 1, 11, true);
    story_expect(story, "1 > left behind by rank 1 step 11: connection reset by peer\n"
                        "1 < halt left step 11: rank 1 (host h2) closed its session while rank 0 "
                        "(host h1) still needed it in step 11, after connection reset by peer\n");
    assert_int_equal(story->last[1].u.halt.rank, 1);
}

static void goodbye(struct story *story, uint32_t peer, uint32_t rank, bool left)
{
    struct up_message message = {.kind = UP_LOST,
                                 .u.lost = {.rank = rank,
                                            .left = left,
                                            .step = UP_LOST_NEVER,
                                            .proof = PROOF_WORD,
                                            .text = "E_UNREACHABLE"}};
    story_say(story, peer, &message);
}

// Two members whose links stand: the end of a control stream is silence.
static void run_linked(struct story *story)
{
    story_run(story, 2);
    for (uint32_t peer = 1; peer <= 2; peer++)
        story_links(story, peer, &(struct up_links){.wish = ALGORITHM_BY_SIZE});
    story_forget(story);
}

// The way from a member to the coordinator is cut, and the member leaves. Another one has heard its
// goodbye, and waits for the coordinator.
static void test_a_goodbye_that_only_a_member_has_heard(void **state)
{
    struct story *story = *state;
    const char *left = "rank 1 (host h2) closed its session while rank 0 (host h1) still needed it "
                       "in step 1, after E_UNREACHABLE";
    for (int early = 0; early < 2; early++) {
        run_linked(story);
        story_ready(story, 1, 1, slot(0, 0, 0));
        if (early)
            goodbye(story, 1, 1, true); // Its own word may be on its way.
        assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
        story_cut(story, 2);
        if (!early)
            goodbye(story, 1, 1, true);
        story_expect_piece(story, left);
        assert_true(story_worker(story, 0, 1).left);
        story_end(story);
        story_begin(story);
    }
}

// No step is being learned, so nobody needs it.
static void test_a_goodbye_when_nothing_is_learned(void **state)
{
    struct story *story = *state;
    run_linked(story);
    story_cut(story, 2);
    goodbye(story, 1, 1, true);
    goodbye(story, 1, 1, true);
    assert_null(strstr(story->trace, "halt"));
    story_leave(story, 1, 4);
    assert_int_equal(story_job(story, 0).state, JOB_FINISHED);
}

// With config.on_failure continue, a rank that gives itself up is lost, and the others go on.
static void test_a_rank_that_only_a_member_has_heard_give_up(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    goodbye(story, 1, 1, false);
    assert_null(strstr(story->trace, "prepare"));
    story_cut(story, 2);
    story_expect_piece(story,
                       "3 < prepare ballot 2, suspects 2: rank 1 on host h2 was lost: it gave "
                       "up: E_UNREACHABLE; see whether pid 102 there runs");
}

static void test_the_data_plane_may_tell_of_a_goodbye_first(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_lost(story, 1, 1, 11, true);
    story_expect_piece(story, "1 < halt left step 11: rank 1 (host h2) closed its session");
    story_leave(story, 2, 10);
    story_expect(story, "2 > leave settled 10\n2 closed\n");
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
}

static void test_a_reset_from_one_that_left_is_no_death(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    story_leave(story, 2, 10);
    story_forget(story);
    // The reporter is two steps ahead of what can still be settled.
    story_lost(story, 1, 1, 12, false);
    story_expect_piece(story, "3 < halt left step 11: rank 1 (host h2) closed its session");
}

static void test_a_disagreement_is_everybodys(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_fail(story, 2, 7, HALT_COLLECTIVE, "barrier 'eval' here, allreduce 'loss' at rank 0");
    story_expect(story,
                 "2 > fail collective step 7: barrier 'eval' here, allreduce 'loss' at rank 0\n"
                 "1 < halt collective step 7: rank 1 (host h2): barrier 'eval' here, allreduce "
                 "'loss' at rank 0\n"
                 "2 < halt collective step 7: rank 1 (host h2): barrier 'eval' here, allreduce "
                 "'loss' at rank 0\n");
    story_fail(story, 1, 7, HALT_COLLECTIVE, "the other side");
    story_expect(story, "1 > fail collective step 7: the other side\n");
}

static void test_one_gives_up_and_says_why(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_fail(story, 2, 0, HALT_LOST, "aborted: out of data");
    story_expect(story, "2 > fail lost step 0: aborted: out of data\n"
                        "1 < halt lost step 0: rank 1 (host h2): aborted: out of data\n"
                        "2 < halt lost step 0: rank 1 (host h2): aborted: out of data\n");
    assert_true(story->last[1].u.halt.has_rank);
    assert_int_equal(story->last[1].u.halt.rank, 1);
    story_lost(story, 1, 1, 3, false);
    story_expect_piece(story, "1 > lost");
}

// The goodbye of an abort comes before its own message.
static void test_a_goodbye_after_an_abort(void **state)
{
    struct story *story = *state;
    struct up_message leave = {.kind = UP_LEAVE,
                               .u.leave = {.settled = 3, .cause = "aborted: disk is full"}};
    story_run(story, 2);
    story_say(story, 2, &leave);
    story_lost(story, 1, 1, 4, true);
    story_expect_piece(story, "1 < halt left step 4: rank 1 (host h2) closed its session while "
                              "rank 0 (host h1) still needed it in step 4, after it aborted: disk "
                              "is full\n");
}

// A verdict of step 7 takes effect where step 6 is settled; one that is stuck in step 6 needs its
// own.
static void test_an_earlier_step_replaces_a_later_one(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_fail(story, 2, 7, HALT_PHASE, "policy here");
    story_fail(story, 1, 6, HALT_UNPLANNED, "critic call 1");
    story_expect_piece(story, "2 < halt unplanned step 6: rank 0 (host h1): critic call 1\n");
}

// Every rank in step 6 is told, and the log has the sentence once.
static void test_one_sentence_is_logged_once(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    story->logging = true;
    story_fail(story, 2, 7, HALT_LOST, "aborted: nan");
    story_expect_piece(story, "log generation_halted");
    story_lost(story, 1, 1, 6, true);
    story_expect(story, "1 > left behind by rank 1 step 6: connection reset by peer\n"
                        "1 < halt lost step 6: rank 1 (host h2): aborted: nan\n"
                        "2 < halt lost step 6: rank 1 (host h2): aborted: nan\n"
                        "3 < halt lost step 6: rank 1 (host h2): aborted: nan\n");
}

// Two ranks find one difference of the order, the second of them in an earlier step. Both steps get
// a verdict, and the log has one line.
static void test_one_difference_is_logged_once(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story->logging = true;
    story_fail(story, 2, 7, HALT_ORDER, "end step 7");
    story_expect_piece(story, "log generation_halted");
    story_fail(story, 1, 6, HALT_ORDER, "end step 6");
    story_expect(story, "1 > fail order step 6: end step 6\n"
                        "1 < halt order step 6: rank 0 (host h1): end step 6\n"
                        "2 < halt order step 6: rank 0 (host h1): end step 6\n");
}

// A rank that sends what cannot be may be alive: to look for its end would find nothing.
static void test_a_liar_is_not_told_as_a_death(void **state)
{
    struct story *story = *state;
    struct up_message message = {
        .kind = UP_LOST,
        .u.lost = {.rank = 1, .step = 12, .impossible = true, .text = "sent an impossible wave"},
    };
    story_run(story, 3);
    story_say(story, 3, &message);
    story_expect_piece(story,
                       "1 < halt lost step 0: rank 1 on host h2 was lost: rank 2 (host h3) saw "
                       "\"sent an impossible wave\" in step 12; pid 102 there broke the protocol: "
                       "see that all ranks run the same Lockstep and that nothing overwrites its "
                       "memory, then start the job again\n");
}

// A rank that was told of step 7 has closed its links; a rank in step 6 sees that.
static void test_links_closed_after_a_verdict_are_no_death(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    story_leave(story, 2, 6);
    story_lost(story, 3, 1, 7, true);
    story_expect_piece(story, "1 < halt left step 7: rank 1 (host h2) closed its session");
    story_lost(story, 1, 2, 6, false);
    story_expect_piece(story, "1 < halt left step 6: rank 1 (host h2) closed its session");
    assert_true(story->last[1].u.halt.has_rank);
    assert_int_equal(story->last[1].u.halt.rank, 1);
    story_close(story, 3, "reset");
    story_lost(story, 1, 2, 5, false);
    story_expect_piece(story, "1 < halt left step 5: rank 1 (host h2) closed its session");
}

static void test_messages_of_other_generations_are_dropped_and_counted(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story->generation[1].number = 2;
    story_step_end(story, 1, 1);
    story->generation[1].number = 1;
    story->generation[1].incarnation = 1;
    story_step_end(story, 1, 1);
    story_expect(story, "1 > end step 1\n1 > end step 1\n");
    assert_int_equal(story_job(story, 0).dropped_total, 2);
    assert_int_equal(story_job(story, 0).messages_total, 2); // The two starts.
}

// ---- The next generation ---------------------------------------------------------------------

static void test_a_second_generation_after_a_death(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_close(story, 2, NULL);
    story_forget(story);
    // The survivor has not closed its first stream yet.
    story_join(story, 11, "h1");
    story_join(story, 12, "h3");
    story_expect(story, "11 > hello job j world 2 host h1\n"
                        "11 < welcome\n"
                        "12 > hello job j world 2 host h3\n"
                        "12 < welcome\n"
                        "11 < generation 2: rank 0 of 2, local 0 of 1, peers 1@w12\n"
                        "12 < generation 2: rank 1 of 2, local 0 of 1, peers 0@w11\n");
    story_fail(story, 1, 1, HALT_PHASE, "from the past");
    story_leave(story, 1, 3);
    story_start(story, 11, 1, 1, 0);
    story_expect(story, "1 > fail phase step 1: from the past\n"
                        "1 > leave settled 3\n"
                        "1 closed\n"
                        "11 > start hash 1 items 1 root 0\n");
    assert_memory_not_equal(story->secret[1], story->secret[11], LOCKSTEP_SECRET_BYTES);
    assert_int_equal(story_job(story, 0).generation.number, 2);
    assert_int_equal(story_job(story, 0).joined, 2);
}

static void test_a_finished_jobs_name_is_free(void **state)
{
    struct story *story = *state;
    story_run(story, 1);
    story_leave(story, 1, 3);
    const struct up_hello hello = story_hello("j", 1, "a");
    story_say_hello(story, 2, &hello);
    story_expect_piece(story, "2 < generation 2: rank 0 of 1");
    assert_int_equal(coordinator_job_count(story->core), 1);
}

static void test_a_running_job_takes_nobody(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    story_join(story, 3, "c");
    story_expect(story,
                 "3 > hello job j world 2 host c\n"
                 "3 < refused (full): job 'j' is running with 2 workers: wait until it ends, "
                 "or choose another job name\n"
                 "3 closed\n");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_stream_that_breaks_is_a_death),
        TEST(test_a_loss_seen_by_a_peer_is_the_same_death),
        TEST(test_a_loss_that_was_told_names_its_witness),
        TEST(test_a_witness_that_is_no_rank),
        TEST(test_a_death_before_the_first_step_has_no_step),
        TEST(test_a_loss_seen_by_a_mate_is_the_end_of_a_process),
        TEST(test_a_cut_link_is_no_death),
        TEST(test_a_silent_host_is_a_death),
        TEST(test_the_second_death_changes_nothing),
        TEST(test_a_death_in_the_middle_of_start),
        TEST(test_everybody_leaves),
        TEST(test_one_left_while_another_needed_it),
        TEST(test_a_goodbye_that_only_a_member_has_heard),
        TEST(test_a_goodbye_when_nothing_is_learned),
        TEST(test_a_rank_that_only_a_member_has_heard_give_up),
        TEST(test_the_data_plane_may_tell_of_a_goodbye_first),
        TEST(test_a_reset_from_one_that_left_is_no_death),
        TEST(test_a_disagreement_is_everybodys),
        TEST(test_one_gives_up_and_says_why),
        TEST(test_a_goodbye_after_an_abort),
        TEST(test_an_earlier_step_replaces_a_later_one),
        TEST(test_one_sentence_is_logged_once),
        TEST(test_one_difference_is_logged_once),
        TEST(test_a_liar_is_not_told_as_a_death),
        TEST(test_links_closed_after_a_verdict_are_no_death),
        TEST(test_messages_of_other_generations_are_dropped_and_counted),
        TEST(test_a_second_generation_after_a_death),
        TEST(test_a_finished_jobs_name_is_free),
        TEST(test_a_running_job_takes_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
