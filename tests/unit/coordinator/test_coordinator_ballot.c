// SPDX-License-Identifier: Apache-2.0
//
// Recovery, the coordinator's side: who freezes, what is decided from the reports, who belongs to
// the next generation, and when the job ends after all.

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

static void record(struct story *story, uint32_t peer, enum record_kind kind, uint32_t position,
                   const uint64_t *words, uint32_t count)
{
    struct up_message message = {.kind = UP_RECORD_PART};
    struct record_part *part = &message.u.record_part;
    part->kind = kind;
    part->position = position;
    part->total = part->count = count;
    memcpy(part->words, words, count * sizeof(words[0]));
    story_say(story, peer, &message);
}

#define RECORD(story, peer, kind, position, ...) \
    record(story, peer, kind, position, (const uint64_t[]){__VA_ARGS__}, \
           sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static void report(struct story *story, uint32_t peer, uint64_t ballot, uint64_t settled,
                   uint64_t step, uint32_t flags)
{
    struct up_message message = {.kind = UP_REPORT,
                                 .u.report = {.ballot = {.number = ballot, .incarnation = 0xc0},
                                              .settled = settled,
                                              .step = step,
                                              .flags = flags}};
    story_say(story, peer, &message);
}

static void report_idle(struct story *story, uint32_t peer, uint64_t ballot)
{
    report(story, peer, ballot, COMMITTED, COMMITTED, 0);
}

static void links(struct story *story, uint32_t peer)
{
    story_links(story, peer, &(struct up_links){.wish = ALGORITHM_BY_SIZE});
}

#define DIED \
    "rank 1 on host h2 was lost: its control stream ended without a goodbye; see why pid " \
    "102 there ended or called exec"

static void test_survivors_freeze_and_go_on(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    story_expect(story, "2 broke\n"
                        "1 < prepare ballot 2, suspects 2: " DIED "\n"
                        "3 < prepare ballot 2, suspects 2: " DIED "\n");
    report_idle(story, 3, 2);
    story_forget(story);
    report_idle(story, 1, 2);
    story_expect(story, "1 > report ballot 2, settled 5, step 5, flags 0\n"
                        "1 < decision ballot 2, settled 5, step 5, flags 0, removed 2\n"
                        "3 < decision ballot 2, settled 5, step 5, flags 0, removed 2\n"
                        "1 < generation 2: rank 0 of 2, local 0 of 1, peers 1@w3\n"
                        "3 < generation 2: rank 1 of 2, local 0 of 1, peers 0@w1\n");
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    assert_int_equal(story_job(story, 0).world_size, 2);
    assert_memory_not_equal(story->secret[1], story->secret[2], LOCKSTEP_SECRET_BYTES);
    links(story, 1);
    links(story, 3);
    story_expect_piece(story, "3 < tuning");
    assert_int_equal(story_job(story, 0).recoveries, 1);
}

// Slot 0 is final on one rank, slot 1 partly, slot 2 nowhere, slot 3 everywhere.
static void test_the_open_step_is_finished(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    RECORD(story, 1, RECORD_FINAL, 0, 9);
    RECORD(story, 1, RECORD_GIVEN, 0, 15);
    RECORD(story, 1, RECORD_RUNS, 1, 100, 0, 50);
    RECORD(story, 1, RECORD_USED, 1, 1);
    RECORD(story, 1, RECORD_RUNS, 2, 30);
    RECORD(story, 1, RECORD_OPENING, 0, 77);
    report(story, 1, 2, COMMITTED, COMMITTED + 1, REPORT_OPENED | REPORT_BEGUN);
    RECORD(story, 3, RECORD_FINAL, 0, 8);
    RECORD(story, 3, RECORD_GIVEN, 0, 11);
    RECORD(story, 3, RECORD_RUNS, 0, 40);
    RECORD(story, 3, RECORD_RUNS, 1, 100, 60, 70);
    RECORD(story, 3, RECORD_USED, 1, 2, 4);
    RECORD(story, 3, RECORD_CLOSING, 0, 78, 79);
    story_forget(story);
    report(story, 3, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN | REPORT_CLOSED);
    story_expect(story, "3 > report ballot 2, settled 5, step 6, flags 6\n"
                        "1 < opening of 0 [77]\n3 < opening of 0 [77]\n"
                        "1 < closing of 0 [78 79]\n3 < closing of 0 [78 79]\n"
                        "1 < rows of 0 [0 40 1]\n3 < rows of 0 [0 40 1]\n"
                        "1 < rows of 1 [0 50 1 50 55 0 55 60 2 60 70 3 70 85 0 85 100 2]\n"
                        "3 < rows of 1 [0 50 1 50 55 0 55 60 2 60 70 3 70 85 0 85 100 2]\n"
                        "1 < used of 1 [3 4]\n3 < used of 1 [3 4]\n"
                        "1 < decision ballot 2, settled 5, step 6, flags 7, removed 2\n"
                        "3 < decision ballot 2, settled 5, step 6, flags 7, removed 2\n"
                        "1 < generation 2: rank 0 of 2, local 0 of 1, peers 1@w3\n"
                        "3 < generation 2: rank 1 of 2, local 0 of 1, peers 0@w1\n");
}

// Slot 0 has no elements, is final on rank 0 and in flight on rank 2: both repeat it, with no rows.
static void test_a_slot_without_elements(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    RECORD(story, 1, RECORD_FINAL, 0, 1);
    RECORD(story, 1, RECORD_GIVEN, 0, 1);
    RECORD(story, 1, RECORD_USED, 0, 1);
    report(story, 1, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN);
    RECORD(story, 3, RECORD_GIVEN, 0, 1);
    RECORD(story, 3, RECORD_RUNS, 0, 0);
    story_forget(story);
    report(story, 3, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN);
    story_expect_piece(story, "1 < rows of 0 []\n3 < rows of 0 []\n"
                              "1 < used of 0 [1]\n3 < used of 0 [1]\n"
                              "1 < decision ballot 2, settled 5, step 6, flags 2, removed 2\n");
}

// Slot 0 is final on rank 0; ranks 2 and 3 do not agree whether it has elements.
static void test_two_lengths_of_a_slot(void **state)
{
    struct story *story = *state;
    story_run_on(story, 4);
    story_close(story, 2, NULL);
    RECORD(story, 1, RECORD_FINAL, 0, 1);
    RECORD(story, 1, RECORD_GIVEN, 0, 1);
    report(story, 1, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN);
    for (uint32_t peer = 3; peer <= 4; peer++) {
        story_forget(story);
        RECORD(story, peer, RECORD_GIVEN, 0, 1);
        RECORD(story, peer, RECORD_RUNS, 0, peer == 3 ? 0 : 40);
        report(story, peer, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN);
    }
    story_expect_piece(story, "4 < halt lost step 0: " DIED
                              "; their reports contradict each other: a slot is final");
}

// Rank 0 has returned from step 6; rank 2 only waits for the last word of its commit wave.
static void test_who_is_behind_gets_the_commit(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    RECORD(story, 1, RECORD_COMMIT, 0, 4711);
    report(story, 1, 2, COMMITTED + 1, COMMITTED + 1, 0);
    RECORD(story, 3, RECORD_COMMIT, 0, 13); // Of step 5.
    RECORD(story, 3, RECORD_FINAL, 0, 3);
    story_forget(story);
    report(story, 3, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN | REPORT_ALL_FINAL);
    story_expect_piece(story, "1 < commit of 0 [4711]\n3 < commit of 0 [4711]\n"
                              "1 < decision ballot 2, settled 6, step 6, flags 0, removed 2\n");
}

// Step 6 was opened, and no rank had data. Rank 0 has skipped it, and rank 2 waits for the word.
static void test_who_is_behind_gets_the_skip(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    RECORD(story, 1, RECORD_OPENING, 0, 4712);
    report(story, 1, 2, COMMITTED + 1, COMMITTED + 2, REPORT_SKIPPED);
    story_forget(story);
    report(story, 3, 2, COMMITTED, COMMITTED + 1, 0);
    story_expect_piece(story, "1 < opening of 0 [4712]\n3 < opening of 0 [4712]\n"
                              "1 < decision ballot 2, settled 6, step 7, flags 32, removed 2\n");
}

// Rank 0 has the result of the next open wave, so rank 2's older one is not handed on.
static void test_an_older_skip_does_not_count(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    RECORD(story, 1, RECORD_OPENING, 0, 4712);
    report(story, 1, 2, COMMITTED, COMMITTED + 1, REPORT_SKIPPED);
    RECORD(story, 3, RECORD_OPENING, 0, 4713);
    story_forget(story);
    report(story, 3, 2, COMMITTED, COMMITTED + 1, REPORT_OPENED);
    story_expect_piece(story, "1 < opening of 0 [4713]\n3 < opening of 0 [4713]\n"
                              "1 < decision ballot 2, settled 5, step 6, flags 1, removed 2\n");
}

// A rank that has begun a step, and one that says that nobody ran it.
static void test_a_step_that_one_rank_skips(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    RECORD(story, 1, RECORD_OPENING, 0, 4712);
    report(story, 1, 2, COMMITTED + 1, COMMITTED + 1, REPORT_SKIPPED);
    story_forget(story);
    report(story, 3, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN);
    story_expect_piece(story, "1 < halt lost step 0: " DIED
                              "; their reports contradict each other: a step is committed");
}

static void test_reports_that_contradict_each_other(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    report(story, 1, 2, COMMITTED + 1, COMMITTED + 1, 0);
    story_forget(story);
    report(story, 3, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN); // Not final, and yet committed.
    story_expect_piece(story, "1 < halt lost step 0: " DIED
                              "; their reports contradict each other: a step is committed");
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
}

// Slot 0 is final on rank 0, so rank 2 must have given its gradients.
static void test_a_final_slot_that_lacks_a_rank(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    RECORD(story, 1, RECORD_FINAL, 0, 1);
    report(story, 1, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN);
    story_forget(story);
    report(story, 3, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN);
    story_expect_piece(story, "3 < halt lost step 0: " DIED
                              "; their reports contradict each other: a slot is final");
}

static void test_a_second_death_begins_anew(void **state)
{
    struct story *story = *state;
    story_run_on(story, 4);
    story_close(story, 2, NULL);
    report_idle(story, 1, 2);
    story_forget(story);
    story_close(story, 4, NULL);
    story_expect(story, "4 broke\n"
                        "1 < prepare ballot 3, suspects a: " DIED "\n"
                        "3 < prepare ballot 3, suspects a: " DIED "\n");
    RECORD(story, 3, RECORD_GIVEN, 0, 1); // The answer to ballot 2 was on its way.
    report_idle(story, 3, 2);
    RECORD(story, 3, RECORD_GIVEN, 0, 1);
    report_idle(story, 3, 3);
    story_forget(story);
    report_idle(story, 1, 3);
    story_expect_piece(story, "3 < generation 3: rank 1 of 2");
}

static void test_a_death_while_the_links_form(void **state)
{
    struct story *story = *state;
    story_run_on(story, 4);
    story_close(story, 2, NULL);
    for (uint32_t peer = 1; peer <= 4; peer++)
        if (peer != 2)
            report_idle(story, peer, 2);
    links(story, 1);
    story_forget(story);
    story_close(story, 3, NULL); // Rank 1 by now.
    story_expect_piece(story, "4 < prepare ballot 3, suspects 2: rank 1 on host h3 was lost");
    report_idle(story, 1, 3);
    report_idle(story, 4, 3);
    story_expect_piece(story, "4 < generation 3: rank 1 of 2");
    links(story, 1);
    links(story, 4);
    assert_int_equal(story_job(story, 0).recoveries, 1);
}

// The last links of a generation are reported when a rank of it has died: it gets no tuning.
static void test_links_that_stand_too_late(void **state)
{
    struct story *story = *state;
    story_run_on(story, 4);
    story_close(story, 2, NULL);
    for (uint32_t peer = 1; peer <= 4; peer++)
        if (peer != 2)
            report_idle(story, peer, 2);
    links(story, 3);
    story_close(story, 3, NULL);
    links(story, 1);
    story_forget(story);
    links(story, 4); // On their way when the ballot began.
    story_expect(story, "4 > links not shared, 0 ns, 0 bytes/s, wish auto\n");
    report_idle(story, 1, 3);
    report_idle(story, 4, 3);
    links(story, 1);
    story_forget(story);
    links(story, 4);
    story_expect_piece(story, "4 < tuning");
}

// Two of four are cut off, but alive: half is enough for the coordinator that made the generation.
// A third one would not be.
static void test_a_minority_does_not_decide(void **state)
{
    struct story *story = *state;
    struct up_message cut = {.kind = UP_LOST, .u.lost = {.rank = 1, .step = 6, .silent = true}};
    story_run_on(story, 4);
    for (uint32_t rank = 1; rank <= 2; rank++) {
        cut.u.lost.rank = rank;
        story_say(story, 1, &cut);
    }
    story_expect_piece(story, "4 < prepare ballot 3, suspects 6: the link between");
    cut.u.lost.rank = 3;
    story_say(story, 1, &cut);
    report_idle(story, 1, 4);
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING); // It waits for proofs.
    story_sleep(story, LOCKSTEP_BALLOT_PROOF_MS);
    story_expect_piece(story, "the job cannot go on: too few ranks are left to decide, and");
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
}

