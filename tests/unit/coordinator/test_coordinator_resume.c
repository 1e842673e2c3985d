// SPDX-License-Identifier: Apache-2.0
//
// Members whose streams end and come back, and coordinators that have restarted:
// coordinator/resume.c.

#include "coordinator/rates.h"
#include "coordinator/stall_view.h"
#include "tests/unit/coordinator/story.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

// The hello of rank `rank` of job "j", whose members are the streams rank + 1 of story_run.
static struct up_hello back_hello(const struct story *story, uint32_t rank, uint32_t world)
{
    char host[16];
    snprintf(host, sizeof(host), "h%u", rank + 1);
    struct up_hello hello = story_hello("j", world, host);
    hello.uuid.bytes[0] = (uint8_t)(rank + 1);
    hello.resumes = true;
    hello.resume.generation = story->generation[rank + 1];
    hello.resume.rank = rank;
    hello.resume.world_size = world;
    hello.resume.settled = 7;
    hello.resume.rounds = 1;
    hello.resume.plan_number = 3;
    return hello;
}

// Forms a world whose workers have uuids, and starts it.
static void run_world(struct story *story, uint32_t world)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        char host[16];
        snprintf(host, sizeof(host), "h%u", rank + 1);
        struct up_hello hello = story_hello("j", world, host);
        hello.uuid.bytes[0] = (uint8_t)(rank + 1);
        story_say_hello(story, rank + 1, &hello);
    }
    for (uint32_t rank = 0; rank < world; rank++)
        story_links(story, rank + 1, &(struct up_links){.wish = ALGORITHM_BY_SIZE});
    for (uint32_t rank = 0; rank < world; rank++)
        story_start(story, rank + 1, 5, 3, 0);
    story_forget(story);
}

// A stream that knows the generation of another one.
static void come_back(struct story *story, uint32_t peer, const struct up_hello *hello)
{
    story->generation[peer] = hello->resume.generation;
    story->rank[peer] = hello->resume.rank;
    story_say_hello(story, peer, hello);
}

static void expect_running(const struct story *story)
{
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
}

// Condition: a stream ends. Decision: nothing ends; the member comes back on another stream.
static void a_stream_that_ends_is_silence(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    story_cut(story, 2);
    story_sleep(story, 120000);
    expect_running(story);
    assert_int_equal(story_job(story, 0).joined, 1);
    struct up_hello hello = back_hello(story, 1, 2);
    come_back(story, 12, &hello);
    assert_int_equal(story->last[12].kind, DOWN_WELCOME);
    assert_int_equal(story_job(story, 0).joined, 2);
    story_lost(story, 12, 0, 8, false);
    assert_int_equal(story->last[12].kind, DOWN_HALT);
    assert_int_equal(story->last[12].u.halt.rank, 0);
}

// Condition: the old stream has not ended for the coordinator. Decision: the new one takes its
// place.
static void a_new_stream_replaces_the_old_one(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    struct up_hello hello = back_hello(story, 1, 2);
    come_back(story, 12, &hello);
    assert_int_equal(story->last[12].kind, DOWN_WELCOME);
    assert_true(story->closed[2]);
    assert_int_equal(story_job(story, 0).joined, 2);
    expect_running(story);
}

// The story sleeps for 3 s, in which this member sends heartbeats.
static void live_on(struct story *story, uint32_t peer)
{
    for (uint32_t ms = 0; ms < 3000; ms += 500) {
        struct up_message beat = {.kind = UP_HEARTBEAT};
        story_sleep(story, 500);
        story_say(story, peer, &beat);
    }
    story_sleep(story, LOCKSTEP_PROBE_SOON_MS);
}

// Condition: nothing listens at the data port of a member that is away. Decision: lost, if the port
// was reached before, and the others have had time to tell its goodbye; a refusal of a firewall
// proves nothing.
static void a_refusal_is_proof_of_a_port_that_was_reached(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    story_cut(story, 2);
    story_probed(story, 2, false, true);
    live_on(story, 1);
    expect_running(story);
    story_probed(story, 2, true, false);
    expect_running(story);
    story_probed(story, 2, false, true);
    expect_running(story);
    live_on(story, 1);
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
    assert_int_equal(story->last[1].kind, DOWN_HALT);
    assert_int_equal(story->last[1].u.halt.rank, 1);
    assert_non_null(strstr(story->last[1].u.halt.text, "nothing listens at its data port"));
}

static void tell_goodbye(struct story *story, uint32_t peer, uint32_t rank)
{
    struct up_message message = {
        .kind = UP_LOST,
        .u.lost = {.rank = rank, .left = true, .step = UP_LOST_NEVER, .proof = PROOF_WORD}};
    story_say(story, peer, &message);
}

// A coordinator was silent for so long that all streams of three ranks have ended, and rank 2 has
// closed its session meanwhile. Its data port is closed.
static void wake_late(struct story *story)
{
    run_world(story, 3);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_probed(story, peer, true, false);
    story_sleep(story, 40000);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_cut(story, peer);
    story_probed(story, 3, false, true);
    expect_running(story);
}

// Condition: the others come back late, one after the other, and one of them tells the goodbye.
// Decision: the rank has left, and the job goes on.
static void a_goodbye_is_told_after_a_long_silence(void **state)
{
    struct story *story = *state;
    wake_late(story);
    story_sleep(story, 4000);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct up_hello hello = back_hello(story, rank, 3);
        come_back(story, 11 + rank, &hello);
        story_sleep(story, 900);
        story_probed(story, 3, false, true);
        expect_running(story);
    }
    tell_goodbye(story, 12, 2);
    live_on(story, 11);
    expect_running(story);
    assert_int_equal(story_job(story, 0).left, 1);
    assert_true(story_worker(story, 0, 2).left);
    story_leave(story, 11, 9);
    story_leave(story, 12, 9);
    assert_int_equal(story_job(story, 0).state, JOB_FINISHED);
}

// Condition: nobody tells a goodbye, because the rank has died. One of the others comes back, the
// last one stays away. Decision: lost, after LOCKSTEP_BALLOT_AWAY_MS.
static void a_death_in_a_long_silence_is_found(void **state)
{
    struct story *story = *state;
    wake_late(story);
    struct up_hello hello = back_hello(story, 0, 3);
    come_back(story, 11, &hello);
    for (uint32_t i = 0; i < 3; i++) {
        live_on(story, 11);
        expect_running(story);
    }
    live_on(story, 11);
    assert_int_equal(story->last[11].kind, DOWN_HALT);
    assert_int_equal(story->last[11].u.halt.rank, 2);
}

