// SPDX-License-Identifier: Apache-2.0
//
// Two coordinators of one job are alive, as while one replaces the other: what one of them does
// when the other may have members, and may decide (rules M1 to M7 of docs/internals/membership.md).
// coordinator/lineage.c, kin.c, divided.c, ballot.c.

#include "coordinator/view.h"
#include "tests/unit/coordinator/story.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum {
    COMMITTED = 5
};

// The job's first generation, which the other coordinator made, and one that it decided later.
static const struct generation_id first = {4, 0xabcdef};
static const struct generation_id second = {6, 0xabcdef};

static uint32_t size_of(uint64_t members)
{
    uint32_t size = 0;
    for (; members != 0; members &= members - 1)
        size++;
    return size;
}

// The hello of a member, which is named by its rank in the first generation, in a generation with
// these members.
static struct up_hello hello_of(uint32_t member, struct generation_id generation, uint64_t members)
{
    char host[16];
    snprintf(host, sizeof(host), "h%u", member + 1);
    struct up_hello hello = story_hello("j", size_of(members), host);
    hello.uuid.bytes[0] = (uint8_t)(member + 1);
    hello.on_failure = FAILURE_CONTINUE;
    hello.resumes = true;
    hello.resume.generation = generation;
    hello.resume.rank = size_of(members & ((UINT64_C(1) << member) - 1));
    hello.resume.world_size = size_of(members);
    hello.resume.settled = COMMITTED;
    hello.resume.rounds = 1;
    hello.resume.founder = first;
    hello.resume.promised = generation;
    hello.resume.chain_count = 1;
    hello.resume.chain[0].id = generation;
    hello.resume.chain[0].members[0] = members;
    return hello;
}

// A member that has started `second` while `first`, with these members, is open, too.
static struct up_hello hello_of_second(uint32_t member, uint64_t members, uint64_t before)
{
    struct up_hello hello = hello_of(member, second, members);
    hello.resume.frozen = true;
    hello.resume.chain_count = 2;
    hello.resume.chain[1] = hello.resume.chain[0];
    hello.resume.chain[0].id = first;
    hello.resume.chain[0].members[0] = before;
    return hello;
}

static void come(struct story *story, uint32_t peer, const struct up_hello *hello)
{
    story->generation[peer] = hello->resume.generation;
    story_say_hello(story, peer, hello);
}

// Members of `first` come as the streams member + 1.
static void come_of_first(struct story *story, uint32_t from, uint32_t to, uint64_t members)
{
    for (uint32_t member = from; member < to; member++) {
        const struct up_hello hello = hello_of(member, first, members);
        come(story, member + 1, &hello);
        assert_int_equal(story->last[member + 1].kind, DOWN_WELCOME);
    }
    story_forget(story);
}

static void report(struct story *story, uint32_t peer, uint64_t ballot)
{
    struct up_message message = {.kind = UP_REPORT,
                                 .u.report = {.ballot = {ballot, STORY_INCARNATION},
                                              .settled = COMMITTED,
                                              .step = COMMITTED}};
    story_say(story, peer, &message);
}

static void lost(struct story *story, uint32_t peer, uint32_t rank, enum loss_proof proof)
{
    struct up_message message = {.kind = UP_LOST,
                                 .u.lost = {.rank = rank, .step = COMMITTED + 1, .proof = proof}};
    story_say(story, peer, &message);
}

static void expect_prepare(const struct story *story, uint32_t peer, uint64_t ballot)
{
    assert_int_equal(story->last[peer].kind, DOWN_PREPARE);
    assert_int_equal(story->last[peer].u.prepare.ballot.number, ballot);
    assert_int_equal(story->last[peer].u.prepare.ballot.incarnation, STORY_INCARNATION);
}

static void expect_none_frozen(const struct story *story)
{
    assert_null(strstr(story->trace, "prepare"));
    assert_int_not_equal(story_job(story, 0).state, JOB_HALTED);
}

// ---- M2, M5: the quorum ------------------------------------------------------------------------