// Three of four are lost, and proofs of that come one after another: the last one decides.
static void test_a_minority_decides_when_the_others_are_dead(void **state)
{
    struct story *story = *state;
    struct up_message lost = {.kind = UP_LOST, .u.lost = {.step = 6, .silent = true}};
    story_run_on(story, 4);
    for (uint32_t rank = 1; rank <= 3; rank++) {
        lost.u.lost.rank = rank;
        story_say(story, 1, &lost);
        story_probed(story, rank + 1, true, false);
    }
    for (uint32_t peer = 2; peer <= 4; peer++) {
        assert_int_equal(story_job(story, 0).world_size, 4);
        story_cut(story, peer);
        story_probed(story, peer, false, true);
    }
    story_expect_piece(story, "1 < prepare ballot 4, suspects e: ");
    report_idle(story, 1, 4);
    story_expect_piece(story, "1 < generation 4: rank 0 of 1");
    links(story, 1);
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    assert_int_equal(story_job(story, 0).recoveries, 1);
}

// Rank 2 is away when another one dies. Nobody freezes until it has come back (M5); if it does not
// come back, the others go on without it.
static void test_a_member_that_is_away_is_awaited(void **state)
{
    struct story *story = *state;
    story_run_on(story, 4);
    story_cut(story, 3);
    story_close(story, 2, NULL);
    story_sleep(story, LOCKSTEP_BALLOT_AWAY_MS / 2);
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    assert_true(story_job(story, 0).recovering);
    assert_null(strstr(story->trace, "prepare"));
    story_sleep(story, LOCKSTEP_BALLOT_AWAY_MS);
    story_expect_piece(story, "4 < prepare ballot 2, suspects 6");
    report_idle(story, 1, 2);
    report_idle(story, 4, 2);
    story_expect_piece(story, "4 < generation 2: rank 1 of 2");
}