// Condition: a port of a member with a stream refuses. Decision: nothing; the stream is alive.
static void a_refusal_of_a_connected_member_is_nothing(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    story_probed(story, 2, true, false);
    story_probed(story, 2, false, true);
    expect_running(story);
}

// Condition: the generation ended while a member was away. Decision: it gets the verdict.
static void a_verdict_is_said_again(void **state)
{
    struct story *story = *state;
    run_world(story, 3);
    story_cut(story, 3);
    story_lost(story, 1, 1, 8, false);
    struct up_hello hello = back_hello(story, 2, 3);
    come_back(story, 13, &hello);
    assert_int_equal(story->last[13].kind, DOWN_HALT);
    assert_int_equal(story->last[13].u.halt.rank, 1);
    assert_int_equal(story->last[13].u.halt.kind, HALT_LOST);
}

// A rank waits for one position of the plan of step 8, and has not made another one.
static void say_blocked(struct story *story, uint32_t peer, uint32_t needed, uint32_t lacked)
{
    struct up_message message = {.kind = UP_BLOCKED, .u.blocked = {.step = 8, .space = 0xf0}};
    struct up_blocked *blocked = &message.u.blocked;
    blocked->wait_count = blocked->lack_count = 1;
    blocked->waits[0].needs.words[0] = UINT64_C(1) << needed;
    blocked->lacks.words[0] = UINT64_C(1) << lacked;
    blocked->lacking[0].position = lacked;
    story_say(story, peer, &message);
}

// Condition: a rank has reported a wait, and its stream ends; or it comes back before the end of
// the old stream is known. Without the coordinator the wait may time out. Decision: the report
// counts no more, so no cycle is found until the rank reports again.
static void a_report_ends_with_its_stream(void **state)
{
    struct story *story = *state;
    struct up_hello hello;
    run_world(story, 2);
    hello = back_hello(story, 0, 2);
    say_blocked(story, 1, 0, 1);
    story_cut(story, 1);
    say_blocked(story, 2, 1, 0);
    expect_running(story);
    come_back(story, 11, &hello);
    say_blocked(story, 2, 1, 0);
    expect_running(story);
    say_blocked(story, 2, 1, 5); // No other rank waits for what it has not made.
    say_blocked(story, 11, 0, 1);
    come_back(story, 12, &hello);
    say_blocked(story, 2, 1, 0);
    expect_running(story);
    say_blocked(story, 12, 0, 1);
    assert_int_equal(story_job(story, 0).state, JOB_HALTED);
    assert_int_equal(story->last[2].u.halt.kind, HALT_ORDER);
}

static void expect_refused(struct story *story, const struct up_hello *hello, const char *piece)
{
    static uint32_t peer = 100;
    peer++;
    story_say_hello(story, peer, hello);
    assert_int_equal(story->last[peer % STORY_LAST].kind, DOWN_REFUSED);
    if (!strstr(story->last[peer % STORY_LAST].u.refused.text, piece))
        fail_msg("'%s' is not in: %s", piece, story->last[peer % STORY_LAST].u.refused.text);
}

// Condition: what a returning worker says is wrong. Decision: it is refused, and the job goes on.
static void wrong_members_are_refused(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    story_cut(story, 2);
    struct up_hello hello = back_hello(story, 1, 2);
    hello.uuid.bytes[3] = 9;
    expect_refused(story, &hello, "that rank belongs to another worker");
    hello = back_hello(story, 1, 2);
    hello.resume.generation.number++;
    expect_refused(story, &hello, "running as another generation");
    hello = back_hello(story, 1, 2);
    hello.resume.generation.incarnation++;
    expect_refused(story, &hello, "running as another generation");
    hello = back_hello(story, 1, 2);
    hello.resume.rank = 2;
    expect_refused(story, &hello, "no such rank");
    hello = back_hello(story, 1, 2);
    hello.resume.world_size = 3;
    expect_refused(story, &hello, "another size");
    expect_running(story);
    story_leave(story, 1, 7);
    hello = back_hello(story, 0, 2);
    expect_refused(story, &hello, "has closed its session");
}

static void a_finished_job_takes_none_back(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    story_leave(story, 1, 7);
    story_leave(story, 2, 7);
    struct up_hello hello = back_hello(story, 1, 2);
    expect_refused(story, &hello, "that generation has ended");
}

// ---- A coordinator that has restarted ----------------------------------------------------------

static const struct generation_id elsewhere = {4, 0xabcdef};

static struct up_hello foreign_hello(struct story *story, uint32_t rank, uint32_t world)
{
    struct up_hello hello = back_hello(story, rank, world);
    hello.resume.generation = elsewhere;
    return hello;
}

// Condition: the members of a generation come to a coordinator that does not know it. Decision: the
// job is "resuming" until all are back; then it runs, with its own generation and plan numbers.
static void a_job_is_rebuilt(void **state)
{
    struct story *story = *state;
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct up_hello hello = foreign_hello(story, rank, 3);
        hello.resume.settled = 7 + rank;
        come_back(story, rank + 1, &hello);
        assert_int_equal(story->last[rank + 1].kind, DOWN_WELCOME);
        assert_int_equal(story_job(story, 0).state, rank < 2 ? JOB_RESUMING : JOB_RUNNING);
        for (uint32_t other = 0; other < 3; other++)
            assert_int_equal(story_worker(story, 0, other).awaited, other > rank);
    }
    const struct job_view job = story_job(story, 0);
    assert_int_equal(job.generation.number, 4);
    assert_int_equal(job.generation.incarnation, 0xabcdef);
    assert_int_equal(job.settled, 9);
    assert_int_equal(job.plan_number, 3);
    assert_int_equal(job.world_size, 3);
    assert_int_equal(job.hosts, 3);
    story_lost(story, 2, 0, 10, false);
    assert_int_equal(story->last[2].kind, DOWN_HALT);
    assert_int_equal(story->last[2].generation.incarnation, 0xabcdef);
    assert_int_equal(story->last[2].u.halt.rank, 0);
}

// Condition: two ranks come to a new coordinator and tell that the third one has left. Decision: it
// is awaited no more, and the job is finished when they have left, too.
static void a_rank_that_left_before_is_not_awaited(void **state)
{
    struct story *story = *state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct up_hello hello = foreign_hello(story, rank, 3);
        come_back(story, rank + 1, &hello);
    }
    assert_int_equal(story_job(story, 0).state, JOB_RESUMING);
    tell_goodbye(story, 1, 2);
    tell_goodbye(story, 2, 2);
    expect_running(story);
    assert_false(story_worker(story, 0, 2).awaited);
    story_leave(story, 1, 7);
    story_leave(story, 2, 7);
    assert_int_equal(story_job(story, 0).state, JOB_FINISHED);
}

