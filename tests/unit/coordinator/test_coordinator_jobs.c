// SPDX-License-Identifier: Apache-2.0
//
// Many jobs in one coordinator: limits and what makes room, draining, views, log lines.

#include "coordinator/view.h"
#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void join_job(struct story *story, uint32_t peer, const char *name, uint32_t world)
{
    const struct up_hello hello = story_hello(name, world, "a");
    story_say_hello(story, peer, &hello);
}

// Streams 1 to LOCKSTEP_MAX_JOBS, each alone in its job, of one or two workers.
static void fill_jobs(struct story *story, uint32_t world)
{
    for (uint32_t peer = 1; peer <= LOCKSTEP_MAX_JOBS; peer++) {
        char name[16];
        snprintf(name, sizeof(name), "job%" PRIu32, peer);
        join_job(story, peer, name, world);
    }
    story_forget(story);
}

static void test_too_many_jobs_are_refused(void **state)
{
    struct story *story = *state;
    fill_jobs(story, 1);
    join_job(story, 100, "more", 1);
    story_expect(story, "100 > hello job more world 1 host a\n"
                        "100 < refused (full): this coordinator has 64 jobs, its limit: wait until "
                        "one ends\n"
                        "100 closed\n");
}

static void test_the_oldest_deserted_job_makes_room(void **state)
{
    struct story *story = *state;
    fill_jobs(story, 1);
    story_leave(story, 20, 0); // Finished.
    story_close(story, 10, "reset"); // Halted.
    join_job(story, 100, "more", 1);
    assert_string_equal(story_job(story, 9).name, "job11");
    assert_string_equal(story_job(story, LOCKSTEP_MAX_JOBS - 1).name, "more");
    join_job(story, 101, "evenmore", 1);
    assert_string_equal(story_job(story, 18).name, "job21");
    join_job(story, 102, "toomuch", 1);
    story_expect_piece(story, "102 < refused (full)");
}

static void test_a_job_that_gathers_in_vain_makes_room(void **state)
{
    struct story *story = *state;
    fill_jobs(story, 2);
    story_close(story, 5, NULL);
    join_job(story, 100, "more", 1);
    story_expect_piece(story, "100 < generation 1:");
}

// A job that gathers in vain is not deserted while a worker of its past is connected.
static void test_workers_of_the_past_keep_a_job(void **state)
{
    struct story *story = *state;
    fill_jobs(story, 1);
    story_fail(story, 1, 1, HALT_PHASE, "over");
    join_job(story, 100, "job1", 2);
    story_close(story, 100, NULL);
    join_job(story, 101, "more", 1);
    story_expect_piece(story, "101 < refused (full)");
    story_leave(story, 1, 0);
    join_job(story, 102, "more", 1);
    story_expect_piece(story, "102 < generation 2:");
}

// Generation numbers only grow, also over the life of a job's record.
static void test_a_recycled_name_does_not_count_from_one_again(void **state)
{
    struct story *story = *state;
    fill_jobs(story, 1);
    for (uint32_t round = 0; round < 3; round++) {
        story_leave(story, round == 0 ? 1 : 99 + round, 0);
        join_job(story, 100 + round, round == 2 ? "again" : "job1", 1);
    }
    assert_int_equal(story->generation[101].number, 3);
    assert_int_equal(story->generation[102].number, 4);
}