// Condition: a member dies, and two of four are with this coordinator, which has not made the
// generation. Decision: nobody freezes; with a third one all do.
static void nobody_freezes_without_a_quorum(void **state)
{
    struct story *story = *state;
    come_of_first(story, 0, 2, 0xf);
    lost(story, 1, 3, PROOF_PROCESS);
    story_sleep(story, 1000);
    assert_null(strstr(story->trace, "prepare"));
    const struct up_hello third = hello_of(2, first, 0xf);
    come(story, 3, &third);
    for (uint32_t peer = 1; peer <= 3; peer++)
        expect_prepare(story, peer, 5);
}

// Condition: one of two is cut off and not known to be dead. Decision: half is not enough for a
// coordinator that has not made the generation; a proof is.
static void half_is_enough_for_the_maker_only(void **state)
{
    struct story *story = *state;
    struct up_message cut = {.kind = UP_LOST,
                             .u.lost = {.rank = 1, .step = COMMITTED + 1, .silent = true}};
    come_of_first(story, 0, 2, 3);
    story_probed(story, 2, true, false);
    story_say(story, 1, &cut);
    story_sleep(story, 1000);
    expect_none_frozen(story);
    story_cut(story, 2);
    story_probed(story, 2, false, true);
    expect_prepare(story, 1, 5);
    report(story, 1, 5);
    assert_int_equal(story_job(story, 0).world_size, 1);
}

// Condition: a proof of death, and then a hello of that process, which was on its way. Decision:
// the proof stays (M4).
static void a_proof_stays(void **state)
{
    struct story *story = *state;
    come_of_first(story, 0, 2, 3);
    story_cut(story, 2);
    lost(story, 1, 1, PROOF_PROCESS);
    expect_prepare(story, 1, 5);
    const struct up_hello late = hello_of(1, first, 3);
    come(story, 12, &late);
    report(story, 1, 5);
    assert_int_equal(story_job(story, 0).world_size, 1);
    assert_int_equal(story->last[12].kind, DOWN_EXCLUDED);
}

// ---- M3: open generations ----------------------------------------------------------------------

// Condition: the other coordinator is gone; one member has its last decision, two have not.
// Decision: all three are members of the next generation, and report the two that are open before
// it.
static void a_member_without_the_decision_is_kept(void **state)
{
    struct story *story = *state;
    struct up_hello hello = hello_of(1, first, 0xf);
    hello.resume.frozen = true;
    hello.resume.promised = second;
    come(story, 2, &hello);
    hello = hello_of_second(0, 0x7, 0xf);
    come(story, 1, &hello);
    assert_int_equal(story_job(story, 0).generation.number, second.number);
    assert_int_equal(story_job(story, 0).world_size, 3);
    assert_null(strstr(story->trace, "prepare"));
    hello = hello_of(2, first, 0xf);
    hello.resume.frozen = true;
    hello.resume.promised = second;
    come(story, 3, &hello);
    for (uint32_t peer = 1; peer <= 3; peer++)
        expect_prepare(story, peer, 7);
    story->generation[4] = first;
    for (uint32_t peer = 1; peer <= 3; peer++)
        report(story, peer, 7);
    assert_non_null(strstr(story->trace, "2 < decision ballot 7"));
    assert_int_equal(story->last[2].kind, DOWN_GENERATION);
    assert_int_equal(story->last[2].u.generation_start.rank, 1);
    assert_int_equal(story->last[2].u.generation_start.world_size, 3);
    hello = hello_of(3, first, 0xf);
    come(story, 4, &hello);
    assert_int_equal(story->last[4].kind, DOWN_EXCLUDED);
    assert_int_equal(story->last[4].u.excluded.ballot.number, 7);
}