// Condition: all ranks leave, and one of them comes to the new coordinator before. Decision: when
// the other one has not come for a while, the job is finished.
static void leavers_that_never_came_have_left(void **state)
{
    struct story *story = *state;
    struct up_hello hello = foreign_hello(story, 0, 2);
    come_back(story, 1, &hello);
    story_sleep(story, 3000);
    story_leave(story, 1, 7);
    story_sleep(story, LOCKSTEP_BALLOT_ELSEWHERE_MS - 4000);
    assert_int_equal(story_job(story, 0).state, JOB_RESUMING);
    story_sleep(story, 4000);
    assert_int_equal(story_job(story, 0).state, JOB_FINISHED);
    hello = foreign_hello(story, 1, 2);
    expect_refused(story, &hello, "that generation has ended");
}

// Condition: one rank has come to a new coordinator, and the other one stays away for so long that
// heartbeats of a rank that was here would be missed. Decision: it is shown as awaited, not as
// silent.
static void a_rank_that_never_came_is_awaited(void **state)
{
    struct story *story = *state;
    struct up_hello hello = foreign_hello(story, 0, 2);
    come_back(story, 1, &hello);
    story_sleep(story,
                LOCKSTEP_HEARTBEAT_MS * LOCKSTEP_FROZEN_HEARTBEATS + LOCKSTEP_FROZEN_SLACK_MS + 1);
    const struct worker_view absent = story_worker(story, 0, 1);
    assert_true(absent.awaited);
    assert_false(absent.frozen);
    assert_int_equal(absent.kind, STALL_NONE);
    assert_int_equal(absent.pid, 0);
    assert_false(story_worker(story, 0, 0).awaited);
    assert_true(story_worker(story, 0, 0).frozen);
    assert_int_equal(story_job(story, 0).formed_ms, 0);
}

static void expect_addresses(const struct story *story, uint32_t peer, uint32_t rank)
{
    assert_int_equal(story->last[peer].kind, DOWN_ADDRESSES);
    assert_int_equal(story->last[peer].u.addresses.count, 1);
    assert_int_equal(story->last[peer].u.addresses.peers[0].rank, rank);
    assert_true(story->last[peer].u.addresses.peers[0].address[0] != '\0');
}

// Condition: a member asks for addresses before all members have come to the coordinator. Decision:
// it gets those that are known, and each other one when its member comes; none if it has come back
// on another stream meanwhile, since it then asks again.
static void addresses_come_with_their_members(void **state)
{
    struct story *story = *state;
    struct up_message reach = {.kind = UP_REACH, .u.reach = {.count = 3, .ranks = {0, 1, 2}}};
    struct up_hello hello = foreign_hello(story, 0, 5);
    come_back(story, 1, &hello);
    for (uint32_t rank = 3; rank < 5; rank++) {
        hello = foreign_hello(story, rank, 5);
        come_back(story, rank + 1, &hello);
        story_say(story, rank + 1, &reach);
        expect_addresses(story, rank + 1, 0);
    }
    come_back(story, 15, &hello); // Rank 4 once more.
    hello = foreign_hello(story, 2, 5);
    come_back(story, 3, &hello);
    expect_addresses(story, 4, 2);
    assert_int_equal(story->last[15].kind, DOWN_WELCOME);
    hello = foreign_hello(story, 1, 5);
    come_back(story, 2, &hello);
    expect_addresses(story, 4, 1);
    assert_int_equal(story->last[15].kind, DOWN_WELCOME);
    assert_int_equal(story->last[1].kind, DOWN_WELCOME);
}

// Sends a heartbeat of a rank that has been in step 11 for a minute.
static void stand_still(struct story *story, uint32_t peer, bool waits)
{
    struct up_message message = {.kind = UP_HEARTBEAT};
    struct up_heartbeat *beat = &message.u.heartbeat;
    beat->step = 11;
    beat->settled = beat->totals.steps = 10;
    beat->place = (struct place){.position = 2,
                                 .count = 4,
                                 .open = true,
                                 .api = waits ? API_STEP_END : API_CALL_END,
                                 .inside = waits,
                                 .waits = waits,
                                 .done = waits,
                                 .module = waits ? LOCKSTEP_MAX_MODULES : 0,
                                 .api_ms = 60000};
    story_say(story, peer, &message);
}

static bool is_stalled(const struct story *story)
{
    static struct stall_view view;
    return coordinator_stall_view(story->core, 0, 0, story->now_ms, &view) && view.active;
}

// Condition: members have run for an hour, and report to this coordinator one second after the
// other. Decision: no sample has what they did before, no rank counts as slow for what the others
// waited before, and the job is not said to be young.
static void what_was_before_is_in_no_rate(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_HEARTBEAT};
    struct up_heartbeat *beat = &message.u.heartbeat;
    struct rate_view rate;
    for (uint32_t rank = 0; rank < 4; rank++) {
        struct up_hello hello = foreign_hello(story, rank, 4);
        come_back(story, rank + 1, &hello);
    }
    assert_int_equal(story_job(story, 0).formed_ms, 0);
    beat->place = (struct place){.api = API_STEP_END, .module = LOCKSTEP_MAX_MODULES};
    for (uint64_t second = 0; second < 20; second++) {
        for (uint32_t rank = 0; rank < 4 && rank <= second; rank++) {
            beat->step = beat->settled = beat->totals.steps = 3600 + second;
            beat->bytes_sent = beat->totals.steps * 1000;
            beat->place.waited_us = rank == 0 ? 0 : 600000000;
            story_say(story, rank + 1, &message);
        }
        for (uint32_t i = 0; i < 4; i++)
            story_sleep(story, LOCKSTEP_WATCH_MS);
    }
    assert_true(coordinator_rate_view(story->core, 0, 0, story->now_ms, &rate));
    for (uint32_t i = 0; coordinator_rate_view(story->core, 0, i, story->now_ms, &rate); i++) {
        assert_in_range(rate.steps, 0, 2);
        assert_in_range(rate.bytes_per_s, 0, 8000);
    }
    for (uint32_t rank = 0; rank < 4; rank++)
        assert_int_equal(story_worker(story, 0, rank).straggler_permille, 0);
}