static void test_too_many_workers_are_refused(void **state)
{
    struct story *story = *state;
    uint32_t peer = 1;
    story->quiet = true;
    for (uint32_t job = 0; job < LOCKSTEP_MAX_WORKERS / LOCKSTEP_MAX_WORLD; job++)
        for (uint32_t i = 0; i < LOCKSTEP_MAX_WORLD; i++) {
            char name[16];
            snprintf(name, sizeof(name), "job%" PRIu32, job);
            join_job(story, peer++, name, LOCKSTEP_MAX_WORLD);
        }
    story->quiet = false;
    join_job(story, peer, "more", 1);
    story_expect_piece(story, "refused (full): this coordinator has 4096 workers, its limit: use "
                              "another one\n");
    assert_int_equal(coordinator_job_count(story->core), 4);
    // The records of a job that everybody left are room too.
    story->quiet = true;
    for (uint32_t i = 1; i <= LOCKSTEP_MAX_WORLD; i++)
        story_leave(story, i, 0);
    story->quiet = false;
    join_job(story, peer + 1, "more", 1);
    story_expect_piece(story, "generation 2: rank 0 of 1"); // The floor of the recycled job is 1.
    assert_string_equal(story_job(story, 0).name, "job1");
}

static void test_draining_refuses_whoever_is_no_member(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    join_job(story, 3, "gathering", 2);
    story_forget(story);
    story_drain(story);
    join_job(story, 4, "late", 1);
    story_step_end(story, 1, 1);
    story_step_end(story, 2, 1);
    story_expect(story, "drain\n"
                        "3 < refused (draining): the coordinator is going down; open the session "
                        "again\n"
                        "3 closed\n"
                        "4 > hello job late world 1 host a\n"
                        "4 < refused (draining): the coordinator is going down; open the session "
                        "again\n"
                        "4 closed\n"
                        "1 > end step 1\n"
                        "2 > end step 1\n"
                        "1 < plan 1 closes step 1, slots 0 to 0 of 0, last:\n"
                        "2 < plan 1 closes step 1, slots 0 to 0 of 0, last:\n");
}

// ---- Views -----------------------------------------------------------------------------------

static void heartbeat(struct story *story, uint32_t peer, uint64_t step)
{
    struct up_message message = {
        .kind = UP_HEARTBEAT,
        .u.heartbeat = {.step = step,
                        .settled = step - 1,
                        .activity = ACTIVITY_IN_CALL,
                        .since_ms = 40,
                        .mark = "epoch 3",
                        .bytes_sent = 5,
                        .bytes_received = 6,
                        .totals = {step - 1, 1, 100 * step, 70 * step, 30 * step, 2, 3}},
    };
    story_say(story, peer, &message);
}

static void test_views_show_what_heartbeats_say(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    heartbeat(story, 1, 8);
    heartbeat(story, 2, 9);
    story->now_ms += 60;
    const struct job_view job = story_job(story, 0);
    assert_string_equal(job.name, "j");
    assert_string_equal(coordinator_job_state_name(job.state), "running");
    assert_int_equal(job.world_size, 2);
    assert_int_equal(job.joined, 2);
    assert_int_equal(job.step_min, 8);
    assert_int_equal(job.step_max, 9);
    assert_int_equal(job.messages_total, 2); // Heartbeats are not counted.
    const struct step_totals sums = {15, 2, 1700, 1190, 510, 4, 6};
    assert_memory_equal(&job.totals, &sums, sizeof(sums));
    const struct worker_view worker = story_worker(story, 0, 1);
    assert_int_equal(worker.rank, 1);
    assert_true(worker.has_rank);
    assert_string_equal(worker.host, "h2");
    assert_int_equal(worker.pid, 102);
    assert_int_equal(worker.step, 9);
    assert_int_equal(worker.settled, 8);
    assert_int_equal(worker.activity, ACTIVITY_IN_CALL);
    assert_int_equal(worker.activity_ms, 100);
    assert_int_equal(worker.heartbeat_age_ms, 60);
    assert_false(worker.frozen);
    assert_string_equal(worker.mark, "epoch 3");
    assert_int_equal(worker.bytes_received, 6);
    const struct step_totals totals = {8, 1, 900, 630, 270, 2, 3};
    assert_memory_equal(&worker.totals, &totals, sizeof(totals));
    // Only the last one counts.
    heartbeat(story, 2, 10);
    assert_int_equal(story_job(story, 0).totals.steps, 16);
}