// Condition: a member that has not heard of the last decision proves the death of another one,
// which has another number by now. Decision: that one is the suspect.
static void a_member_that_is_behind_has_a_proof(void **state)
{
    struct story *story = *state;
    struct up_hello hello = hello_of_second(1, 0xe, 0xf);
    come(story, 2, &hello);
    for (uint32_t member = 2; member < 4; member++) {
        hello = hello_of(member, first, 0xf);
        hello.resume.frozen = true;
        hello.resume.promised = second;
        come(story, member + 1, &hello);
    }
    for (uint32_t peer = 2; peer <= 4; peer++)
        expect_prepare(story, peer, 7);
    lost(story, 3, 1, PROOF_PROCESS); // Member 1 is rank 0 of the newest generation.
    assert_int_equal(story->last[4].u.prepare.ballot.number, 7); // Two of four are too few.
    story_sleep(story, 1000);
    assert_int_equal(story->last[4].u.prepare.ballot.number, 7);
    lost(story, 4, 0, PROOF_PROCESS); // It was removed, and now both others are dead.
    for (uint32_t peer = 3; peer <= 4; peer++)
        expect_prepare(story, peer, 8);
}

// Condition: a generation of two, made of a generation of five that is open. Decision: both of two
// are no quorum of the five, even though they are one of their own.
static void every_open_generation_needs_a_quorum(void **state)
{
    struct story *story = *state;
    for (uint32_t member = 0; member < 2; member++) {
        const struct up_hello hello = hello_of_second(member, 0x3, 0x1f);
        come(story, member + 1, &hello);
    }
    story_sleep(story, 1000);
    assert_null(strstr(story->trace, "prepare"));
    assert_true(story_job(story, 0).recovering);
}

// Condition: two of five are left; one of them has started the last decision, and the other one has
// not. Decision: the job ends, and each is told so in its own generation.
static void a_member_that_is_behind_is_told_the_end(void **state)
{
    struct story *story = *state;
    struct up_hello hello = hello_of_second(0, 0x3, 0x1f);
    come(story, 1, &hello);
    hello = hello_of(1, first, 0x1f);
    hello.resume.frozen = true;
    hello.resume.promised = second;
    come(story, 2, &hello);
    story_sleep(story, 2 * LOCKSTEP_BALLOT_PROOF_MS);
    const struct generation_id own[] = {second, first};
    for (uint32_t peer = 1; peer <= 2; peer++) {
        assert_int_equal(story->last[peer].kind, DOWN_HALT);
        assert_int_equal(story->last[peer].generation.number, own[peer - 1].number);
        assert_int_equal(story->last[peer].generation.incarnation, own[peer - 1].incarnation);
    }
}

// ---- A decision of the other coordinator -------------------------------------------------------

// Condition: this coordinator made the generation, all members went to the other one, which removed
// one of them, and come back. Decision: its generation becomes the job's; the removed rank is told.
static void a_decision_of_the_other_is_taken(void **state)
{
    struct story *story = *state;
    struct up_hello hello;
    story_run_on(story, 3);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_cut(story, peer);
    for (uint32_t member = 0; member < 3; member += 2) {
        hello = hello_of(member, second, 0x5);
        hello.resume.founder = (struct generation_id){1, STORY_INCARNATION};
        memset(&hello.uuid, 0, sizeof(hello.uuid));
        const uint32_t peer = member + 1;
        memcpy(hello.uuid.bytes, &peer, sizeof(peer));
        come(story, 11 + member, &hello);
        assert_int_equal(story->last[11 + member].kind, DOWN_WELCOME);
    }
    assert_int_equal(story_job(story, 0).generation.number, second.number);
    assert_int_equal(story_job(story, 0).generation.incarnation, second.incarnation);
    assert_int_equal(story_job(story, 0).world_size, 2);
    assert_int_equal(story_job(story, 0).joined, 2);
    hello = hello_of(1, (struct generation_id){1, STORY_INCARNATION}, 0x7);
    hello.resume.founder = hello.resume.generation;
    come(story, 12, &hello);
    assert_int_equal(story->last[12].kind, DOWN_EXCLUDED);
    assert_int_equal(story->last[12].u.excluded.ballot.number, second.number);
    assert_int_equal(story->last[12].u.excluded.ballot.incarnation, second.incarnation);
    lost(story, 13, 0, PROOF_PROCESS); // Rank 0 of the new generation.
    expect_prepare(story, 13, second.number + 1);
}