// Condition: a rank has stood still since before the return of the coordinator. Decision: it is
// named after one heartbeat interval and its time to answer, not after two intervals as in a new
// generation.
static void who_stands_still_is_named_soon(void **state)
{
    struct story *story = *state;
    const uint64_t bound_ms = LOCKSTEP_HEARTBEAT_MS + LOCKSTEP_INSPECT_MS + 2 * LOCKSTEP_WATCH_MS;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct up_hello hello = foreign_hello(story, rank, 2);
        hello.resume.settled = 10;
        come_back(story, rank + 1, &hello);
    }
    for (uint32_t rank = 0; rank < 2; rank++)
        stand_still(story, rank + 1, rank == 0);
    assert_false(is_stalled(story));
    story_sleep(story, LOCKSTEP_HEARTBEAT_MS);
    for (uint32_t rank = 0; rank < 2; rank++)
        stand_still(story, rank + 1, rank == 0);
    story_sleep(story, bound_ms - LOCKSTEP_HEARTBEAT_MS);
    assert_true(is_stalled(story));
}

// Condition: the stream of a culprit ends before it has answered an inspection, and it comes back.
// Decision: it is inspected again.
static void a_culprit_that_comes_back_is_asked_again(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    for (int beat = 0; beat < 60 && story->last[2].kind != DOWN_INSPECT; beat++) {
        for (uint32_t rank = 0; rank < 2; rank++)
            stand_still(story, rank + 1, rank == 0);
        story_sleep(story, LOCKSTEP_WATCH_MS);
    }
    assert_int_equal(story->last[2].kind, DOWN_INSPECT);
    story_cut(story, 2);
    struct up_hello hello = back_hello(story, 1, 2);
    hello.resume.settled = 10;
    come_back(story, 12, &hello);
    for (uint64_t ms = 0; ms < 2 * LOCKSTEP_INSPECT_PAUSE_MS; ms += LOCKSTEP_WATCH_MS) {
        stand_still(story, 1, true);
        stand_still(story, 12, false);
        story_sleep(story, LOCKSTEP_WATCH_MS);
    }
    assert_true(is_stalled(story));
    assert_int_equal(story->last[12].kind, DOWN_INSPECT);
}

// Condition: a rank does not come back, and another one waits for it. Decision: the sentence has no
// host and no process of it, which this coordinator does not know.
static void who_does_not_come_back_has_no_name(void **state)
{
    static struct stall_view view;
    struct story *story = *state;
    struct up_hello hello = foreign_hello(story, 0, 2);
    hello.resume.settled = 10;
    come_back(story, 1, &hello);
    for (int beat = 0; beat < 5 && !is_stalled(story); beat++) {
        stand_still(story, 1, true);
        story_sleep(story, LOCKSTEP_HEARTBEAT_MS);
    }
    assert_true(coordinator_stall_view(story->core, 0, 0, story->now_ms, &view));
    assert_non_null(
        strstr(view.sentence, "rank 1 (not seen since this coordinator started) has not "));
    assert_non_null(
        strstr(view.sentence, "See whether its process runs, and whether its host answers."));
}

// ---- Ranks that the others have gone on without ------------------------------------------------

static void expect_excluded(const struct story *story, uint32_t peer)
{
    const struct down_message *last = &story->last[peer % STORY_LAST];
    assert_int_equal(last->kind, DOWN_EXCLUDED);
    assert_int_equal(last->generation.number, elsewhere.number);
    assert_int_equal(last->generation.incarnation, elsewhere.incarnation);
    assert_int_equal(last->u.excluded.ballot.number, elsewhere.number + 1);
}

static struct up_hello going_on(struct story *story, uint32_t rank, uint32_t world, bool later)
{
    struct up_hello hello = foreign_hello(story, rank, world);
    hello.on_failure = FAILURE_CONTINUE;
    hello.resume.generation.number += later;
    hello.resume.founder = elsewhere;
    hello.resume.chain_count = 1;
    hello.resume.chain[0].id = hello.resume.generation;
    hello.resume.chain[0].members[0] = later ? 3 : 7; // Rank 2 was removed.
    return hello;
}

// Condition: a rank comes back whose generation is over, while a later one of the job runs.
// Decision: it is told that the others have gone on without it. Nothing else changes.
static void a_removed_rank_comes_back(void **state)
{
    struct story *story = *state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct up_hello hello = going_on(story, rank, 2, true);
        come_back(story, rank + 1, &hello);
    }
    struct up_hello hello = going_on(story, 2, 3, false);
    come_back(story, 13, &hello);
    expect_excluded(story, 13);
    assert_false(story->closed[13]); // Its farewell is a proof.
    expect_running(story);
    assert_int_equal(story_job(story, 0).joined, 2);
    hello = going_on(story, 0, 3, false); // Its uuid is that of rank 0, which is known.
    hello.uuid.bytes[3] = 9;
    expect_refused(story, &hello, "that rank belongs to another worker");
}

// Condition: the rank that was removed is the first one that comes to a new coordinator. Decision:
// the later generation counts, and that rank is told.
static void a_removed_rank_comes_first(void **state)
{
    struct story *story = *state;
    struct up_hello hello = going_on(story, 2, 3, false);
    come_back(story, 13, &hello);
    assert_int_equal(story_job(story, 0).state, JOB_RESUMING);
    for (uint32_t rank = 0; rank < 2; rank++) {
        hello = going_on(story, rank, 2, true);
        come_back(story, rank + 1, &hello);
        assert_int_equal(story->last[rank + 1].kind, DOWN_WELCOME);
    }
    expect_excluded(story, 13);
    expect_running(story);
    assert_int_equal(story_job(story, 0).generation.number, elsewhere.number + 1);
}

// ---- A recovery whose coordinator was lost -----------------------------------------------------

// The hello knows one generation, the first one.
static void first_chain(struct up_hello *hello, struct generation_id generation, uint64_t members)
{
    hello->resume.founder = generation;
    hello->resume.chain_count = 1;
    hello->resume.chain[0].id = generation;
    hello->resume.chain[0].members[0] = members;
}

static void report_idle(struct story *story, uint32_t peer)
{
    struct up_message report = {.kind = UP_REPORT, .u.report = {.settled = 7, .step = 7}};
    report.u.report.ballot = story->last[peer].u.prepare.ballot;
    story->generation[peer] = story->last[peer].generation;
    story_say(story, peer, &report);
}