static void test_missed_heartbeats_change_what_is_shown_and_nothing_else(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    heartbeat(story, 1, 1);
    story_forget(story);
    story_sleep(story,
                LOCKSTEP_HEARTBEAT_MS * LOCKSTEP_FROZEN_HEARTBEATS + LOCKSTEP_FROZEN_SLACK_MS);
    assert_false(story_worker(story, 0, 0).frozen);
    story_sleep(story, 1);
    assert_true(story_worker(story, 0, 0).frozen);
    assert_int_equal(story_job(story, 0).state, JOB_RUNNING);
    story_expect(story, "");
    heartbeat(story, 1, 1);
    assert_false(story_worker(story, 0, 0).frozen);
}

// Condition: the heartbeats of two ranks are of different steps, and the one has said that step 58
// is final on all ranks. Decision: both are shown at that step at least.
static void test_old_heartbeats_do_not_look_like_steps_apart(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    heartbeat(story, 1, 8);
    story->now_ms += 900;
    heartbeat(story, 2, 59);
    const struct job_view job = story_job(story, 0);
    assert_int_equal(job.settled, 58);
    assert_int_equal(job.settled_ms, story->now_ms);
    assert_int_equal(job.step_min, 58);
    assert_int_equal(job.step_max, 59);
    assert_int_equal(story_worker(story, 0, 0).step, 58);
    assert_int_equal(story_worker(story, 0, 0).settled, 7);
}

// The last heartbeats are older than the last step.
static void test_the_last_step_of_a_job_is_shown(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    heartbeat(story, 1, 8);
    heartbeat(story, 2, 9);
    assert_int_equal(story_job(story, 0).ended_ms, 0);
    story_leave(story, 1, 20);
    story->now_ms += 5;
    story_leave(story, 2, 20);
    const struct job_view job = story_job(story, 0);
    assert_int_equal(job.state, JOB_FINISHED);
    assert_int_equal(job.ended_ms, story->now_ms);
    assert_int_equal(job.settled, 20);
    assert_int_equal(job.step_min, 20);
    assert_int_equal(job.step_max, 20);
    assert_null(job.halt_kind);
    assert_int_equal(job.failed, 0);
}

static void test_an_end_has_a_cause(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    const uint64_t formed_ms = story_job(story, 0).formed_ms;
    assert_true(formed_ms > 0);
    story->now_ms += 5;
    story_close(story, 2, "reset");
    story->now_ms += 5;
    story_leave(story, 1, 3);
    const struct job_view job = story_job(story, 0);
    assert_int_equal(job.state, JOB_HALTED);
    assert_string_equal(job.halt_kind, "lost");
    assert_true(job.halt_has_rank);
    assert_int_equal(job.halt_rank, 1);
    assert_int_equal(job.ended_ms, story->now_ms - 5);
}

// Condition: a rank is killed, and the others end without a goodbye once they know. Decision: one
// rank is lost.
static void test_survivors_are_not_lost(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    heartbeat(story, 1, 8);
    heartbeat(story, 2, 9);
    story_close(story, 3, "reset");
    story_close(story, 1, "reset");
    story_leave(story, 2, 8);
    assert_int_equal(story_worker(story, 0, 0).step, 8);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(story_worker(story, 0, rank).lost, rank == 2);
        assert_int_equal(story_worker(story, 0, rank).left, rank != 2);
    }
    assert_int_equal(story_job(story, 0).left, 2);
    assert_int_equal(story_job(story, 0).halt_rank, 2);
}