static void test_a_rank_that_is_removed_alive_is_told(void **state)
{
    struct story *story = *state;
    struct up_message cut = {.kind = UP_LOST, .u.lost = {.rank = 1, .step = 6, .silent = true}};
    story_run_on(story, 3);
    story_say(story, 1, &cut);
    report_idle(story, 1, 2);
    story_forget(story);
    report_idle(story, 3, 2);
    story_expect_piece(story, "2 < excluded by ballot 2: the link between rank 0 (host h1) and");
    story_lost(story, 2, 0, 6, false); // What it says now is of no weight.
    story_leave(story, 2, COMMITTED);
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    assert_int_equal(story_job(story, 0).left, 0);
}

// The last one goes on alone, however many have died.
static void test_all_but_one_die(void **state)
{
    struct story *story = *state;
    story_run_on(story, 4);
    story_close(story, 1, NULL);
    story_close(story, 2, NULL);
    story_close(story, 4, NULL);
    story_forget(story);
    report_idle(story, 3, 4);
    story_expect_piece(story, "3 < generation 4: rank 0 of 1");
}

static void test_a_rank_that_promised_more(void **state)
{
    struct story *story = *state;
    struct up_message refuse = {.kind = UP_REFUSE, .u.refuse.promised = {.number = 9}};
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    story_forget(story);
    story_say(story, 3, &refuse);
    story_expect(story, "3 > refuse, promised 9\n"); // Another coordinator may get through (M1).
    story_sleep(story, 2 * LOCKSTEP_BALLOT_RETRY_MS);
    story_expect(story, "-- 692 ms\n"
                        "1 < prepare ballot 10, suspects 2: " DIED "\n"
                        "3 < prepare ballot 10, suspects 2: " DIED "\n");
}