// Condition: one of two ranks comes to a coordinator that has not formed its generation, and says
// that the other one is lost. Decision: nothing without a proof; with a proof it goes on alone.
// (M2)
static void half_needs_a_proof_after_a_restart(void **state)
{
    struct story *story = *state;
    struct up_hello hello = foreign_hello(story, 0, 2);
    struct up_message lost = {.kind = UP_LOST, .u.lost = {.rank = 1, .step = 8, .text = "reset"}};
    hello.on_failure = FAILURE_CONTINUE;
    first_chain(&hello, elsewhere, 3);
    come_back(story, 1, &hello);
    story_say(story, 1, &lost);
    story_sleep(story, LOCKSTEP_ACCUSED_MS + LOCKSTEP_BALLOT_AWAY_MS);
    assert_int_equal(story->last[1].kind, DOWN_WELCOME);
    lost.u.lost.proof = PROOF_PROCESS;
    story_say(story, 1, &lost);
    assert_int_equal(story->last[1].kind, DOWN_PREPARE);
    assert_int_equal(story->last[1].u.prepare.suspects[0], 2);
    report_idle(story, 1);
    assert_int_equal(story->last[1].kind, DOWN_GENERATION);
}

// Condition: a member that waits for a decision comes to a coordinator that knows no ballot.
// Decision: a ballot begins; a member that does not come is lost in the end.
static void a_frozen_member_begins_a_ballot(void **state)
{
    struct story *story = *state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct up_hello hello = foreign_hello(story, rank, 3);
        hello.on_failure = FAILURE_CONTINUE;
        hello.resume.frozen = true;
        first_chain(&hello, elsewhere, 7);
        come_back(story, rank + 1, &hello);
    }
    story_sleep(story, 2 * LOCKSTEP_BALLOT_AWAY_MS);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(story->last[rank + 1].kind, DOWN_PREPARE);
        report_idle(story, rank + 1);
    }
    assert_int_equal(story->last[1].kind, DOWN_GENERATION);
    assert_int_equal(story_job(story, 0).world_size, 2);
}

// Condition: the coordinator is stopped while a ballot waits for a member that it has never seen.
// Decision: it has not waited in that time.
static void a_stopped_coordinator_has_not_waited(void **state)
{
    struct story *story = *state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct up_hello hello = foreign_hello(story, rank, 3);
        hello.on_failure = FAILURE_CONTINUE;
        hello.resume.frozen = rank == 1;
        first_chain(&hello, elsewhere, 7);
        story_sleep(story, rank * 2 * LOCKSTEP_PROBE_MS);
        come_back(story, rank + 1, &hello);
    }
    for (uint32_t stops = 0; stops < 2; stops++) {
        story_sleep(story, LOCKSTEP_BALLOT_AWAY_MS / 4);
        story->now_ms += 2 * LOCKSTEP_BALLOT_AWAY_MS;
        story_sleep(story, 0);
        assert_int_equal(story->last[2].kind, DOWN_WELCOME);
    }
    story_sleep(story, LOCKSTEP_BALLOT_AWAY_MS / 2);
    assert_int_equal(story->last[2].kind, DOWN_PREPARE);
}

// A frozen rank of four, of which rank 1 was removed by a decision that reached some of them.
static struct up_hello decided(struct story *story, uint32_t rank, bool has_decision)
{
    struct up_hello hello = foreign_hello(story, rank, 4);
    hello.on_failure = FAILURE_CONTINUE;
    hello.resume.frozen = true;
    first_chain(&hello, elsewhere, 0xf);
    hello.resume.promised = (struct generation_id){6, 0xabcdef};
    if (!has_decision)
        return hello;
    hello.resume.generation = (struct generation_id){6, 0xabcdef};
    hello.resume.chain_count = 2;
    hello.resume.chain[1].id = hello.resume.generation;
    hello.resume.chain[1].members[0] = 0xd;
    hello.resume.rank -= rank > 1;
    hello.resume.world_size = 3;
    return hello;
}

static void expect_carried(const struct story *story, uint32_t peer)
{
    const struct down_message *last = &story->last[peer];
    assert_int_equal(last->kind, DOWN_PREPARE);
    assert_int_equal(last->u.prepare.ballot.number, 7);
}

// Ranks 0, 2 and 3 of four go on as 0, 1 and 2.
static void expect_going_on(struct story *story, const uint32_t *peers)
{
    for (uint32_t i = 0; i < 3; i++)
        expect_carried(story, peers[i]);
    for (uint32_t i = 0; i < 3; i++)
        report_idle(story, peers[i]);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(story->last[peers[i]].kind, DOWN_GENERATION);
        assert_int_equal(story->last[peers[i]].u.generation_start.rank, i);
        assert_int_equal(story->last[peers[i]].u.generation_start.world_size, 3);
    }
}

// Condition: the coordinator died while it sent a decision. Rank 3 has not got it, and comes last
// to the next coordinator. Decision: it is a member of the new generation, and of the next one.
static void a_rank_without_the_decision_is_carried_over(void **state)
{
    struct story *story = *state;
    for (uint32_t rank = 0; rank < 4; rank++) {
        const struct up_hello hello = decided(story, rank, rank != 3);
        if (rank != 1)
            come_back(story, rank + 1, &hello);
    }
    expect_going_on(story, (const uint32_t[]){1, 3, 4});
}

// Condition: the same, and rank 3 comes first. Decision: the same, as soon as all are there.
static void a_rank_without_the_decision_comes_first(void **state)
{
    struct story *story = *state;
    struct up_hello hello = decided(story, 3, false);
    come_back(story, 4, &hello);
    hello = decided(story, 0, true);
    come_back(story, 1, &hello);
    assert_int_equal(story->last[4].kind, DOWN_WELCOME); // And not excluded.
    hello = decided(story, 2, true);
    come_back(story, 3, &hello);
    expect_going_on(story, (const uint32_t[]){1, 3, 4});
}

// Condition: a rank that the decision removed comes, while others have not come yet. Decision: it
// is excluded.
static void a_rank_that_the_decision_removed_is_told(void **state)
{
    struct story *story = *state;
    struct up_hello hello = decided(story, 0, true);
    come_back(story, 1, &hello);
    hello = decided(story, 1, false);
    come_back(story, 2, &hello);
    assert_int_equal(story->last[2].kind, DOWN_EXCLUDED);
    assert_false(story->closed[2]);
    hello = decided(story, 3, false);
    hello.resume.founder.number++; // Of another job of that name.
    expect_refused(story, &hello, "running as another generation");
}