// Condition: after a verdict the survivors' last heartbeats are of later steps than any before it.
// They end without a goodbye. Decision: the job is shown at the last of these steps.
static void test_the_last_step_of_a_halted_job_is_shown(void **state)
{
    struct story *story = *state;
    story_run(story, 3);
    for (uint32_t peer = 1; peer <= 3; peer++)
        heartbeat(story, peer, 105);
    story_close(story, 2, "reset");
    story->now_ms += 5;
    heartbeat(story, 1, 139);
    heartbeat(story, 3, 139);
    story_close(story, 1, "reset");
    story_close(story, 3, "reset");
    const struct job_view job = story_job(story, 0);
    assert_int_equal(job.settled, 138);
    assert_int_equal(job.settled_ms, story->now_ms);
    assert_int_equal(job.step_min, 138);
    assert_int_equal(job.step_max, 138);
    assert_int_equal(story_worker(story, 0, 1).step, 138);
}

// Condition: a job that was halted is joined by one worker of two, whose open timeout passes.
// Decision: the job is shown as halted again, with its reason.
static void test_a_worker_that_came_in_vain_hides_no_end(void **state)
{
    struct story *story = *state;
    story_run(story, 2);
    heartbeat(story, 1, 8);
    story_fail(story, 1, 9, HALT_PHASE, "over");
    story_leave(story, 1, 8);
    story_leave(story, 2, 8);
    const struct job_view before = story_job(story, 0);
    story_join(story, 3, "a");
    assert_int_equal(story_job(story, 0).state, JOB_GATHERING);
    assert_null(story_job(story, 0).halt_kind);
    story_sleep(story, LOCKSTEP_OPEN_TIMEOUT_MS);
    const struct job_view job = story_job(story, 0);
    assert_int_equal(job.state, JOB_HALTED);
    assert_string_equal(job.halt_kind, "phase");
    assert_string_equal(job.halt_text, before.halt_text);
    assert_int_equal(job.world_size, 2);
    assert_int_equal(job.joined, 0);
    assert_int_equal(job.ended_ms, before.ended_ms);
    assert_int_equal(job.settled, before.settled);
    assert_int_equal(job.step_max, before.settled);
}

// The same for a job that has finished. A job that no world has formed for shows nothing.
static void test_a_finished_job_stays_finished(void **state)
{
    struct story *story = *state;
    story_join(story, 1, "a");
    story_close(story, 1, NULL);
    assert_int_equal(story_job(story, 0).state, JOB_GATHERING);
    join_job(story, 2, "j", 1);
    story_leave(story, 2, 0);
    story_join(story, 3, "a");
    story_close(story, 3, NULL);
    assert_int_equal(story_job(story, 0).state, JOB_FINISHED);
    assert_int_equal(story_job(story, 0).world_size, 1);
    assert_int_equal(story_job(story, 0).generation.number, 1);
}

// Condition: a job runs again. Decision: it is the last one in the list, which is the latest.
static void test_a_job_that_runs_again_is_the_latest(void **state)
{
    struct story *story = *state;
    join_job(story, 1, "a", 1);
    join_job(story, 2, "b", 1);
    join_job(story, 3, "c", 1);
    assert_string_equal(story_job(story, 2).name, "c");
    story_leave(story, 1, 0);
    assert_string_equal(story_job(story, 0).name, "a");
    join_job(story, 4, "a", 1);
    assert_string_equal(story_job(story, 0).name, "b");
    assert_string_equal(story_job(story, 1).name, "c");
    assert_string_equal(story_job(story, 2).name, "a");
    assert_int_equal(story_job(story, 2).generation.number, 2);
}

static void test_views_of_what_is_not_there(void **state)
{
    struct story *story = *state;
    struct job_view job;
    struct worker_view worker;
    join_job(story, 1, "j", 2);
    assert_false(coordinator_job_view(story->core, 1, &job));
    assert_false(coordinator_worker_view(story->core, 0, 1, 0, &worker));
    assert_false(coordinator_worker_view(story->core, 1, 0, 0, &worker));
    assert_true(coordinator_worker_view(story->core, 0, 0, 0, &worker));
    assert_false(worker.has_rank);
    assert_int_equal(worker.activity, ACTIVITY_OPENING);
    assert_int_equal(story_job(story, 0).world_size, 2);
    assert_int_equal(story_job(story, 0).joined, 1);
}