// ---- Members that leave ------------------------------------------------------------------------

// A rank leaves after `settled` steps. word: the result of its last wave.
static void part(struct story *story, uint32_t peer, uint64_t settled, uint32_t flags,
                 uint64_t word)
{
    struct up_message message = {
        .kind = UP_LEAVE,
        .u.leave = {.settled = settled, .flags = flags, .word_count = 1, .words = {word}}};
    story_say(story, peer, &message);
}

// Rank 2 has returned from step 6 and left. Rank 0 waits for the last word of the commit wave when
// rank 1 dies: it gets what rank 2 has left behind.
static void test_a_leaver_leaves_its_last_wave(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    part(story, 3, COMMITTED + 1, 0, 4711);
    story_forget(story);
    story_close(story, 2, NULL);
    story_expect(story, "2 broke\n1 < prepare ballot 2, suspects 6: " DIED "\n");
    RECORD(story, 1, RECORD_COMMIT, 0, 13); // Of step 5.
    story_forget(story);
    report(story, 1, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN | REPORT_ALL_FINAL);
    story_expect_piece(story, "1 < commit of 0 [4711]\n"
                              "1 < decision ballot 2, settled 6, step 6, flags 0, removed 6\n"
                              "1 < generation 2: rank 0 of 1");
    assert_int_equal(story_job(story, 0).left, 0);
    links(story, 1);
    story_leave(story, 1, COMMITTED + 1);
    assert_int_equal(story_job(story, 0).state, JOB_FINISHED);
}