// Condition: the stream of a member ends while the decision is on its way. Decision: the same.
static void a_decision_that_was_lost_on_its_way(void **state)
{
    struct story *story = *state;
    story_run_on(story, 3);
    story_close(story, 2, NULL);
    report_idle(story, 1);
    const struct generation_id before = story->generation[3];
    report_idle(story, 3);
    assert_int_equal(story->last[1].kind, DOWN_GENERATION);
    story_cut(story, 3);
    struct up_hello hello = back_hello(story, 2, 3);
    hello.on_failure = FAILURE_CONTINUE;
    hello.resume.generation = before;
    hello.resume.frozen = true;
    first_chain(&hello, before, 7);
    memcpy(hello.uuid.bytes, &(uint32_t){3}, sizeof(uint32_t));
    come_back(story, 13, &hello);
    assert_int_equal(story->last[13].kind, DOWN_PREPARE);
    report_idle(story, 1);
    report_idle(story, 13);
    assert_int_equal(story->last[13].kind, DOWN_GENERATION);
    assert_int_equal(story->last[13].u.generation_start.rank, 1);
    assert_int_equal(story->last[13].u.generation_start.world_size, 2);
}

// ---- Learning steps ----------------------------------------------------------------------------

// Condition: the stream of a member ends in a learning step, and a grant is lost with it. Decision:
// the member gets the grant when it comes back, and may say again what it had said. Nothing is
// granted before it has said all its grants.
static void a_learning_step_goes_on(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    for (uint32_t bucket = 0; bucket < 2; bucket++) {
        story_ready(story, 1, 8, slot(0, 0, bucket));
        story_ready(story, 2, 8, slot(0, 0, bucket));
    }
    story_ready(story, 2, 8, slot(0, 0, 2));
    story_cut(story, 2);
    struct up_hello hello = back_hello(story, 1, 2);
    hello.resume.learning_step = 8;
    come_back(story, 12, &hello);
    story_ready(story, 1, 8, slot(0, 0, 2));
    story_forget(story);
    story_granted(story, 12, 8, slot(0, 0, 0), 0, 1, false);
    story_expect(story, "12 > ready step 8 slot 0#0.0, granted as 1 of 1\n"
                        "12 < grant step 8 slot 0#0.1\n"
                        "1 < grant step 8 slot 0#0.2\n"
                        "12 < grant step 8 slot 0#0.2\n");
    for (uint32_t bucket = 1; bucket < 4; bucket++)
        story_ready(story, 12, 8, slot(0, 0, bucket));
    expect_running(story);
    story_ready(story, 1, 8, slot(0, 0, 3));
    assert_int_equal(story->last[12].u.grant.slot.bucket, 3);
}

// Rank `rank` of a world that another coordinator has formed comes back in step 8, with plans up to
// this number, and says its grants: the first `grants` of the buckets 1, 0, 2.
static void come_back_holding(struct story *story, uint32_t rank, uint32_t world, uint32_t grants,
                              uint64_t plan)
{
    static const uint32_t buckets[] = {1, 0, 2};
    struct up_hello hello = foreign_hello(story, rank, world);
    hello.resume.learning_step = 8;
    hello.resume.plan_number = plan;
    come_back(story, rank + 1, &hello);
    for (uint32_t place = 0; place < grants; place++)
        story_granted(story, rank + 1, 8, slot(0, 0, buckets[place]), place, grants, false);
}

static void come_back_with(struct story *story, uint32_t rank, uint32_t world, uint32_t grants)
{
    come_back_holding(story, rank, world, grants, 3);
}

// Condition: ranks learn a step, and come to a coordinator that knows nothing of it. Decision: it
// learns it from what they say again.
static void a_learning_step_begins_anew(void **state)
{
    struct story *story = *state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        come_back_with(story, rank, 2, 0);
        story_ready(story, rank + 1, 8, slot(0, 0, 0));
    }
    assert_int_equal(story->last[1].kind, DOWN_GRANT);
    assert_int_equal(story->last[2].kind, DOWN_GRANT);
}

// Condition: the lost coordinator had told three ranks grants: one, three and none of them.
// Decision: the longest order is that of all; each rank gets what it does not have, once.
static void the_longest_order_is_that_of_all(void **state)
{
    struct story *story = *state;
    const uint32_t words[] = {4, 1, 2, 3, 4, 0, 1, 2, 3};
    come_back_with(story, 0, 3, 1);
    story_ready(story, 1, 8, slot(0, 0, 3));
    story_ready(story, 1, 8, slot(0, 0, 0));
    come_back_with(story, 2, 3, 0);
    story_ready(story, 3, 8, slot(0, 0, 0));
    story_forget(story);
    come_back_with(story, 1, 3, 3);
    assert_null(strstr(story->trace, "2 < grant"));
    story_expect_piece(story, "2 > ready step 8 slot 0#0.1, granted as 1 of 3\n"
                              "2 > ready step 8 slot 0#0.0, granted as 2 of 3\n"
                              "1 < grant step 8 slot 0#0.0\n"
                              "3 < grant step 8 slot 0#0.0\n"
                              "2 > ready step 8 slot 0#0.2, granted as 3 of 3\n"
                              "1 < grant step 8 slot 0#0.2\n"
                              "3 < grant step 8 slot 0#0.2\n");
    for (uint32_t bucket = 1; bucket < 4; bucket++)
        story_ready(story, 3, 8, slot(0, 0, bucket));
    story_ready(story, 1, 8, slot(0, 0, 2));
    story_forget(story);
    story_ready(story, 2, 8, slot(0, 0, 3));
    story_expect(story, "2 > ready step 8 slot 0#0.3\n"
                        "1 < grant step 8 slot 0#0.3\n"
                        "2 < grant step 8 slot 0#0.3\n"
                        "3 < grant step 8 slot 0#0.3\n");
    story_layout(story, 1, 0, words, 9);
    for (uint32_t peer = 1; peer <= 3; peer++)
        story_step_end(story, peer, 8);
    story_expect_piece(story, "3 < plan 4 ");
    assert_int_equal(story->last[3].u.plan_part.slot_total, 4);
}

// Condition: two ranks have different slots at one place. Decision: a verdict that names both.
static void orders_that_differ_are_a_verdict(void **state)
{
    struct story *story = *state;
    come_back_with(story, 0, 2, 2);
    come_back_with(story, 1, 2, 0);
    story_granted(story, 2, 8, slot(0, 0, 2), 0, 1, false);
    assert_int_equal(story->last[1].kind, DOWN_HALT);
    assert_string_equal(
        story->last[1].u.halt.text,
        "rank 1 (host h2) has module 0 call 0 bucket 2 at place 0 of the order of step 8, and rank "
        "0 "
        "(host h1) has module 0 call 0 bucket 1 there: two coordinators have decided it");
}