// Condition: the others went on without a rank that has promised a higher ballot than theirs, which
// nobody decided. Decision: they decide once more, so that EXCLUDED counts for it (M6, M7).
static void a_removed_rank_that_promised_more_is_told(void **state)
{
    struct story *story = *state;
    struct up_hello hello;
    for (uint32_t member = 0; member < 2; member++) {
        hello = hello_of(member, second, 0x3);
        come(story, member + 1, &hello);
    }
    hello = hello_of(2, first, 0x7);
    hello.resume.frozen = true;
    hello.resume.promised = (struct generation_id){8, 0xdead};
    come(story, 13, &hello);
    for (uint32_t peer = 1; peer <= 2; peer++)
        expect_prepare(story, peer, 9);
    for (uint32_t peer = 1; peer <= 2; peer++)
        report(story, peer, 9);
    come(story, 23, &hello);
    assert_int_equal(story->last[23].kind, DOWN_EXCLUDED);
    assert_int_equal(story->last[23].u.excluded.ballot.number, 9);
}

// Condition: a rank has promised the ballot of this coordinator when a member comes that has
// started a lower one without it. Decision: the rank does not obey EXCLUDED of that one (M6). So
// its stream ends, and it is told again when it is back.
static void a_removed_rank_that_promised_this_ballot_is_told(void **state)
{
    struct story *story = *state;
    struct up_hello hello;
    for (uint32_t member = 0; member < 3; member++) {
        hello = hello_of(member, first, 0x7);
        hello.resume.frozen = true;
        come(story, member + 1, &hello);
    }
    for (uint32_t peer = 1; peer <= 3; peer++)
        expect_prepare(story, peer, 5);
    story_say(story, 3, &(struct up_message){.kind = UP_REFUSE, .u.refuse.promised = second});
    story_sleep(story, 3 * LOCKSTEP_BALLOT_RETRY_MS);
    for (uint32_t peer = 1; peer <= 3; peer++)
        expect_prepare(story, peer, 7);
    hello = hello_of_second(0, 0x3, 0x7);
    come(story, 11, &hello);
    assert_int_equal(story->last[3].kind, DOWN_EXCLUDED);
    assert_int_equal(story->last[3].u.excluded.ballot.number, second.number);
    assert_true(story->closed[3]);
    expect_prepare(story, 2, 8);
    expect_prepare(story, 11, 8);
    report(story, 2, 8);
    report(story, 11, 8);
    hello = hello_of(2, first, 0x7);
    hello.resume.frozen = true;
    hello.resume.promised = (struct generation_id){7, STORY_INCARNATION};
    come(story, 13, &hello);
    assert_int_equal(story->last[13].kind, DOWN_EXCLUDED);
    assert_int_equal(story->last[13].u.excluded.ballot.number, 8);
}

// One of three is removed, because its link is cut, and lives. Before the links of the other two
// stand, one of these dies. The last one is no quorum of the three.
static void two_of_three_are_lost(struct story *story)
{
    struct up_message cut = {.kind = UP_LOST,
                             .u.lost = {.rank = 2, .step = COMMITTED + 1, .silent = true}};
    come_of_first(story, 0, 3, 0x7);
    story_say(story, 1, &cut);
    report(story, 1, 5);
    report(story, 2, 5);
    assert_int_equal(story->last[3].kind, DOWN_EXCLUDED);
    lost(story, 2, 0, PROOF_PROCESS);
    story_sleep(story, LOCKSTEP_BALLOT_PROOF_MS / 2);
    assert_int_not_equal(story->last[2].kind, DOWN_PREPARE);
}

// Condition: the removed rank leaves. Decision: that is proof, and the last rank goes on (M2).
static void a_removed_rank_that_has_left_is_proven(void **state)
{
    struct story *story = *state;
    two_of_three_are_lost(story);
    story_leave(story, 3, COMMITTED);
    expect_prepare(story, 2, 6);
    report(story, 2, 6);
    assert_int_equal(story_job(story, 0).world_size, 1);
}