// The same with the open wave of step 6, in which no rank had data, whether it was skipped or not.
static void test_a_leaver_leaves_its_open_wave(void **state)
{
    struct story *story = *state;
    story_run_on(story, 4);
    story_close(story, 2, NULL);
    part(story, 4, COMMITTED, REPORT_OPENED, 4712);
    report(story, 1, 2, COMMITTED, COMMITTED + 1, 0);
    story_forget(story);
    report(story, 3, 2, COMMITTED, COMMITTED + 1, 0);
    story_expect_piece(story, "1 < opening of 0 [4712]\n3 < opening of 0 [4712]\n"
                              "1 < decision ballot 2, settled 5, step 6, flags 1, removed a\n");
    part(story, 3, COMMITTED + 1, REPORT_SKIPPED, 4713);
    story_forget(story);
    report(story, 1, 3, COMMITTED, COMMITTED + 1, 0);
    story_expect_piece(story, "1 < opening of 0 [4713]\n"
                              "1 < decision ballot 3, settled 6, step 6, flags 32, removed 2\n");
}

// A word is of no use to members that know more.
static void test_an_older_word_does_not_count(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    part(story, 3, COMMITTED, 0, 4711);
    story_close(story, 2, NULL);
    RECORD(story, 1, RECORD_COMMIT, 0, 4711);
    story_forget(story);
    report(story, 1, 2, COMMITTED, COMMITTED + 1, REPORT_BEGUN);
    story_expect(story, "1 > report ballot 2, settled 5, step 6, flags 2\n"
                        "1 < decision ballot 2, settled 5, step 6, flags 2, removed 6\n"
                        "1 < generation 2: rank 0 of 1, local 0 of 1, peers\n");
}

// Ranks die while the first world connects. There, the end of a stream is a proof: its worker gives
// up.
static void test_deaths_while_the_first_world_connects(void **state)
{
    struct story *story = *state;
    story_form_on(story, 3);
    links(story, 1);
    story_cut(story, 2);
    story_expect_piece(story, "1 < prepare ballot 2, suspects 2: " DIED "\n");
    story_close(story, 3, NULL);
    story_forget(story);
    report(story, 1, 3, 0, 0, 0);
    story_expect_piece(story, "1 < generation 3: rank 0 of 1, local 0 of 1, peers\n");
    links(story, 1);
    story_expect_piece(story, "1 < tuning");
    assert_int_equal(story_job(story, 0).state, JOB_STARTING);
}

// A member leaves because its lockstep_open has failed. Until some generation was established, no
// other member goes on without it: neither while the ranks connect anew, nor before, nor in a
// ballot about a rank that has died.
static void expect_no_world_without(struct story *story, uint32_t leaver)
{
    story_forget(story);
    story_leave(story, leaver, 0);
    story_expect_piece(story, "1 < halt left step 0: rank 2 (host h3) closed its session while "
                              "rank 0 (host h1) still needed it before the first step");
    assert_null(strstr(story->trace, "prepare"));
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
}

static void test_no_world_without_a_rank_that_never_opened(void **state)
{
    struct story *story = *state;
    story_form_on(story, 3);
    story_lost(story, 2, 0, 0, false);
    story_sleep(story, LOCKSTEP_ACCUSED_MS);
    for (uint32_t peer = 1; peer <= 3; peer++)
        report(story, peer, 2, 0, 0, 0);
    story_expect_piece(story, "1 < generation 2: rank 0 of 3");
    expect_no_world_without(story, 3);
}