// Condition: a member says what cannot be an order. Decision: a verdict.
static void an_order_that_cannot_be(void **state)
{
    static const struct {
        uint32_t bucket, place, grants;
    } wrong[] = {{0, 1, 2}, {0, 0, 0}, {0, 2, 1}, {LOCKSTEP_MAX_BUCKETS, 0, 1}};
    struct story *story = *state;
    for (uint32_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        come_back_with(story, 0, 2, 0);
        story_granted(story, 1, 8, slot(0, 0, wrong[i].bucket), wrong[i].place, wrong[i].grants,
                      false);
        assert_int_equal(story->last[1].u.halt.kind, HALT_PROTOCOL);
        story_end(story);
        story_begin(story);
    }
    come_back_with(story, 0, 2, 1);
    story_granted(story, 1, 8, slot(0, 0, 0), 1, 2, false); // The member has said all its grants.
    assert_int_equal(story->last[1].u.halt.kind, HALT_PROTOCOL);
}

// A layout of one bucket, which has parameter 0.
static const uint32_t one_bucket[] = {1, 1, 0};

// Two ranks learn step 8, and rank 0 has ended it.
static void rank_0_ends_a_learning_step(struct story *story)
{
    run_world(story, 2);
    story_ready(story, 1, 8, slot(0, 0, 0));
    story_layout(story, 1, 0, one_bucket, 3);
    story_step_end(story, 1, 8);
}

// Condition: all others end the step while a member is away that has ended it, too. Decision: the
// plan is made when the member is back, and what it says again afterwards is of no account.
static void a_member_that_has_ended_comes_back(void **state)
{
    struct story *story = *state;
    rank_0_ends_a_learning_step(story);
    struct up_hello hello = back_hello(story, 0, 2);
    hello.resume.learning_step = 8;
    come_back(story, 11, &hello);
    story_ready(story, 2, 8, slot(0, 0, 0));
    story_step_end(story, 2, 8);
    story_forget(story);
    story_ready(story, 11, 8, slot(0, 0, 0));
    story_expect_piece(story, "11 < grant step 8 slot 0#0.0\n");
    assert_int_equal(story->last[11].kind, DOWN_PLAN_PART);
    story_layout(story, 11, 0, one_bucket, 3);
    story_step_end(story, 11, 8);
    expect_running(story);
    story_layout(story, 11, 0, one_bucket, 3);
    story_step_end(story, 11, 9);
    story_step_end(story, 2, 9);
    expect_running(story);
    assert_int_equal(story->last[2].u.plan_part.step, 9);
}

static void end_with_plan(struct story *story, uint32_t peer, uint64_t plan, uint64_t hash)
{
    struct up_message message = {.kind = UP_END,
                                 .u.end = {.step = 8, .plan = plan, .plan_hash = hash}};
    story_say(story, peer, &message);
}

// Two ranks come back with both grants of step 8, which they have ended. Rank 1 holds a plan with
// this hash, if the hash is not 0.
static void come_back_ended(struct story *story, uint64_t hash)
{
    const uint32_t words[] = {2, 1, 2, 0, 1};
    come_back_with(story, 0, 2, 2);
    story_layout(story, 1, 0, words, 5);
    story_step_end(story, 1, 8);
    come_back_holding(story, 1, 2, 2, hash != 0 ? 4 : 3);
    end_with_plan(story, 2, hash != 0 ? 4 : 0, hash);
}

// Condition: the lost coordinator had told rank 1 the plan, and not rank 0. Decision: rank 0 gets
// the plan, with the number that it has; a plan with another hash is a verdict.
static void a_plan_that_only_some_have(void **state)
{
    struct story *story = *state;
    come_back_ended(story, 0);
    assert_int_equal(story->last[2].kind, DOWN_PLAN_PART);
    assert_int_equal(story->last[2].u.plan_part.number, 4);
    const uint64_t hash = story->last[2].u.plan_part.hash;
    story_end(story);
    story_begin(story);
    come_back_ended(story, hash);
    assert_int_equal(story->last[1].kind, DOWN_PLAN_PART);
    assert_int_equal(story->last[1].u.plan_part.number, 4);
    assert_int_equal(story->last[1].u.plan_part.hash, hash);
    assert_int_equal(story->last[2].kind, DOWN_WELCOME);
    story_end(story);
    story_begin(story);
    come_back_ended(story, hash + 1);
    assert_int_equal(story->last[1].u.halt.kind, HALT_PROTOCOL);
    assert_non_null(strstr(story->last[1].u.halt.text, "holds a plan of step 8"));
}

// Condition: all ranks hold the plan of the step, and one is in the next step before another one
// has said all again, or any of it. Decision: the next step is learned.
static void a_step_that_is_over_is_said_again(void **state)
{
    struct story *story = *state;
    for (uint32_t order = 0; order < 2; order++) {
        come_back_with(story, 0, 2, 2);
        end_with_plan(story, 1, 4, 17);
        come_back_with(story, 1, 2, 0);
        if (order == 0)
            story_granted(story, 2, 8, slot(0, 0, 1), 0, 2, false);
        if (order == 1)
            story_ready(story, 1, 9, slot(0, 0, 0));
        story_layout(story, 1, 0, one_bucket, 3);
        if (order == 0)
            story_ready(story, 1, 9, slot(0, 0, 0));
        else
            story_granted(story, 2, 8, slot(0, 0, 1), 0, 2, false);
        story_granted(story, 2, 8, slot(0, 0, 0), 1, 2, false);
        end_with_plan(story, 2, 4, 17);
        story_ready(story, 2, 9, slot(0, 0, 0));
        assert_int_equal(story->last[2].u.grant.step, 9);
        story_step_end(story, 1, 9);
        story_step_end(story, 2, 9);
        assert_int_equal(story->last[2].u.plan_part.step, 9);
        story_end(story);
        story_begin(story);
    }
}

// Condition: two ranks hold different plans of one step. Decision: a verdict that names both.
static void plans_that_differ_are_a_verdict(void **state)
{
    struct story *story = *state;
    come_back_with(story, 0, 3, 2);
    end_with_plan(story, 1, 4, 17);
    come_back_with(story, 1, 3, 2);
    end_with_plan(story, 2, 4, 18);
    assert_int_equal(story->last[1].u.halt.kind, HALT_PROTOCOL);
    assert_non_null(strstr(story->last[1].u.halt.text,
                           "rank 1 (host h2) holds another plan of step 8 than rank 0 (host h1)"));
}