// Condition: the removed rank comes back, and has promised more than the ballot that removed it.
// Decision: it is told the ballot that it promised (M6), and leaves.
static void a_removed_rank_in_the_way_is_told_what_it_promised(void **state)
{
    struct story *story = *state;
    two_of_three_are_lost(story);
    story_cut(story, 3);
    struct up_hello hello = hello_of(2, first, 0x7);
    hello.resume.frozen = true;
    hello.resume.promised = (struct generation_id){9, 0xdead};
    come(story, 13, &hello);
    assert_int_equal(story->last[13].kind, DOWN_EXCLUDED);
    assert_int_equal(story->last[13].u.excluded.ballot.number, 9);
    assert_int_equal(story->last[13].u.excluded.ballot.incarnation, 0xdead);
    assert_int_not_equal(story->last[2].kind, DOWN_PREPARE);
    story_leave(story, 13, COMMITTED);
    expect_prepare(story, 2, 6);
}

// ---- M1: members meet --------------------------------------------------------------------------

static void come_with_choice(struct story *story, uint32_t members, uint64_t of)
{
    for (uint32_t member = 0; member < members; member++) {
        struct up_hello hello = hello_of(member, first, of);
        hello.elsewhere = true;
        come(story, member + 1, &hello);
    }
    story_forget(story);
}

// Condition: two of five are connected for a while, and know another address. Decision: they are
// sent there.
static void too_few_are_sent_away(void **state)
{
    struct story *story = *state;
    come_with_choice(story, 2, 0x1f);
    story_sleep(story, 3 * LOCKSTEP_DIVIDED_MS);
    for (uint32_t peer = 1; peer <= 2; peer++) {
        assert_int_equal(story->last[peer].kind, DOWN_REFUSED);
        assert_int_equal(story->last[peer].u.refused.refusal, REFUSAL_DRAINING);
        assert_true(story->closed[peer]);
    }
    const struct up_hello again = hello_of(0, first, 0x1f);
    come(story, 11, &again);
    assert_int_equal(story->last[11].kind, DOWN_WELCOME);
}

// Condition: more than half are connected, or there is no other address. Decision: they stay.
static void enough_stay(void **state)
{
    struct story *story = *state;
    come_with_choice(story, 3, 0x1f);
    story_sleep(story, 3 * LOCKSTEP_DIVIDED_MS);
    assert_int_equal(story_job(story, 0).joined, 3);
}

static void those_without_a_choice_stay(void **state)
{
    struct story *story = *state;
    come_of_first(story, 0, 1, 0x1f);
    story_sleep(story, 3 * LOCKSTEP_DIVIDED_MS);
    assert_int_equal(story_job(story, 0).joined, 1);
}

// Condition: a member dies while the others are divided. Decision: a coordinator that lacks a
// quorum removes nobody for silence, however long that lasts.
static void the_other_half_is_not_removed(void **state)
{
    struct story *story = *state;
    come_with_choice(story, 2, 0xf);
    lost(story, 1, 3, PROOF_PROCESS);
    story_sleep(story, LOCKSTEP_DIVIDED_MS + LOCKSTEP_DIVIDED_MS / 2);
    for (uint32_t round = 0; round < 12; round++) {
        for (uint32_t member = 0; member < 2; member++) {
            struct up_hello hello = hello_of(member, first, 0xf);
            hello.elsewhere = true;
            come(story, 10 * round + 20 + member, &hello);
        }
        story_sleep(story, LOCKSTEP_BALLOT_AWAY_MS / 2);
    }
    expect_none_frozen(story);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nobody_freezes_without_a_quorum),
        TEST(half_is_enough_for_the_maker_only),
        TEST(a_proof_stays),
        TEST(a_member_without_the_decision_is_kept),
        TEST(a_member_that_is_behind_has_a_proof),
        TEST(every_open_generation_needs_a_quorum),
        TEST(a_member_that_is_behind_is_told_the_end),
        TEST(a_decision_of_the_other_is_taken),
        TEST(a_removed_rank_that_promised_more_is_told),
        TEST(a_removed_rank_that_promised_this_ballot_is_told),
        TEST(a_removed_rank_that_has_left_is_proven),
        TEST(a_removed_rank_in_the_way_is_told_what_it_promised),
        TEST(too_few_are_sent_away),
        TEST(enough_stay),
        TEST(those_without_a_choice_stay),
        TEST(the_other_half_is_not_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