static void test_a_life_in_log_lines(void **state)
{
    struct story *story = *state;
    story->logging = true;
    join_job(story, 1, "j", 2);
    join_job(story, 2, "j", 2);
    story_start(story, 1, 1, 1, 0);
    story_start(story, 2, 1, 1, 0);
    story_step_end(story, 1, 1);
    story_step_end(story, 2, 1);
    story_fail(story, 1, 2, HALT_PHASE, "\"policy\" here");
    story_expect(
        story, "1 > hello job j world 2 host a\n"
               "1 < welcome\n"
               "2 > hello job j world 2 host a\n"
               "2 < welcome\n"
               "1 < generation 1: rank 0 of 2, local 0 of 2, peers 1@w2\n"
               "2 < generation 1: rank 1 of 2, local 1 of 2, peers 0@w1\n"
               "log world_formed job=j generation=1 world=2 hosts=1 memory_groups=1\n"
               "1 > start hash 1 items 1 root 0\n"
               "2 > start hash 1 items 1 root 0\n"
               "1 < verified\n"
               "2 < verified\n"
               "log manifests_verified job=j generation=1 world=2\n"
               "1 > end step 1\n"
               "2 > end step 1\n"
               "1 < plan 1 closes step 1, slots 0 to 0 of 0, last:\n"
               "2 < plan 1 closes step 1, slots 0 to 0 of 0, last:\n"
               "log plan_published job=j generation=1 plan=1 step=1 slots=0 hash=a8c7f832281a39c5\n"
               "1 > fail phase step 2: \"policy\" here\n"
               "1 < halt phase step 2: rank 0 (host a): \"policy\" here\n"
               "2 < halt phase step 2: rank 0 (host a): \"policy\" here\n"
               "log generation_halted job=j generation=1 kind=phase step=2 text=\"rank 0 (host a): "
               "\\\"policy\\\" here\"\n");
    story_leave(story, 1, 1);
    story_leave(story, 2, 1);
    join_job(story, 3, "j", 1);
    story_forget(story);
    story_leave(story, 3, 0);
    story_expect(story, "3 > leave settled 0\n3 closed\nlog job_finished job=j generation=2\n");
    join_job(story, 4, "", 1);
    story_expect_piece(story, "log worker_refused text=\"'' is no job name: use 1 to 63 letters, "
                              "digits, '-', '_' and '.', not '.' or '..' alone\"\n");
}

static void test_the_memory_is_what_the_header_promises(void **state)
{
    (void)state;
    assert_in_range(coordinator_bytes(), 1, 344 * 1024 * 1024);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_too_many_jobs_are_refused),
        TEST(test_the_oldest_deserted_job_makes_room),
        TEST(test_a_job_that_gathers_in_vain_makes_room),
        TEST(test_workers_of_the_past_keep_a_job),
        TEST(test_a_recycled_name_does_not_count_from_one_again),
        TEST(test_too_many_workers_are_refused),
        TEST(test_draining_refuses_whoever_is_no_member),
        TEST(test_views_show_what_heartbeats_say),
        TEST(test_missed_heartbeats_change_what_is_shown_and_nothing_else),
        TEST(test_old_heartbeats_do_not_look_like_steps_apart),
        TEST(test_the_last_step_of_a_job_is_shown),
        TEST(test_an_end_has_a_cause),
        TEST(test_survivors_are_not_lost),
        TEST(test_the_last_step_of_a_halted_job_is_shown),
        TEST(test_a_worker_that_came_in_vain_hides_no_end),
        TEST(test_a_finished_job_stays_finished),
        TEST(test_a_job_that_runs_again_is_the_latest),
        TEST(test_views_of_what_is_not_there),
        TEST(test_a_life_in_log_lines),
        TEST(test_the_memory_is_what_the_header_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