static void test_no_first_world_without_a_leaver(void **state)
{
    struct story *story = *state;
    story_form_on(story, 3);
    expect_no_world_without(story, 3);
}

static void test_no_world_without_a_leaver_after_a_death(void **state)
{
    struct story *story = *state;
    story_form_on(story, 4);
    story_close(story, 4, NULL);
    story_expect_piece(story, "1 < prepare ballot 2, suspects 8: ");
    expect_no_world_without(story, 3);
}

// The first rank has died: no rank needs anything in its name.
static void test_the_dead_need_no_leaver(void **state)
{
    struct story *story = *state;
    story_form_on(story, 3);
    story_close(story, 1, NULL);
    story_leave(story, 3, 0);
    story_expect_piece(story, "2 < halt left step 0: rank 2 (host h3) closed its session while "
                              "rank 1 (host h2) still needed it before the first step");
}

// While the links are made, a member leaves: the others do not wait for it. What a mate says of its
// end is no news.
static void test_a_member_leaves_a_forming_world(void **state)
{
    struct story *story = *state;
    story_run_on(story, 4);
    story_close(story, 2, NULL);
    report_idle(story, 1, 2);
    report_idle(story, 3, 2);
    report_idle(story, 4, 2);
    links(story, 1);
    story_forget(story);
    part(story, 4, COMMITTED, 0, 4711);
    story_expect(story, "4 > leave settled 5, with its last wave\n"
                        "4 closed\n"
                        "1 < prepare ballot 3, suspects 4: " DIED "\n"
                        "3 < prepare ballot 3, suspects 4: " DIED "\n");
    story_lost(story, 1, 2, COMMITTED + 1, false);
    report_idle(story, 1, 3);
    story_forget(story);
    report_idle(story, 3, 3);
    story_expect_piece(story, "3 < generation 3: rank 1 of 2");
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
}

// All that are left leave in the ballot.
static void test_all_leave_in_a_ballot(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    part(story, 3, COMMITTED, 0, 4711);
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    part(story, 1, COMMITTED, 0, 4711);
    assert_int_equal(story_job(story, 0).state, JOB_FINISHED);
}

// A rank that has left counts as one that is known to be gone: one of four goes on.
static void test_leavers_are_proven(void **state)
{
    struct story *story = *state;
    story_run_on(story, 4);
    part(story, 3, COMMITTED, 0, 4711);
    part(story, 4, COMMITTED, 0, 4711);
    story_close(story, 2, NULL);
    story_forget(story);
    report_idle(story, 1, 2);
    story_expect_piece(story, "1 < generation 2: rank 0 of 1");
}

static void test_where_a_job_cannot_go_on(void **state)
{
    struct story *story = *state;
    story_run_on(story, 2);
    part(story, 2, COMMITTED, 0, 4711);
    story_close(story, 1, NULL);
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
}

// One slot is granted. The second one is made by two ranks of three, the third one only by the rank
// that dies.
static void test_a_learning_step_goes_on(void **state)
{
    struct story *story = *state;
    const uint32_t words[] = {1, 1, 0};
    story_run_on(story, 3);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_ready(story, peer, 1, slot(0, 0, 0));
    story_ready(story, 2, 1, slot(0, 1, 0));
    story_ready(story, 2, 1, slot(0, 2, 0));
    story_ready(story, 3, 1, slot(0, 1, 0));
    story_close(story, 2, NULL);
    report(story, 1, 2, 0, 1, REPORT_BEGUN);
    report(story, 3, 2, 0, 1, REPORT_BEGUN);
    story_expect_piece(story, "3 < generation 2: rank 1 of 2");
    story_granted(story, 3, 1, slot(0, 0, 0), 0, 1, false);
    story_ready(story, 3, 1,
                slot(0, 1, 0)); // Again: reports of the generation before are forgotten.
    story_granted(story, 1, 1, slot(0, 0, 0), 0, 1, false);
    story_forget(story);
    story_ready(story, 1, 1, slot(0, 1, 0));
    story_expect(story, "1 > ready step 1 slot 0#1.0\n"
                        "1 < grant step 1 slot 0#1.0\n"
                        "3 < grant step 1 slot 0#1.0\n");
    story_layout(story, 1, 0, words, 3);
    story_step_end(story, 1, 1);
    story_step_end(story, 3, 1);
    story_expect_piece(story, "3 < plan 1 ");
    assert_int_equal(story->last[3].u.plan_part.slot_total, 2);
}