// Condition: a plan and a grant are lost with the stream of a member. Decision: the member gets
// both when it comes back; what a member says again that has the plan is of no account.
static void a_plan_that_was_missed(void **state)
{
    struct story *story = *state;
    rank_0_ends_a_learning_step(story);
    story_ready(story, 2, 8, slot(0, 0, 0));
    story_step_end(story, 2, 8);
    const uint64_t hash = story->last[2].u.plan_part.hash;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct up_hello hello = back_hello(story, rank, 2);
        hello.resume.learning_step = 8;
        come_back(story, 11 + rank, &hello);
    }
    story_granted(story, 11, 8, slot(0, 0, 0), 0, 1, false);
    story_layout(story, 11, 0, one_bucket, 3);
    end_with_plan(story, 11, 1, hash);
    assert_int_equal(story->last[11].kind, DOWN_WELCOME);
    story_ready(story, 12, 8, slot(0, 0, 0));
    story_forget(story);
    story_step_end(story, 12, 8);
    story_expect_piece(story, "12 < grant step 8 slot 0#0.0\n12 < layout");
    assert_int_equal(story->last[12].kind, DOWN_PLAN_PART);
    assert_int_equal(story->last[12].u.plan_part.hash, hash);
    assert_int_equal(story->last[11].kind, DOWN_WELCOME);
    expect_running(story);
}

// Condition: workers wait for a world of that name. Decision: they come again; the generation
// lives.
static void a_living_generation_goes_before_gatherers(void **state)
{
    struct story *story = *state;
    struct up_hello fresh = story_hello("j", 2, "x");
    story_say_hello(story, 9, &fresh);
    struct up_hello hello = foreign_hello(story, 0, 2);
    come_back(story, 1, &hello);
    assert_int_equal(story->last[1].kind, DOWN_WELCOME);
    assert_int_equal(story->last[9].kind, DOWN_REFUSED);
    assert_int_equal(story->last[9].u.refused.refusal, REFUSAL_DRAINING);
}

// Condition: no member is connected. Decision: a new world has to wait, and then gets the name.
static void a_deserted_name_is_given_away(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    story_cut(story, 1);
    story_cut(story, 2);
    struct up_hello fresh = story_hello("j", 2, "x");
    story_say_hello(story, 9, &fresh);
    assert_int_equal(story->last[9].kind, DOWN_REFUSED);
    assert_int_equal(story->last[9].u.refused.refusal, REFUSAL_DRAINING);
    story_sleep(story, LOCKSTEP_AWAY_MS);
    story_say_hello(story, 10, &fresh);
    assert_int_equal(story->last[10].kind, DOWN_WELCOME);
    struct up_hello hello = back_hello(story, 1, 2);
    expect_refused(story, &hello, "that generation has ended");
}

// Condition: all members but one have left, and the stream of that one has ended before its port
// was reached, so a refusal is no proof. Decision: a new world waits as long as a ballot would.
static void the_name_of_leavers_is_given_away_sooner(void **state)
{
    struct story *story = *state;
    run_world(story, 2);
    story_leave(story, 1, 0);
    story_cut(story, 2);
    story_probed(story, 2, false, true);
    struct up_hello fresh = story_hello("j", 2, "x");
    story_say_hello(story, 9, &fresh);
    assert_int_equal(story->last[9].kind, DOWN_REFUSED);
    story_sleep(story, LOCKSTEP_BALLOT_AWAY_MS);
    story_say_hello(story, 10, &fresh);
    assert_int_equal(story->last[10].kind, DOWN_WELCOME);
}

// Condition: the rebuilt job ends, and forms again. Decision: generation numbers go on.
static void generations_go_on_after_a_rebuilt_one(void **state)
{
    struct story *story = *state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct up_hello hello = foreign_hello(story, rank, 2);
        come_back(story, rank + 1, &hello);
    }
    story_lost(story, 2, 0, 10, false);
    for (uint32_t rank = 0; rank < 2; rank++) {
        char host[16];
        snprintf(host, sizeof(host), "n%u", rank);
        struct up_hello hello = story_hello("j", 2, host);
        story_say_hello(story, 20 + rank, &hello);
    }
    assert_int_equal(story->last[20].kind, DOWN_GENERATION);
    assert_int_equal(story->last[20].generation.number, 5);
    assert_int_not_equal(story->last[20].generation.incarnation, 0xabcdef);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stream_that_ends_is_silence),
        TEST(a_new_stream_replaces_the_old_one),
        TEST(a_refusal_is_proof_of_a_port_that_was_reached),
        TEST(a_goodbye_is_told_after_a_long_silence),
        TEST(a_death_in_a_long_silence_is_found),
        TEST(a_refusal_of_a_connected_member_is_nothing),
        TEST(a_report_ends_with_its_stream),
        TEST(a_verdict_is_said_again),
        TEST(wrong_members_are_refused),
        TEST(a_finished_job_takes_none_back),
        TEST(a_removed_rank_comes_back),
        TEST(a_removed_rank_comes_first),
        TEST(a_job_is_rebuilt),
        TEST(a_rank_that_left_before_is_not_awaited),
        TEST(leavers_that_never_came_have_left),
        TEST(a_rank_that_never_came_is_awaited),
        TEST(addresses_come_with_their_members),
        TEST(what_was_before_is_in_no_rate),
        TEST(who_stands_still_is_named_soon),
        TEST(a_culprit_that_comes_back_is_asked_again),
        TEST(who_does_not_come_back_has_no_name),
        TEST(half_needs_a_proof_after_a_restart),
        TEST(a_frozen_member_begins_a_ballot),
        TEST(a_stopped_coordinator_has_not_waited),
        TEST(a_rank_without_the_decision_is_carried_over),
        TEST(a_rank_without_the_decision_comes_first),
        TEST(a_rank_that_the_decision_removed_is_told),
        TEST(a_decision_that_was_lost_on_its_way),
        TEST(a_learning_step_goes_on),
        TEST(a_learning_step_begins_anew),
        TEST(the_longest_order_is_that_of_all),
        TEST(orders_that_differ_are_a_verdict),
        TEST(an_order_that_cannot_be),
        TEST(a_member_that_has_ended_comes_back),
        TEST(a_plan_that_only_some_have),
        TEST(a_step_that_is_over_is_said_again),
        TEST(plans_that_differ_are_a_verdict),
        TEST(a_plan_that_was_missed),
        TEST(a_living_generation_goes_before_gatherers),
        TEST(a_deserted_name_is_given_away),
        TEST(the_name_of_leavers_is_given_away_sooner),
        TEST(generations_go_on_after_a_rebuilt_one),
    };
    return cmocka_run_group_tests_name("coordinator_resume", tests, NULL, NULL);
}