// A slot that is granted, but that no member has made, is in no plan.
static void test_a_slot_of_the_dead_is_in_no_plan(void **state)
{
    struct story *story = *state;
    const uint32_t words[] = {1, 1, 0};
    story_run_on(story, 3);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_ready(story, peer, 1, slot(0, 0, 0));
    story_ready(story, 2, 1, slot(0, 1, 0));
    story_layout(story, 1, 0, words, 3);
    story_step_end(story, 1, 1);
    story_step_end(story, 3, 1); // Now the slot is complete, and is granted.
    story_close(story, 2, NULL);
    report(story, 1, 2, 0, 1, REPORT_BEGUN);
    report(story, 3, 2, 0, 1, REPORT_BEGUN);
    story_layout(story, 1, 0, words, 3);
    for (uint32_t peer = 1; peer <= 3; peer += 2) {
        story_granted(story, peer, 1, slot(0, 0, 0), 0, 2, false);
        story_granted(story, peer, 1, slot(0, 1, 0), 1, 2, true);
        story_step_end(story, peer, 1);
    }
    assert_int_equal(story->last[3].kind, DOWN_PLAN_PART);
    assert_int_equal(story->last[3].u.plan_part.slot_total, 1);
}

// Three ranks learn step 1. Rank 0 proposes a layout of three words.
static void learn_step_1(struct story *story)
{
    const uint32_t words[] = {1, 1, 0};
    story_run_on(story, 3);
    story_layout(story, 1, 0, words, 3);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_ready(story, peer, 1, slot(0, 0, 0));
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_step_end(story, peer, 1);
}

// A member that has the plan of step 1, which is not settled here.
static void report_learned(struct story *story, uint32_t peer)
{
    struct up_message message = {.kind = UP_REPORT,
                                 .u.report = {.ballot = {.number = 2, .incarnation = 0xc0},
                                              .step = 1,
                                              .flags = REPORT_BEGUN | REPORT_ALL_FINAL,
                                              .space = UINT64_MAX}};
    story_say(story, peer, &message);
}

// Step 1 is learned, and a rank dies before it has settled everywhere. What members say again of it
// is of no account, and step 2 is learned with the layouts that come for it.
static void test_a_plan_stays(void **state)
{
    struct story *story = *state;
    const uint32_t words[] = {1, 1, 0};
    for (uint32_t settled = 0; settled < 2; settled++) {
        learn_step_1(story);
        const uint64_t hash = story->last[3].u.plan_part.hash;
        story_close(story, 2, NULL);
        report_learned(story, 1);
        if (settled == 1) {
            RECORD(story, 3, RECORD_COMMIT, 0, 4711);
            report(story, 3, 2, 1, 1, 0);
        } else {
            report_learned(story, 3);
        }
        story_expect_piece(story, "3 < generation 2: rank 1 of 2");
        struct up_message end = {.kind = UP_END,
                                 .u.end = {.step = 1, .plan = 1, .plan_hash = hash}};
        for (uint32_t peer = 1; settled == 0 && peer <= 3; peer += 2) {
            if (peer == 1)
                story_layout(story, 1, 0, words, 3);
            story_granted(story, peer, 1, slot(0, 0, 0), 0, 1, false);
            story_say(story, peer, &end);
        }
        story_layout(story, 1, 0, words, 3);
        for (uint32_t peer = 1; peer <= 3; peer += 2)
            story_ready(story, peer, 2, slot(0, 0, 0));
        story_step_end(story, 1, 2);
        story_step_end(story, 3, 2);
        assert_int_equal(story->last[3].kind, DOWN_PLAN_PART);
        assert_int_equal(story->last[3].u.plan_part.number, 2);
        story_end(story);
        story_begin(story);
    }
}

// Rank 0 has proposed the layout of step 1, which is over, and dies. The member that has its number
// then is in step 2, and proposes a layout of the same size.
static void test_a_layout_of_another_rank_0(void **state)
{
    struct story *story = *state;
    const uint32_t words[] = {1, 1, 0};
    struct up_message message = {.kind = UP_REPORT,
                                 .u.report = {.ballot = {.number = 2, .incarnation = 0xc0},
                                              .settled = 1,
                                              .step = 2,
                                              .flags = REPORT_BEGUN,
                                              .space = UINT64_MAX}};
    learn_step_1(story);
    story_close(story, 1, NULL);
    RECORD(story, 2, RECORD_COMMIT, 0, 4711);
    story_say(story, 2, &message);
    report_learned(story, 3);
    story_expect_piece(story, "2 < generation 2: rank 0 of 2");
    story_layout(story, 2, 0, words, 3);
    for (uint32_t peer = 2; peer <= 3; peer++)
        story_ready(story, peer, 2, slot(0, 0, 0));
    for (uint32_t peer = 2; peer <= 3; peer++)
        story_step_end(story, peer, 2);
    assert_int_equal(story->last[3].kind, DOWN_PLAN_PART);
    assert_int_equal(story->last[3].u.plan_part.number, 2);
}

static void test_without_the_policy_a_death_ends_the_job(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    story_close(story, 2, NULL);
    story_expect(story, "2 broke\n1 < halt lost step 0: " DIED
                        ", then start the job again\n3 < halt lost step 0: " DIED
                        ", then start the job again\n");
}

#define DIFFERS \
    " < halt tuning step 0: rank 0 (host a) has LOCKSTEP_ON_FAILURE=error, rank 1 (host b) has " \
    "LOCKSTEP_ON_FAILURE=continue: set it, or config.on_failure, to the same on every rank\n"

static void test_ranks_agree_about_the_policy(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 2, "b");
    story_join(story, 1, "a");
    hello.on_failure = FAILURE_CONTINUE;
    story_forget(story);
    story_say_hello(story, 2, &hello);
    story_expect_piece(story, "1" DIFFERS "2" DIFFERS);
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
}

static void test_impossible_records(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_RECORD_PART};
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    message.u.record_part =
        (struct record_part){.kind = RECORD_RUNS, .total = 9, .first = 3, .count = 1};
    story_say(story, 1, &message);
    story_expect_piece(story, "rank 0 (host h1) reported a record from its middle on");
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
}

static void test_a_report_before_its_records(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_RECORD_PART};
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    message.u.record_part = (struct record_part){.kind = RECORD_RUNS, .total = 9, .count = 1};
    story_say(story, 1, &message);
    report_idle(story, 1, 2);
    story_expect_piece(story, "rank 0 (host h1) reported before its records were complete");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_survivors_freeze_and_go_on),
        TEST(test_the_open_step_is_finished),
        TEST(test_a_slot_without_elements),
        TEST(test_two_lengths_of_a_slot),
        TEST(test_who_is_behind_gets_the_commit),
        TEST(test_who_is_behind_gets_the_skip),
        TEST(test_an_older_skip_does_not_count),
        TEST(test_a_step_that_one_rank_skips),
        TEST(test_reports_that_contradict_each_other),
        TEST(test_a_final_slot_that_lacks_a_rank),
        TEST(test_a_second_death_begins_anew),
        TEST(test_a_death_while_the_links_form),
        TEST(test_links_that_stand_too_late),
        TEST(test_a_minority_does_not_decide),
        TEST(test_a_minority_decides_when_the_others_are_dead),
        TEST(test_a_member_that_is_away_is_awaited),
        TEST(test_a_rank_that_is_removed_alive_is_told),
        TEST(test_all_but_one_die),
        TEST(test_a_rank_that_promised_more),
        TEST(test_a_leaver_leaves_its_last_wave),
        TEST(test_a_leaver_leaves_its_open_wave),
        TEST(test_an_older_word_does_not_count),
        TEST(test_deaths_while_the_first_world_connects),
        TEST(test_no_world_without_a_rank_that_never_opened),
        TEST(test_no_first_world_without_a_leaver),
        TEST(test_no_world_without_a_leaver_after_a_death),
        TEST(test_the_dead_need_no_leaver),
        TEST(test_a_member_leaves_a_forming_world),
        TEST(test_all_leave_in_a_ballot),
        TEST(test_leavers_are_proven),
        TEST(test_where_a_job_cannot_go_on),
        TEST(test_a_learning_step_goes_on),
        TEST(test_a_layout_of_another_rank_0),
        TEST(test_a_slot_of_the_dead_is_in_no_plan),
        TEST(test_a_plan_stays),
        TEST(test_without_the_policy_a_death_ends_the_job),
        TEST(test_ranks_agree_about_the_policy),
        TEST(test_impossible_records),
        TEST(test_a_report_before_its_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
